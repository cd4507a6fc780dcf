"""Draws which worker of which rank reads what of a stream: events and step in, SVG out.

A row is a worker, beside its rank's others; a column is a sample, and the stream passes
from left to right. At the foot stands how often a sample is read: in red, if not once.
"""

from collections import Counter

from ..recording import table
from .clock import Clock
from .svg import BOLD, GREY, HUES, MIDDLE, NEW, WRONG, box, empty, n, svg, text, words

LEFT, TOP, LINE, CELL, GAP = 132, 68, 24, 20, 8
START, END, TOTAL, SWEEP = 0.4, 2.0, 12.0, 0.75  # seconds; and a part of each state


class Layout:
    """Where everything stands, for a recording."""

    margins = 14, 16

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


def column(layout: Layout, step: int, number: int) -> str:
    """Return who reads a sample, and how often that makes."""
    half, cells, names = layout.wide / 2 - 1, "", ""
    for rank, worker, y in layout.lines:
        if number in layout.reads[step][rank][worker]:
            d = box(layout.x(number), y, layout.wide - 2, CELL)
            cells += f'<path fill="{HUES[rank % len(HUES)]}" d="{d}"/>'
            names += (
                f'<text x="{n(layout.x(number) + half)}" y="{y + 15}">{number}</text>'
            )
    times = layout.times(step)[number]
    more = MIDDLE + BOLD + (f' fill="{WRONG}"' if times != 1 else "")
    foot = text(layout.x(number) + half, layout.foot + 15, times, 13, more)
    cells = f'<g fill-opacity=".3">{cells}</g>' if cells else ""
    return cells + (f'<g font-size="12"{MIDDLE}>{names}</g>' if names else "") + foot


def scenery(layout: Layout) -> str:
    """Return what never changes: names of rows and columns, and empty cells."""
    parts, frames, half = [], "", layout.wide / 2 - 1
    parts.append(text(14, TOP - 10, "stream", 13, BOLD))
    parts.append(text(14, layout.foot + 15, "times read", 13, BOLD))
    for number in range(layout.samples):
        x = layout.x(number)
        parts.append(text(x + half, TOP - 10, number, 12, f'{MIDDLE} fill="{GREY}"'))
        frames += "".join(box(x, y, layout.wide - 2, CELL) for *_, y in layout.lines)
    for rank, worker, y in layout.lines:
        if not worker:
            parts.append(
                f'<path fill="{HUES[rank % len(HUES)]}" d="{box(4, y, 4, CELL)}"/>'
            )
            parts.append(text(14, y + 15, f"rank {rank}", 13, BOLD))
        parts.append(text(66, y + 15, f"worker {worker}", 12))
    return empty(frames) + "".join(parts)


def sentence(layout: Layout, step: int) -> str:
    """Return how many reads there are, and what that is for the samples."""
    times = layout.times(step)
    found = {times[number] for number in range(layout.samples)}
    told = f"{sum(times.values())} reads of {layout.samples} samples"
    if len(found) == 1:
        count = max(found)
        often = {0: "none is read", 1: "each is read once", 2: "each is read twice"}
        return f"{told}: {often.get(count, f'each is read {count} times')}."
    if not found:
        return f"{told}."
    never = sum(not times[number] for number in range(layout.samples))
    more = sum(count > 1 for count in times.values())
    return f"{told}: {never} never read, {more} more than once."


def describe(events: list[dict], step: int) -> str:
    """Return who reads what, in words; a bar stands between workers."""
    layout = Layout(events)
    ranks = (
        f"rank {rank}: {' | '.join(' '.join(map(str, mine)) for mine in workers)}"
        for rank, workers in enumerate(layout.reads[step])
    )
    return f"{layout.phases[step]}. {sentence(layout, step)} {'; '.join(ranks)}"


def frame(events: list[dict], step: int) -> str:
    """Return a still: who has read what when the stream has passed."""
    layout = Layout(events)
    columns = "".join(column(layout, step, i) for i in range(layout.samples))
    said = words(layout, layout.phases[step], sentence(layout, step))
    body = scenery(layout) + columns + said
    return svg(layout.width, layout.height, describe(events, step), body)


def animate(events: list[dict]) -> str:
    """Return all states as one moving picture: the stream passes, the workers take."""
    layout = Layout(events)
    last = len(layout.phases)
    each = (TOTAL - START - END) / last
    clock, parts, bands = Clock(TOTAL), "", ""
    for step in range(last):
        begin = START + step * each
        until = TOTAL if step == last - 1 else begin + each
        seen = clock.during(begin if step else 0, until)
        parts += words(layout, layout.phases[step], "", seen)
        seen = clock.during(begin + SWEEP * each, until)
        parts += words(layout, "", sentence(layout, step), seen)
        band = box(LEFT - 2, TOP - 24, layout.wide + 2, layout.foot - TOP + 20)
        across, there = layout.samples * layout.wide, begin + SWEEP * each
        way = clock.flight(begin, there, across, 0, "linear")
        bands += f'<path{way} d="{band}"/>'
        for number in range(layout.samples):
            part = (number + 1) / layout.samples
            seen = clock.during(begin + part * SWEEP * each, until)
            parts += f"<g{seen}>{column(layout, step, number)}</g>"
    title = "Who reads what of a stream, recorded and played back"
    bands = f'<g fill="{NEW}" fill-opacity=".7">{bands}</g>'
    body = clock.style() + scenery(layout) + bands + parts
    return svg(layout.width, layout.height, title, body)
