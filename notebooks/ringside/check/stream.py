"""Checks the answers of lesson 07b."""

from collections import Counter
from collections.abc import Callable
from itertools import product

from .say import TODO, say, untouched

CASES = list(product((1, 3, 4), (2, 1, 3), (11, 24, 2, 0)))  # ranks, workers, samples


def worker_reads(reads: list[int]) -> None:
    """Check what worker 1 of 2, of rank 1 of 3, reads of thirteen samples."""
    if reads is ...:
        say(TODO, "")
        return
    try:
        found = [int(number) for number in reads]
    except (TypeError, ValueError):
        say("the answer is a list of samples, such as reads=[1, 2, 3]", "")
        return
    mistakes = {
        (
            1,
            4,
            7,
            10,
        ): "that is shared by rank alone, so both workers of rank 1 read it",
        (1, 3, 5, 7, 9, 11): "that is shared by worker alone, so all ranks read it",
        (3, 9): "3 is worker 1 of rank 0's in the script: there the ranks come first",
        (4,): "it starts well; how long is the leap, and where does it end?",
        (10,): "it skips four samples, and 4 is the first that it takes",
    }
    mistake = mistakes.get(tuple(sorted(found)))
    if not mistake and found and max(found) > 12:
        mistake = f"there is no sample {max(found)}: thirteen pass, 0 to 12"
    elif not mistake and sorted(found) != [4, 10]:
        mistake = f"not {found}: how many places are there, and which is its own?"
    say(mistake, "it skips four, and takes one in every six: 4 and 10")


def stream_parts(function: Callable) -> None:
    """Check my_part(rank, world_size, worker, workers, samples): any fair sharing."""
    say(parts_mistake(function), f"each sample once, evenly, {len(CASES)} times")


def parts_mistake(function: Callable) -> str | None:
    """Return what is wrong with a way to share a stream, or None."""
    if untouched(function):
        return TODO
    for world_size, workers, samples in CASES:
        where = f"ranks {world_size}, workers {workers}, samples {samples}"
        parts = {}
        for rank, worker in product(range(world_size), range(workers)):
            try:
                answer = function(rank, world_size, worker, workers, samples)
                if answer is None:
                    return f"{where}: it returned None"
                parts[rank, worker] = [int(number) for number in answer]
            except Exception as error:  # noqa: BLE001 it is the learner's
                return f"{where}: it raised {type(error).__name__}: {error}"
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
                both = (
                    f"rank {rank}'s worker {worker} and rank {other}'s worker {helper}"
                )
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
    return None


def dice(same_seed: int, seed_plus_rank: int, rank_plus_worker: int) -> None:
    """Check how many different throws twelve workers make, seeded in three ways."""
    answers = (same_seed, seed_plus_rank, rank_plus_worker)
    if ... in answers:
        say(TODO, "")
        return
    if not all(type(answer) is int for answer in answers):
        say("each answer is a whole number, such as same_seed=12", "")
        return
    mistake = None
    if same_seed == 1:
        mistake = (
            "a worker's seed is what was drawn plus its id, "
            "so a rank's own workers differ"
        )
    elif same_seed == 3:
        mistake = (
            "it isn't the rank that makes the difference here, it is the worker's id"
        )
    elif same_seed == 12:
        mistake = "all ranks draw the same number, so worker 0 of each has one seed"
    elif same_seed != 4:
        mistake = (
            f"same_seed is not {same_seed}: the ids are 0 to 3, and all draw one number"
        )
    elif seed_plus_rank == 6:
        mistake = "what is drawn is not the seed 7 + r: three draws lie far apart"
    elif seed_plus_rank != 12:
        mistake = (
            f"seed_plus_rank is not {seed_plus_rank}: "
            "each rank draws a number of its own"
        )
    elif rank_plus_worker == 12:
        mistake = "rank 0's worker 1 and rank 1's worker 0 have the same sum"
    elif rank_plus_worker != 6:
        mistake = f"rank_plus_worker is not {rank_plus_worker}: sums go from 0 to 2 + 3"
    say(mistake, "4, 12 and 6: many pairs of rank and worker have one sum")
