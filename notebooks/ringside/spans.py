"""Tells what torch's profiler saw as a timeline: a lane for each method and rank."""

from collections import Counter

from .recording import Recording

TITLE = "Solid: backward, from the last layer. Striped: an all-reduce"
READY = "torch::autograd::AccumulateGrad"  # of a weight: its layer is done
KINDS = {"backward": "work", "gloo:all_reduce": "message", READY: "mark"}
KINDS |= {"stops": "wait", "copies, waits": "wait"}


def timed(events: Recording) -> Recording:
    """Return a timeline: a bar for each span, and a mark where a layer is done."""
    methods = dict.fromkeys(event["method"] for event in events)
    ranks, layers, found = range(events.header["ranks"]), Counter(), []
    lanes = [f"{method}, rank {rank}" for method in methods for rank in ranks]
    for event in reversed(events):  # the first layer is done last
        lane = lanes.index(f"{event['method']}, rank {event['rank']}")
        kind, what = KINDS[event["what"]], event["what"].replace("gloo:all_", "all-")
        if kind == "mark":
            layers[lane] += 1
            what = f"layer {layers[lane]}"
        times = {key: event[key] / 1000 for key in ("begin", "end")}  # in milliseconds
        found.append(event | times | {"lane": lane, "kind": kind, "what": what})
    header = {"picture": "timeline", "unit": "ms", "title": TITLE, "lanes": lanes}
    header["hues"] = [*ranks] * len(methods)
    return Recording(reversed(found), **events.header | header)
