"""Draws scores by samples seen: a line for each way of training, drawn as it trains."""

from ..recording import Recording
from .clock import Clock
from .svg import BOLD, EDGE, GREY, HUES, INK, MIDDLE, PAPER, box, n, svg, text

LEFT, TOP, WIDE, TALL, RIGHT = 44, 46, 520, 250, 196
PASS, LOOK = 8.0, 3.0  # seconds: all samples are seen, and then the end is
DASHES = ("", "8 4", "2 3", "10 3 2 3", "5 5")
NEAR = 16  # pixels between two names


class Layout:
    """Where everything stands, for a recording."""

    def __init__(self, events: Recording):
        self.each, self.ranks = events.header["every"], events.header["ranks"]
        self.ways = list(dict.fromkeys(event["phase"] for event in events))
        part = 100 / events.header["tests"]
        self.scores = {
            way: [part * e["score"] for e in events if e["phase"] == way]
            for way in self.ways
        }
        self.last = max(event["step"] for event in events)
        self.width, self.height = LEFT + WIDE + RIGHT, TOP + TALL + 62

    def x(self, step: int) -> float:
        return LEFT + WIDE * step / max(self.last, 1)

    def y(self, score: float) -> float:
        return TOP + TALL * (1 - score / 100)

    def name(self, way: str) -> str:
        return way if "rank" in way else f"{self.ranks} ranks, {way}"

    def title(self) -> str:
        return (
            f"1 rank and {self.ranks} ranks see the same samples: right answers of 100"
        )


def places(layout: Layout, step: int) -> dict[str, float]:
    """Return the height of each way's name, near its line and clear of the others."""
    order = sorted(layout.ways, key=lambda way: -layout.scores[way][step])
    heights = [layout.y(layout.scores[way][step]) for way in order]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + NEAR)
    over = max(0.0, heights[-1] - (TOP + TALL))
    for i in reversed(range(len(heights))):
        heights[i] -= over
        if i:
            over = max(0.0, heights[i - 1] + NEAR - heights[i])
    return dict(zip(order, heights))


def scenery(layout: Layout) -> str:
    """Return what never changes: the field, its rulers and what they count."""
    lines, said = "", ""
    for score in range(0, 101, 20):
        lines += f"M{LEFT} {n(layout.y(score))}h{WIDE}"
        said += text(LEFT - 8, layout.y(score) + 4, score, 12, ' text-anchor="end"')
    for step in range(0, layout.last + 1, max(layout.last // 4, 1)):
        x, y = layout.x(step), TOP + TALL + 20
        said += text(x, y, step * layout.each, 12, MIDDLE)
    said += text(LEFT, 28, layout.title(), 17, BOLD)
    said += text(LEFT, TOP + TALL + 44, "samples seen by all ranks together", 13)
    field = f'<path fill="{PAPER}" d="{box(LEFT, TOP, WIDE, TALL)}"/>'
    return f'{field}<path stroke="{EDGE}" d="{lines}"/>{said}'


def drawn(layout: Layout, step: int) -> str:
    """Return the lines until a step."""
    body = ""
    for number, way in enumerate(layout.ways):
        points = [
            f"{n(layout.x(i))} {n(layout.y(score))}"
            for i, score in enumerate(layout.scores[way][: step + 1])
        ]
        dash = f' stroke-dasharray="{DASHES[number % len(DASHES)]}"' * (number > 0)
        body += f'<path d="M{"L".join(points)}" stroke="{hue(number)}"{dash}/>'
    return f'<g fill="none" stroke-width="3" stroke-linejoin="round">{body}</g>'


def names(layout: Layout, step: int) -> str:
    """Return the name of each line, with its score and a piece of its line."""
    said, x = "", layout.x(step) + 8
    for way, y in places(layout, step).items():
        number = layout.ways.index(way)
        score = f"{layout.scores[way][step]:.0f} · {layout.name(way)}"
        said += text(x, y + 4, score, 13, f' fill="{hue(number)}" font-weight="600"')
    return said


def hue(number: int) -> str:
    """Return a dark grey for the first line, and a hue of its own for each other."""
    return INK if number == 0 else [HUES[i] for i in (0, 5, 2, 3)][(number - 1) % 4]


def describe(events: Recording, step: int) -> str:
    """Return the scores after a step, in words."""
    layout = Layout(events)
    told = (f"{layout.name(w)}: {layout.scores[w][step]:.1f}" for w in layout.ways)
    return f"{layout.title()}, after {step * layout.each}. {'; '.join(told)}"


def frame(events: Recording, step: int) -> str:
    """Return a still: the lines until a step."""
    layout = Layout(events)
    body = scenery(layout) + drawn(layout, step) + names(layout, step)
    return svg(layout.width, layout.height, describe(events, step), body)


def animate(events: Recording) -> str:
    """Return the whole, uncovered from left to right; the names come at the end."""
    layout, clock = Layout(events), Clock(PASS + LOOK)
    gone = f"transform:translate({WIDE + 4}px)"
    key = f"0%{{transform:none}}{clock.percent(PASS)},to{{{gone}}}"
    clock.add("cover", key, "linear", f"{gone};")
    veil = f'<path fill="#fff" opacity=".9" d="{box(LEFT, TOP, WIDE + 4, TALL)}"/>'
    bar = f'<path stroke="{GREY}" stroke-width="2" d="M{LEFT} {TOP}v{TALL}"/>'
    clip = f'<clipPath id="field"><path d="{box(LEFT, TOP - 2, WIDE + 4, TALL + 4)}"/>'
    moving = f'<g clip-path="url(#field)"><g class="cover">{veil}{bar}</g></g>'
    said = f"<g{clock.during(PASS, clock.total)}>{names(layout, layout.last)}</g>"
    body = f"{clip}</clipPath>" + scenery(layout) + drawn(layout, layout.last)
    body += moving + said
    return svg(layout.width, layout.height, layout.title(), clock.style() + body)
