"""Draws which worker of which rank reads what of a stream: events and step in, SVG out.

A row is a worker, beside its rank's others; a column is a sample, and the stream passes
from left to right. At the foot stands how often a sample is read: in red, if not once.
"""

from collections import Counter

from .clock import Clock
from .recording import table
from .ring import HUES, NEW, WRONG
from .svg import GREY, box, n, svg, text

LEFT, TOP, LINE, CELL, GAP = 132, 68, 24, 20, 8
BOLD, MIDDLE = ' font-weight="600"', ' text-anchor="middle"'
START, END, TOTAL, SWEEP = 0.4, 2.0, 12.0, 0.75  # seconds; and a part of each state


class Sheet:
    """Where everything stands, for a recording."""

    def __init__(self, events: list[dict]):
        rows = table(events)
        self.phases = [row[0]["phase"] for row in rows]
        self.reads = [[event["reads"] for event in row] for row in rows]
        seen = [number for step in self.reads for number in flat(step)]
        known = getattr(events, "header", {}).get("samples")
        self.samples = max(seen, default=-1) + 1 if known is None else known
        self.lines, y = [], TOP
        for rank, workers in enumerate(self.reads[0]):
            for worker in range(len(workers)):
                self.lines.append((rank, worker, y))
                y += LINE
            y += GAP
        self.foot = y + 4
        self.wide = 36 if self.samples <= 16 else 26 if self.samples <= 26 else 20
        self.width = max(LEFT + self.samples * self.wide + 20, 560)
        self.height = self.foot + 62

    def x(self, number: int) -> int:
        return LEFT + number * self.wide

    def times(self, step: int) -> Counter:
        """Return how often each sample is read."""
        return Counter(flat(self.reads[step]))


def flat(ranks: list[list[list[int]]]) -> list[int]:
    """Return what all workers of all ranks read."""
    return [number for workers in ranks for mine in workers for number in mine]


def column(sheet: Sheet, step: int, number: int) -> str:
    """Return who reads a sample, and how often that makes."""
    half, cells, names = sheet.wide / 2 - 1, "", ""
    for rank, worker, y in sheet.lines:
        if number in sheet.reads[step][rank][worker]:
            d = box(sheet.x(number), y, sheet.wide - 2, CELL)
            cells += f'<path fill="{HUES[rank % len(HUES)]}" d="{d}"/>'
            names += (
                f'<text x="{n(sheet.x(number) + half)}" y="{y + 15}">{number}</text>'
            )
    times = sheet.times(step)[number]
    more = MIDDLE + BOLD + (f' fill="{WRONG}"' if times != 1 else "")
    foot = text(sheet.x(number) + half, sheet.foot + 15, times, 13, more)
    cells = f'<g fill-opacity=".3">{cells}</g>' if cells else ""
    return cells + (f'<g font-size="12"{MIDDLE}>{names}</g>' if names else "") + foot


def scenery(sheet: Sheet) -> str:
    """Return what never changes: names of rows and columns, and empty cells."""
    parts, frames, half = [], "", sheet.wide / 2 - 1
    parts.append(text(14, TOP - 10, "stream", 13, BOLD))
    parts.append(text(14, sheet.foot + 15, "times read", 13, BOLD))
    for number in range(sheet.samples):
        x = sheet.x(number)
        parts.append(text(x + half, TOP - 10, number, 12, f'{MIDDLE} fill="{GREY}"'))
        frames += "".join(box(x, y, sheet.wide - 2, CELL) for *_, y in sheet.lines)
    for rank, worker, y in sheet.lines:
        if not worker:
            parts.append(
                f'<path fill="{HUES[rank % len(HUES)]}" d="{box(4, y, 4, CELL)}"/>'
            )
            parts.append(text(14, y + 15, f"rank {rank}", 13, BOLD))
        parts.append(text(66, y + 15, f"worker {worker}", 12))
    return f'<path fill="#fff" stroke="#c3cad4" d="{frames}"/>' + "".join(parts)


