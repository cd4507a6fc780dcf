"""Draws who did what when: a lane for each rank or device, time to the right.

Work stands in the upper half of a lane and messages in the lower half, so that what
happens at once is seen at once; messages that overlap share the height. Hue is the
lane's rank (the header's "hues", if lanes are not ranks); a dashed bar is a wait, and
a line across the work is a mark. Arrows that share their time stand side by side.
"""

from collections import defaultdict

from ..recording import Recording
from .clock import Clock, so_far
from .svg import HUES, INK, box, n, plain, svg, words
from .timeline_layout import (
    LANE,
    LEFT,
    TOP,
    WIDTH,
    Layout,
    length,
    paint,
    rows,
    scenery,
)

KINDS = {"work": (6, 22), "message": (32, 22), "wait": (6, 22)}  # top, height
KINDS["mark"] = KINDS["work"]
PASS = 8.0  # seconds that the line takes from left to right
HALO = ' stroke="#fff" stroke-width="3" paint-order="stroke"'
ASIDE = 0.7  # where in their time the first of several arrows stands


def bars(layout: Layout, events: list[dict], faded: bool = False) -> str:
    """Return what was done, as bars with their names where there is room."""
    events = [event for event in events if "to" not in event]
    places, shapes = placed(layout, events), defaultdict(str)
    for event, (x, y, w, h) in zip(events, places):
        shape = f"M{n(x)} {n(y)}v{h}" if event["kind"] == "mark" else box(x, y, w, h)
        shapes[layout.hues[event["lane"]], event["kind"]] += shape
    drawn = ""
    for (hue, kind), d in shapes.items():
        drawn += f'<path {paint(kind, hue, HUES[hue])} d="{d}"/>'
    dim = ' opacity=".45"' if faded else ""
    return (
        f'<g{dim}>{drawn}<g font-size="11" text-anchor="middle"{HALO}>'
        f"{labels(events, places)}</g></g>"
    )


def placed(layout: Layout, events: list[dict]) -> list[tuple]:
    """Return where each bar stands: left, top, width, height."""
    places, (row, of) = [], rows(events)
    for event in events:
        top, height = KINDS[event["kind"]]
        if event["kind"] == "message":
            height = height / of[event["lane"]] - (of[event["lane"]] > 1)
            top += row[id(event)] * (height + 1)
        x, y = layout.x(event["begin"]), layout.y(event["lane"]) + top
        places.append((x, y, max(layout.x(event["end"]) - x - 1, 1.5), height))
    return places


def labels(events: list[dict], places: list[tuple]) -> str:
    """Return the names of the bars, where there is room; a mark is named before it."""
    written, taken, free = "", defaultdict(list), {}
    marked = {event["lane"] for event in events if event["kind"] == "mark"}
    for event, (x, y, w, h) in zip(events, places):
        lane, kind, what = event["lane"], event["kind"], event["what"]
        if kind == "mark":  # its name has the room since the mark or the wait before
            x, w = free.get(lane, x), x - free.get(lane, x)
            what = what if len(what) * 6.3 < w else what.rpartition(" ")[2]
        if kind == "work":
            free.setdefault(lane, x)
        elif kind != "message":
            free[lane] = x + w
        half, middle = len(what) * 3.15, x + w / 2
        room = 2 * half < w and h > 15 and not (kind == "work" and lane in marked)
        if room and all(abs(middle - m) > half + width for m, width in taken[y]):
            written += f'<text x="{n(middle)}" y="{n(y + 15)}">{plain(what)}</text>'
            taken[y].append((middle, half))
    return written


def links(layout: Layout, events: list[dict], faded: bool = False) -> str:
    """Return what passed from lane to lane, as arrows with their names."""
    lines, heads, names, together = "", "", "", defaultdict(list)
    for event in events:
        if "to" in event:
            together[event["begin"], event["end"]].append(event)
    for (begin, end), arrows in together.items():
        arrows.sort(key=lambda event: max(event["lane"], event["to"]))
        for i, event in enumerate(arrows):
            part = ASIDE + (1 - ASIDE) * i / len(arrows) if len(arrows) > 1 else 0.5
            x = layout.x(begin + part * (end - begin))
            down = 1 if event["to"] > event["lane"] else -1
            y0 = layout.y(event["lane"]) + (54 if down > 0 else 52)
            y1 = layout.y(event["to"]) + (54 if down > 0 else 56)
            lines += f"M{n(x)} {n(y0)}V{n(y1 - 4 * down)}"
            heads += f"M{n(x)} {n(y1)}l-4 {-8 * down}h8z"
            y = max(layout.y(event["lane"]), layout.y(event["to"])) + 48
            names += f'<text x="{n(x - 6)}" y="{n(y)}">{plain(event["what"])}</text>'
    dim = ' opacity=".45"' if faded else ""
    return (
        f'<g{dim}><path d="{lines}" stroke="{INK}" stroke-width="1.5"/>'
        f'<path d="{heads}" fill="{INK}"/>'
        f'<g font-size="11" text-anchor="end"{HALO}>{names}</g></g>'
    )


