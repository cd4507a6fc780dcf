"""Checks the answers of lesson 00."""

from .say import TODO, say


def rank_9(node: int, local_rank: int, world_size: int) -> None:
    """Check three predictions: rank 9 of three nodes with four ranks each."""
    answers = node, local_rank, world_size
    if ... in answers:
        say(TODO, "")
        return
    if any(type(answer) is not int for answer in answers):
        say("each answer is a whole number, such as node=0", "")
        return
    mistake = None
    if world_size != 12:
        mistake = {
            3: "3 is the number of nodes; world_size counts ranks",
            4: "4 ranks are on each node; world_size counts the ranks of all nodes",
        }.get(world_size, f"three nodes with four ranks do not make {world_size}")
    elif node != 2:
        mistake = {
            3: "nodes count from 0, so the third one is node 2",
            9: "9 is the rank: RANK is the number of a process, not of a machine",
            1: "node 1 has ranks 4 to 7",
        }.get(node, f"rank 9 is not on node {node}")
    elif local_rank != 1:
        mistake = {
            9: "9 is the rank; local ranks begin anew on each node, and end at 3",
            2: "local ranks count from 0: rank 8 is the first on its node",
            0: "local rank 0 on that node is rank 8",
        }.get(local_rank, f"rank 9 is not number {local_rank} on its node")
    say(mistake, "node 2, local_rank 1, one of 12 ranks")


def gpus(cuda_0: int, ranks_that_fail: list[int]) -> None:
    """Check two predictions: four ranks, each on cuda:rank, GPUs 4 and 6 visible."""
    if ... in (cuda_0, ranks_that_fail):
        say(TODO, "")
        return
    try:
        failing = sorted(ranks_that_fail)
    except TypeError:
        say("ranks_that_fail is a list, such as [0, 1]", "")
        return
    mistake = None
    if cuda_0 != 4:
        mistake = {
            0: "GPU 0 is not visible to this process at all",
            6: "GPU 6 comes second in the list, so it is cuda:1",
        }.get(cuda_0, f"cuda:0 is the first visible GPU, and that is not {cuda_0}")
    elif failing == [0, 1]:
        mistake = "ranks 0 and 1 find a device: cuda:0 and cuda:1 are there"
    elif failing == [0, 1, 2, 3]:
        mistake = "two GPUs are visible, as cuda:0 and cuda:1: two ranks find theirs"
    elif failing != [2, 3]:
        mistake = f"it is not {failing}: which of cuda:0 to cuda:3 exist?"
    say(
        mistake, "GPU 4 is cuda:0, and ranks 2 and 3 ask for devices that are not there"
    )
