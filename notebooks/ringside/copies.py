"""Tells one step of nn.DataParallel as a timeline of devices.

A recording keeps the copies alone: who sent how many bytes to whom, in which phase. A
device that has sent anything has computed, as has device 0; who does nothing waits.
"""

from .recording import Recording

PHASES = {
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


def timed(events: Recording) -> Recording:
    """Return a timeline: in every phase a bar for each device, and an arrow a copy."""
    lanes, found = [f"device {d}" for d in range(events.header["ranks"])], []
    busy = {0} | {event["rank"] for event in events}
    works = {"forward": busy, "loss": {0}, "backward": busy, "update": {0}}
    for step, phase in enumerate(PHASES):
        copies = [event for event in events if event["phase"] == phase]
        moving = {end for event in copies for end in (event["rank"], event["to"])}
        for lane in range(len(lanes)):
            bar = {"step": step, "lane": lane, "begin": step, "end": step + 1}
            kind, what = "wait", "idle"
            if lane in works.get(phase, ()):
                kind, what = "work", phase
            elif lane in moving:  # the arrows of the others say enough
                kind, what = "message", "" if lane else phase
            found.append(bar | {"kind": kind, "what": what})
            for event in copies:
                if event["rank"] == lane:
                    arrow = {"what": f"{event['bytes']} B", "to": event["to"]}
                    found.append(bar | {"kind": "message"} | arrow)
    header = {"title": "One step of nn.DataParallel", "phases": PHASES, "lanes": lanes}
    return Recording(found, **events.header | header | {"picture": "timeline"})
