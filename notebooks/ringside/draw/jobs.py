"""Draws who starts whom in a job of Slurm, and which task is which rank.

From top to bottom: srun, a daemon on each node, its tasks, and the ranks. With one
task per rank, a task is a rank. With torchrun, a task is an agent, which starts ranks.
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
    arrows,
    box,
    text,
)

WIDE, GAP, HEDGE, LEFT = 124, 12, 28, 16  # of a rank, between, of nodes, of the edge
ROWS = {"srun": (44, 30), "daemon": (126, 30), "task": (204, 64), "rank": (316, 64)}
NODE = (98, 296)  # top and height of a node
PHASES = {
    "srun": {
        "you type srun": "You type one line, on one machine.",
        "a daemon on each node": "srun asks a daemon on each node of the job.",
        "tasks": "Each daemon starts its tasks. Slurm counts them over all nodes.",
        "the script": "Five lines of the script rename its numbers: a task is a rank.",
        "they meet": "All ranks go to the first node, where rank 0 is.",
    },
    "torchrun": {
        "you type srun": "You type one line, on one machine.",
        "a daemon on each node": "srun asks a daemon on each node of the job.",
        "tasks": "Each daemon starts one task, and the task is an agent of torchrun.",
        "ranks": "The agents meet, and each starts and numbers its own ranks.",
        "they meet": "All ranks go to the first node, where rank 0 is.",
    },
}


class Layout:
    """Where everything stands, for a recording."""

    margins = LEFT, 14

    def __init__(self, events: Recording):
        self.by = events[0]["phase"]
        self.phases = PHASES[self.by]
        self.events = sorted(events, key=lambda e: (e["node"], e["task"], e["local"]))
        self.nodes = sorted({event["node"] for event in events})
        self.tasks = sorted({(e["node"], e["task"]) for e in events})
        self.lefts = {}
        for i, event in enumerate(self.events):
            gap = HEDGE * self.nodes.index(event["node"])
            self.lefts[event["rank"]] = LEFT + HEDGE / 2 + i * (WIDE + GAP) + gap
        self.width = max(self.lefts.values()) + WIDE + HEDGE / 2 + LEFT
        self.height = NODE[0] + NODE[1] + 48

    def span(self, ranks: list[int], row: tuple) -> tuple[float, float, float, float]:
        """Return the box that stands above or below some ranks."""
        lefts = [self.lefts[rank] for rank in ranks]
        return min(lefts), row[0], max(lefts) + WIDE - min(lefts), row[1]

    def ranks(self, **has: int) -> list[int]:
        """Return the ranks of a node, or of a task."""
        return [e["rank"] for e in self.events if has.items() <= e.items()]


def process(place: tuple, lines: list[str], hue: str = "") -> str:
    """Return the box of a process: a name, and what it knows."""
    x, y, w, h = place
    drawn = f'<path fill="{PAPER}" stroke="{EDGE}" d="{box(*place)}"/>'
    if hue:
        drawn += f'<path fill="{hue}" d="{box(x, y, 8, h)}"/>'
    for i, line in enumerate(lines):
        style = BOLD + MIDDLE if i == 0 else MIDDLE
        drawn += text(x + w / 2, y + 20 + 19 * i, line, 14 if i == 0 else 12, style)
    return drawn


def down(above: tuple, below: tuple) -> tuple[float, float, float, float]:
    """Return the arrow from the process that starts another one."""
    middle, (px, py, pw, ph) = below[0] + below[2] / 2, above
    return min(max(middle, px + 12), px + pw - 12), py + ph, middle, below[1] - 2


def parts(layout: Layout) -> list[tuple[int, str]]:
    """Return all that is drawn, and from which step on it is there."""
    everyone = layout.ranks()
    srun, found = layout.span(everyone, ROWS["srun"]), []
    found.append((0, process(srun, ["srun"])))
    for node in layout.nodes:
        own = layout.ranks(node=node)
        x, _, w, _ = daemon = layout.span(own, ROWS["daemon"])
        frame = box(x - HEDGE / 2 + 4, NODE[0], w + HEDGE - 8, NODE[1])
        shape = (
            f'<path fill="none" stroke="{GREY}" stroke-dasharray="6 4" d="{frame}"/>'
        )
        name = text(x, NODE[0] + 18, f"node {node}", 14, BOLD)
        found += [(0, shape + name), (1, arrows([down(srun, daemon)]))]
        found.append((1, process(daemon, ["slurmstepd"])))
    for node, task in layout.tasks:
        own = layout.ranks(node=node, task=task)
        place = layout.span(own, ROWS["task"])
        daemon = layout.span(layout.ranks(node=node), ROWS["daemon"])
        name = f"task {task}" + ": torchrun" * (layout.by == "torchrun")
        local = layout.tasks.index((node, task)) - min(
            i for i, (other, _) in enumerate(layout.tasks) if other == node
        )
        knows = [name, f"SLURM_PROCID {task}", f"SLURM_LOCALID {local}"]
        found.append((2, arrows([down(daemon, place)])))
        found.append((2, process(place, knows)))
        for rank in own:
            x, y, w, _ = below = layout.span([rank], ROWS["rank"])
            sign = text(x + w / 2, y - 18, "=", 24, BOLD + MIDDLE)
            arrow = arrows([down(place, below)])
            found.append((3, sign if layout.by == "srun" else arrow))
    for event in layout.events:
        rank = event["rank"]
        knows = [f"RANK {rank}", f"LOCAL_RANK {event['local']}"]
        place = layout.span([rank], ROWS["rank"])
        found.append((3, process(place, knows, HUES[rank % len(HUES)])))
    x, y, w, h = layout.span([0], ROWS["rank"])
    store = "all meet here"
    found.append((4, text(x + w / 2 + 4, y + 57, store, 12, BOLD + MIDDLE)))
    return found


def flights(layout: Layout) -> list[tuple[int, str, tuple]]:
    """Return what travels: in which step, its shape, and from where to where."""
    x, y, w, h = layout.span([0], ROWS["rank"])
    goal, found = (x + w / 2, y + h + 8), []
    for event in layout.events:
        if event["rank"]:
            a, b, c, d = layout.span([event["rank"]], ROWS["rank"])
            hue = HUES[event["rank"] % len(HUES)]
            x0, y0 = a + c / 2, b + d + 8
            dot = f'<circle cx="{x0:g}" cy="{y0:g}" r="7" fill="{hue}" stroke="{INK}"/>'
            found.append((4, dot, (x0, y0, *goal)))
    return found


def last(events: Recording) -> int:
    """Return the last step there is to look at."""
    return len(PHASES["srun"]) - 1


def describe(events: Recording, step: int) -> str:
    """Return what there is at the end of a step, in words."""
    layout, facts = Layout(events), []
    for node, task in layout.tasks if step > 1 else ():
        fact = f"node {node} has task {task}"
        ranks = [e for e in layout.events if (e["node"], e["task"]) == (node, task)]
        if step > 2:
            told = [f"rank {e['rank']} with local rank {e['local']}" for e in ranks]
            verb = "which is" if layout.by == "srun" else "which starts"
            fact += f", {verb} {' and '.join(told)}"
        facts.append(fact)
    facts = facts or [f"there are {len(layout.nodes)} nodes"]
    corner, sentence = stages.caption(layout, step)
    return f"{corner}. {sentence} {'; '.join(facts)}"


def frame(events: Recording, step: int) -> str:
    """Return a still: all that is there after a step."""
    layout = Layout(events)
    return stages.frame(layout, step, describe(events, step), staying(layout))


def animate(events: Recording) -> str:
    """Return the whole as one moving picture."""
    layout = Layout(events)
    title = f"{len(layout.tasks)} tasks of Slurm on {len(layout.nodes)} nodes become "
    title += f"{len(layout.events)} ranks"
    return stages.animate(layout, title, staying(layout), flights(layout))


def staying(layout: Layout) -> list[tuple[int, int, str]]:
    """Return the parts, which all stay to the end."""
    return [(first, len(layout.phases), drawn) for first, drawn in parts(layout)]
