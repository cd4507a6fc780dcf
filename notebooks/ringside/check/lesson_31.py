"""Checks the answers of two nodes."""

from collections.abc import Callable
from math import inf, isclose

from .table import asks
from .verdict import attempt, says


@asks(
    "as text, gpu10 comes before gpu2, so gpu2 has the last four ranks",
    like="group_of_gpu2=0",
    group_of_gpu2=(
        2,
        "there are three nodes: 0, 1 and 2",
        {
            1: "1 is its place if names were numbers; they are sorted as text",
            0: "they meet at gpu2, but the place where they meet gives no number",
            3: "group ranks begin at 0",
        },
    ),
    first_on_gpu10=(
        4,
        "rank {} is not the first on its node",
        {
            8: "8 is the first rank of group rank 2: sort the names as text",
            1: "1 is the group rank of gpu10; each node before it has four ranks",
            5: "ranks begin at 0: the node before it has 0 to 3",
        },
    ),
    last_on_gpu2=(
        11,
        "rank = group rank * 4 + local rank",
        {
            3: "3 is the local rank: add the ranks of the two nodes before",
            7: "7 is on group rank 1, which is gpu10",
            12: "there are twelve ranks, from 0 to 11",
        },
    ),
)
def three_names(group_of_gpu2: int, first_on_gpu10: int, last_on_gpu2: int):
    """Check three predictions for nodes that are sorted by their names."""


@says("in order two neighbours cross, in turns all of them")
def crossing_bytes(function: Callable) -> str | None:
    """Check crossing_bytes(order, nodes, size), for several rings."""
    cases = [([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2]), ([0, 1], [0, 0])]
    cases += [([0, 1, 2, 3], [0, 0, 1, 1]), ([0, 2, 1, 3], [0, 0, 1, 1])]
    cases += [([5, 3, 1, 0, 2, 4], [0, 0, 0, 1, 1, 1]), ([0, 1], [0, 1])]
    for order, nodes in cases:
        ranks, size = len(order), 600 * len(order)
        case = f"crossing_bytes({order}, {nodes}, {size})"
        got = attempt(f"{case}:", function, order, nodes, size, into=int)
        pairs = [*zip(order, order[1:] + order[:1])]
        ends = [nodes[one] != nodes[other] for one, other in pairs]
        right = sum(ends) * 2 * (ranks - 1) * 600
        if got == right:
            continue
        if got == sum(ends[:-1]) * 2 * (ranks - 1) * 600:
            return f"{case} gave {got}: the last one sends to the first one, too"
        if got == right // 2:
            return f"{case} gave {got}: that is one half of the 2 (N - 1) steps"
        if got == right * ranks:
            return f"{case} gave {got}: a message is one chunk, not all"
        if got == ranks * 2 * (ranks - 1) * 600:
            return f"{case} gave {got}: those are all messages, not those that cross"
        by_rank = [nodes[r] != nodes[(r + 1) % ranks] for r in range(ranks)]
        if got == sum(by_rank) * 2 * (ranks - 1) * 600:
            return f"{case} gave {got}: go by the order, not by the ranks' numbers"
        return f"{case} gave {got}, not {right}"
    return None


@says("below it, the bytes that are saved would take longer than the hook")
def wins_below(function: Callable) -> str | None:
    """Check wins_below(size, part, cost_ms): the border in MB/s."""
    for size, part, cost in ((1e8, 0.25, 20), (8_400_000, 0.5, 10), (4e6, 0.01, 50)):
        case = f"wins_below({size:g}, {part}, {cost})"
        got = attempt(f"{case}:", function, size, part, cost, into=float)
        right = size * (1 - part) / cost / 1000
        if isclose(got, right, rel_tol=1e-6):
            continue
        if isclose(got, size * part / cost / 1000, rel_tol=1e-6):
            return f"{case} gave {got:g}: those are the bytes sent, not those saved"
        for factor, what in ((1000, "kB/s"), (1e6, "bytes per second"), (8, "Mbit/s")):
            if isclose(got, right * factor, rel_tol=1e-6):
                return f"{case} gave {got:g}: those are {what}; MB/s are asked"
        if isclose(got, size / cost / 1000, rel_tol=1e-6):
            return f"{case} gave {got:g}: the hook still sends a part"
        return f"{case} gave {got:g}, not {right:g} MB/s"
    if attempt("wins_below(1000000.0, 0.5, 0):", function, 1e6, 0.5, 0) == inf:
        return None
    return 'a hook that costs nothing wins on every link: return float("inf")'
