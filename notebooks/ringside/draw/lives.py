"""Tells runs as a timeline: they stop and go on, lose bits, wait, or fail checks."""

from ..recording import Recording

CALLS = 6  # the room of one fault, in calls
PAUSE = 1.9  # the room between two crews, in steps
FATES = {
    frozenset({"SIGKILL", "SIGTERM"}): "SIGKILL ended some workers, so the agent ends "
    "the others by SIGTERM.",
    frozenset({"SIGTERM"}): "A node joins, so the agent ends all workers by SIGTERM.",
    frozenset({"SIGKILL"}): "SIGKILL ended all workers.",
    frozenset(): "All end well, after the last step.",
}
FAULTS = {
    "no fault": "A call ends when all ranks have made it.",
    "a step too few": "The last rank skips step 3, so its step 4 is added to their "
    "step 3. Then they wait in vain.",
    "a call too many": "The third call of rank 0 is a barrier, that of the others is "
    "step 3: all wait.",
}


def lives(events: Recording) -> Recording:
    """Return the steps of a run, of one that stops, and of one that goes on from it."""
    lanes = [*dict.fromkeys(event["phase"] for event in events)]
    found, steps = [], max(event["step"] for event in events)
    for lane, life in enumerate(lanes):
        own = [event for event in events if event["phase"] == life]
        first, last = own[0]["step"] - 1, own[-1]["step"]
        gaps = {(0, first): f"loads step {first}", (last, steps): "gone"}
        for (begin, end), what in gaps.items():
            if begin < end:
                bar = {"lane": lane, "begin": begin, "end": end}
                found.append(bar | {"kind": "wait", "what": what})
        for event in own:
            bar = {"lane": lane, "begin": event["step"] - 1, "end": event["step"]}
            found.append(bar | {"kind": "work", "what": event["weight"]})
            if lane and event["step"] % events.header["every"] == 0:
                saved = {"kind": "message", "what": "save", "begin": bar["end"] - 0.7}
                found.append(bar | saved)
    found.sort(key=lambda bar: bar["begin"])
    header = {"picture": "timeline", "unit": "steps", "lanes": lanes}
    header["title"] = "The weight after each step of rank 0"
    return Recording(found, **events.header | header)


def bits(events: Recording) -> Recording:
    """Return the weight after each step: solid if it has moved, dashed if it has not.

    Below a step that has a scale stands the scale, or which ranks had an infinity.
    """
    lanes, found = [*dict.fromkeys(event["phase"] for event in events)], []
    last = dict.fromkeys(lanes, "0.0")
    scaled = {event["phase"] for event in events if event["exponent"]}
    for event in events:
        lane, way, infs = lanes.index(event["phase"]), event["phase"], event["infs"]
        bar = {"lane": lane, "begin": event["step"] - 1, "end": event["step"]}
        lost = infs or event["weight"] == last[way] == "0.0"
        what = "skips" if infs else event["weight"]
        found.append(bar | {"kind": "wait" if lost else "work", "what": what})
        if way in scaled:
            below = f"scale 2^{event['exponent']}"
            if infs:
                below = "inf: " + (", ".join(map(str, infs)))
            found.append(bar | {"kind": "message", "what": below})
        last[way] = event["weight"]
    found.sort(key=lambda bar: bar["begin"])
    header = {"picture": "timeline", "unit": "steps", "lanes": lanes}
    header["title"] = "The weight after each step, in thousandths. inf: on which ranks"
    return Recording(found, **events.header | header)


def waits(events: Recording) -> Recording:
    """Return which call each rank made, and in which one it waits to this day."""
    ranks, found = sorted({event["rank"] for event in events}), []
    for number, fault in enumerate(FAULTS):
        for event in events:
            if event["phase"] == fault:
                begin = number * CALLS + event["step"]
                end, what = begin + 1, event["what"].removeprefix("step ")
                if event["kind"] == "wait":
                    end, what = (number + 1) * CALLS, event["what"]
                bar = {"lane": event["rank"], "begin": begin, "end": end}
                told = {"kind": event["kind"], "what": what}
                found.append({"step": number} | bar | told)
    lanes = [f"rank {rank}" for rank in ranks]
    header = {"picture": "timeline", "lanes": lanes, "phases": FAULTS}
    header["title"] = "Which call each rank is in: a dashed one never ends"
    return Recording(found, **events.header | header | {"span": 3 * CALLS})


def crews(events: Recording) -> Recording:
    """Return the steps of each crew of workers, how it ended, and what it went on from.

    A crew begins when the last one has ended, so a step may stand there twice.
    """
    ranks, every = sorted({event["rank"] for event in events}), events.header["every"]
    found, phases, begin = [], {}, 0
    for number, crew in enumerate(dict.fromkeys(e["phase"] for e in ordered(events))):
        own = [event for event in events if event["phase"] == crew]
        first, last = own[0]["step"], own[-1]["step"]
        end, fates = begin + last - first + 1, set()
        for rank in ranks:
            bar = {"step": number, "lane": rank, "begin": begin, "end": end}
            mine = [event for event in own if event["rank"] == rank]
            if not mine:
                found.append(bar | {"kind": "wait", "what": "no such rank"})
                continue
            if first > 1:
                told = {"kind": "message", "what": f"loads {first - 1}"}
                found.append(bar | told | {"end": begin + 2})
            for event in mine:
                at = begin + event["step"] - first
                bar |= {"begin": at, "end": at + 1}
                found.append(bar | {"kind": "work", "what": f"{event['step']}"})
                if rank == 0 and event["step"] % every == 0:
                    told = {"kind": "message", "what": "save", "begin": at + 0.1}
                    found.append(bar | told)
            if ends := mine[-1].get("ends"):
                fates.add(ends)
                bar |= {"begin": end, "end": end + PAUSE}
                found.append(bar | {"kind": "wait", "what": ends})
        phases[crew] = FATES[frozenset(fates)]
        begin = end + PAUSE
    header = {"picture": "timeline", "lanes": [f"rank {rank}" for rank in ranks]}
    header |= {"phases": phases, "span": begin - PAUSE}
    header["legend"] = {
        "work": "a step",
        "message": "the file",
        "wait": "ended, or gone",
    }
    header["title"] = "The steps of four crews of workers, and how each crew ended"
    return Recording(found, **events.header | header)


def ordered(events: Recording) -> list[dict]:
    """Return the events by crew."""
    return sorted(events, key=lambda event: event["phase"])


def checks(events: Recording) -> Recording:
    """Return which runs each check finds, from left to right."""
    runs, found = [*dict.fromkeys(event["phase"] for event in events)], []
    finds = {}  # by check, in their order
    for event in sorted(events, key=lambda event: event["step"]):
        begin, passed = event["step"], event["kind"] == "work"
        bar = {"lane": runs.index(event["phase"]), "begin": begin, "end": begin + 1}
        what = f"{'✗✓'[passed]} {event['what']}"
        found.append({"step": begin} | bar | {"kind": event["kind"], "what": what})
        finds.setdefault(event["what"], []).extend([] if passed else [event["phase"]])
    told = {what: f"It finds: {', '.join(ill)}." for what, ill in finds.items()}
    lanes = [", ".join(run.split()) for run in runs]  # in two lines
    header = {"picture": "timeline", "lanes": lanes, "hues": [2] * len(lanes)}
    header |= {"phases": told, "span": len(told)}
    header["legend"] = {"work": "passes", "wait": "finds the fault"}
    header["title"] = "Which checks a training passes: a dashed one finds the fault"
    return Recording(found, **events.header | header)
