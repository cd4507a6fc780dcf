"""Checks the answers of Horovod."""

import json
from collections.abc import Callable

from ..standins.horovod import Ended
from .table import asks
from .verdict import attempt, says
from .watched import Rank, launch

CASES = [  # orders of the ranks, and what travels in each cycle
    (["abcd", "badc"], ["", "ab", "", "cd"]),
    (["abc", "abc"], ["a", "b", "c"]),
    (["abc", "cba"], ["", "b", "ac"]),
    (["abcd", "badc", "acbd"], ["", "a", "b", "cd"]),
    (["ab"], ["a", "b"]),
]


@asks(
    "the sum shrinks, and it is still divided by three",
    types="four whole numbers",
    means=(
        [6, 6, 4, 2],
        "a joined rank adds 0, and the sum is divided by three",
        {
            (6, 6, 6, 6): "6 to the end would divide by those that still have data",
            (18, 18, 12, 6): "these are the sums: allreduce averages",
            (6, 6, 4): "rank 0 has four batches",
            (6, 6, 2, 2): "in the third step two ranks still add 6",
        },
    ),
)
def joined(means: list[int]):
    """Check the means of 4, 3 and 2 batches whose gradients are 6."""


@says(f"what travels in each cycle, for {len(CASES)} sets of orders")
def cycles(cycles: Callable) -> str | None:
    """Check a function that tells which names travel in each cycle."""
    for orders, right in CASES:
        case = f"{orders}:"
        found = attempt(case, cycles, [[*order] for order in orders], into=words)
        if len(found) != len(right):
            return f"{case} there are {len(right)} cycles, not {len(found)}"
        for number, (one, other) in enumerate(zip(found, right), start=1):
            if set(one) & set("".join(right[: number - 1])):
                return f"{case} in cycle {number}, {one!r} has names that went before"
            if sorted(one) == sorted(other) and one != other:
                return f"{case} cycle {number} is not in the order of rank 0"
            if one != other:
                goes = repr(other) if other else "nothing"
                return f"{case} in cycle {number} {goes} travels, not {one!r}"
    return None


def words(found) -> list[str]:
    """Return what travels as a word for each cycle."""
    return ["".join(names) for names in found]


@says("the same loss and weights, and each step sends its gradients once")
def moved(moved: Callable, horovod: Ended) -> str | None:
    """Check a training that was moved to DDP, by what Horovod's ranks printed."""
    want = [Rank(lines) for lines in horovod.lines]
    if not want[0].said("loss"):
        return "what Horovod printed has no line 'loss': run the cells above again"
    ranks = launch(moved, 2)
    for number, rank in enumerate(ranks):
        if not (rank.said("loss") and weights_of(rank)):
            return f"rank {number} does not print 'loss …' and 'weights […]'"
    for step, grads in enumerate(zip(*(rank.grads for rank in ranks)), 1):
        if grads[0] != grads[1]:
            return f"in step {step} the ranks step with different gradients"
    if any(off(a, b) for a, b in zip(weights_of(ranks[0]), weights_of(want[0]))):
        told = "clip what is averaged, and divide each loss by two"
        return f"the weights are {weights_of(ranks[0])}, and not Horovod's: {told}"
    losses, mean = [rank.said("loss")[-1] for rank in ranks], want[0].said("loss")[-1]
    if off(losses[0], 2 * mean) == off(losses[1], 2 * mean) is False:
        return "the loss is twice Horovod's: all_reduce sums"
    if off(losses[0], mean) or off(losses[1], mean):
        return f"the losses are {losses[0]} and {losses[1]}, and Horovod's mean {mean}"
    sent = ranks[0].calls.count("all_reduce")
    if sent > len(ranks[0].grads) + 1:
        return f"right numbers, but {sent} all-reduces in 10 steps: see no_sync"
    return None


def weights_of(rank: Rank) -> list[float]:
    """Return the weights that a rank printed."""
    found = [line for line in rank.lines if line.startswith("weights ")]
    return json.loads(found[-1].removeprefix("weights ")) if found else []


def off(one: float, other: float) -> bool:
    """Say whether two rounded numbers differ by more than their last digit."""
    return abs(one - other) > 2e-6
