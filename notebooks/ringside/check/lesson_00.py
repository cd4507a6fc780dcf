"""Checks the answers of four ranks tonight."""

from .verdict import says

CHANGES = {
    2: "each rank takes a whole batch: fewer steps",
    3: "all ranks read all samples",
    4: "nobody averages: unequal weights",
    5: "the second epoch has the order of the first",
}


@says("unequal weights, all samples read twice, bites twice as large", like="a=4")
def missing(a: int, b: int, c: int) -> str | None:
    """Check which change three tell-tales lack."""
    for run, (given, truth) in {"a": (a, 4), "b": (b, 3), "c": (c, 2)}.items():
        if given == truth:
            continue
        if given in (1, 6, 7):
            return f"{run}: one of the changes 2 to 5 is missing, not {given}"
        if given not in CHANGES:
            return f"{run}: answer with the number of a change, from 2 to 5"
        return f"{run}: without change {given}, {CHANGES[given]}, which is not so"
    return None


@says("node 2, local_rank 1, one of 12 ranks", like="node=0")
def rank_9(node: int, local_rank: int, world_size: int) -> str | None:
    """Check three predictions: rank 9 of three nodes with four ranks each."""
    if world_size != 12:
        return {
            3: "3 is the number of nodes; world_size counts ranks",
            4: "4 ranks are on each node; world_size counts the ranks of all nodes",
        }.get(world_size, f"three nodes with four ranks do not make {world_size}")
    if node != 2:
        return {
            3: "nodes count from 0, so the third one is node 2",
            9: "9 is the rank: RANK is the number of a process, not of a machine",
            1: "node 1 has ranks 4 to 7",
        }.get(node, f"rank 9 is not on node {node}")
    if local_rank != 1:
        return {
            9: "9 is the rank; local ranks begin anew on each node, and end at 3",
            2: "local ranks count from 0: rank 8 is the first on its node",
            0: "local rank 0 on that node is rank 8",
        }.get(local_rank, f"rank 9 is not number {local_rank} on its node")
    return None
