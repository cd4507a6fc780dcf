"""Draws who starts whom: a tree of processes for each way of starting the same ranks.

Height is who was first: you, a launcher where there is one, and the ranks. The letter
and the hue of a variable say who set it. A dashed box is a process that has ended.
"""

from ..recording import Recording
from . import stages
from .svg import (
    BOLD,
    EDGE,
    GREY,
    HUES,
    INK,
    MIDDLE,
    PAPER,
    WRONG,
    arrows,
    box,
    text,
)

LEFT, EACH, TOP = 16, 224, 46  # pixels: of the margin, of a way, above you
YOU, BOSS, RANK = (TOP, 30), (TOP + 84, 34), (TOP + 186, 152)  # top and height
WIDE = 104  # of a rank's box; two stand side by side
PHASES = {
    "typed": "You type a line, or without a launcher one line for each rank.",
    "started": "Each launcher starts the ranks.",
    "told": "Who sets the variables that a rank reads? A letter and a hue say it.",
    "rank 1 dies": "In each way, rank 1 ends with exit code 3, while rank 0 works on.",
    "after it": "The launcher ends rank 0 and tells you. By hand, nobody tells rank 0.",
}
BOSSES = {"mp.spawn": "the parent", "launch": "the agent", "torchrun": "the agent"}
WAYS = ("by hand", *BOSSES)
SETTERS = {"you": 1, "launcher": 0, "the rank": 2}  # and their hues
KEY = {"you": "Y: you set it", "launcher": "L: its launcher", "the rank": "R: itself"}


class Layout:
    """Where everything stands, for a recording."""

    margins = LEFT, 14
    phases = PHASES

    def __init__(self, events: Recording):
        found = {way: [e for e in events if e["phase"] == way] for way in WAYS}
        self.ways = {
            way: {event["rank"]: event for event in own}
            for way, own in found.items()
            if own
        }
        self.width = max(2 * LEFT + EACH * len(self.ways) - 12, 480)
        self.height = RANK[0] + RANK[1] + 64

    def left(self, way: str) -> float:
        return LEFT + EACH * list(self.ways).index(way)

    def place(self, way: str, rank: int) -> tuple[float, float, float, float]:
        """Return the box of a process: of you (-2), of a launcher (-1), of a rank."""
        if rank == -2:
            return LEFT, YOU[0], self.width - 2 * LEFT, YOU[1]
        x, w = self.left(way), EACH - 12
        if rank == -1:
            return x + 30, BOSS[0], w - 60, BOSS[1]
        return x + rank * (w - WIDE), RANK[0], WIDE, RANK[1]

    def way_down(self, way: str, rank: int) -> tuple[float, float, float, float]:
        """Return the arrow from the process that started another one."""
        x, y, w, _ = self.place(way, rank)
        above = -1 if self.ways[way][rank]["parent"] == "launcher" else -2
        px, py, pw, ph = self.place(way, above)
        middle = x + w / 2
        return min(max(middle, px + 20), px + pw - 20), py + ph, middle, y - 2


def setter(event: dict, name: str) -> str:
    """Return who has set a variable that a rank knows."""
    if name in event["typed"]:
        return "you"
    return "launcher" if name in event["inherited"] else "the rank"


def row(x: float, y: float, who: str, said: str) -> str:
    """Return a line in a rank's box, with the letter of who set the variable."""
    tag = f'<path fill="{HUES[SETTERS[who]]}" d="{box(x, y - 10, 13, 13)}"/>'
    letter = who.removeprefix("the ")[0].upper()
    return (
        tag
        + text(x + 6.5, y, letter, 11, ' fill="#fff"' + MIDDLE)
        + text(x + 15, y, said, 10.5)
    )


def variables(layout: Layout, way: str, rank: int) -> str:
    """Return the variables that a rank knows, one below the other."""
    (x, y, *_), event, drawn = layout.place(way, rank), layout.ways[way][rank], ""
    y += 36
    for name in event["knows"]:
        value = f" {rank}" * name.endswith("RANK")
        drawn += row(x + 3, y, setter(event, name), name + value)
        y += 17
    for word in event["words"]:
        drawn += row(x + 3, y, "launcher", word)
        y += 17
    return drawn


def process(layout: Layout, way: str, rank: int, over: bool = False) -> str:
    """Return the box of a process, dashed if it has ended."""
    place = layout.place(way, rank)
    x, y, w, _ = place
    title = BOSSES[way] if rank < 0 else f"rank {rank}"
    line = f'stroke="{EDGE}"'
    if over:
        line = f'stroke="{WRONG}" stroke-width="2" stroke-dasharray="5 4"'
    shape = f'<path fill="{PAPER}" {line} d="{box(*place)}"/>'
    return shape + text(x + w / 2, y + 16, title, 13, BOLD + MIDDLE)


