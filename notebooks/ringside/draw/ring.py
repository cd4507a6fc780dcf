"""Draws a ring all-reduce from its recording: events and step in, SVG text out.

Place is rank. Hue and slot are whose numbers. A full stack is a complete sum.
"""

import math

from ..recording import digit, table
from .svg import (
    BOLD,
    GREY,
    HALO,
    HUES,
    INK,
    NEW,
    PAPER,
    WRONG,
    box,
    empty,
    n,
    svg,
    text,
    words,
)

STACK = 60  # the height of a full stack
OUTLINE = f'<path fill="none" stroke="{INK}" stroke-width="2" d="{{}}"/>'
NUMBERS = '<g font-size="12" text-anchor="middle">{}</g>'
SENTENCES = {
    "start": "Every rank holds its own numbers, one stripe in each chunk.",
    "scatter-reduce": (
        "Each rank sends one chunk right, and adds what comes from the left."
    ),
    "allgather": "Each rank sends one chunk right, and keeps what comes from the left.",
    "half": "Each rank has one complete sum, and no two have the same.",
    "end": "Every rank has every sum.",
}


class Layout:
    """Where everything stands, for a number of ranks."""

    margins = 16, 16

    def __init__(self, ranks: int):
        self.ranks = ranks
        kind = min(ranks, 9) - 1
        self.column = (44, 44, 40, 38, 46, 27, 24, 22, 20)[kind]
        self.w, self.h = max(100, ranks * self.column + 16), STACK + 52
        across = (0, 0, 190, 245, 300, 300, 340, 385, 430)[kind]
        down = (0, 110, 125, 165, 190, 225, 265, 305, 345)[kind]
        self.width = max(2 * across + self.w + 32, 480)
        top = 58 + self.h / 2
        turns = [math.tau * r / ranks - math.tau / 4 for r in range(ranks)]
        self.places = [
            (self.width / 2 + across * math.cos(t), top + down * (1 + math.sin(t)))
            for t in turns
        ]
        self.height = max(y for _, y in self.places) + self.h / 2 + 44

    def stack(self, rank: int, chunk: int) -> tuple[float, float]:
        """Return the top left corner of a stack."""
        x, y = self.places[rank]
        left = x + (chunk - self.ranks / 2) * self.column
        return left + 3, y - self.h / 2 + 28

    def path(self, rank: int) -> tuple[float, float, float, float]:
        """Return where a message leaves a rank, and where it reaches the right one."""
        (x0, y0), (x1, y1) = self.places[rank], self.places[(rank + 1) % self.ranks]
        dx, dy = x1 - x0, y1 - y0
        cut = min(
            (self.w / 2 + 9) / (abs(dx) or 1e-9), (self.h / 2 + 9) / (abs(dy) or 1e-9)
        )
        aside = (26 if dy > 0 else -26) if self.ranks == 2 else 0
        return (
            x0 + cut * dx + aside,
            y0 + cut * dy,
            x1 - cut * dx + aside,
            y1 - cut * dy,
        )


def stripes(x, y, w, h, chunk: int, value: int, ranks: int) -> dict[str, str]:
    """Return the stripes of one stack, by hue: one for each rank in its sum."""
    found, slot = {}, h / ranks
    for rank in range(ranks):
        if d := digit(value, rank):
            hue = HUES[rank] if d == chunk + 1 else WRONG
            top = y + h - (rank + 1) * slot
            found[hue] = found.get(hue, "") + box(x, top + 0.5, w, slot - 1)
    return found


def paint(shapes: list[dict[str, str]]) -> str:
    """Return one path for each hue."""
    hues = {hue: None for shape in shapes for hue in shape}
    return "".join(
        f'<path fill="{hue}" d="{"".join(s.get(hue, "") for s in shapes)}"/>'
        for hue in hues
    )


def scenery(layout: Layout) -> str:
    """Return what never changes: cards, names, empty stacks."""
    parts = []
    for rank, (x, y) in enumerate(layout.places):
        left, top = x - layout.w / 2, y - layout.h / 2
        parts.append(
            f'<rect x="{n(left)}" y="{n(top)}" width="{layout.w}" height="{layout.h}" '
            f'rx="9" fill="{PAPER}" stroke="{HUES[rank]}" stroke-width="2"/>'
            + text(left + 10, top + 19, f"rank {rank}", 14, BOLD)
        )
        slots = [
            (*layout.stack(rank, c), layout.column - 6, STACK)
            for c in range(layout.ranks)
        ]
        outline = "".join(box(*slot) for slot in slots)
        parts.append(empty(outline))
    return "".join(parts)


def holdings(layout: Layout, row: list[dict]) -> str:
    """Return the stripes and numbers that all ranks hold at one step."""
    shapes, full, numbers = [], "", ""
    for rank, event in enumerate(row):
        for chunk, value in enumerate(event["chunks"]):
            x, y = layout.stack(rank, chunk)
            w = layout.column - 6
            shapes.append(stripes(x, y, w, STACK, chunk, value, layout.ranks))
            full += outline(layout, rank, chunk, value)
            numbers += number(layout, rank, chunk, value)
    return paint(shapes) + OUTLINE.format(full) + NUMBERS.format(numbers)


