"""Checks the answers of the ring."""

from collections.abc import Callable

import torch

from ..standins.threads import simulate
from .table import asks
from .verdict import attempt, says


@asks(
    "chunk 4, 8 messages, 160 bytes",
    like="chunk=2",
    chunk=(
        4,
        "rank 3 does not end scatter-reduce with {}",
        {
            3: "chunk 3 is what torch's reduce_scatter hands to rank 3; the ring ends"
            " one further on",
            2: "chunk 2 is complete on rank 1: rank r ends with chunk r + 1",
            1: "chunk 1 is complete on rank 0: rank r ends with chunk r + 1",
            0: "chunk 0 is complete on rank 4: rank r ends with chunk r + 1",
        },
    ),
    messages=(
        8,
        "{} messages is not right",
        {
            6: "6 would do for four ranks: a phase has N - 1 steps, and N is 5",
            4: "4 messages are one phase; allgather needs as many again",
            10: "10 would be N steps in each phase; the last one brings nothing new",
            5: "5 would be N steps of one phase: it is N - 1 steps, twice",
        },
    ),
    bytes_sent=(
        160,
        "{} bytes is not right",
        {
            150: "150 would be right for four ranks; a fifth of 100 bytes goes in a"
            " message",
            20: "20 bytes is one message, a fifth of 100; count all of them",
            80: "80 bytes are one phase; allgather sends as many again",
            800: "800 is 8 messages of 100 bytes, but a message is one chunk: 20 bytes",
            200: "200 would be 10 messages of 20 bytes: count the messages again",
            100: "100 is the size of the gradient: 8 messages of 20 bytes are more",
        },
    ),
)
def five_ranks(chunk: int, messages: int, bytes_sent: int):
    """Check three predictions: five ranks, 100 bytes, the place of rank 3."""


@says("all ranks hold it, and each link is used once")
def ring_broadcast(program: Callable) -> str | None:
    """Check a program that passes rank 0's tensor round the ring."""
    for size in (4, 2, 5, 1):
        case = f"with {size} rank{'s' * (size > 1)}"
        grads = [torch.full((3,), 10**rank) for rank in range(size)]
        done = attempt(f"{case},", simulate, program, grads)
        if done.grads[0].tolist() != [1, 1, 1]:
            return f"{case}, rank 0 no longer holds its own numbers"
        for rank, grad in enumerate(done.grads):
            if grad.tolist() == [10**rank] * 3 and rank:
                if sum(done.messages) == 0:
                    return "no rank has sent anything"
                must = "it must change grad itself, as in grad.copy_(...)"
                return f"{case}, rank {rank} still holds its own numbers: {must}"
            if grad.tolist() != [1, 1, 1]:
                case = f"{case}, rank {rank} holds {grad.tolist()}"
                if grad[0] == 10 ** (rank - 1):
                    return f"{case}: rank {rank - 1} sent before it had received"
                return f"{case}: what came belongs in the place of its own numbers"
        if done.messages[0] > 1:
            return "rank 0 sends more than once: it may only pass on to its right"
        if sum(done.messages) > size - 1:
            return f"{case}, the last one sends too, to a rank that knows"
    return None


@says("nothing lost, nothing twice, sizes differ by 1 at most")
def uneven_chunks(bounds: Callable) -> str | None:
    """Check a function that cuts numel numbers into one chunk for each rank."""
    for numel, size in ((8, 4), (10, 4), (3, 4), (0, 2), (7, 1), (100, 7)):
        case = f"bounds({numel}, {size})"
        pairs = attempt(f"{case}:", bounds, numel, size, into=list)
        if odd := [p for p in pairs if not isinstance(p, (tuple, list)) or len(p) != 2]:
            return f"{case} has {odd[0]!r}: a chunk is a pair, (start, end)"
        if any(type(edge) is not int for pair in pairs for edge in pair):
            return f"{case} has an edge that is not a whole number"
        if len(pairs) != size:
            return f"{case} gave {len(pairs)} chunks for {size} ranks"
        seen = [i for start, end in pairs for i in range(start, end)]
        if numel and [i for a, z in pairs for i in range(a, z + 1)] == [*range(numel)]:
            return f"{case}: end is one past the last number, as in a slice"
        if lost := sorted(set(range(numel)) - set(seen)):
            return f"{case} leaves out number {lost[0]}: it would never be added"
        if len(seen) > numel:
            return f"{case} has a number in two chunks: it would be added twice"
        if seen != list(range(numel)):
            return f"{case} has the numbers out of order"
        sizes = [end - start for start, end in pairs]
        if max(sizes) - min(sizes) > 1:
            return f"{case} has chunks of {sizes}: the largest sets the pace"
    return None
