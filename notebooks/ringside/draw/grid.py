"""Draws who reads which sample in which epoch: events and step in, SVG text out.

A row is an epoch, in the order of the deal: the first sample of each rank, then the
second of each. Hue is the rank that reads it, and so is the place of the peg under the
number. On top lies the data set: there a peg is a rank that reads the sample.
"""

from collections import defaultdict

from .clock import Clock
from .grid_layout import CELL, LEFT, PEG, Layout, caption, summary
from .svg import (
    BOLD,
    GREY,
    HALO,
    HUES,
    INK,
    MIDDLE,
    NEW,
    PALE,
    WRONG,
    box,
    empty,
    n,
    svg,
    text,
    words,
)

START, EPOCH, END, FLIGHT, LONGEST = 0.8, 2.2, 2.0, 0.8, 12.0  # seconds
MOST = 24  # flights, each of a sample for every rank, that one picture has
HATCH = (
    '<pattern id="again" width="5" height="5" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><path d="M0 0v5" stroke="{INK}" '
    'stroke-width="2.4" opacity=".45"/></pattern>'
)
AGAIN = f'<path fill="url(#again)" stroke="{INK}" stroke-width="2" d="{{}}"/>'
NEVER = f'<path stroke="{WRONG}" stroke-width="1.5" stroke-dasharray="3 2" d="{{}}"/>'


def labels(layout: Layout, placed: list[tuple]) -> str:
    """Return the numbers of cells."""
    half = layout.wide / 2 - 1.5
    found = "".join(
        f'<text x="{n(x + half)}" y="{n(y + 15)}">{number}</text>'
        for x, y, number, _ in placed
    )
    return f'<g font-size="12"{MIDDLE}>{found}</g>'


def shades(layout: Layout, placed: list[tuple]) -> str:
    """Return the hue of cells with one reader, and the pegs of all readers."""
    pegs, tints, w = defaultdict(str), defaultdict(str), layout.wide - 3
    for x, y, _, ranks in placed:
        for rank in ranks:
            hue, slot = HUES[rank % len(HUES)], w / layout.size
            pegs[hue] += f"M{n(x + rank * slot)} {n(y + CELL + PEG / 2)}h{n(slot)}"
            if len(ranks) == 1:
                tints[hue] += f"M{n(x)} {n(y + CELL / 2)}h{w}"
    return thick(tints, CELL, ' opacity=".3"') + thick(pegs, PEG)


def thick(lines: dict[str, str], width: int, more: str = "") -> str:
    """Return lines of one width, by hue: shorter to write than boxes."""
    found = "".join(f'<path stroke="{hue}" d="{d}"/>' for hue, d in lines.items())
    return f'<g stroke-width="{width}"{more}>{found}</g>' if found else ""


def marks(layout: Layout, epoch: int) -> str:
    """Return what is wrong or odd about an epoch: read again, left out, repeated."""
    found, w = "", layout.wide - 3
    if again := layout.again(epoch):
        found += AGAIN.format("".join(box(x, y, w, CELL) for x, y, *_ in again))
        found += f"<g{HALO}>{labels(layout, again)}</g>"
    crosses, left_out = "", layout.left_out(epoch)
    for x, y, *_ in left_out:
        crosses += box(x, y, w, CELL) + f"M{n(x)} {n(y + CELL)}l{n(w)} -{CELL}"
    if crosses:
        found += f'<g fill="none">{NEVER.format(crosses)}</g>'
        found += f"<g{HALO}>{labels(layout, left_out)}</g>"
    if (first := layout.same(epoch)) is not None:
        y = layout.y(epoch)
        found += text(14, y + 29, f"= epoch {first}", 12, f'{BOLD} fill="{WRONG}"')
        found += f'<path fill="{WRONG}" d="{box(4, y - 3, 4, layout.tall - 5)}"/>'
    return found


def scenery(layout: Layout) -> str:
    """Return what never changes: names, empty cells, what hues and marks mean."""
    frames, parts = "", [f"<defs>{HATCH}</defs>"]
    for epoch in range(len(layout.epochs)):
        parts.append(text(14, layout.y(epoch) + 14, f"epoch {epoch}", 13, BOLD))
        for k in range(layout.longest):
            for x, y, *_ in layout.turn(epoch, k):
                frames += box(x, y, layout.wide - 3, CELL)
    if layout.deck:
        parts.append(text(14, 85, "data set", 13, BOLD))
        for number in range(layout.samples):
            frames += box(*layout.home(number), layout.wide - 3, CELL)
    parts.insert(1, empty(frames))
    for rank in range(layout.size):
        x = LEFT + rank * 70
        parts.append(text(x + 20, 54, f"rank {rank}", 12))
        hue, slot = HUES[rank % len(HUES)], 15 / layout.size
        parts.append(f'<path fill="{hue}" opacity=".3" d="{box(x, 42, 15, 10)}"/>')
        parts.append(f'<path fill="{hue}" d="{box(x + rank * slot, 52, slot, 5)}"/>')
    x, y = LEFT, layout.height - 46
    if any(map(layout.again, range(len(layout.epochs)))):
        parts.append(AGAIN.format(box(x, y - 11, 18, 14)))
        parts.append(text(x + 24, y, "read again in the same epoch", 12))
        x += 212
    if layout.aside:
        d = box(x, y - 11, 18, 14) + f"M{x} {n(y + 3)}l18 -14"
        parts.append(f'<g fill="none">{NEVER.format(d)}</g>')
        parts.append(text(x + 24, y, "not read in this epoch", 12))
    return "".join(parts)


