"""Checks the answers of lesson 14."""

from collections.abc import Callable

from .verdict import attempt, says

CASES = [  # orders of the ranks, and what travels in each cycle
    (["abcd", "badc"], ["", "ab", "", "cd"]),
    (["abc", "abc"], ["a", "b", "c"]),
    (["abc", "cba"], ["", "b", "ac"]),
    (["abcd", "badc", "acbd"], ["", "a", "b", "cd"]),
    (["ab"], ["a", "b"]),
]


@says("the sum shrinks, and it is still divided by three", types="four whole numbers")
def joined(means: list[int]) -> str | None:
    """Check the means of 4, 3 and 2 batches whose gradients are 6."""
    if list(means) != [6, 6, 4, 2]:
        return {
            (6, 6, 6, 6): "6 to the end would divide by those that still have data",
            (18, 18, 12, 6): "these are the sums: allreduce averages",
            (6, 6, 4): "rank 0 has four batches",
            (6, 6, 2, 2): "in the third step two ranks still add 6",
        }.get(tuple(means), "a joined rank adds 0, and the sum is divided by three")
    return None


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
