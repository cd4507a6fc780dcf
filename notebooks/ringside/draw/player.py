"""Shows pictures in a notebook: stills that any reader sees, a player with controls.

A notebook that is not trusted yet, or a page without a kernel, hides most outputs. An
image with its data inside survives everywhere, so that is the only form used here.
"""

import re
from base64 import b64encode
from html import escape

import ipywidgets as widgets

from ..recording import Recording
from . import flow, grid, race, ring, ring_motion, stream, timeline
from .retell import TELLS
from .timeline_layout import length

LONG = 600  # characters of a description, more than its picture should have below it


def image(svg: str) -> str:
    """Return HTML that shows an SVG as an image; its title is the text alternative."""
    alt = re.search("<title>(.*?)</title>", svg, re.DOTALL)[1]
    width = re.search(r' width="([\d.]+)"', svg)[1]
    data = b64encode(svg.encode()).decode()
    return (
        f'<figure style="margin:0"><img alt="{alt}" style="max-width:100%" '
        f'width="{width}" src="data:image/svg+xml;base64,{data}"></figure>'
    )


def spoken(words: str) -> str:
    """Return a description as HTML, with a line for each rank; a long one is folded."""
    first = re.sub(
        r"(\. )((?:[\w, ]+ \d+|the whole batch):)", r"\1<br>\2", escape(words), count=1
    )
    lines = f"<small>{first.replace('; ', '<br>')}</small>"
    if len(words) > LONG:
        lines = f"<details><summary>in words</summary>{lines}</details>"
    return f'<div style="line-height:1.5">{lines}</div>'


class Picture:
    """A still or moving picture, shown when it is the last value of a cell."""

    def __init__(self, svg: str):
        self.svg = svg

    def _repr_html_(self) -> str:
        return image(self.svg)

    def __repr__(self) -> str:
        return re.search("<title>(.*?)</title>", self.svg, re.DOTALL)[1]


def kind_of(events: list[dict]) -> str:
    """Return the name of the picture that the events' header asks for."""
    return getattr(events, "header", {}).get("picture", "ring")


def spelt(events: list[dict]) -> list[dict]:
    """Return bare facts as what a module draws, and all other events as they are."""
    tell = TELLS.get(kind_of(events))
    return tell(events) if tell else events


def drawing(events: list[dict]):
    """Return the module that draws such events."""
    kinds = {"ring": ring, "flow": flow, "timeline": timeline, "race": race}
    return (kinds | {"grid": grid, "stream": stream})[kind_of(events)]


def animate(events: list[dict]) -> str:
    """Return a recording as one moving picture, which also tells itself in words."""
    events = spelt(events)
    kind = drawing(events)
    steps = range(1 if kind is race else kind.states(events))  # of races, the first
    words = escape(" ".join(kind.describe(events, step) for step in steps), False)
    moving = (ring_motion if kind is ring else kind).animate(events)
    return moving.replace("</title>", f"</title><desc>{words}</desc>", 1)


def still(events: list[dict], step: int) -> Picture:
    """Return the state after some steps, and the messages that led there."""
    events = spelt(events)
    kind = drawing(events)
    last = kind.states(events) - 1
    if not 0 <= step <= last:
        raise ValueError(f"step is a number from 0 to {last}, not {step}")
    return Picture(kind.frame(events, step))


def film(events: list[dict]) -> Picture:
    """Return all states on one sheet."""
    events = spelt(events)
    return Picture(drawing(events).strip(events))


def alike(recordings: dict[str, list[dict]]) -> dict[str, list[dict]]:
    """Return timelines that all cover the same time, so that lengths compare."""
    span = max(length(events) for events in recordings.values())
    return {
        label: Recording(events, **events.header | {"span": span})
        for label, events in recordings.items()
    }


def stacked(timelines: dict[str, Recording]) -> Recording:
    """Return timelines as one, the lanes of each below those of the one before."""
    events, lanes, hues, header = [], [], [], {}
    for label, each in timelines.items():
        header = each.header
        events += [e | {"lane": e["lane"] + len(lanes)} for e in each]
        lanes += [f"{label}, {name.rpartition(', ')[2]}" for name in header["lanes"]]
        hues += header.get("hues", range(len(header["lanes"])))
    return Recording(events, **header | {"lanes": lanes, "hues": hues})


class Player(widgets.VBox):
    """Plays a recording: buttons, a slider and the arrow keys choose the step.

    Given several recordings by label, they choose among those, each seen to its end;
    several timelines are also shown all at once, on one scale.
    The parts are joined in the browser, so they work without a kernel too.
    """

    def __init__(self, events: list[dict] | dict[str, list[dict]]):
        if isinstance(events, dict):
            several = {label: spelt(each) for label, each in events.items()}
            if drawing(next(iter(several.values()))) is timeline:
                several = alike(several)
                several["all"] = stacked(several)
            shown = [
                (each, drawing(each).states(each) - 1) for each in several.values()
            ]
            labels, name, wide = list(several), "Which:", "8em"
            moving = image(drawing(shown[-1][0]).frame(*shown[-1]))
        else:
            events = spelt(events)
            steps = range(drawing(events).states(events))
            shown = [(events, step) for step in steps]
            labels, name, wide = [str(step) for step in steps], "Step:", "3.2em"
            whole = drawing(events) is grid  # where all is seen at once
            moving = image(grid.strip(events) if whole else animate(events))
        last = len(shown) - 1
        pictures = [image(drawing(e).frame(e, step)) for e, step in shown]
        words = [drawing(e).describe(e, step) for e, step in shown]
        self.fallback = moving if len(moving) < 40_000 else pictures[-1]
        slider = widgets.IntSlider(min=0, max=last, description=name)
        play = widgets.Play(min=0, max=last, interval=1400)
        name = widgets.Label("Play, stop, repeat:")  # its buttons have no names
        steps = widgets.ToggleButtons(
            options=labels,
            style={"button_width": wide},
            tooltips=words,
        )
        stage = widgets.Stack([widgets.HTML(p) for p in pictures], selected_index=0)
        text = widgets.Stack([widgets.HTML(spoken(w)) for w in words], selected_index=0)
        self.joints = [
            widgets.jslink((play, "value"), (slider, "value")),
            widgets.jslink((slider, "value"), (steps, "index")),
            widgets.jslink((slider, "value"), (stage, "selected_index")),
            widgets.jslink((slider, "value"), (text, "selected_index")),
        ]
        super().__init__([widgets.HBox([name, play, slider]), steps, stage, text])
        self.states = last + 1

    def __repr__(self) -> str:
        return f"Player: {self.states} states"

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/html": self.fallback}
