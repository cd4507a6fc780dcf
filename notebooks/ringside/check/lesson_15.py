"""Checks the answers of two losses."""

from collections.abc import Callable
from itertools import product

from .table import asks
from .verdict import attempt, says

KINDS = ["forward", "no_sync", "module", "backward"]


@asks(
    "what came while DDP slept stays on its rank",
    types="give numbers",
    first=(
        29,
        "first: not {:g}: backward b averages, and what does a add to it?",
        {
            27.5: "first: 27.5 needs two averages, and only one backward found DDP"
            " awake",
            44: "first: 44 is all its own: a forward woke DDP, so one backward"
            " averages",
            42.5: "first: 42.5 averages a; which backward comes first here?",
            25: "first: 25 is there after backward b; then backward a adds something",
            4: "first: gradients add up: what was there before backward a?",
        },
    ),
    second=(
        27.5,
        "second: not {:g}: there is one backward, and DDP is awake",
        {
            44: "second: 44 is all its own: but forward b woke DDP for the one"
            " backward",
            29: "second: 29 keeps a to itself: but the one backward averages all of it",
            42.5: "second: 42.5 keeps b to itself: but forward b woke DDP",
            25: "second: 25 leaves a out: no_sync skips the average, not the gradient",
        },
    ),
    third=(
        42.5,
        "third: not {:g}: backward a averages; who wakes DDP for b?",
        {
            27.5: "third: 27.5 needs two averages, and a forward of the module wakes"
            " nobody",
            44: "third: 44 is all its own: but forward a woke DDP for backward a",
            29: "third: 29 averages b: but its forward is the module's",
        },
    ),
)
def after_moves(first: float, second: float, third: float):
    """Check three predictions about rank 3 of four, after some moves."""


def right(moves: list[str]) -> list[bool]:
    """Return for each backward whether DDP averages in it."""
    awake, found = False, []
    for move in moves:
        awake = awake or move == "forward"
        if move == "backward":
            found.append(awake)
            awake = False
    return found


def why(moves: list[str], answer: list[bool]) -> str:
    """Return what the first wrong entry has not seen."""
    place = next(i for i, (a, b) in enumerate(zip(answer, right(moves))) if a != b)
    ends = [i for i, move in enumerate(moves) if move == "backward"]
    before = moves[ends[place - 1] + 1 if place else 0 : ends[place]]
    if "forward" in before:
        if before[-1] != "forward":
            return f"a forward woke DDP, and {before[-1]} does not put it to sleep"
        return "a forward has come since the last backward, so DDP is awake"
    if before:
        return f"{before[-1]} does not wake DDP"
    if place:
        return "no forward has come since the last backward"
    return "DDP sleeps until the first forward"


@says("a forward wakes DDP, and a backward sends it to sleep")
def averages(function: Callable) -> str | None:
    """Check averages(moves): which calls of backward average."""
    for size in range(5):
        for moves in map(list, product(KINDS, repeat=size)):
            case = f"averages({moves})"
            answer = attempt(f"{case}:", function, [*moves], into=list)
            if any(type(one) is not bool for one in answer):
                return f"{case} gave {answer}: give True or False for each backward"
            if len(answer) != moves.count("backward"):
                count = moves.count("backward")
                return f"{case} gave {answer}: there are {count} backwards in it"
            if answer != right(moves):
                return f"{case} gave {answer}: {why(moves, answer)}"
    return None


@asks(
    "awake, and on the list: else a gradient stays on its rank",
    types="give a, b, c and d, each True or False",
    a=(False, "a: both forwards come before the one backward, which averages the sum"),
    b=(True, "b: no forward has come since the first backward, so the second is alone"),
    c=(True, "c: the same seed gives equal weights, but DDP has them not on its list"),
    d=(False, "d: each backward has a forward of its own right before it"),
)
def drift(a: bool, b: bool, c: bool, d: bool):
    """Check in which of four trainings the ranks get different gradients."""
