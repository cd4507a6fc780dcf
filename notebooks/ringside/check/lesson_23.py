"""Checks the answers of sharded checkpoints."""

from collections.abc import Callable
from itertools import product

from .verdict import attempt, ints, says

CASES = list(product((12, 10, 5, 1), (4, 3, 1), (2, 3, 6)))  # numbers, old, new ranks
SURVIVES = {  # on fewer ranks, and why it stays the same, or not
    "weights": "a file does not round",
    "samples": "ranks x batch is one batch of one process",
    "later_weights": "a sum of two parts is rounded otherwise than of four",
    "dropout": "two ranks have two generators, and four had four",
    "crops": "epoch and sample know nothing of ranks",
}


@says(
    "1, 2 and 8: 5 and 6 are in file 1, 7 and 8 in file 2, and 4 x 6 = 3 x 8",
    like="last_of_four=2",
)
def ten_numbers(
    last_of_four: int, files_of_rank_1: int, batch_of_three: int
) -> str | None:
    """Check how ten numbers lie on four ranks, and then on three."""
    if last_of_four in (2, 3):
        return "10 / 4 is rounded up to 3: what is left for the last rank?"
    if last_of_four != 1:
        return f"last_of_four is not {last_of_four}: 3, 3 and 3 go first"
    if files_of_rank_1 in (3, 4):
        return "a rank reads only the files that have a number it needs: 5 to 8"
    if files_of_rank_1 == 1:
        return "5 and 6 are in file 1. Are 7 and 8 there, too?"
    if files_of_rank_1 != 2:
        return f"not {files_of_rank_1} files: in which are 5, 6, 7 and 8?"
    if batch_of_three == 6:
        return "with batches of 6, three ranks take 18 samples a step, not 24"
    if batch_of_three != 8:
        return f"not {batch_of_three}: 4 x 6 = 24 samples a step, now on three ranks"
    return None


@says(f"it names the right files, {len(CASES)} times")
def files_to_read(function: Callable) -> str | None:
    """Check files_to_read(numel, old_ranks, new_ranks, rank)."""
    for numel, old_ranks, new_ranks in CASES:
        old, new = -(-numel // old_ranks), -(-numel // new_ranks)
        for rank in range(new_ranks):
            mine = range(rank * new, min((rank + 1) * new, numel))
            right = sorted({number // old for number in mine})
            where = f"{numel} numbers, {old_ranks} ranks, then rank {rank} of "
            where += f"{new_ranks}:"
            given = numel, old_ranks, new_ranks, rank
            said = attempt(where, function, *given, into=ints)
            if said == right:
                continue
            if not right:
                return f"{where} it has no numbers, so it reads no file, not {said}"
            if sorted(set(said)) == right:
                return f"{where} each file once, and in order: {right}, not {said}"
            if any(file >= old_ranks for file in said):
                return f"{where} there is no file {max(said)}"
            return f"{where} it reads {right}, not {said}"
    return None


@says("only the dice of the ranks are others, and sums are rounded otherwise")
def survives(
    weights: str, samples: str, later_weights: str, dropout: str, crops: str
) -> str | None:
    """Check what stays the same when a job goes on with fewer ranks."""
    answers = weights, samples, later_weights, dropout, crops
    if any(answer not in ("same", "rounding", "other") for answer in answers):
        return 'each answer is "same", "rounding" or "other"'
    for answer, (name, why) in zip(answers, SURVIVES.items()):
        right = {"later_weights": "rounding", "dropout": "other"}.get(name, "same")
        if answer != right:
            return f"{name} must be {right!r}: {why}"
    return None
