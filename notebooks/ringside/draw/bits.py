"""Tells a training in 32 bits, in 16, and with a scale, as a timeline."""

from ..recording import Recording


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
