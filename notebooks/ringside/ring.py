"""Draws a ring all-reduce from its recording: events and step in, SVG text out.

Place is rank. Hue and slot are whose numbers. A full stack is a complete sum.
"""

import math

from .recording import digit, table
from .svg import GREY, INK, PAPER, box, n, svg, text

HUES = "#0072B2 #E69F00 #009E73 #CC79A7 #56B4E9 #D55E00 #F0E442 #8C6BB1 #999999".split()
NEW, WRONG = "#dce2ea", "#c1121f"
STACK = 60  # the height of a full stack
OUTLINE = f'<path fill="none" stroke="{INK}" stroke-width="2" d="{{}}"/>'
NUMBERS = '<g font-size="12" text-anchor="middle">{}</g>'
HALO = ' stroke="#fff" stroke-width="4" paint-order="stroke"'
SENTENCES = {
    "start": "Every rank holds its own numbers, one stripe in each chunk.",
    "scatter-reduce": (
        "Each rank sends one chunk right, and adds what comes from the left."
    ),
    "allgather": "Each rank sends one chunk right, and keeps what comes from the left.",
    "half": "Each rank has one complete sum, and no two have the same.",
    "end": "Every rank has every sum.",
}


class Stage:
    """Where everything stands, for a number of ranks."""

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


def scenery(stage: Stage) -> str:
    """Return what never changes: cards, names, empty stacks."""
    parts = []
    for rank, (x, y) in enumerate(stage.places):
        left, top = x - stage.w / 2, y - stage.h / 2
        parts.append(
            f'<rect x="{n(left)}" y="{n(top)}" width="{stage.w}" height="{stage.h}" '
            f'rx="9" fill="{PAPER}" stroke="{HUES[rank]}" stroke-width="2"/>'
            + text(left + 10, top + 19, f"rank {rank}", 14, ' font-weight="600"')
        )
        slots = [
            (*stage.stack(rank, c), stage.column - 6, STACK) for c in range(stage.ranks)
        ]
        outline = "".join(box(*slot) for slot in slots)
        parts.append(f'<path fill="#fff" stroke="#c3cad4" d="{outline}"/>')
    return "".join(parts)


def holdings(stage: Stage, row: list[dict]) -> str:
    """Return the stripes and numbers that all ranks hold at one step."""
    shapes, full, numbers = [], "", ""
    for rank, event in enumerate(row):
        for chunk, value in enumerate(event["chunks"]):
            x, y = stage.stack(rank, chunk)
            w = stage.column - 6
            shapes.append(stripes(x, y, w, STACK, chunk, value, stage.ranks))
            full += outline(stage, rank, chunk, value)
            numbers += number(stage, rank, chunk, value)
    return paint(shapes) + OUTLINE.format(full) + NUMBERS.format(numbers)


def outline(stage: Stage, rank: int, chunk: int, value: int) -> str:
    """Return the border of a stack whose sum is complete, else nothing."""
    x, y = stage.stack(rank, chunk)
    complete = value == (chunk + 1) * (10**stage.ranks - 1) // 9
    return box(x - 1, y - 1, stage.column - 4, STACK + 2) if complete else ""


def number(stage: Stage, rank: int, chunk: int, value: int) -> str:
    """Return a sum in digits, one per rank; beyond five ranks, how many are in it."""
    x, y = stage.stack(rank, chunk)
    digits = f"{value:0{stage.ranks}}"
    if stage.ranks > 5:
        digits = sum(d != "0" for d in digits)
    at = f'x="{n(x + stage.column / 2 - 3)}" y="{n(y + STACK + 14)}"'
    return f"<text {at}>{digits}</text>"


def arrows(stage: Stage) -> str:
    """Return an arrow from every rank to its right."""
    lines, heads = "", ""
    for rank in range(stage.ranks if stage.ranks > 1 else 0):
        x0, y0, x1, y1 = stage.path(rank)
        turn = math.degrees(math.atan2(y1 - y0, x1 - x0))
        lines += f"M{n(x0)} {n(y0)}L{n(x1)} {n(y1)}"
        place = f'transform="translate({n(x1)} {n(y1)}) rotate({n(turn)})"'
        heads += f'<path d="M0 0l-10 -5v10z" {place}/>'
    line = f'<path d="{lines}" stroke="{GREY}" stroke-width="2"/>'
    return f'<g fill="{GREY}">{line}{heads}</g>'


def token(stage: Stage, event: dict, part: float, style: str = "") -> str:
    """Return a message on its way: a small stack of what is in it, and its name."""
    x0, y0, x1, y1 = stage.path(event["rank"])
    x, y = x0 + part * (x1 - x0), y0 + part * (y1 - y0)
    w, h, chunk = 26, 38, event["send"]
    inside = (x - w / 2 + 2, y - h / 2 + 1, w - 4, h - 2)
    value = event["chunks"][chunk]
    return (
        f'<g{style}><path fill="#fff" stroke="{INK}" stroke-width="1.5" '
        f'd="{box(x - w / 2, y - h / 2, w, h)}"/>'
        + paint([stripes(*inside, chunk, value, stage.ranks)])
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


def words(stage: Stage, corner: str, sentence: str, more: str = "") -> str:
    """Return the corner and the sentence in their places."""
    bold = ' font-weight="600"'
    return text(16, 28, corner, 17, bold + more) + text(
        stage.width / 2, stage.height - 16, sentence, 14, f' text-anchor="middle"{more}'
    )


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


def inside(stage: Stage, rows: list[list[dict]], step: int) -> str:
    """Return all of a still but its scenery."""
    new, sent = "", ""
    for event in rows[step - 1] if step else []:
        slot = stage.stack(event["rank"], event["recv"])
        new += box(*slot, stage.column - 6, STACK)
        sent += token(stage, event, 0.5)
    halo = f'<path fill="{NEW}" d="{new}"/>'
    corner, sentence = caption(rows, step)
    said = words(stage, f"after {corner}" if step else corner, sentence)
    return said + halo + holdings(stage, rows[step]) + sent


def frame(events: list[dict], step: int) -> str:
    """Return a still: the messages of one step, and what the ranks hold after it."""
    rows = table(events)
    stage = Stage(len(rows[0]))
    body = scenery(stage) + (arrows(stage) if step else "") + inside(stage, rows, step)
    return svg(stage.width, stage.height, describe(events, step), body)


def strip(events: list[dict], columns: int = 2) -> str:
    """Return all stills on one sheet, for print and for readers who want to stop."""
    rows = table(events)
    stage = Stage(len(rows[0]))
    columns = min(columns, len(rows))
    lines = -(-len(rows) // columns)
    body = f'<defs><g id="s">{scenery(stage)}</g><g id="a">{arrows(stage)}</g></defs>'
    for step in range(len(rows)):
        x, y = step % columns * stage.width, step // columns * stage.height
        body += f'<g transform="translate({n(x)} {n(y)})"><use href="#s"/>'
        body += '<use href="#a"/>' if step else ""
        body += inside(stage, rows, step) + "</g>"
    title = f"All {len(rows)} states of a ring all-reduce over {stage.ranks} ranks"
    return svg(columns * stage.width, lines * stage.height, title, body)
