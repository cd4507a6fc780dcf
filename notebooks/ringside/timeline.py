"""Draws who did what when: a lane for each rank or device, time to the right.

Work stands in the upper half of a lane and messages in the lower half, so that what
happens at once is seen at once; messages that overlap share the height. Hue is the
lane's rank (the header's "hues", if lanes are not ranks); a dashed bar is a wait, and
a line across the work is a mark.
"""

from collections import defaultdict

from .clock import Clock
from .ring import HUES
from .svg import GREY, INK, PAPER, box, n, svg, text

LEFT, WIDTH, LANE, TOP = 96, 720, 62, 46
BOLD = ' font-weight="600"'
KINDS = {"work": (6, 22), "message": (32, 22), "wait": (6, 22)}  # top, height
KINDS["mark"] = KINDS["work"]
HATCH = (
    '<pattern id="h{0}" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="{1}" '
    'opacity=".3"/><path d="M0 0v6" stroke="{1}" stroke-width="5"/></pattern>'
)
PASS = 8.0  # seconds that the line takes from left to right


class Lanes:
    """Where everything stands, for a recording."""

    def __init__(self, events: list[dict]):
        header = getattr(events, "header", {})
        self.names, self.unit = header["lanes"], header.get("unit", "")
        self.title = header.get("title", "Who did what when")
        self.phases = header.get("phases", {})
        self.hues = [i % len(HUES) for i in header.get("hues", range(len(self.names)))]
        self.source = ""
        if header.get("measured"):
            self.source = "Measured on {machine}, torch {torch}, {date}".format(
                **header
            )
        self.begin = min(event["begin"] for event in events)
        self.span = header.get("span") or length(events) or 1
        self.width = LEFT + WIDTH + 20
        self.height = TOP + len(self.names) * LANE + (40 if self.unit else 12) + 30

    def x(self, time: float) -> float:
        return LEFT + (time - self.begin) / self.span * WIDTH

    def y(self, lane: int) -> float:
        return TOP + lane * LANE


def length(events: list[dict]) -> float:
    """Return the time from the first event's begin to the last one's end."""
    ends = [event["end"] for event in events]
    return max(ends) - min(event["begin"] for event in events)


def scenery(lanes: Lanes) -> str:
    """Return what never changes: lanes, their names, the axis."""
    parts = ["<defs>"]
    parts += [HATCH.format(hue, HUES[hue]) for hue in sorted(set(lanes.hues))]
    parts.append("</defs>")
    for i, name in enumerate(lanes.names):
        parts.append(
            f'<path fill="{PAPER}" d="{box(LEFT, lanes.y(i) + 2, WIDTH, LANE - 4)}"/>'
            + text(12, lanes.y(i) + 24, name.partition(", ")[0], 13, BOLD)
            + text(12, lanes.y(i) + 44, name.partition(", ")[2], 13)
        )
    if lanes.unit:
        parts.append(axis(lanes))
    return "".join(parts)


def axis(lanes: Lanes) -> str:
    """Return a ruler with five or so numbers on it."""
    base, marks, numbers = TOP + len(lanes.names) * LANE + 6, "", ""
    each = 10 ** (len(f"{int(lanes.span)}") - 1)
    while lanes.span / each > 8:
        each *= 2 if f"{each}"[0] in "15" else 2.5
    while lanes.span / each < 3:
        each /= 2
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


def rows(events: list[dict]) -> tuple[dict[int, int], dict[int, int]]:
    """Return each message's row, and each lane's number of rows: none overlap in one."""
    row, free = {}, defaultdict(list)
    for event in sorted(events, key=lambda event: event["begin"]):
        if event.get("kind") == "message" and "to" not in event:
            ends = free[event["lane"]]
            fits = [i for i, end in enumerate(ends) if end <= event["begin"]]
            row[id(event)] = fits[0] if fits else len(ends)
            ends[row[id(event)] : row[id(event)] + 1] = [event["end"]]
    return row, {lane: len(ends) for lane, ends in free.items()}


