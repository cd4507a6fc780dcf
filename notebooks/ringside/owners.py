"""Tells whose the numbers are that ranks hold, as states that flow draws.

A recording has plain numbers. Messages have a place for each rank, with what it gave; a
weight or a buffer is of the rank that had the same number first.
"""

from .recording import Recording, table

WAYS = {
    "numbers": "Each rank has one number: its rank + 1.",
    "there": "Chain: each adds its own to what comes from the left.",
    "back": "Chain: the last one has the sum, and it is passed back.",
    "circle": "Circle: all pass on, to the right, what came last, and add it.",
}
HABITS = {
    "made": "Every rank makes its model, and no two are alike.",
    "wrapped": "DDP copies rank 0's weights and buffers to all.",
    "changed": "By hand, every rank changes both again.",
    "forward": "DDP copies rank 0's buffers once more, but no weights.",
    "backward": "DDP averages the gradients, of whatever weights there are.",
}
HAVE = {
    "numbers": "Each rank has one number: its rank + 1.",
    "pieces": "A piece for each rank: 10 (rank + 1) + the number of who is to get it.",
}
TOGETHER = {
    "broadcast": "Everyone gets the root's number.",
    "gather": "The root gets the numbers of all.",
    "reduce": "The root gets the sum of the numbers of all.",
    "all_gather": "Everyone gets the numbers of all.",
    "all_reduce": "Everyone gets the sum of the numbers of all.",
    "scatter": "Everyone gets its piece from the root.",
    "all_to_all": "Everyone gets its piece from each.",
    "reduce_scatter": "Everyone gets the sum of the pieces that are for it.",
    "barrier": "Nobody gets anything, but nobody goes on before all have come.",
}
PIECES = ("scatter", "all_to_all", "reduce_scatter", "barrier")
CALLS = {"wrapped": "broadcast", "forward": "broadcast", "backward": "all_reduce"}


def sums(events: Recording) -> Recording:
    """Return sums that grow: in their places stands what each rank gave to them."""
    found = []
    for event in events:
        holds, sends = {"sum": [total(event["places"])]}, []
        if "to" in event:
            sends = [[event["to"], "sum", [total(event["given"])]]]
        found.append(event | {"holds": holds, "sends": sends})
    header = {"picture": "flow", "phases": WAYS, "pace": 2}
    return Recording(found, **events.header | header)


def total(places: list[int]) -> list[int]:
    """Return the sum of all places, and the ranks that gave something."""
    return [sum(places), *(rank for rank, given in enumerate(places) if given)]


def habits(events: Recording) -> Recording:
    """Return numbers of the rank that had them first; gradients are of all ranks."""
    first, ranks, found = {}, range(events.header["ranks"]), []
    for event in events:
        holds, call = {}, CALLS.get(event["phase"])
        for name, number in event["has"].items():
            whose = ranks if name == "grad" else [event["rank"]]
            holds[name] = [[f"{number:g}", *first.setdefault((name, number), whose)]]
        found.append(event | {"holds": holds, "call": call})
    return Recording(found, **events.header | {"picture": "flow", "phases": HABITS})


def together(events: Recording) -> Recording:
    """Return calls that all make, after a rest with what all have for them."""
    found, last = [], None
    for row in table(events):
        name = row[0]["phase"]
        kind = "pieces" if name in PIECES else "numbers"
        for phase in [kind, name] if kind != last else [name]:
            step = len(found) // len(row)
            for event in row:
                own, *pieces = map(total, event["has"])
                holds = {"has": pieces if kind == "pieces" else [own]}
                told = {"rank": event["rank"], "step": step, "phase": phase}
                if phase == name:
                    gets = [*map(total, event["gets"])]
                    told |= {"call": name, "holds": holds | {"gets": gets}}
                found.append({"holds": holds} | told)
        last = kind
    header = {"picture": "flow", "phases": HAVE | TOGETHER, "pace": 2}
    return Recording(found, **events.header | header | {"fresh": ["gets"]})
