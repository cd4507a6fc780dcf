"""Checks the answers of sharded checkpoints."""

from collections.abc import Callable
from itertools import product

from .table import asks
from .verdict import attempt, ints, says

CASES = list(product((12, 10, 5, 1), (4, 3, 1), (2, 3, 6)))  # numbers, old, new ranks
SURVIVES = {  # on fewer ranks: what becomes of it, and why
    "weights": ("same", "a file does not round"),
    "samples": ("same", "ranks x batch is one batch of one process"),
    "later_weights": (
        "rounding",
        "a sum of two parts is rounded otherwise than of four",
    ),
    "dropout": ("other", "two ranks have two generators, and four had four"),
    "crops": ("same", "epoch and sample know nothing of ranks"),
}


@asks(
    "1, 2 and 8: 5 and 6 are in file 1, 7 and 8 in file 2, and 4 x 6 = 3 x 8",
    like="last_of_four=2",
    last_of_four=(
        1,
        "last_of_four is not {}: 3, 3 and 3 go first",
        {(2, 3): "10 / 4 is rounded up to 3: what is left for the last rank?"},
    ),
    files_of_rank_1=(
        2,
        "not {} files: in which are 5, 6, 7 and 8?",
        {
            (3, 4): "a rank reads only the files that have a number it needs: 5 to 8",
            1: "5 and 6 are in file 1. Are 7 and 8 there, too?",
        },
    ),
    batch_of_three=(
        8,
        "not {}: 4 x 6 = 24 samples a step, now on three ranks",
        {6: "with batches of 6, three ranks take 18 samples a step, not 24"},
    ),
)
def ten_numbers(last_of_four: int, files_of_rank_1: int, batch_of_three: int):
    """Check how ten numbers lie on four ranks, and then on three."""


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


@asks(
    "only the dice of the ranks are others, and sums are rounded otherwise",
    types='each answer is "same", "rounding" or "other"',
    among=("same", "rounding", "other"),
    **{
        name: (right, f"{name} must be {right!r}: {why}")
        for name, (right, why) in SURVIVES.items()
    },
)
def survives(weights: str, samples: str, later_weights: str, dropout: str, crops: str):
    """Check what stays the same when a job goes on with fewer ranks."""