def caption(layout: Layout, events: list[dict], step: int) -> tuple[str, str]:
    """Return the corner and the sentence for one step, or for the whole."""
    names = list(layout.phases)
    if not names:
        return layout.title, layout.source
    return so_far(step, names, names[step]), layout.phases[names[step]]


def describe(events: list[dict], step: int) -> str:
    """Return what was done until the end of a step, in words."""
    if "says" in events.header:
        return events.header["says"]
    layout = Layout(events)
    corner, sentence = caption(layout, events, step)
    told = defaultdict(list)
    for event in sorted(events, key=lambda event: event["lane"]):
        if event.get("step", 0) == step and event["what"]:
            to = f" to {layout.names[event['to']]}" if "to" in event else ""
            if event["kind"] == "mark":
                to = f" done at {event['begin']:.1f} {layout.unit}"
            elif layout.unit:
                to += f" from {event['begin']:.1f} to {event['end']:.1f} {layout.unit}"
            told[layout.names[event["lane"]]].append(event["what"] + to)
    each = "; ".join(f"{name}: {', '.join(what)}" for name, what in told.items())
    said = [f"{part.removesuffix('.')}." for part in (corner, sentence) if part]
    return " ".join([*said, each])


def frame(events: list[dict], step: int = 0) -> str:
    """Return a still: one step stands out from those before it."""
    layout = Layout(events)
    old = [event for event in events if event.get("step", 0) < step]
    new = [event for event in events if event.get("step", 0) == step]
    body = scenery(layout) + bars(layout, old, True) + links(layout, old, True)
    body += bars(layout, new) + links(layout, new)
    body += words(layout, *caption(layout, events, step))
    return svg(layout.width, layout.height, describe(events, step), body)


def animate(events: list[dict]) -> str:
    """Return the whole, uncovered from left to right."""
    layout = Layout(events)
    clock = Clock(PASS + 3)
    gone = f"transform:translate({WIDTH + 30}px)"
    key = f"0%{{transform:none}}{clock.percent(PASS)},to{{{gone}}}"
    clock.add("cover", key, "linear", f"{gone};")
    tall = len(layout.names) * LANE
    veil = f'<path fill="#fff" opacity=".88" d="{box(LEFT, TOP, WIDTH + 24, tall)}"/>'
    line = f'<path stroke="{INK}" stroke-width="2" d="M{LEFT} {TOP}v{tall}"/>'
    said = "" if layout.phases else words(layout, layout.title, layout.source)
    begins = [
        min(e["begin"] for e in events if e.get("step", 0) == step)
        for step in range(len(layout.phases))
    ]
    for step, (begin, end) in enumerate(zip(begins, [*begins[1:], None])):
        first, last = (
            clock.total if time is None else PASS * (time - layout.begin) / layout.span
            for time in (begin, end)
        )
        seen = clock.during(first, last)
        said += f"<g{seen}>{words(layout, *caption(layout, events, step))}</g>"
    body = scenery(layout) + bars(layout, events) + links(layout, events)
    body += f'<g class="cover">{veil}{line}</g>{said}'
    return svg(layout.width, layout.height, layout.title, clock.style() + body)


def several(timelines: dict[str, Recording]) -> dict[str, Recording]:
    """Return timelines as they are compared: on one scale, and first all at once."""
    on_one_scale = alike(timelines)
    return {"all": stacked(on_one_scale)} | on_one_scale


def alike(recordings: dict[str, list[dict]]) -> dict[str, list[dict]]:
    """Return timelines that all cover the same time, so that lengths compare."""
    span = max(length(events) for events in recordings.values())
    return {
        label: Recording(events, **events.header | {"span": span})
        for label, events in recordings.items()
    }


def stacked(timelines: dict[str, Recording]) -> Recording:
    """Return timelines as one, the lanes of each below those of the one before."""
    events, lanes, hues, header = [], [], [], {}
    for label, each in timelines.items():
        header = each.header
        events += [e | {"lane": e["lane"] + len(lanes)} for e in each]
        lanes += [f"{label}, {name.rpartition(', ')[2]}" for name in header["lanes"]]
        hues += header.get("hues", range(len(header["lanes"])))
    return Recording(events, **header | {"lanes": lanes, "hues": hues})