def sentence(sheet: Sheet, step: int) -> str:
    """Return how many reads there are, and what that is for the samples."""
    times = sheet.times(step)
    found = {times[number] for number in range(sheet.samples)}
    told = f"{sum(times.values())} reads of {sheet.samples} samples"
    if len(found) == 1:
        count = max(found)
        often = {0: "none is read", 1: "each is read once", 2: "each is read twice"}
        return f"{told}: {often.get(count, f'each is read {count} times')}."
    if not found:
        return f"{told}."
    never = sum(not times[number] for number in range(sheet.samples))
    more = sum(count > 1 for count in times.values())
    return f"{told}: {never} never read, {more} more than once."


def describe(events: list[dict], step: int) -> str:
    """Return who reads what, in words; a bar stands between workers."""
    sheet = Sheet(events)
    ranks = (
        f"rank {rank}: {' | '.join(' '.join(map(str, mine)) for mine in workers)}"
        for rank, workers in enumerate(sheet.reads[step])
    )
    return f"{sheet.phases[step]}. {sentence(sheet, step)} {'; '.join(ranks)}"


def heading(sheet: Sheet, step: int, more: str = "") -> str:
    """Return the phase in its place."""
    return text(14, 28, sheet.phases[step], 17, BOLD + more)


def verdict(sheet: Sheet, step: int, more: str = "") -> str:
    """Return the sentence in its place."""
    more += MIDDLE
    return text(sheet.width / 2, sheet.height - 16, sentence(sheet, step), 14, more)


def states(events: list[dict]) -> int:
    """Return how many states there are to look at."""
    return len(table(events))


def whole(sheet: Sheet, step: int) -> str:
    """Return all of a still."""
    columns = "".join(column(sheet, step, i) for i in range(sheet.samples))
    return scenery(sheet) + columns + heading(sheet, step) + verdict(sheet, step)


def frame(events: list[dict], step: int) -> str:
    """Return a still: who has read what when the stream has passed."""
    sheet = Sheet(events)
    return svg(sheet.width, sheet.height, describe(events, step), whole(sheet, step))


def strip(events: list[dict]) -> str:
    """Return all states on one sheet."""
    sheet, body, told = Sheet(events), "", []
    for step, phase in enumerate(sheet.phases):
        place = f"translate(0 {n(step * sheet.height)})"
        body += f'<g transform="{place}">{whole(sheet, step)}</g>'
        told.append(f"{phase}: {sentence(sheet, step)}")
    return svg(sheet.width, sheet.height * len(told), " ".join(told), body)


def animate(events: list[dict]) -> str:
    """Return all states as one moving picture: the stream passes, the workers take."""
    sheet = Sheet(events)
    last = len(sheet.phases)
    each = (TOTAL - START - END) / last
    clock, parts, bands = Clock(TOTAL), "", ""
    for step in range(last):
        begin = START + step * each
        until = TOTAL if step == last - 1 else begin + each
        parts += heading(sheet, step, clock.during(begin if step else 0, until))
        parts += verdict(sheet, step, clock.during(begin + SWEEP * each, until))
        band = box(LEFT - 2, TOP - 24, sheet.wide + 2, sheet.foot - TOP + 20)
        way = f"--x:{sheet.samples * sheet.wide}px;--y:0px"
        name = clock.flight(begin, begin + SWEEP * each, "linear")
        bands += f'<path class="{name}" style="{way}" d="{band}"/>'
        for number in range(sheet.samples):
            part = (number + 1) / sheet.samples
            seen = clock.during(begin + part * SWEEP * each, until)
            parts += f"<g{seen}>{column(sheet, step, number)}</g>"
    title = "Who reads what of a stream, recorded and played back"
    bands = f'<g fill="{NEW}" fill-opacity=".7">{bands}</g>'
    body = clock.style() + scenery(sheet) + bands + parts
    return svg(sheet.width, sheet.height, title, body)
