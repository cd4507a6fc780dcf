"""Draws cards, the numbers on them, and the numbers on their way between them."""

from collections import defaultdict

from .flow_layout import BAND, CELL, LINE, Layout, wide
from .svg import BOLD, GREY, HUES, INK, PAPER, box, empty, n, plain, text


def cells(
    layout: Layout, x: float, y: float, w: float, held: list, framed=True, per=99
) -> str:
    """Return numbers in rows, each over the stripes of the ranks in it."""
    frames, numbers, bands, tints = "", "", defaultdict(str), defaultdict(str)
    slot = (w - 3) / layout.size
    for i, (value, *whose) in enumerate(held):
        left, top = x + i % per * w, y + i // per * LINE
        frames += box(left, top, w - 3, CELL)
        middle = n(left + w / 2 - 1.5)
        numbers += f'<text x="{middle}" y="{n(top + 15)}">{plain(value)}</text>'
        if len(whose) == 1:
            tints[HUES[whose[0] % len(HUES)]] += box(left, top, w - 3, CELL)
        for rank in whose:
            hue = HUES[rank % len(HUES)]
            bands[hue] += box(left + rank * slot, top + CELL, slot, BAND)
    return (
        empty(frames) * framed
        + "".join(
            f'<path fill="{hue}" opacity=".25" d="{d}"/>' for hue, d in tints.items()
        )
        + "".join(f'<path fill="{hue}" d="{d}"/>' for hue, d in bands.items())
        + f'<g font-size="12" text-anchor="middle">{numbers}</g>'
    )


def scenery(layout: Layout) -> str:
    """Return what never changes: cards and their names, and boxes around some."""
    parts = []
    for name, ranks in layout.boxes.items():
        x, y, w, h = layout.around(ranks)
        frame = f'<path fill="none" stroke="{GREY}" stroke-width="2" d="{{}}"/>'
        parts.append(frame.format(box(x, y, w, h)) + text(x + 10, y + 20, name, 15))
    for rank in layout.ranks:
        (x, y), (w, h) = layout.places[rank], layout.room(rank)
        hue = HUES[rank % len(HUES)] if rank >= 0 else GREY
        parts.append(
            f'<rect x="{n(x - w / 2)}" y="{n(y - h / 2)}" width="{n(w)}" '
            f'height="{n(h)}" rx="9" fill="{PAPER}" stroke="{hue}" stroke-width="2"/>'
            + text(x - w / 2 + 10, y - h / 2 + 19, layout.title(rank), 14, BOLD)
        )
    return "".join(parts)


def row(layout: Layout, rank: int, name: str, held: list[list]) -> str:
    """Return one line of a card: a name and its numbers."""
    x, y = layout.spot(rank, name)
    left = layout.places[rank][0] - layout.room(rank)[0] / 2 + 10
    return text(left, y + 15, name, 12, f' fill="{GREY}"') + cells(
        layout, x, y, layout.cards[rank][name], held, per=layout.per(rank, name)
    )


def parcel(
    layout: Layout, x: float, y: float, held: list[list], framed: bool = False
) -> str:
    """Return numbers in a frame, and each in one of its own or not."""
    w = max(map(wide, held))
    width = w * len(held)
    frame = box(x - width / 2 - 2, y - 18, width + 3, CELL + BAND + 6)
    shape = f'<path fill="#fff" stroke="{INK}" stroke-width="1.5" d="{frame}"/>'
    return shape + cells(layout, x - width / 2, y - 15, w, held, framed)


def dot(rank: int) -> str:
    """Return a message of which no more can be seen than who gives it."""
    return f'<path fill="{HUES[rank % len(HUES)]}" d="{box(-5, -5, 10, 10)}"/>'
