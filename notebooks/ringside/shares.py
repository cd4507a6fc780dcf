"""Tells one step on a shared batch as states that flow draws.

A recording has one event for each rank, and one for a process that does all alone
(rank -1): the slopes of its samples, its gradient, the mean of all ranks' gradients,
and the weight before and after the step.
"""

from .recording import Recording

PHASES = {
    "start": (
        "The same weight everywhere, and in the middle all samples, "
        "each with its slope."
    ),
    "split": "Each rank takes every N-th sample, from its own place on.",
    "backward": (
        "Each rank finds the mean of its own slopes, and one process that of all."
    ),
    "all-reduce": (
        "Add up over all ranks, divide by their number: the mean of the means."
    ),
    "step": "The same weight and the same gradient make the same new weight.",
}


def states_of(events: Recording) -> Recording:
    """Return who holds what after each phase; behind a number, the ranks it is from."""
    ranks, found = range(events.header["ranks"]), []
    for event in events:
        rank, alone, (old, new) = event["rank"], event["rank"] < 0, event["w"]
        slopes = [
            [slope, i % len(ranks) if alone else rank]
            for i, slope in enumerate(event["slopes"])
        ]
        grad = [event["grad"]] if alone else [event["grad"], rank]
        mean = grad if alone else [event["mean"], *ranks]
        start = {"w": [[old]]}
        split = start | {"slopes": slopes}
        backward = split | {"grad": [grad]}
        reduced = split | {"grad": [mean]}
        stepped = reduced | {"w": [[new]]}
        held = split if alone else start, split, backward, reduced, stepped
        for step, (phase, holds) in enumerate(zip(PHASES, held)):
            state = {"step": step, "rank": rank, "phase": phase, "holds": holds}
            if alone and phase == "split":
                state["sends"] = [[other, "slopes"] for other in ranks]
            if phase == "all-reduce" and not alone:
                state["call"] = "all_reduce"
            found.append(state)
    return Recording(found, **events.header | {"picture": "flow", "phases": PHASES})
