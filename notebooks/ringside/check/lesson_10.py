"""Checks the answers of ranks and messages."""

from collections.abc import Callable

import torch

from ..standins.threads import simulate
from .table import asks
from .verdict import attempt, says


@asks(
    "3, 8 and 20",
    types="each answer is one whole number",
    rank_2=(
        3,
        "{}: who has told rank 2 anything in step 1?",
        {
            6: "6 is what rank 2 has after step 2, when its own 3 has been added to 3",
            15: "15 is the sum of all, and rank 2 has it only in the way back",
            1: "1 is what rank 0 has: in step 1 it speaks to rank 1, not to rank 2",
        },
    ),
    chain_steps=(
        8,
        "not {}: one message in each step, there and back",
        {
            4: "4 steps, and rank 4 has the sum; but all are to know it",
            5: "5 ranks have 4 neighbours in a row, and all are to know the sum",
            10: "10 would be a full turn there and back; a chain has no link at its"
            " end",
        },
    ),
    circle_messages=(
        20,
        "not {}: steps, times those who send",
        {
            4: "4 is the number of steps; in each of them all five send",
            25: "25 is five steps; after four each has heard of all the others",
            12: "12 is for four ranks",
            5: "5 is one step; each needs the numbers of four others",
            8: "8 is the chain's",
        },
    ),
)
def five_talk(rank_2: int, chain_steps: int, circle_messages: int):
    """Check what five ranks know and send, in the chain and in the circle."""


@says("each has its left neighbour's number, and nobody hangs")
def in_turns(program: Callable) -> str | None:
    """Check a swap to the right whose send waits until the message is taken."""
    for size in (4, 2, 3, 5):
        case = f"with {size} ranks"
        mine = [torch.tensor([rank + 1]) for rank in range(size)]
        done = attempt(f"{case},", simulate, program, mine, True)  # send is blocking
        for rank, grad in enumerate(done.grads):
            left = (rank - 1) % size
            if grad.tolist() == [left + 1]:
                continue
            if grad.tolist() == [rank + 1]:
                if not sum(done.messages):
                    return "no rank has sent anything"
                asks = "does it receive, and change grad itself?"
                return f"{case}, rank {rank} still holds its own: {asks}"
            found = grad.tolist()[0] if grad.numel() == 1 else grad.tolist()
            if found == (rank + 1) % size + 1:
                return f"{case}, rank {rank} holds its right neighbour's number"
            if rank == 1 and found == size:
                why = "rank 0 received before it sent, and passed on what came"
                return f"{case}, rank 1 holds {found}, rank {size - 1}'s number: {why}"
            return f"{case}, rank {rank} holds {found}, not its left neighbour's number"
    return None


@says("each has a piece from each, in the order of ranks")
def piece_from_each(program: Callable) -> str | None:
    """Check an all-to-all that is written with send and recv."""
    for size in (4, 2, 3, 1):
        mine = [torch.arange(size) + 10 * (rank + 1) for rank in range(size)]
        case = f"with {size} rank{'s' * (size > 1)}"
        done = attempt(f"{case},", simulate, program, mine)
        for rank, grad in enumerate(done.grads):
            found = grad.tolist()
            right = [10 * (r + 1) + rank for r in range(size)]
            if found == right:
                continue
            if found == mine[rank].tolist():
                if not sum(done.messages):
                    return "no rank has sent anything"
                how = "change grad itself, as in grad[other] = ..."
                return f"{case}, rank {rank} still holds its own pieces: {how}"
            if sorted(found) == right:
                return f"{case}, rank {rank} has them out of order: {found}"
            if set(found) - {piece for own in mine for piece in own.tolist()}:
                return f"{case}, rank {rank} holds {found}: nothing is to be added"
            foreign = [value for value in found if value % 10 != rank]
            if not foreign:
                return f"{case}, rank {rank} has one of them twice: {found}"
            giver = foreign[0] // 10 - 1
            if giver == rank:
                place = f"where rank {found.index(foreign[0])}'s piece should be"
                return f"{case}, rank {rank} still holds its own {foreign[0]} {place}"
            told = f"{case}, rank {rank} got {foreign[0]} from rank {giver}"
            asks = "which piece was sent, and was it changed before?"
            return f"{told}, and that is for somebody else: {asks}"
        if sum(done.sent) > size * size * 8:
            return f"{case}, whole lists are sent: a piece for each is enough"
    return None