def parts(layout: Layout) -> list[tuple[int, int, str]]:
    """Return all that is drawn: from which step on, until which, and its shapes."""
    always = len(PHASES)
    found, x = [(0, always, text(LEFT + 12, TOP + 20, "you", 13, BOLD))], LEFT + 60
    for way, events in layout.ways.items():
        x = layout.left(way) + (EACH - 12) / 2
        found.append((0, always, text(x, TOP + 20, way, 15, BOLD + MIDDLE)))
        for rank, event in events.items():
            first = 0 if event["parent"] == "you" else 1
            dies = 3 if rank == 1 else 4
            arrow = arrows([layout.way_down(way, rank)])
            found.append((first, dies, process(layout, way, rank)))
            found.append((first, always, arrow))
            found.append((dies, always, process(layout, way, rank, True)))
            px, py, w, h = layout.place(way, rank)
            middle, foot = px + w / 2, py + h - (10 if rank >= 0 else 4)
            hue = INK if event["ends"] == "exit code 0" else WRONG
            style = f' fill="{hue}"{BOLD}{MIDDLE}'
            found.append((dies, always, text(middle, foot, event["ends"], 12, style)))
            if rank >= 0:
                found.append((2, always, variables(layout, way, rank)))
    return found


def flights(layout: Layout) -> list[tuple[int, str, tuple]]:
    """Return what travels: in which step, its words, and from where to where."""

    def fly(step: int, said: str, x0: float, y0: float, x1: float, y1: float) -> None:
        found.append((step, parcel(x0, y0, said), (x0, y0, x1, y1)))

    found = []
    for way, events in layout.ways.items():
        for rank in (0, 1):
            x0, y0, x1, y1 = layout.way_down(way, rank)
            for who in {setter(events[rank], name) for name in events[rank]["knows"]}:
                if who != "the rank":
                    fly(2, "variables", x0, y0, x1, y1)
        if -1 in events:
            x0, y0, x1, y1 = layout.way_down(way, 1)
            fly(3, events[1]["ends"], x1, y1, x0, y0)
            x0, y0, x1, y1 = layout.way_down(way, 0)
            fly(4, events[0]["ends"], x0, y0, x1, y1)
    return found


def parcel(x: float, y: float, said: str) -> str:
    """Return a small label on its way."""
    wide = 6.6 * len(said) + 10
    shape = box(x - wide / 2, y - 9, wide, 18)
    return f'<path fill="#fff" stroke="{INK}" d="{shape}"/>' + text(
        x, y + 4, said, 11, MIDDLE
    )


def legend(layout: Layout) -> str:
    """Return what the letters mean."""
    said, x = "", LEFT
    for who, meaning in KEY.items():
        said += row(x, layout.height - 38, who, meaning)
        x += 40 + 6.5 * len(meaning)
    return said


def describe(events: Recording, step: int) -> str:
    """Return what has happened until the end of a step, in words."""
    layout, told = Layout(events), []
    for way, found in layout.ways.items():
        facts, boss = [], BOSSES.get(way, "")
        for rank, event in found.items():
            by = boss if event["parent"] == "launcher" else "you"
            fact = f"{f'rank {rank}' if rank >= 0 else boss} is started by {by}"
            if rank >= 0 and step >= 2:
                setters = {setter(event, name) for name in event["knows"]}
                names = {"launcher": boss, "the rank": "itself"}
                told_by = " and ".join(names.get(w, w) for w in sorted(setters))
                fact += f", told by {told_by}"
            if step >= (3 if rank == 1 else 4):
                fact += f", ends with {event['ends']}"
            facts.append(fact)
        told.append(f"{way}: {', and '.join(facts)}")
    corner, sentence = stages.caption(layout, step)
    return f"{corner}. {sentence} {'; '.join(told)}"


def scenery(layout: Layout) -> str:
    """Return what never changes: you, and what the letters mean."""
    bar = f'<path fill="#fff" stroke="{GREY}" d="{box(*layout.place("", -2))}"/>'
    return bar + legend(layout)


def frame(events: Recording, step: int) -> str:
    """Return a still: all that is there after a step."""
    layout, told = Layout(events), describe(events, step)
    return stages.frame(layout, step, told, parts(layout), scenery(layout))


def animate(events: Recording) -> str:
    """Return the whole as one moving picture."""
    layout = Layout(events)
    title = f"The same two ranks, started in {len(layout.ways)} ways"
    drawn = parts(layout), flights(layout), scenery(layout)
    return stages.animate(layout, title, *drawn)


def last(events: Recording) -> int:
    """Return the last step there is to look at."""
    return len(PHASES) - 1
