"""Draws ranks that hold numbers and pass them on: events and step in, SVG text out.

Place is rank, as in the ring; in the middle may stand one process that works alone
(rank -1). The stripes under a number say whose it is: slot and hue are a rank's.

A header may have: phases, a sentence for each phase; title, of the picture; pace, the
seconds of a step; gap, between cards; alone, the name of rank -1; boxes, around some
ranks, by their names; fresh, the names that are emptied when a step begins.
"""

from collections import defaultdict

from .cards import dot, parcel, row, scenery
from .clock import Clock, moments, so_far, stretches
from .flow_layout import CROWD, Layout
from .svg import NEW, Stock, arrows, n, svg, words


def meeting(layout: Layout, step: int) -> str:
    """Return a band through all ranks that make a call together, or nothing."""
    groups = defaultdict(list)
    for rank in layout.ranks:
        event = layout.rows[step][rank]
        if rank >= 0 and event.get("call"):
            groups[event.get("group", 0)].append(layout.places[rank])
    line = ""
    for places in groups.values():
        line += "M" + "L".join(f"{n(x)} {n(y)}" for x, y in places)
        line += "z" if len(places) == layout.size else ""
    band = f'<path d="{line}" fill="none" stroke="{NEW}" stroke-width="16"/>'
    return band if layout.size > 1 and line else ""


def sends(layout: Layout, step: int) -> list[tuple]:
    """Return the messages of a step, as (from, to, name) or (from, to, name, cells)."""
    found = layout.rows[step].items()
    return [(rank, *send) for rank, e in found for send in e.get("sends", [])]


def crossed(layout: Layout, step: int, send: tuple) -> bool:
    """Say whether a message with cells of its own meets another on its way."""
    a, b, *more = send
    return len(more) > 1 and any(s[:2] == (b, a) for s in sends(layout, step))


def paths(layout: Layout, step: int) -> str:
    """Return an arrow for each message of a step."""
    ways = [layout.path(*send[:2]) for send in sends(layout, step)]
    return arrows(ways, 1 if len(ways) > CROWD else 2)


def token(layout: Layout, step: int, send: tuple, part: float, style: str = "") -> str:
    """Return a message part of its way: the cells it names, or those that arrive."""
    a, b, name, *given = send
    x0, y0, x1, y1 = layout.path(a, b)
    x, y = x0 + part * (x1 - x0), y0 + part * (y1 - y0)
    held = given[0] if given else layout.rows[step][b]["holds"].get(name) or [["?"]]
    return f"<g{style}>{parcel(layout, x, y, held, not given)}</g>"


def caption(layout: Layout, step: int) -> tuple[str, str]:
    """Return the corner and the sentence for the state after some steps."""
    phase = layout.rows[step][0]["phase"]
    corner = so_far(step, layout.rows, phase) if step else phase
    return corner, layout.phases.get(phase, "")


def describe(events: list[dict], step: int) -> str:
    """Return the state after some steps in words, for those who don't see it."""
    layout = Layout(events)
    corner, sentence = caption(layout, step)
    told = []
    for rank in layout.ranks:
        held = layout.rows[step][rank]["holds"].items()
        numbers = (f"{k} {' '.join(str(v) for v, *_ in c)}" for k, c in held)
        told.append(f"{layout.title(rank)}: {', '.join(numbers)}")
    begin = f"{'after ' * (step > 0)}{corner}."
    return " ".join(filter(None, [begin, sentence, "; ".join(told)]))


def frame(events: list[dict], step: int) -> str:
    """Return a still: the messages of one step, and what the ranks hold after it."""
    layout, held, new, moving = Layout(events), "", "", ""
    for rank in layout.ranks:
        before = layout.rows[max(step - 1, 0)][rank]["holds"]
        for name, found in layout.rows[step][rank]["holds"].items():
            held += row(layout, rank, name, found)
            if found != before.get(name):
                new += layout.halo(rank, name, len(found))
    shown = sends(layout, step)
    for send in shown if len(shown) <= CROWD else []:
        part = 0.25 if crossed(layout, step, send) else 0.5
        moving += token(layout, step, send, part)
    corner, sentence = caption(layout, step)
    body = meeting(layout, step) + scenery(layout)
    body += words(layout, f"after {corner}" if step else corner, sentence)
    body += f'<path fill="{NEW}" d="{new}"/>{held}{paths(layout, step)}{moving}'
    return svg(layout.width, layout.height, describe(events, step), body)


def animate(events: list[dict]) -> str:
    """Return the whole run as one moving picture."""
    layout = Layout(events)
    last = len(layout.rows) - 1
    begin, there, total = moments(last, layout.pace)
    clock, stock, parts, bands = Clock(total), Stock(bool(layout.pace)), [], []
    for step, (first, after) in enumerate(zip(begin, [*begin[1:], total])):
        seen = clock.during(first, after)
        parts.append(words(layout, *caption(layout, step), seen))
        if found := meeting(layout, step):
            bands.append(stock.put(found, seen))
        if found := paths(layout, step):
            parts.append(stock.put(found, seen))
    if layout.pace:  # where nothing travels, nothing is waited for
        at_once = [not sends(layout, step) for step in range(last + 1)]
        there[:-1] = [b if now else t for b, t, now in zip(begin, there, at_once)]
    for (fresh, step, until), found in sorted(spans(layout).items()):
        over = begin[until] if fresh and until <= last else there[until]
        parts.append(f"<g{clock.during(there[step], over)}>{found}</g>")
    for step in range(1, last + 1):
        shown = sends(layout, step)
        for send in shown:
            x0, y0, x1, y1 = layout.path(*send[:2])
            way = clock.flight(begin[step], there[step], x1 - x0, y1 - y0)
            if stock.long and len(send) == 4:
                many = len(shown) > CROWD
                drawn = dot(send[0]) if many else parcel(layout, 0, 0, send[3])
                parts.append(stock.put(drawn, way, x0, y0))
            else:
                parts.append(token(layout, step, send, 0, way))
    title = f"{layout.name}, recorded and played back"
    body = clock.style() + stock.defs() + "".join([*bands, scenery(layout), *parts])
    return svg(layout.width, layout.height, title, body)


def spans(layout: Layout) -> dict[tuple[bool, int, int], str]:
    """Return the lines of all cards: fresh or not, and the steps between they stand."""
    found = defaultdict(str)
    for rank in layout.ranks:
        for name in layout.cards[rank]:
            fresh = name in layout.fresh
            values = [state[rank]["holds"].get(name) for state in layout.rows]
            for step, until, held in stretches(values):
                if held:
                    found[fresh, step, until] += row(layout, rank, name, held)
    return found
