"""Draws who did what when: a lane for each rank or device, time to the right.

Work stands in the upper half of a lane and messages in the lower half, so that what
happens at once is seen at once. Hue is the lane's rank; a dashed bar is a wait. Arrows
that share their time stand side by side, each with its name to the left.
"""

from collections import defaultdict

from .clock import Clock
from .ring import HUES
from .svg import GREY, INK, PAPER, box, n, svg, text

LEFT, WIDTH, LANE, TOP = 96, 720, 62, 46
BOLD = ' font-weight="600"'
KINDS = {"work": (6, 22), "message": (32, 22), "wait": (6, 22)}  # top, height
HATCH = (
    '<pattern id="h{0}" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="{1}" '
    'opacity=".3"/><path d="M0 0v6" stroke="{1}" stroke-width="5"/></pattern>'
)
PASS = 8.0  # seconds that the line takes from left to right
ASIDE = 0.7  # where in their time the first of several arrows stands
LEGEND = {"work": "works", "message": "sends or receives", "wait": "waits"}


class Lanes:
    """Where everything stands, for a recording."""

    def __init__(self, events: list[dict]):
        header = getattr(events, "header", {})
        self.names, self.unit = header["lanes"], header.get("unit", "")
        self.title = header.get("title", "Who did what when")
        self.phases = header.get("phases", {})
        used = {event["kind"] for event in events}
        self.kinds = [kind for kind in KINDS if kind in used]
        self.begin = min(event["begin"] for event in events)
        self.span = max(event["end"] for event in events) - self.begin or 1
        self.width = LEFT + WIDTH + 20
        self.height = TOP + len(self.names) * LANE + (40 if self.unit else 12) + 30

    def x(self, time: float) -> float:
        return LEFT + (time - self.begin) / self.span * WIDTH

    def y(self, lane: int) -> float:
        return TOP + lane * LANE


def scenery(lanes: Lanes) -> str:
    """Return what never changes: lanes, their names, the axis."""
    parts = ["<defs>"]
    hues = [HUES[i % len(HUES)] for i in range(len(lanes.names))]
    parts += [HATCH.format(i, hue) for i, hue in enumerate(hues)]
    parts += [HATCH.format("g", GREY), "</defs>", legend(lanes)]
    for i, name in enumerate(lanes.names):
        parts.append(
            f'<path fill="{PAPER}" d="{box(LEFT, lanes.y(i) + 2, WIDTH, LANE - 4)}"/>'
            + text(12, lanes.y(i) + 24, name, 13, BOLD)
        )
    if lanes.unit:
        parts.append(axis(lanes))
    return "".join(parts)


def paint(kind: str, name: object, hue: str) -> str:
    """Return how a bar is filled: its kind, the name of its hatching, and its hue."""
    return {
        "work": f'fill="{hue}" fill-opacity=".35" stroke="{hue}"',
        "message": f'fill="url(#h{name})"',
        "wait": f'fill="none" stroke="{GREY}" stroke-dasharray="4 3"',
    }[kind]


def legend(lanes: Lanes) -> str:
    """Return what the kinds of bars mean, at the top on the right."""
    parts, x = "", lanes.width - 14
    for kind in reversed(lanes.kinds):
        x -= 6 * len(LEGEND[kind]) + 36
        parts += f'<path {paint(kind, "g", GREY)} d="{box(x, 14, 18, 14)}"/>'
        parts += text(x + 24, 25, LEGEND[kind], 12)
    return parts


def axis(lanes: Lanes) -> str:
    """Return a ruler with five or so numbers on it."""
    base, marks, numbers = TOP + len(lanes.names) * LANE + 6, "", ""
    each = 10 ** (len(f"{int(lanes.span)}") - 1)
    while lanes.span / each > 8:
        each *= 2 if f"{each}"[0] in "15" else 2.5
    tick = 0.0
    while tick <= lanes.span:
        x = lanes.x(lanes.begin + tick)
        marks += f"M{n(x)} {base}v5"
        numbers += f'<text x="{n(x)}" y="{base + 18}">{tick:g}</text>'
        tick += each
    return (
        f'<path d="M{LEFT} {base}h{WIDTH}{marks}" stroke="{GREY}" fill="none"/>'
        f'<g font-size="11" text-anchor="middle">{numbers}</g>'
        + text(LEFT - 40, base + 18, lanes.unit, 11)
    )


def bars(lanes: Lanes, events: list[dict], faded: bool = False) -> str:
    """Return what was done, as bars with their names where there is room."""
    shapes, names = defaultdict(str), ""
    for event in events:
        if "to" in event:
            continue
        top, height = KINDS[event["kind"]]
        x, y = lanes.x(event["begin"]), lanes.y(event["lane"]) + top
        w = max(lanes.x(event["end"]) - x - 1, 1.5)
        shapes[event["lane"] % len(HUES), event["kind"]] += box(x, y, w, height)
        if len(event["what"]) * 6.3 < w:
            names += f'<text x="{n(x + w / 2)}" y="{n(y + 15)}">{event["what"]}</text>'
    drawn = ""
    for (lane, kind), d in shapes.items():
        drawn += f'<path {paint(kind, lane, HUES[lane])} d="{d}"/>'
    halo = ' stroke="#fff" stroke-width="3" paint-order="stroke"'
    dim = ' opacity=".45"' if faded else ""
    return (
        f'<g{dim}>{drawn}<g font-size="11" text-anchor="middle"{halo}>{names}</g></g>'
    )


