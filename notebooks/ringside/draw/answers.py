"""Draws what a network answers while it learns: a column for each epoch."""

import re

from ..recording import Recording
from .clock import Clock, moments
from .svg import BOLD, EDGE, GREY, HUES, MIDDLE, PAPER, box, svg, text

LEFT, TOP, WIDE, TALL, FOOT = 24, 96, 44, 170, 74
GAP, KEYS = 26, 200  # between two columns, and the room of the names at their right
RIGHT, TEN = HUES[2], HUES[1]
STRIPES = (
    '<pattern id="ten" width="7" height="7" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><rect width="7" height="7" fill="{TEN}" '
    f'opacity=".35"/><path d="M0 0v7" stroke="{TEN}" stroke-width="6"/></pattern>'
)


def as_printed(lines: list[str]) -> Recording:
    """Return what a training that learns to add has printed after each epoch."""
    form = re.compile(r"epoch (\d+): (\d+)\+(\d+)= *(\d+), +(\d+) of (\d+) .+ (\d+) ")
    found = [[*map(int, match.groups())] for match in map(form.match, lines) if match]
    events = [
        {"step": epoch - 1, "rank": 0, "said": said, "score": right, "ten": ten}
        for epoch, _, _, said, right, _, ten in found
    ]
    _, a, b, _, _, tests, _ = found[0]
    more = {"asked": f"{a} + {b}", "answer": a + b, "tests": tests}
    return Recording(events, picture="answers", ranks=1, **more)


class Layout:
    """Where everything stands, for a recording."""

    def __init__(self, events: Recording):
        self.events, header = events, events.header
        self.asked, self.answer = header["asked"], header["answer"]
        self.tests, self.steps = header["tests"], len(events)
        self.width = LEFT + self.steps * (WIDE + GAP) + KEYS
        self.height = TOP + TALL + FOOT

    def x(self, step: int) -> float:
        return LEFT + step * (WIDE + GAP)

    def part(self, count: int) -> float:
        return TALL * count / self.tests

    def title(self) -> str:
        return f"What a network says {self.asked} is, after each pass over its data"


def verdict(layout: Layout, said: int) -> str:
    """Return what is wrong with an answer, in a few words."""
    off = said - layout.answer
    words = {0: "right", -10: "ten too few", 10: "ten too many"}
    return words.get(off, "wrong")


def column(layout: Layout, step: int) -> str:
    """Return one pass: how many answers are right or off by ten, and what is said."""
    event, x, foot = layout.events[step], layout.x(step), TOP + TALL
    right, ten = layout.part(event["score"]), layout.part(event["ten"])
    body = f'<path fill="{RIGHT}" d="{box(x, foot - right, WIDE, right)}"/>'
    body += f'<path fill="url(#ten)" d="{box(x, foot - right - ten, WIDE, ten)}"/>'
    middle, correct = x + WIDE / 2, event["said"] == layout.answer
    more = MIDDLE + BOLD if correct else MIDDLE
    body += text(middle, foot + 26, event["said"], 18, more)
    return body + text(middle, foot + 46, "✓" if correct else "✗", 14, MIDDLE)


def question(layout: Layout, step: int) -> str:
    """Return the answer of one pass, in large digits, and what is wrong with it."""
    said = layout.events[step]["said"]
    x = LEFT + 25.5 * (len(layout.asked) + 2)
    body = text(x, 58, said, 38, BOLD)
    return body + text(x + 96, 57, verdict(layout, said), 17, f' fill="{GREY}"')


def scenery(layout: Layout) -> str:
    """Return what never changes: the question, the empty columns, the names."""
    body = STRIPES + text(LEFT, 58, f"{layout.asked} =", 38, BOLD)
    boxes = "".join(
        box(layout.x(step), TOP, WIDE, TALL) for step in range(layout.steps)
    )
    body += f'<path fill="{PAPER}" stroke="{EDGE}" d="{boxes}"/>'
    for step in range(layout.steps):
        middle = layout.x(step) + WIDE / 2
        body += text(middle, TOP + TALL + 64, step + 1, 12, MIDDLE + f' fill="{GREY}"')
    x = layout.x(layout.steps) + 4
    body += text(x, TOP + 12, f"{layout.tests:,} new sums:", 13)
    keys = (PAPER, "wrong"), ("url(#ten)", "off by exactly ten"), (RIGHT, "right")
    for row, (fill, name) in enumerate(keys):
        y = TOP + 28 + 24 * row
        body += f'<path fill="{fill}" stroke="{EDGE}" d="{box(x, y, 15, 15)}"/>'
        body += text(x + 23, y + 12, name, 13)
    body += text(x, TOP + TALL + 26, f"its answer to {layout.asked}", 13)
    foot, grey = TOP + TALL + 64, f' fill="{GREY}"'
    return body + text(x, foot, "passes over its data", 12, grey)


def describe(events: Recording, step: int) -> str:
    """Return what is said and known after a pass, in words."""
    layout, event = Layout(events), events[step]
    said = f"Pass {step + 1}: {layout.asked} = {event['said']}"
    said += f" ({verdict(layout, event['said'])})"
    counts = f"{event['score']} of {layout.tests} new sums are right"
    return f"{said}; {counts}, {event['ten']} are off by ten."


def frame(events: Recording, step: int) -> str:
    """Return a still: all passes up to one."""
    layout = Layout(events)
    body = "".join(column(layout, number) for number in range(step + 1))
    body = scenery(layout) + body + question(layout, step)
    return svg(layout.width, layout.height, describe(events, step), body)


def animate(events: Recording) -> str:
    """Return all passes, one after another, as a moving picture."""
    layout = Layout(events)
    begin, _, total = moments(layout.steps)
    clock = Clock(total)
    body = scenery(layout)
    for step in range(layout.steps):
        begins = begin[step + 1]
        ends = begin[step + 2] if step + 1 < layout.steps else total
        body += f"<g{clock.during(begins, total)}>{column(layout, step)}</g>"
        body += f"<g{clock.during(begins, ends)}>{question(layout, step)}</g>"
    return svg(layout.width, layout.height, layout.title(), clock.style() + body)
