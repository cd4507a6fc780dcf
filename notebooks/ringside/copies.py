"""Draws who sent how many bytes to whom, phase by phase, as a timeline of devices.

A recording keeps the copies alone. The header tells the phases, and how many devices
compute in each ("works"); who does neither waits.
"""

from . import timeline
from .recording import Recording


def timed(events: Recording) -> Recording:
    """Return a timeline: in every phase a bar for each device, and an arrow a copy."""
    header = events.header
    lanes, found = [f"device {d}" for d in range(header["ranks"])], []
    for step, phase in enumerate(header["phases"]):
        copies = [event for event in events if event["step"] == step]
        moving = {end for event in copies for end in (event["rank"], event["to"])}
        for lane in range(len(lanes)):
            bar = {"step": step, "lane": lane, "begin": step, "end": step + 1}
            kind, what = "wait", "idle"
            if lane < header["works"].get(phase, 0):
                kind, what = "work", phase
            elif lane in moving:  # the arrows of the others say enough
                kind, what = "message", "" if lane else phase
            found.append(bar | {"kind": kind, "what": what})
            for event in copies:
                if event["rank"] == lane:
                    arrow = {"what": f"{event['bytes']} B", "to": event["to"]}
                    found.append(bar | {"kind": "message"} | arrow)
    return Recording(found, **header | {"picture": "timeline", "lanes": lanes})


def states(events: Recording) -> int:
    """Return how many phases there are to look at."""
    return len(events.header["phases"])


def describe(events: Recording, step: int) -> str:
    """Return what was done in a phase, in words."""
    return timeline.describe(timed(events), step)


def frame(events: Recording, step: int) -> str:
    """Return a still: one phase stands out from those before it."""
    return timeline.frame(timed(events), step)


def strip(events: Recording) -> str:
    """Return the whole step on one sheet."""
    return timeline.strip(timed(events))


def animate(events: Recording) -> str:
    """Return the whole step, uncovered from left to right."""
    return timeline.animate(timed(events))
