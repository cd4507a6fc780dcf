"""Draws what appears step by step, and what travels, for a Layout with phases.

A part is drawn from one step on until another: (first, until, shapes). What flies in a
step begins at one place and ends at another: (step, shapes, (x0, y0, x1, y1)).
"""

from collections.abc import Iterable

from .clock import Clock, moments, so_far
from .svg import svg, words


def caption(layout, step: int) -> tuple[str, str]:
    """Return the corner and the sentence for one step."""
    name = list(layout.phases)[step]
    return so_far(step, layout.phases, name), layout.phases[name]


def frame(layout, step: int, told: str, parts: Iterable, scenery: str = "") -> str:
    """Return a still: all that is there after a step."""
    body = scenery + words(layout, *caption(layout, step))
    body += "".join(drawn for first, until, drawn in parts if first <= step < until)
    return svg(layout.width, layout.height, told, body)


def animate(
    layout, title: str, parts: Iterable, flights: Iterable, scenery: str = ""
) -> str:
    """Return the whole as one moving picture."""
    begin, there, total = moments(len(layout.phases) - 1)
    clock, body, ends = Clock(total), "", [*begin[1:], total]
    for step in range(len(layout.phases)):
        seen = clock.during(begin[step], ends[step])
        body += f"<g{seen}>{words(layout, *caption(layout, step))}</g>"
    for first, until, drawn in parts:
        body += f"<g{clock.during(begin[first], ends[until - 1])}>{drawn}</g>"
    for step, drawn, (x0, y0, x1, y1) in flights:
        way = clock.flight(begin[step], there[step], x1 - x0, y1 - y0)
        body += f"<g{way}>{drawn}</g>"
    return svg(layout.width, layout.height, title, clock.style() + scenery + body)
