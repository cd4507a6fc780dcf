"""Draws what torch's profiler saw as a timeline: a lane for each method and rank."""

from collections import Counter

from .recording import Recording

TITLE = "Solid: backward, from the last layer. Striped: an all-reduce"
READY = "torch::autograd::AccumulateGrad"  # a weight's: its layer is done
KINDS = {"backward": "work", "gloo:all_reduce": "message", READY: "mark"}
KINDS |= {"stops": "wait", "copies, waits": "wait"}


def timed(events: Recording) -> Recording:
    """Return a timeline: a bar for each span, and a mark where a layer is done."""
    methods = list(dict.fromkeys(event["method"] for event in events))
    lanes = [(method, r) for method in methods for r in range(events.header["ranks"])]
    where = [lanes.index((event["method"], event["rank"])) for event in events]
    left = Counter(at for at, event in zip(where, events) if event["what"] == READY)
    found = []
    for lane, event in zip(where, events):
        kind, what = KINDS[event["what"]], event["what"].replace("gloo:all_", "all-")
        if kind == "mark":  # from the last layer to the first
            what = f"layer {left[lane]}"
            left[lane] -= 1
        times = {key: event[key] / 1000 for key in ("begin", "end")}  # in milliseconds
        found.append(event | times | {"lane": lane, "kind": kind, "what": what})
    header = {"picture": "timeline", "unit": "ms", "title": TITLE}
    header |= {"lanes": [f"{method}, rank {rank}" for method, rank in lanes]}
    header |= {"hues": [rank for _, rank in lanes]}
    return Recording(found, **events.header | header)
