"""Tells chunks that partners swap, or lay out in shared memory, for flow.py."""

from ..recording import Recording, digit

SWAPS = {
    "whole": "Every rank has numbers of its own, here in one piece.",
    "chunks": "The same numbers, cut into as many chunks as there are ranks.",
    "swap_all": "Partners swap all that they have, and each adds what comes.",
    "halve": "Each gives one half away, and adds what comes to the other half.",
    "double": "Partners swap the chunks that are complete.",
}
LAY = {
    "begin": "Each rank has its chunks, and an empty row that all ranks can read.",
    "lay out": "Each lays out, in its own row, the chunks that others will add.",
    "add": "Each adds up its own chunk from all rows, and lays out the sum.",
    "fetch": "Each fetches the other sums, from the rows of the others.",
}


def swaps(events: Recording) -> Recording:
    """Return sums that partners swap: of each chunk, or where none is cut, of one."""
    ranks, found = range(events.header["ranks"]), []
    for event in events:
        shown = 1 if event["phase"] in ("whole", "swap_all") else len(ranks)
        holds = {"sums": [inside(v, ranks) for v in event["chunks"][:shown]]}
        gives = [inside(v, ranks) for v in event.get("gives", ())[:shown]]
        sends = [[event["to"], "sums", gives]] if gives else []
        found.append(event | {"holds": holds, "sends": sends})
    header = {"picture": "flow", "phases": SWAPS, "pace": 2, "gap": 105}
    return Recording(found, **events.header | header)


def rows(events: Recording) -> Recording:
    """Return what lies in shared memory: a row for each rank, beside its own sums."""
    ranks, found = range(events.header["ranks"]), []
    for event in events:
        laid = {name: event[name] for name in ("chunks", "row")}
        holds = {k: [inside(v, ranks) for v in held] for k, held in laid.items()}
        found.append(event | {"holds": holds})
    header = {"picture": "flow", "phases": LAY, "pace": 2, "gap": 20}
    return Recording(found, **events.header | header)


def inside(value: int, ranks: range) -> list:
    """Return a sum as its digits, and the ranks whose digit is in it."""
    return [f"{value:0{len(ranks)}}", *(r for r in ranks if digit(value, r))]
