"""Draws a ring all-reduce from its recording, and moves it: events in, SVG text out.

Place is rank. Hue and slot are whose numbers. A full stack is a complete sum.
"""

from collections import defaultdict

from ..recording import digit, table
from .clock import Clock, moments, so_far, stretches
from .ring_layout import Layout
from .svg import (
    BOLD,
    HALO,
    HUES,
    INK,
    NEW,
    PAPER,
    WRONG,
    arrows,
    box,
    empty,
    n,
    svg,
    text,
    words,
)

OUTLINE = f'<path fill="none" stroke="{INK}" stroke-width="2" d="{{}}"/>'
NUMBERS = '<g font-size="12" text-anchor="middle">{}</g>'
SENTENCES = {
    "start": "Every rank holds its own numbers, one stripe in each chunk.",
    "scatter-reduce": (
        "Each rank sends one chunk right, and adds what comes from the left."
    ),
    "allgather": "Each rank sends one chunk right, and keeps what comes from the left.",
    "update": "With the sum of one chunk, each rank makes new weights of that chunk.",
    "half": "Each rank has one complete sum, and no two have the same.",
    "end": "Every rank has every sum.",
    "renewed": "Every rank has all new weights.",
}


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
        slots = (box(*layout.stack(rank, chunk)) for chunk in range(layout.ranks))
        parts.append(empty("".join(slots)))
    return "".join(parts)


def holdings(layout: Layout, row: list[dict]) -> str:
    """Return the stripes and numbers that all ranks hold at one step."""
    shapes, full, numbers = [], "", ""
    for rank, event in enumerate(row):
        for chunk, value in enumerate(event["chunks"]):
            slot = layout.stack(rank, chunk)
            shapes.append(stripes(*slot, chunk, value, layout.ranks))
            full += outline(layout, rank, chunk, value)
            numbers += number(layout, rank, chunk, value)
    return paint(shapes) + OUTLINE.format(full) + NUMBERS.format(numbers)


def outline(layout: Layout, rank: int, chunk: int, value: int) -> str:
    """Return the border of a stack whose sum is complete, else nothing."""
    x, y, w, h = layout.stack(rank, chunk)
    complete = value == (chunk + 1) * (10**layout.ranks - 1) // 9
    return box(x - 1, y - 1, w + 2, h + 2) if complete else ""


def number(layout: Layout, rank: int, chunk: int, value: int) -> str:
    """Return a sum in digits, one per rank; beyond five ranks, how many are in it."""
    x, y, w, h = layout.stack(rank, chunk)
    digits = f"{value:0{layout.ranks}}"
    if layout.ranks > 5:
        digits = sum(d != "0" for d in digits)
    at = f'x="{n(x + w / 2)}" y="{n(y + h + 14)}"'
    return f"<text {at}>{digits}</text>"


def ways(layout: Layout) -> list[tuple]:
    """Return the way of a message from every rank to its right."""
    return [layout.path(rank) for rank in range(layout.ranks) if layout.ranks > 1]


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
    each = full[0] if len({*full}) == 1 else None
    renewed = any(row[0]["phase"] == "update" for row in rows[:step])
    known = {ranks: "renewed"} if renewed else {1: "half", ranks: "end"}
    sentence = SENTENCES[known.get(each, phase)]
    return so_far(step, rows, phase) if step else "start", sentence


def describe(events: list[dict], step: int) -> str:
    """Return the state after some steps in words, for those who don't see it."""
    rows = table(events)
    corner, sentence = caption(rows, step)
    held = "; ".join(
        f"rank {rank}: " + " ".join(f"{v:0{len(rows[0])}}" for v in event["chunks"])
        for rank, event in enumerate(rows[step])
    )
    return f"{'after ' * (step > 0)}{corner}. {sentence} {held}"


def frame(events: list[dict], step: int) -> str:
    """Return a still: the messages of one step, and what the ranks hold after it."""
    rows = table(events)
    layout, new, sent = Layout(len(rows[0])), "", ""
    sent_by = [e for e in rows[step - 1] if e["send"] is not None] if step else []
    for event in sent_by:
        new += box(*layout.stack(event["rank"], event["recv"]))
        sent += token(layout, event, 0.5)
    corner, sentence = caption(rows, step)
    body = scenery(layout) + (arrows(ways(layout)) if sent_by else "")
    body += words(layout, f"after {corner}" if step else corner, sentence)
    body += f'<path fill="{NEW}" d="{new}"/>{holdings(layout, rows[step])}{sent}'
    return svg(layout.width, layout.height, describe(events, step), body)


def animate(events: list[dict]) -> str:
    """Return the whole run as one moving picture."""
    rows = table(events)
    layout, last = Layout(len(rows[0])), len(rows) - 1
    begin, there, total = moments(last)
    clock, parts = Clock(total), [scenery(layout), arrows(ways(layout))]
    anew = [s + 1 for s, row in enumerate(rows) if row[0]["phase"] == "update"]
    for step, (first, after) in enumerate(zip(begin, [*begin[1:], total])):
        parts.append(words(layout, *caption(rows, step), clock.during(first, after)))
        if arrived := news(layout, rows, step):
            until = there[anew[0]] if anew and step < anew[0] else total
            parts.append(f"<g{clock.during(there[step], until)}>{arrived}</g>")
    for (step, until), numbers in sorted(spans(layout, rows).items()):
        seen = clock.during(there[step], there[until])
        parts.append(f"<g{seen}>{NUMBERS.format(numbers)}</g>")
    for step, row in enumerate(rows[:-1]):
        moves = row[0]["send"] is not None
        for event, (x0, y0, x1, y1) in zip(row, ways(layout) if moves else []):
            way = clock.flight(begin[step + 1], there[step + 1], x1 - x0, y1 - y0)
            parts.append(token(layout, event, 0, way))
    title = f"A ring all-reduce over {layout.ranks} ranks, recorded and played back"
    return svg(layout.width, layout.height, title, clock.style() + "".join(parts))


def news(layout: Layout, rows: list[list[dict]], step: int) -> str:
    """Return the stripes and borders that one step adds."""
    shapes, full = [], ""
    for rank, event in enumerate(rows[step]):
        for chunk, value in enumerate(event["chunks"]):
            old = rows[step - 1][rank] if step else {"phase": "update"}
            # New weights replace sums of gradients: all of that is drawn anew.
            before = 0 if old["phase"] == "update" else old["chunks"][chunk]
            fresh = sum(
                digit(value, r) * 10**r
                for r in range(layout.ranks)
                if not digit(before, r)
            )
            slot = layout.stack(rank, chunk)
            shapes.append(stripes(*slot, chunk, fresh, layout.ranks))
            if value != before:
                full += outline(layout, rank, chunk, value)
    return paint(shapes) + (OUTLINE.format(full) if full else "")


def spans(layout: Layout, rows: list[list[dict]]) -> dict[tuple[int, int], str]:
    """Return the numbers under the stacks, by the steps from and until they stand."""
    found = defaultdict(str)
    for rank in range(layout.ranks):
        for chunk in range(layout.ranks):
            values = [row[rank]["chunks"][chunk] for row in rows]
            for step, until, value in stretches(values):
                found[step, until] += number(layout, rank, chunk, value)
    return found
