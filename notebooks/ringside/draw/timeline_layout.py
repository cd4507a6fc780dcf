"""Finds a place for everything in a picture of who did what when."""

from collections import defaultdict

from .svg import BOLD, GREY, HUES, INK, PAPER, box, n, text

LEFT, WIDTH, LANE, TOP = 92, 640, 62, 46
HATCH = (
    '<pattern id="h{0}" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="{1}" '
    'opacity=".3"/><path d="M0 0v6" stroke="{1}" stroke-width="5"/></pattern>'
)
LEGEND = {"work": "works", "message": "sends or receives", "wait": "waits"}


class Layout:
    """Where everything stands, for a recording."""

    margins = 12, 14

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
        used = {event["kind"] for event in events} if self.phases else ()
        self.legend = LEGEND | header.get("legend", {})
        self.kinds = [kind for kind in LEGEND if kind in used]
        self.begin = min(event["begin"] for event in events)
        self.span = header.get("span") or length(events) or 1
        self.width = LEFT + WIDTH + 16
        self.height = TOP + len(self.names) * LANE + (40 if self.unit else 12) + 30

    def x(self, time: float) -> float:
        return LEFT + (time - self.begin) / self.span * WIDTH

    def y(self, lane: int) -> float:
        return TOP + lane * LANE


def length(events: list[dict]) -> float:
    """Return the time from the first event's begin to the last one's end."""
    ends = [event["end"] for event in events]
    return max(ends) - min(event["begin"] for event in events)


def scenery(layout: Layout) -> str:
    """Return what never changes: lanes, their names, the axis."""
    parts = ["<defs>"]
    parts += [HATCH.format(hue, HUES[hue]) for hue in sorted(set(layout.hues))]
    parts += [HATCH.format("g", GREY), "</defs>", legend(layout)]
    for i, name in enumerate(layout.names):
        parts.append(
            f'<path fill="{PAPER}" d="{box(LEFT, layout.y(i) + 2, WIDTH, LANE - 4)}"/>'
            + text(12, layout.y(i) + 24, name.partition(", ")[0], 13, BOLD)
            + text(12, layout.y(i) + 44, name.partition(", ")[2], 13)
        )
    if layout.unit:
        parts.append(axis(layout))
    return "".join(parts)


def paint(kind: str, name: object, hue: str) -> str:
    """Return how a bar is filled: its kind, the name of its hatching, and its hue."""
    return {
        "work": f'fill="{hue}" fill-opacity=".35" stroke="{hue}"',
        "message": f'fill="url(#h{name})"',
        "wait": f'fill="#fff" stroke="{GREY}" stroke-dasharray="4 3"',
        "mark": f'stroke="{INK}"',
    }[kind]


def legend(layout: Layout) -> str:
    """Return what the kinds of bars mean, at the top on the right."""
    parts, x = "", layout.width - 14
    for kind in reversed(layout.kinds):
        x -= 6 * len(layout.legend[kind]) + 36
        parts += f'<path {paint(kind, "g", GREY)} d="{box(x, 14, 18, 14)}"/>'
        parts += text(x + 24, 25, layout.legend[kind], 12)
    return parts


def axis(layout: Layout) -> str:
    """Return a ruler with five or so numbers on it."""
    base, marks, numbers = TOP + len(layout.names) * LANE + 6, "", ""
    each = 10 ** (len(f"{int(layout.span)}") - 1)
    while layout.span / each > 8:
        each *= 2 if f"{each}"[0] in "15" else 2.5
    while layout.span / each < 3:
        each /= 2
    tick = 0.0
    while tick <= layout.span:
        x = layout.x(layout.begin + tick)
        marks += f"M{n(x)} {base}v5"
        numbers += f'<text x="{n(x)}" y="{base + 18}">{tick:g}</text>'
        tick += each
    return (
        f'<path d="M{LEFT} {base}h{WIDTH}{marks}" stroke="{GREY}" fill="none"/>'
        f'<g font-size="11" text-anchor="middle">{numbers}</g>'
        + text(LEFT - max(40, 7 * len(layout.unit)), base + 18, layout.unit, 11)
    )


def rows(events: list[dict]) -> tuple[dict[int, int], dict[int, int]]:
    """Return each message's row, where none overlap, and each lane's number of rows."""
    row, free = {}, defaultdict(list)
    for event in sorted(events, key=lambda event: event["begin"]):
        if event.get("kind") == "message" and "to" not in event:
            ends = free[event["lane"]]
            fits = [i for i, end in enumerate(ends) if end <= event["begin"]]
            row[id(event)] = fits[0] if fits else len(ends)
            ends[row[id(event)] : row[id(event)] + 1] = [event["end"]]
    return row, {lane: len(ends) for lane, ends in free.items()}