def links(lanes: Lanes, events: list[dict], faded: bool = False) -> str:
    """Return what passed from lane to lane, as arrows with their names."""
    lines, heads, names, together = "", "", "", defaultdict(list)
    for event in events:
        if "to" in event:
            together[event["begin"], event["end"]].append(event)
    for (begin, end), arrows in together.items():
        arrows.sort(key=lambda event: max(event["lane"], event["to"]))
        for i, event in enumerate(arrows):
            part = ASIDE + (1 - ASIDE) * i / len(arrows) if len(arrows) > 1 else 0.5
            x = lanes.x(begin + part * (end - begin))
            down = 1 if event["to"] > event["lane"] else -1
            y0 = lanes.y(event["lane"]) + (54 if down > 0 else 52)
            y1 = lanes.y(event["to"]) + (54 if down > 0 else 56)
            lines += f"M{n(x)} {n(y0)}V{n(y1 - 4 * down)}"
            heads += f"M{n(x)} {n(y1)}l-4 {-8 * down}h8z"
            y = max(lanes.y(event["lane"]), lanes.y(event["to"])) + 48
            names += f'<text x="{n(x - 6)}" y="{n(y)}">{event["what"]}</text>'
    dim = ' opacity=".45"' if faded else ""
    halo = ' stroke="#fff" stroke-width="3" paint-order="stroke"'
    return (
        f'<g{dim}><path d="{lines}" stroke="{INK}" stroke-width="1.5"/>'
        f'<path d="{heads}" fill="{INK}"/>'
        f'<g font-size="11" text-anchor="end"{halo}>{names}</g></g>'
    )


def states(events: list[dict]) -> int:
    """Return how many states there are to look at."""
    return 1 + max(event.get("step", 0) for event in events)


def caption(lanes: Lanes, events: list[dict], step: int) -> tuple[str, str]:
    """Return the corner and the sentence for one step, or for the whole."""
    names = list(lanes.phases)
    if not names:
        return lanes.title, ""
    return f"step {step} of {len(names) - 1} · {names[step]}", lanes.phases[names[step]]


def describe(events: list[dict], step: int) -> str:
    """Return what was done until the end of a step, in words."""
    lanes = Lanes(events)
    corner, sentence = caption(lanes, events, step)
    told = defaultdict(list)
    for event in events:
        if event.get("step", 0) == step:
            to = f" to {lanes.names[event['to']]}" if "to" in event else ""
            told[lanes.names[event["lane"]]].append(event["what"] + to)
    each = "; ".join(f"{name}: {', '.join(what)}" for name, what in told.items())
    return " ".join(filter(None, [f"{corner}.", sentence, each]))


def words(lanes: Lanes, corner: str, sentence: str) -> str:
    """Return the corner and the sentence in their places."""
    middle = ' text-anchor="middle"'
    return text(12, 28, corner, 17, BOLD) + text(
        lanes.width / 2, lanes.height - 14, sentence, 14, middle
    )


def frame(events: list[dict], step: int = 0) -> str:
    """Return a still: one step stands out from those before it."""
    last = states(events) - 1
    if not 0 <= step <= last:
        raise ValueError(f"step is a number from 0 to {last}, not {step}")
    lanes = Lanes(events)
    old = [event for event in events if event.get("step", 0) < step]
    new = [event for event in events if event.get("step", 0) == step]
    body = scenery(lanes) + bars(lanes, old, True) + links(lanes, old, True)
    body += bars(lanes, new) + links(lanes, new)
    body += words(lanes, *caption(lanes, events, step))
    return svg(lanes.width, lanes.height, describe(events, step), body)


def strip(events: list[dict]) -> str:
    """Return the whole on one sheet."""
    lanes = Lanes(events)
    body = scenery(lanes) + bars(lanes, events) + links(lanes, events)
    body += words(lanes, lanes.title, "")
    return svg(lanes.width, lanes.height, lanes.title, body)


def animate(events: list[dict]) -> str:
    """Return the whole, uncovered from left to right."""
    lanes = Lanes(events)
    clock = Clock(PASS + 3)
    gone = f"transform:translate({WIDTH + 30}px)"
    key = f"0%{{transform:none}}{clock.percent(PASS)},to{{{gone}}}"
    clock.add("cover", key, "linear", f"{gone};")
    tall = len(lanes.names) * LANE
    veil = f'<path fill="#fff" opacity=".88" d="{box(LEFT, TOP, WIDTH + 24, tall)}"/>'
    line = f'<path stroke="{INK}" stroke-width="2" d="M{LEFT} {TOP}v{tall}"/>'
    said, begins = (
        "",
        [
            min(e["begin"] for e in events if e.get("step", 0) == step)
            for step in range(states(events) if lanes.phases else 0)
        ],
    )
    for step, (begin, end) in enumerate(zip(begins, [*begins[1:], None])):
        first, last = (
            clock.total if time is None else PASS * (time - lanes.begin) / lanes.span
            for time in (begin, end)
        )
        seen = clock.during(first, last)
        said += f"<g{seen}>{words(lanes, *caption(lanes, events, step))}</g>"
    body = scenery(lanes) + bars(lanes, events) + links(lanes, events)
    body += f'<g class="cover">{veil}{line}</g>' + (
        said or words(lanes, lanes.title, "")
    )
    return svg(lanes.width, lanes.height, lanes.title, clock.style() + body)