def describe(events: list[dict], step: int) -> str:
    """Return who reads what in one epoch, in words."""
    layout = Layout(events)
    corner, sentence = caption(layout, step)
    each = enumerate(layout.epochs[step])
    told = "; ".join(f"rank {r}: {' '.join(map(str, mine))}" for r, mine in each)
    return f"{corner}. {sentence} {told}"


def ground(layout: Layout, epoch: int) -> str:
    """Return what lies under an epoch that repeats the order of another."""
    d = box(10, layout.y(epoch) - 4, layout.width - 20, layout.tall - 2)
    return f'<path fill="{PALE}" d="{d}"/>' if layout.same(epoch) is not None else ""


def row(layout: Layout, epoch: int) -> str:
    """Return all that one epoch adds."""
    turns = (layout.turn(epoch, k) for k in range(layout.longest))
    placed = [cell for turn in turns for cell in turn]
    return shades(layout, placed) + labels(layout, placed) + marks(layout, epoch)


def deck(layout: Layout) -> str:
    """Return the numbers of the data set."""
    return labels(layout, [(*layout.home(i), i, []) for i in range(layout.samples)])


def readers(layout: Layout, epoch: int) -> str:
    """Return the ranks that read each sample of the data set in one epoch."""
    whose = defaultdict(list)
    for rank, mine in enumerate(layout.epochs[epoch]):
        for number in dict.fromkeys(mine):
            whose[number].append(rank)
    return shades(layout, [(*layout.home(i), i, whose[i]) for i in sorted(whose)])


def frame(events: list[dict], step: int) -> str:
    """Return a still: all epochs up to one, and the data set shared out in that one."""
    layout = Layout(events)
    now = box(10, layout.y(step) - 4, layout.width - 20, layout.tall - 2)
    body = f'<path fill="{NEW}" d="{now}"/>'
    body += "".join(ground(layout, epoch) for epoch in range(step)) + scenery(layout)
    body += readers(layout, step) + deck(layout)
    body += "".join(row(layout, epoch) for epoch in range(step + 1))
    body += words(layout, *caption(layout, step))
    return svg(layout.width, layout.height, describe(events, step), body)


def sheet(events: list[dict]) -> str:
    """Return all epochs on one sheet."""
    layout = Layout(events, deck=False)
    epochs = range(len(layout.epochs))
    body = "".join(ground(layout, epoch) for epoch in epochs) + scenery(layout)
    body += "".join(row(layout, epoch) for epoch in epochs)
    body += words(layout, f"{layout.samples} samples, {layout.size} ranks", "")
    return svg(layout.width, layout.height - 20, summary(layout), body)


def animate(events: list[dict]) -> str:
    """Return all epochs as one moving picture: every sample flies to its place."""
    layout = Layout(events)
    last = len(layout.epochs)
    each = min(EPOCH, (LONGEST - START - END) / last)
    clock = Clock(START + last * each + END)
    under, shared, rows, flights, said = "", "", "", "", ""
    for epoch in range(last):
        begin = START + epoch * each
        until = clock.total if epoch == last - 1 else begin + each
        seen = clock.during(begin if epoch else 0, until)
        said += words(layout, *caption(layout, epoch), seen)
        seen = clock.during(begin, until)
        shared += f"<g{seen}>{readers(layout, epoch)}</g>"
        turns = [layout.turn(epoch, k) for k in range(layout.longest)]
        few = len(turns) <= 8 and len(turns) * last <= MOST
        for k, cells in enumerate(turns if few else [sum(turns, [])]):
            away = begin + k * (0.8 - FLIGHT / EPOCH) * each / len(turns)
            there = away + FLIGHT / EPOCH * each
            seen = clock.during(there, clock.total)
            rows += f"<g{seen}>{shades(layout, cells)}{labels(layout, cells)}</g>"
            if few:
                flights += "".join(flight(layout, c, clock, away, there) for c in cells)
        seen = clock.during(begin + 0.85 * each, clock.total)
        if found := marks(layout, epoch):
            rows += f"<g{seen}>{found}</g>"
        if found := ground(layout, epoch):
            under += f"<g{seen}>{found}</g>"
    body = clock.style() + under + scenery(layout) + shared + deck(layout) + rows
    if flights:
        body += f'{tokens(layout)}<g font-size="12"{MIDDLE}>{flights}</g>'
    body += said
    return svg(layout.width, layout.height, summary(layout), body)


def tokens(layout: Layout) -> str:
    """Return each sample at home, to be used where it flies."""
    found, half = "", layout.wide / 2 - 1.5
    for number in range(layout.samples):
        x, y = layout.home(number)
        shape = f'<path stroke="{GREY}" d="{box(x, y, layout.wide - 3, CELL)}"/>'
        name = f'<text x="{n(x + half)}" y="{n(y + 15)}" fill="{INK}">{number}</text>'
        found += f'<g id="t{number}">{shape}{name}</g>'
    return f"<defs>{found}</defs>"


def flight(layout: Layout, cell: tuple, clock: Clock, away, there) -> str:
    """Return a sample on its way from the data set to its place."""
    x, y, number, (rank,) = cell
    left, top = layout.home(number)
    way = clock.flight(away, there, x - left, y - top)
    pale = paler(HUES[rank % len(HUES)])
    return f'<use href="#t{number}" fill="{pale}"{way}/>'


def paler(hue: str) -> str:
    """Return a hue as it looks in a cell."""
    parts = (int(hue[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.3 * (255 - part)):02x}" for part in parts)