def outline(layout: Layout, rank: int, chunk: int, value: int) -> str:
    """Return the border of a stack whose sum is complete, else nothing."""
    x, y = layout.stack(rank, chunk)
    complete = value == (chunk + 1) * (10**layout.ranks - 1) // 9
    return box(x - 1, y - 1, layout.column - 4, STACK + 2) if complete else ""


def number(layout: Layout, rank: int, chunk: int, value: int) -> str:
    """Return a sum in digits, one per rank; beyond five ranks, how many are in it."""
    x, y = layout.stack(rank, chunk)
    digits = f"{value:0{layout.ranks}}"
    if layout.ranks > 5:
        digits = sum(d != "0" for d in digits)
    at = f'x="{n(x + layout.column / 2 - 3)}" y="{n(y + STACK + 14)}"'
    return f"<text {at}>{digits}</text>"


def arrows(layout: Layout) -> str:
    """Return an arrow from every rank to its right."""
    lines, heads = "", ""
    for rank in range(layout.ranks if layout.ranks > 1 else 0):
        x0, y0, x1, y1 = layout.path(rank)
        turn = math.degrees(math.atan2(y1 - y0, x1 - x0))
        lines += f"M{n(x0)} {n(y0)}L{n(x1)} {n(y1)}"
        place = f'transform="translate({n(x1)} {n(y1)}) rotate({n(turn)})"'
        heads += f'<path d="M0 0l-10 -5v10z" {place}/>'
    line = f'<path d="{lines}" stroke="{GREY}" stroke-width="2"/>'
    return f'<g fill="{GREY}">{line}{heads}</g>'


def token(layout: Layout, event: dict, part: float, style: str = "") -> str:
    """Return a message on its way: a small stack of what is in it, and its name."""
    x0, y0, x1, y1 = layout.path(event["rank"])
    x, y = x0 + part * (x1 - x0), y0 + part * (y1 - y0)
    w, h, chunk = 26, 38, event["send"]
    inside = (x - w / 2 + 2, y - h / 2 + 1, w - 4, h - 2)
    value = event["chunks"][chunk]
    return (
        f'<g{style}><path fill="#fff" stroke="{INK}" stroke-width="1.5" '
        f'd="{box(x - w / 2, y - h / 2, w, h)}"/>'
        + paint([stripes(*inside, chunk, value, layout.ranks)])
        + NUMBERS.format(
            f'<text x="{n(x)}" y="{n(y - h / 2 - 4)}"{HALO}>c{chunk}</text>'
        )
        + "</g>"
    )


def caption(rows: list[list[dict]], step: int) -> tuple[str, str]:
    """Return the corner and the sentence for the state after some steps."""
    ranks, row = len(rows[0]), rows[step]
    ones = (10**ranks - 1) // 9
    full = [sum(v == (c + 1) * ones for c, v in enumerate(e["chunks"])) for e in row]
    phase = rows[step - 1][0]["phase"] if step else "start"
    if full == [ranks] * ranks:
        sentence = SENTENCES["end"]
    elif full == [1] * ranks:
        sentence = SENTENCES["half"]
    else:
        sentence = SENTENCES[phase]
    return f"step {step} of {len(rows) - 1} · {phase}" if step else "start", sentence


def states(events: list[dict]) -> int:
    """Return how many states there are to look at."""
    return len(table(events))


def describe(events: list[dict], step: int) -> str:
    """Return the state after some steps in words, for those who don't see it."""
    rows = table(events)
    corner, sentence = caption(rows, step)
    held = "; ".join(
        f"rank {rank}: " + " ".join(f"{v:0{len(rows[0])}}" for v in event["chunks"])
        for rank, event in enumerate(rows[step])
    )
    return f"{'after ' * (step > 0)}{corner}. {sentence} {held}"


def inside(layout: Layout, rows: list[list[dict]], step: int) -> str:
    """Return all of a still but its scenery."""
    new, sent = "", ""
    for event in rows[step - 1] if step else []:
        slot = layout.stack(event["rank"], event["recv"])
        new += box(*slot, layout.column - 6, STACK)
        sent += token(layout, event, 0.5)
    halo = f'<path fill="{NEW}" d="{new}"/>'
    corner, sentence = caption(rows, step)
    said = words(layout, f"after {corner}" if step else corner, sentence)
    return said + halo + holdings(layout, rows[step]) + sent


def frame(events: list[dict], step: int) -> str:
    """Return a still: the messages of one step, and what the ranks hold after it."""
    rows = table(events)
    layout = Layout(len(rows[0]))
    body = (
        scenery(layout) + (arrows(layout) if step else "") + inside(layout, rows, step)
    )
    return svg(layout.width, layout.height, describe(events, step), body)


def strip(events: list[dict]) -> str:
    """Return all stills side by side, for readers who want to stop and compare."""
    rows = table(events)
    layout = Layout(len(rows[0]))
    body = f'<defs><g id="s">{scenery(layout)}</g><g id="a">{arrows(layout)}</g></defs>'
    for step in range(len(rows)):
        place = f"translate({n(step * layout.width)} 0)"
        body += f'<g transform="{place}"><use href="#s"/>'
        body += '<use href="#a"/>' if step else ""
        body += inside(layout, rows, step) + "</g>"
    title = f"All {len(rows)} states of a ring all-reduce over {layout.ranks} ranks"
    return svg(len(rows) * layout.width, layout.height, title, body)
