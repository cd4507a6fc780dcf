"""Tells measured steps as a race, as timeline.py draws it.

A lane is a method. Its bars are as long as its median step took. Steps and samples are
counted until the same moment in all lanes.
"""

import statistics

from ..recording import Recording

LAPS = 6  # steps of the slowest method that fit into the picture


def medians(events: Recording, workload: str) -> dict[str, float]:
    """Return the median milliseconds of a step, by method."""
    rounds = [event["ms"] for event in events if event["workload"] == workload]
    methods = events.header["methods"]
    return {name: statistics.median(ms[name] for ms in rounds) for name in methods}


def lap(events: Recording, workload: str) -> Recording:
    """Return one workload of a benchmark as a timeline."""
    header = events.header
    times = medians(events, workload)
    end = LAPS * max(times.values())
    bars, lanes = [], []
    for lane, (method, ms) in enumerate(times.items()):
        ranks = 1 if method == "one process" else header["ranks"]
        samples = ranks * header["samples"][workload]
        for number in range(-int(-end // ms)):
            bar = {
                "lane": lane,
                "begin": number * ms,
                "end": min(number * ms + ms, end),
            }
            whole = bar["end"] < end or end % ms == 0
            bars.append(bar | {"what": f"{samples}" * whole, "kind": "work"})
        lanes.append(f"{method}, {samples * end / ms:.0f}")
    title = (
        f"A model that {workload}: samples in {end:.0f} ms, on {header['ranks']} ranks"
    )
    source = {key: header[key] for key in ("measured", "machine", "torch", "date")}
    more = {"picture": "timeline", "unit": "ms", "title": title}
    more["says"] = f"{title}. {'; '.join(lanes)}"
    return Recording(bars, lanes=lanes, **more, **source)


def laps(events: Recording) -> dict[str, Recording]:
    """Return each workload as a timeline."""
    works = events.header["samples"]
    return {f"a model that {work}": lap(events, work) for work in works}
