"""Checks the answers of hangs."""

from collections.abc import Callable

from .table import Outside, asks
from .verdict import attempt, integer, read, says

PEER, READ = "Connection closed by peer", "Read error: Connection reset by peer"
LATE, OWN = "Timed out waiting 60000ms for recv", "CUDA out of memory"
CASES = [  # errors by rank, the earliest first; number of ranks; the rank at fault
    ([(2, OWN), (0, PEER), (1, PEER)], 3, 2),
    ([(0, PEER), (2, READ), (1, OWN)], 3, 1),
    ([(0, PEER), (1, OWN), (2, "KeyError: 'loss'")], 4, 1),
    ([(3, LATE), (0, PEER), (1, READ)], 4, 2),
    ([(0, LATE), (1, LATE), (2, PEER)], 4, 3),
    ([(1, PEER)], 2, 0),
    ([(0, OWN)], 1, 0),
]
one_rank = read("a rank, such as 2", integer)


@asks(
    "the killed one, the silent one, and the one with another call",
    like="1",
    before=[
        (
            {f"job_{job}": Outside(0, 3)},
            f"job {job} has ranks 0 to 3, and no rank {{job_{job}}}",
        )
        for job in "abc"
    ],
    job_a=(2, "rank {} lost a peer in job a: it is a witness. Who was killed?"),
    job_b=(
        0,
        "rank {} lost a peer in job b, for rank 1 had raised. Why had it?",
        {1: "rank 1 waited for somebody in job b: who has not raised at all?"},
    ),
    job_c=(3, "all have begun 17 calls in job c: whose last call is another one?"),
)
def guilty(job_a: int, job_b: int, job_c: int):
    """Check which ranks are at fault in three jobs."""


@asks(
    "30, 10, 2 and 0: the group's own limit counts, if nobody dies",
    like="1",
    before=[
        (
            {"gloo": 10, "nccl": 30},
            "the other way round: NCCL's limit is the shorter one",
        )
    ],
    gloo=(30, "gloo does not wait {} minutes: the cell above printed its default"),
    nccl=(10, "NCCL does not wait {} minutes: it stands in the table of limits"),
    own_group=(
        2,
        "not {} minutes: which group makes the call?",
        {5: "the call is made in a group that has a limit of its own"},
    ),
    rank_dies=(
        0,
        "not {} minutes: what does torchrun do when a rank fails?",
        {30: "no time-out is needed: rank 1 is gone, and torchrun sees that"},
    ),
)
def limits(gloo: int, nccl: int, own_group: int, rank_dies: int):
    """Check after how many minutes four waits end."""


@says(f"it finds the rank at fault in {len(CASES)} jobs")
def at_the_root(function: Callable) -> str | None:
    """Check at_the_root(errors, world_size)."""
    for errors, world_size, fault in CASES:
        told = ", ".join(f"rank {rank}: {text}" for rank, text in errors)
        where = f"of {world_size} ranks, {told}:"
        said = attempt(where, function, list(errors), world_size, into=one_rank)
        if said == fault:
            continue
        texts = dict(errors)
        if said in texts and "Timed out" in texts[said]:
            return f"{where} rank {said} timed out, so it waited for another one"
        if said in texts and "by peer" in texts[said]:
            return f"{where} rank {said} lost a peer: it is a witness"
        if said in texts:
            return f"{where} rank {said} raised later than rank {fault}"
        return f"{where} it is rank {fault}, not {said}"
    return None