def bars(lanes: Lanes, events: list[dict], faded: bool = False) -> str:
    """Return what was done, as bars with their names where there is room."""
    shapes, names, taken, last = defaultdict(str), "", defaultdict(list), {}
    row, of = rows(events)
    marked = {event["lane"] for event in events if event.get("kind") == "mark"}
    for event in events:
        if "to" in event:
            continue
        lane, kind, what = event["lane"], event["kind"], event["what"]
        top, height = KINDS[kind]
        if kind == "message":
            height = height / of[lane] - (of[lane] > 1)
            top += row[id(event)] * (height + 1)
        x, y = lanes.x(event["begin"]), lanes.y(lane) + top
        w = max(lanes.x(event["end"]) - x - 1, 1.5)
        if kind == "mark":  # its name stands before it
            shape = f"M{n(x)} {n(y)}v{height}"
            x, w = last.get(lane, x), x - last.get(lane, x)
            what = what if len(what) * 6.3 < w else what.rpartition(" ")[2]
        else:
            shape = box(x, y, w, height)
        shapes[lanes.hues[lane], kind] += shape
        if kind != "message":
            last[lane] = last.get(lane, x) if kind == "work" else x + w
        half, middle = len(what) * 3.15, x + w / 2
        room = 2 * half < w and height > 15 and not (kind == "work" and lane in marked)
        if room and all(abs(middle - m) > half + h for m, h in taken[y]):
            names += f'<text x="{n(middle)}" y="{n(y + 15)}">{what}</text>'
            taken[y].append((middle, half))
    drawn = ""
    for (hue, kind), d in shapes.items():
        fill = {
            "work": f'fill="{HUES[hue]}" fill-opacity=".35" stroke="{HUES[hue]}"',
            "message": f'fill="url(#h{hue})"',
            "wait": f'fill="#fff" stroke="{GREY}" stroke-dasharray="4 3"',
            "mark": f'stroke="{INK}"',
        }[kind]
        drawn += f'<path {fill} d="{d}"/>'
    halo = ' stroke="#fff" stroke-width="3" paint-order="stroke"'
    dim = ' opacity=".45"' if faded else ""
    return (
        f'<g{dim}>{drawn}<g font-size="11" text-anchor="middle"{halo}>{names}</g></g>'
    )


def links(lanes: Lanes, events: list[dict], faded: bool = False) -> str:
    """Return what passed from lane to lane, as arrows with their names."""
    lines, heads, names = "", "", ""
    for event in events:
        if "to" not in event:
            continue
        down = 1 if event["to"] > event["lane"] else -1
        x = (lanes.x(event["begin"]) + lanes.x(event["end"])) / 2
        x += 7 * (event["to"] if down > 0 else event["lane"]) - 12
        y0 = lanes.y(event["lane"]) + (54 if down > 0 else 6)
        y1 = lanes.y(event["to"]) + (6 if down > 0 else 54)
        lines += f"M{n(x)} {n(y0)}V{n(y1)}"
        heads += f"M{n(x)} {n(y1)}l-4 {-8 * down}h8z"
        names += f'<text x="{n(x + 5)}" y="{n(y1 - 12 * down)}">{event["what"]}</text>'
    dim = ' opacity=".45"' if faded else ""
    halo = ' stroke="#fff" stroke-width="3" paint-order="stroke"'
    return (
        f'<g{dim}><path d="{lines}" stroke="{INK}" stroke-width="1.5"/>'
        f'<path d="{heads}" fill="{INK}"/><g font-size="11"{halo}>{names}</g></g>'
    )


def states(events: list[dict]) -> int:
    """Return how many states there are to look at."""
    return 1 + max(event.get("step", 0) for event in events)


def caption(lanes: Lanes, events: list[dict], step: int) -> tuple[str, str]:
    """Return the corner and the sentence for one step, or for the whole."""
    names = list(lanes.phases)
    if not names:
        return lanes.title, lanes.source
    return f"step {step} of {len(names) - 1} · {names[step]}", lanes.phases[names[step]]


def describe(events: list[dict], step: int) -> str:
    """Return what was done until the end of a step, in words."""
    lanes = Lanes(events)
    corner, sentence = caption(lanes, events, step)
    told = defaultdict(list)
    for event in events:
        if event.get("step", 0) == step:
            to = f" to {lanes.names[event['to']]}" if "to" in event else ""
            if lanes.unit:
                to += f" from {event['begin']:.1f} to {event['end']:.1f} {lanes.unit}"
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
    body += words(lanes, lanes.title, lanes.source)
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
    body = clock.style() + scenery(lanes) + bars(lanes, events) + links(lanes, events)
    body += f'<g class="cover">{veil}{line}</g>'
    body += words(lanes, lanes.title, lanes.source)
    return svg(lanes.width, lanes.height, lanes.title, body)
