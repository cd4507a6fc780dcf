"""Tells what torch's profiler saw as a timeline: a lane for each method and rank."""

from collections import Counter

from .recording import Recording

TITLE = "Solid: backward, from the last layer. Striped: an all-reduce"
READY = "torch::autograd::AccumulateGrad"  # of a bias, then of its layer's weight
KINDS = {"backward": "work", "gloo:all_reduce": "message", READY: "mark"}
KINDS |= {"stops": "wait", "copies, waits": "wait"}


def timed(events: Recording) -> Recording:
    """Return a timeline: a bar for each span, and a mark where a layer is done."""
    methods = dict.fromkeys(event["method"] for event in events)
    ranks, ready, found = range(events.header["ranks"]), Counter(), []
    lanes = [f"{method}, rank {rank}" for method in methods for rank in ranks]
    names = [f"{event['method']}, rank {event['rank']}" for event in events]
    pairs = [*zip(map(lanes.index, names), events)]
    start = {lane: e["begin"] for lane, e in pairs if e["what"] == "backward"}
    last = {lane: e["begin"] for lane, e in pairs if e["what"] == READY}
    for lane, event in reversed(pairs):  # the first layer is done last
        kind, what = KINDS.get(event["what"]), event["what"]
        if kind == "mark":
            ready[lane] += 1
            what = f"layer {ready[lane] // 2 + 1}"
        if not kind or kind == "mark" and ready[lane] % 2 == 0:
            continue
        times = {key: (event[key] - start[lane]) / 1000 for key in ("begin", "end")}
        told = {"lane": lane, "what": what.replace("gloo:all_", "all-")}
        if what == "backward":  # when all gradients are ready, nothing is computed
            done = (last[lane] - start[lane]) / 1000
            waits = {"kind": "wait", "what": "waits", "begin": done}
            found.append(event | times | told | waits)
            times["end"] = done
        found.append(event | times | told | {"kind": kind})
    header = {"picture": "timeline", "unit": "ms", "title": TITLE, "lanes": lanes}
    header["hues"] = [*ranks] * len(methods)
    found.sort(key=lambda event: event["begin"])
    return Recording(found, **events.header | header)
