"""Checks the answers of dice."""

from collections.abc import Callable
from itertools import product

from .table import asks
from .verdict import Mistake, attempt, says

CASES = [(1, 1), (4, 2), (3, 4), (8, 1), (2, 16)]  # ranks, and workers for each
EPOCHS = 4
DRAWS = {  # what is drawn at random: with equal dice or with its own, and why
    "order": ("equal", "the ranks share one order: in two orders, samples get lost"),
    "crops": ("own", "with equal dice, four ranks crop their samples in the same way"),
    "dropout": ("own", "with equal dice, all ranks switch off the same units"),
    "split": ("equal", "else a rank trains on what another one tests with"),
    "steps": ("equal", "DDP waits in each step for the gradients of every rank"),
}


@asks(
    "4, 12 and 6: many pairs of rank and worker have one sum",
    like="same_seed=12",
    same_seed=(
        4,
        "same_seed is not {}: the ids are 0 to 3, and all draw one number",
        {
            1: "a worker's seed is what was drawn plus its id, so a rank's own workers"
            " differ",
            3: "it isn't the rank that makes the difference here, it is the worker's"
            " id",
            12: "all ranks draw the same number, so worker 0 of each has one seed",
        },
    ),
    seed_plus_rank=(
        12,
        "seed_plus_rank is not {}: each rank draws a number of its own",
        {6: "what is drawn is not the seed 7 + r: three draws lie far apart"},
    ),
    rank_plus_worker=(
        6,
        "rank_plus_worker is not {}: sums go from 0 to 2 + 3",
        {12: "rank 0's worker 1 and rank 1's worker 0 have the same sum"},
    ),
)
def dice(same_seed: int, seed_plus_rank: int, rank_plus_worker: int):
    """Check how many different throws twelve workers make, seeded in three ways."""


@says(f"no two workers have one seed, in {EPOCHS} epochs, {len(CASES)} times")
def own_seeds(function: Callable) -> str | None:
    """Check own_seed(rank, worker, epoch, world_size, workers): unlike all others."""
    for world_size, workers in CASES:
        seen = {}
        where = f"{world_size} ranks with {workers} workers:"
        places = product(range(EPOCHS), range(world_size), range(workers))
        for epoch, rank, worker in places:
            given = rank, worker, epoch, world_size, workers
            seed = attempt(where, function, *given, into=a_seed)
            if attempt(where, function, *given, into=a_seed) != seed:
                return "called twice for the same worker, it returns two seeds"
            if seed in seen:
                return f"{where} {shared(seen[seed], (rank, worker, epoch), seed)}"
            seen[seed] = rank, worker, epoch
    return None


def a_seed(seed) -> int:
    """Return a seed that torch.manual_seed takes."""
    if not hasattr(seed, "__index__"):
        raise Mistake(f"a seed is a whole number, not {seed!r}")
    if not 0 <= int(seed) < 2**63:
        raise Mistake(f"a seed is from 0 to 2**63 - 1, not {seed}")
    return int(seed)


def shared(one: tuple[int, int, int], other: tuple[int, int, int], seed: int) -> str:
    """Return who have the same seed, and why."""
    (r, w, e), (rank, worker, epoch) = one, other
    if (r, w) == (rank, worker):
        who = f"rank {r}'s worker {w} has seed {seed} in epochs {e} and {epoch}"
        return f"{who}: the epoch has no say"
    who = f"rank {r}'s worker {w} and rank {rank}'s worker {worker} have seed {seed}"
    if e == epoch:
        return f"in epoch {e}, {who}"
    return f"in epochs {e} and {epoch}, {who}: leave room for all of an epoch"


@asks(
    "what all must agree on is equal; what varies the data or the model is own",
    types='each answer is "equal" or "own"',
    among=("equal", "own"),
    **{
        name: (right, f"{name} must be {right}: {why}")
        for name, (right, why) in DRAWS.items()
    },
)
def equal_or_own(order: str, crops: str, dropout: str, split: str, steps: str):
    """Check which random choices must be equal on all ranks, and which its own."""
