"""Sets a ring all-reduce in motion: its recording in, one animated SVG out.

Style sheets do the moving: they obey a reader who asks for less motion, and a reader
whose program knows none of them sees the end of the run.
"""

from collections import defaultdict
from collections.abc import Iterator

from .recording import digit, table, verify
from .ring import (
    NUMBERS,
    OUTLINE,
    STACK,
    Stage,
    arrows,
    caption,
    number,
    outline,
    paint,
    scenery,
    stripes,
    token,
    words,
)
from .svg import n, svg

START, STEP, END = 1.2, 1.4, 2.4  # seconds
TRAVEL = 0.75  # the part of a step in which its messages move


class Clock:
    """The style sheet of an animation: it grows with each class that is asked for."""

    def __init__(self, total: float):
        self.total, self.rules = total, {}

    def during(self, begin: float, end: float) -> str:
        """Return the class of what is seen from begin to end, or to the very end."""
        name = f"d{begin * 10:.0f}_{end * 10:.0f}"
        if begin > 0 or end < self.total:
            a, b = self.percent(begin), self.percent(end)
            key = (
                f"0%,{a}{{opacity:0}}{a},{b}{{opacity:1}}"
                if begin
                else f"0%,{b}{{opacity:1}}"
            )
            key += f"{b},to{{opacity:0}}" if end < self.total else "to{opacity:1}"
            still = "" if end >= self.total else "opacity:0;"
            self.add(name, key, "step-end", still)
        return f' class="{name}"'

    def flight(self, begin: float, end: float) -> str:
        """Return the class of what moves by --x and --y from begin to end."""
        name = f"f{begin * 10:.0f}"
        a, b = self.percent(begin), self.percent(end)
        key = f"0%{{opacity:0}}{a}{{opacity:0;transform:none}}"
        key += f"{self.percent(begin + 0.02)}{{opacity:1;transform:none}}"
        key += f"{b}{{opacity:1;transform:translate(var(--x),var(--y))}}"
        key += f"{self.percent(end + 0.02)},to{{opacity:0;"
        key += "transform:translate(var(--x),var(--y))}"
        self.add(name, key, "ease-in-out", "opacity:0;")
        return name

    def percent(self, seconds: float) -> str:
        return f"{100 * seconds / self.total:.2f}%"

    def add(self, name: str, key: str, easing: str, still: str) -> None:
        self.rules[name] = (
            f"@keyframes {name}{{{key}}}"
            f".{name}{{{still}animation:{name} {self.total:g}s {easing} infinite}}"
        )

    def style(self) -> str:
        calm = "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"
        return "<style>" + "".join(self.rules.values()) + calm + "</style>"


def animate(events: list[dict]) -> str:
    """Return the whole run as one moving picture."""
    rows = table(verify(events))
    stage, last = Stage(len(rows[0])), len(rows) - 1
    begin = [0.0, *(START + step * STEP for step in range(last))]
    total = begin[-1] + STEP * (last > 0) + END
    there = [0.0, *(time + TRAVEL * STEP for time in begin[1:]), total]
    clock, parts = Clock(total), [scenery(stage), arrows(stage)]
    for step, (first, after) in enumerate(zip(begin, [*begin[1:], total])):
        parts.append(words(stage, *caption(rows, step), clock.during(first, after)))
        if arrived := news(stage, rows, step):
            parts.append(f"<g{clock.during(there[step], total)}>{arrived}</g>")
    for (step, until), numbers in sorted(spans(stage, rows).items()):
        seen = clock.during(there[step], there[until])
        parts.append(f"<g{seen}>{NUMBERS.format(numbers)}</g>")
    for step, row in enumerate(rows[:-1]):
        name = clock.flight(begin[step + 1], there[step + 1])
        parts += [token(stage, event, 0, way(stage, event, name)) for event in row]
    title = f"A ring all-reduce over {stage.ranks} ranks, recorded and played back"
    return svg(stage.width, stage.height, title, clock.style() + "".join(parts))


def news(stage: Stage, rows: list[list[dict]], step: int) -> str:
    """Return the stripes and borders that one step adds."""
    shapes, full = [], ""
    for rank, event in enumerate(rows[step]):
        for chunk, value in enumerate(event["chunks"]):
            before = rows[step - 1][rank]["chunks"][chunk] if step else 0
            fresh = sum(
                digit(value, r) * 10**r
                for r in range(stage.ranks)
                if not digit(before, r)
            )
            slot = (*stage.stack(rank, chunk), stage.column - 6, STACK)
            shapes.append(stripes(*slot, chunk, fresh, stage.ranks))
            if value != before:
                full += outline(stage, rank, chunk, value)
    return paint(shapes) + (OUTLINE.format(full) if full else "")


def spans(stage: Stage, rows: list[list[dict]]) -> dict[tuple[int, int], str]:
    """Return the numbers under the stacks, by the steps from and until they stand."""
    found = defaultdict(str)
    for rank in range(stage.ranks):
        for chunk in range(stage.ranks):
            values = [row[rank]["chunks"][chunk] for row in rows]
            for step, until, value in stretches(values):
                found[step, until] += number(stage, rank, chunk, value)
    return found


def stretches(values: list[int]) -> Iterator[tuple[int, int, int]]:
    """Give each run of equal values: where it begins, where it has ended, the value."""
    first = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[first]:
            yield first, i, values[first]
            first = i


def way(stage: Stage, event: dict, name: str) -> str:
    """Return the class of a token and how far it has to go."""
    x0, y0, x1, y1 = stage.path(event["rank"])
    return f' class="{name}" style="--x:{n(x1 - x0)}px;--y:{n(y1 - y0)}px"'
