"""Tells bare facts, which recordings keep, as events that a module here draws.

One function for each kind of recording that is not drawn as it is; TELLS has them all.
"""

from collections import Counter

from ..recording import Recording, table
from .chunks import rows, swaps
from .crossings import crossings
from .lives import bits, checks, crews, lives, waits
from .marks import tested
from .race import laps

COPIES = {
    "scatter": "Device 0 cuts the batch, and sends every other device its rows.",
    "replicate": "It sends them the weights too: all of them, on every step.",
    "forward": "All devices run at once, in threads: each its copy, on its own rows.",
    "gather": "The outputs travel to device 0.",
    "loss": "Device 0 finds the loss of the whole batch, while the others wait.",
    "gather back": "Device 0 sends every device the gradient of its outputs.",
    "backward": "Each device finds the gradient of its copy's weights.",
    "add up": "The gradients travel to device 0, which adds them up.",
    "update": "Device 0 takes the step. The others still hold the old weights.",
}
SHARES = {
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
SPANS = "Solid: backward, from the last layer. Striped: an all-reduce"
READY = "torch::autograd::AccumulateGrad"  # of a bias, then of its layer's weight
BARS = {"backward": "work", "gloo:all_reduce": "message", READY: "mark"}
BARS |= {"stops": "wait", "copies, waits": "wait"}
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
MOVES = {
    "forward": "A forward wakes DDP: the next backward will average.",
    "no_sync": "A forward in no_sync does not wake DDP.",
    "module": "DDP does not see a forward of the inner model.",
    "averages": "DDP was awake. It averages, and sleeps again.",
    "backward": "DDP sleeps: each rank adds its own gradient, and keeps it.",
    "zero_grad": "All ranks forget their gradients.",
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


def copies(events: Recording) -> Recording:
    """Return one step of nn.DataParallel: in every phase a bar for each device.

    A recording keeps the copies alone, each an arrow: who sent how many bytes to whom.
    A device that has sent anything has computed, as has device 0; who does nothing
    waits.
    """
    lanes, found = [f"device {d}" for d in range(events.header["ranks"])], []
    busy = {0} | {event["rank"] for event in events}
    works = {"forward": busy, "loss": {0}, "backward": busy, "update": {0}}
    for step, phase in enumerate(COPIES):
        moved = [event for event in events if event["phase"] == phase]
        moving = {end for event in moved for end in (event["rank"], event["to"])}
        for lane in range(len(lanes)):
            bar = {"step": step, "lane": lane, "begin": step, "end": step + 1}
            kind, what = "wait", "idle"
            if lane in works.get(phase, ()):
                kind, what = "work", phase
            elif lane in moving:  # the arrows of the others say enough
                kind, what = "message", "" if lane else phase
            found.append(bar | {"kind": kind, "what": what})
            for event in moved:
                if event["rank"] == lane:
                    arrow = {"what": f"{event['bytes']} B", "to": event["to"]}
                    found.append(bar | {"kind": "message"} | arrow)
    header = {"title": "One step of nn.DataParallel", "phases": COPIES, "lanes": lanes}
    return Recording(found, **events.header | header | {"picture": "timeline"})


def shares(events: Recording) -> Recording:
    """Return who holds what after each phase; behind a number, the ranks it is from.

    A recording has one event for each rank, and one for a process that does all alone
    (rank -1): the slopes of its samples, its gradient, the mean of the gradients of all
    ranks, and the weight before and after the step.
    """
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
        for step, (phase, holds) in enumerate(zip(SHARES, held)):
            state = {"step": step, "rank": rank, "phase": phase, "holds": holds}
            if alone and phase == "split":
                state["sends"] = [[other, "slopes"] for other in ranks]
            if phase == "all-reduce" and not alone:
                state["call"] = "all_reduce"
            found.append(state)
    return Recording(found, **events.header | {"picture": "flow", "phases": SHARES})


def spans(events: Recording) -> Recording:
    """Return what torch's profiler saw: a bar a span, a mark where a layer is done."""
    methods = dict.fromkeys(event["method"] for event in events)
    ranks, ready, found = range(events.header["ranks"]), Counter(), []
    lanes = [f"{method}, rank {rank}" for method in methods for rank in ranks]
    names = [f"{event['method']}, rank {event['rank']}" for event in events]
    pairs = [*zip(map(lanes.index, names), events)]
    start = {lane: e["begin"] for lane, e in pairs if e["what"] == "backward"}
    last = {lane: e["begin"] for lane, e in pairs if e["what"] == READY}
    for lane, event in reversed(pairs):  # the first layer is done last
        kind, what = BARS.get(event["what"]), event["what"]
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
    header = {"picture": "timeline", "unit": "ms", "title": SPANS, "lanes": lanes}
    header["hues"] = [*ranks] * len(methods)
    found.sort(key=lambda event: event["begin"])
    return Recording(found, **events.header | header)


def sums(events: Recording) -> Recording:
    """Return sums that grow: in their places stands what each rank gave to them."""
    found = []
    for event in events:
        holds, given = {"sum": [total(event["places"])]}, event.get("given")
        sends = [[event["to"], "sum", [total(given)]]] if given else []
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


def moves(events: Recording) -> Recording:
    """Return gradients: of all ranks if they are equal, or else of the rank alone."""
    found, phases, ranks = [], {}, range(events.header["ranks"])
    for row in table(events):
        alike = len({event["grad"] for event in row}) == 1
        for event in row:
            kind, grad = event["phase"].split()[0], event["grad"]
            phase = event["phase"] + ", averages" * (event["calls"] > 0)
            phases[phase] = MOVES["averages" if event["calls"] else kind]
            whose = ranks if alike else [event["rank"]]
            holds = {"grad": [] if grad is None else [[f"{grad:g}", *whose]]}
            call = "all_reduce" if event["calls"] else None
            found.append(event | {"phase": phase, "holds": holds, "call": call})
    return Recording(found, **events.header | {"picture": "flow", "phases": phases})


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


LAST = (rows, lives, bits, waits, checks, crews, crossings)
SAME = (copies, shares, spans, sums, habits, moves, together, swaps, *LAST)
TELLS = {tell.__name__: tell for tell in SAME} | {"race": laps, "tests": tested}
