"""Sets a ring all-reduce in motion: its recording in, one animated SVG out."""

from collections import defaultdict
from collections.abc import Iterator

from ..recording import digit, table, verify
from .clock import Clock, moments
from .ring import (
    NUMBERS,
    OUTLINE,
    STACK,
    Layout,
    arrows,
    caption,
    number,
    outline,
    paint,
    scenery,
    stripes,
    token,
)
from .svg import n, svg, words


def animate(events: list[dict]) -> str:
    """Return the whole run as one moving picture."""
    rows = table(verify(events))
    layout, last = Layout(len(rows[0])), len(rows) - 1
    begin, there, total = moments(last)
    clock, parts = Clock(total), [scenery(layout), arrows(layout)]
    for step, (first, after) in enumerate(zip(begin, [*begin[1:], total])):
        parts.append(words(layout, *caption(rows, step), clock.during(first, after)))
        if arrived := news(layout, rows, step):
            parts.append(f"<g{clock.during(there[step], total)}>{arrived}</g>")
    for (step, until), numbers in sorted(spans(layout, rows).items()):
        seen = clock.during(there[step], there[until])
        parts.append(f"<g{seen}>{NUMBERS.format(numbers)}</g>")
    for step, row in enumerate(rows[:-1]):
        name = clock.flight(begin[step + 1], there[step + 1])
        parts += [token(layout, event, 0, way(layout, event, name)) for event in row]
    title = f"A ring all-reduce over {layout.ranks} ranks, recorded and played back"
    return svg(layout.width, layout.height, title, clock.style() + "".join(parts))


def news(layout: Layout, rows: list[list[dict]], step: int) -> str:
    """Return the stripes and borders that one step adds."""
    shapes, full = [], ""
    for rank, event in enumerate(rows[step]):
        for chunk, value in enumerate(event["chunks"]):
            before = rows[step - 1][rank]["chunks"][chunk] if step else 0
            fresh = sum(
                digit(value, r) * 10**r
                for r in range(layout.ranks)
                if not digit(before, r)
            )
            slot = (*layout.stack(rank, chunk), layout.column - 6, STACK)
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


def stretches(values: list[int]) -> Iterator[tuple[int, int, int]]:
    """Give each run of equal values: where it begins, where it has ended, the value."""
    first = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[first]:
            yield first, i, values[first]
            first = i


def way(layout: Layout, event: dict, name: str) -> str:
    """Return the class of a token and how far it has to go."""
    x0, y0, x1, y1 = layout.path(event["rank"])
    return f' class="{name}" style="--x:{n(x1 - x0)}px;--y:{n(y1 - y0)}px"'
