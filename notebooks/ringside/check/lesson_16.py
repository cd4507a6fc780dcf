"""Checks the answers of workers and streams."""

from collections import Counter
from collections.abc import Callable
from itertools import product

from .table import Outside, asks
from .verdict import attempt, ints, says

CASES = list(product((1, 3, 4), (2, 1, 3), (11, 24, 2, 0)))  # ranks, workers, samples


@asks(
    "it skips four, and takes one in every six: 4 and 10",
    types="the answer is a list of samples, such as reads=[1, 2, 3]",
    reads=(
        {4, 10},
        "not {list}: how many places are there, and which is its own?",
        {
            (1, 4, 7, 10): "that is shared by rank alone, so both workers of rank 1"
            " read it",
            (1, 3, 5, 7, 9, 11): "that is shared by worker alone, so all ranks read it",
            (3, 9): "3 is worker 1 of rank 0's in the script: there the ranks come"
            " first",
            (4,): "it starts well; how long is the leap, and where does it end?",
            (10,): "it skips four samples, and 4 is the first that it takes",
            Outside(None, 12, "max"): "there is no sample {}: thirteen pass, 0 to 12",
        },
    ),
)
def worker_reads(reads: list[int]):
    """Check what worker 1 of 2, of rank 1 of 3, reads of thirteen samples."""


@says(f"each sample once, evenly, {len(CASES)} times")
def stream_parts(function: Callable) -> str | None:
    """Check my_part(rank, world_size, worker, workers, samples): any fair sharing."""
    for world_size, workers, samples in CASES:
        where = f"ranks {world_size}, workers {workers}, samples {samples}"
        parts = {}
        for rank, worker in product(range(world_size), range(workers)):
            given = rank, world_size, worker, workers, samples
            part = attempt(f"{where}:", function, *given, into=ints)
            parts[rank, worker] = part
        if wrong := unfair(parts, samples):
            return f"{where}: {wrong}"
    return None


def unfair(parts: dict[tuple[int, int], list[int]], samples: int) -> str | None:
    """Return what is wrong with the parts of all workers of all ranks, or None."""
    times = Counter(number for mine in parts.values() for number in mine)
    if strange := sorted(times.keys() - {*range(samples)}):
        return f"there is no sample {strange[0]}"
    for (rank, worker), mine in parts.items():
        for (other, helper), theirs in parts.items():
            if (rank, worker) < (other, helper) and {*mine} & {*theirs}:
                both = f"rank {rank}'s worker {worker} and "
                both += f"rank {other}'s worker {helper}"
                why = "who tells the ranks apart?" if worker == helper else ""
                why = "who tells workers apart?" if rank == other else why
                if {*mine} != {*theirs}:
                    why = "is the leap ranks × workers, and nothing padded?"
                return f"{both} both read {min({*mine} & {*theirs})}. {why}".strip()
    if never := [number for number in range(samples) if not times[number]]:
        return f"nobody reads {never[0]}: is the leap ranks × workers?"
    if twice := [number for number in times if times[number] > 1]:
        return f"one worker reads {twice[0]} more than once"
    sizes = [len(mine) for mine in parts.values()]
    if max(sizes) - min(sizes) > 1:
        return f"one worker reads {max(sizes)}, another {min(sizes)}"
    by_rank = Counter()
    for (rank, _), mine in parts.items():
        by_rank[rank] += len(mine)
    most, least = max(by_rank.values()), min(by_rank.values())
    if most - least > 1:
        return f"one rank reads {most}, another {least}: let the ranks come first"
    return None


@asks(
    "two rounds of 48 samples, and three steps for each rank in a round",
    like="steps=12",
    steps=(
        6,
        "steps is not {}: a round is 4 x 3 batches of 4 samples",
        {
            (7, 8, 9): "those are too many: the incomplete round is dropped, by all"
            " workers",
            2: "there are two rounds; in each, a rank gets a batch of all its workers",
            24: "24 batches are read by all ranks together; how many by one rank?",
            25: "100 samples make 25 batches, but four ranks share them",
        },
    ),
    dropped=(
        4,
        "dropped is not {}: how many of 100 are left after two rounds?",
        {
            0: "two rounds are 96 samples, and 100 pass",
            52: "there is room for two rounds in 100 samples, not for one only",
            1: "it is samples that are counted here, not batches",
        },
    ),
)
def rounds(steps: int, dropped: int):
    """Check the steps of a rank: 100 samples, 4 ranks, 3 workers, batches of 4."""
