"""Checks the answers of four ranks tonight."""

from .table import asks

CHANGES = {
    2: "each rank takes a whole batch: fewer steps",
    3: "all ranks read all samples",
    4: "nobody averages: unequal weights",
    5: "the second epoch has the order of the first",
}
RUNS = {"a": 4, "b": 3, "c": 2}  # which change each of them lacks


@asks(
    "unequal weights, all samples read twice, bites twice as large",
    like="a=4",
    **{
        run: (
            truth,
            f"{run}: answer with the number of a change, from 2 to 5",
            {(1, 6, 7): f"{run}: one of the changes 2 to 5 is missing, not {{}}"}
            | {
                change: f"{run}: without change {change}, {seen}, which is not so"
                for change, seen in CHANGES.items()
                if change != truth
            },
        )
        for run, truth in RUNS.items()
    },
)
def missing(a: int, b: int, c: int):
    """Check which change three tell-tales lack."""


@asks(
    "node 2, local_rank 1, one of 12 ranks",
    like="node=0",
    world_size=(
        12,
        "three nodes with four ranks do not make {}",
        {
            3: "3 is the number of nodes; world_size counts ranks",
            4: "4 ranks are on each node; world_size counts the ranks of all nodes",
        },
    ),
    node=(
        2,
        "rank 9 is not on node {}",
        {
            3: "nodes count from 0, so the third one is node 2",
            9: "9 is the rank: RANK is the number of a process, not of a machine",
            1: "node 1 has ranks 4 to 7",
        },
    ),
    local_rank=(
        1,
        "rank 9 is not number {} on its node",
        {
            9: "9 is the rank; local ranks begin anew on each node, and end at 3",
            2: "local ranks count from 0: rank 8 is the first on its node",
            0: "local rank 0 on that node is rank 8",
        },
    ),
)
def rank_9(node: int, local_rank: int, world_size: int):
    """Check three predictions: rank 9 of three nodes with four ranks each."""
