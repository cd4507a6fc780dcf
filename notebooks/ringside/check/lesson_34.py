"""Checks the answers of elastic restarts."""

from collections.abc import Callable

from .table import asks
from .verdict import attempt, integer, read, says

CASES = [  # after which steps crews die, steps, steps between saves; steps in all
    ([5], 12, 4, 13),
    ([], 12, 4, 12),
    ([8], 12, 4, 12),
    ([5, 6], 12, 4, 15),
    ([3, 3, 3], 12, 4, 21),
    ([7, 18, 19], 20, 10, 44),
]
number_of_steps = read("a number of steps, such as 13", integer)


@asks(
    "four processes start anew, from step 10; steps 11 to 13 are taken again",
    like="1",
    ended_by_the_agent=(
        3,
        "not {} workers: who is still alive?",
        {
            4: "the agent need not end the worker that is dead already",
            0: "the three others are alive: what does the agent do with them?",
        },
    ),
    started_anew=(
        4,
        "not {}: a crew has as many workers as there are ranks",
        {1: "a single new worker has nobody to meet: the old group is of no use"},
    ),
    goes_on_from=(
        10,
        "not from {}: 13 steps have two times 5 in them",
        {13: "steps 11 to 13 were in memory only: which step is in the file?"},
    ),
    taken_again=(3, "not {} steps are taken again, but those after 10, up to 13"),
)
def after_death(
    ended_by_the_agent: int, started_anew: int, goes_on_from: int, taken_again: int
):
    """Check what becomes of four workers when one is killed after step 13."""


@asks(
    "3 are left, 12 samples each, and the bad sample ends 4 crews",
    like="1",
    left=(
        3,
        "not {}: go through a, b and c, and ask of each whether a crew failed",
        {
            2: "a node that joins costs nothing",
            4: "node 1's workers fail too when their peers on node 2 are gone",
            5: "two crews failed: what does each cost?",
        },
    ),
    samples_each=(
        12,
        "not {}: two workers share the 24 samples of one batch",
        {
            6: "6 samples each was right while there were four workers",
            24: "24 is the batch of all workers together",
        },
    ),
    crews_ended=(
        4,
        "not {}: the crew at work fails, and each restart after it",
        {3: "the crew at work fails, too, before the first of the three restarts"},
    ),
)
def budget_of(left: int, samples_each: int, crews_ended: int):
    """Check a budget of five restarts, after two failures and a node that joins."""


@says(f"it counts the steps of {len(CASES)} jobs")
def steps_in_all(function: Callable) -> str | None:
    """Check steps_in_all(deaths, steps, every)."""
    for deaths, steps, every, right in CASES:
        where = f"deaths after {deaths}, {steps} steps, saved every {every}:"
        said = attempt(where, function, [*deaths], steps, every, into=number_of_steps)
        if said == right:
            continue
        if said == sum(deaths) + steps:
            return f"{where} a crew does not begin at step 0, if there is a file"
        if said == steps:
            return f"{where} some steps are taken more than once"
        if said == right - steps:
            return f"{where} {said} steps are taken again: add all the others"
        if deaths and said == right - steps + deaths[-1] // every * every:
            return f"{where} the last crew, which nobody kills, takes steps too"
        return f"{where} it is {right}, not {said}"
    return None
