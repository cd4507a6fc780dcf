"""Shows pictures in a notebook: stills that any reader sees, a player with controls.

A notebook that is not trusted yet hides most outputs. An image with its data inside
survives everywhere; beside it, a player has a script that puts itself in its place.
"""

import json
import re
from base64 import b64encode
from html import escape, unescape
from pathlib import Path

from ..recording import Recording, checked
from . import answers, flow, grid, jobs, paths, ring, stream, timeline, trees
from .retell import TELLS

DRAWS = {
    "ring": ring,
    "flow": flow,
    "timeline": timeline,
    "grid": grid,
    "stream": stream,
    "paths": paths,
    "trees": trees,
    "jobs": jobs,
    "answers": answers,
}
EM, LEAST = 14, 11  # pixels: of the text around a picture, of the smallest text in one
HERE = Path(__file__).parent
STYLE = " ".join((HERE / "player.css").read_text("utf-8").split())
SCRIPT = re.sub(r"\n\s*", "\n", (HERE / "player.js").read_text("utf-8"))
SCRIPT = SCRIPT.replace("STYLE", STYLE)


def style(svg: str) -> str:
    """Return how wide a picture is: it grows with text, and shrinks while legible."""
    width = float(re.search(r' width="([\d.]+)"', svg)[1])
    sizes = re.findall(r'font(?:-size)?(?:="|: *)([\d.]+)', svg)  # or matplotlib's
    smallest = min(map(float, sizes), default=EM)
    least = width * min(1, LEAST / smallest)
    return f"width:{width / EM:.4g}em;max-width:100%;min-width:{least:.0f}px"


def title(svg: str) -> str:
    """Return what a picture shows, in the words of an attribute of HTML."""
    return re.search("<title>(.*?)</title>", svg, re.DOTALL)[1].replace('"', "&quot;")


def image(svg: str) -> str:
    """Return HTML that shows an SVG as an image; its title is the text alternative."""
    data = b64encode(svg.encode()).decode()
    return (
        f'<figure style="margin:0;overflow-x:auto"><img alt="{title(svg)}" '
        f'style="{style(svg)}" src="data:image/svg+xml;base64,{data}"></figure>'
    )


def lines(words: str) -> list[str]:
    """Return a description in parts: its caption, then one for each rank or lane."""
    head, *facts = words.split("; ")
    caption, _, first = head.rpartition(". ")
    return [f"{caption}.", first, *facts] if caption else [head, *facts]


class Picture:
    """Pictures that are shown, side by side where there is room, by a cell."""

    def __init__(self, *svgs: str):
        self.svgs = svgs

    def _repr_html_(self) -> str:
        if len(self.svgs) == 1:
            return image(*self.svgs)
        row = '<div style="display:flex;flex-wrap:wrap;gap:1em">'
        return f"{row}{''.join(map(image, self.svgs))}</div>"

    def __repr__(self) -> str:
        return "\n".join(unescape(title(svg)) for svg in self.svgs)


def spelt(events: Recording) -> Recording | dict[str, Recording]:
    """Return bare facts as what a module draws, and all other events as they are."""
    tell = TELLS.get(checked(events).header["picture"])
    return tell(events) if tell else events


def drawing(events: Recording):
    """Return the module that draws such events."""
    return DRAWS[events.header["picture"]]


def scenes(events: list[dict] | dict[str, list[dict]]) -> list[tuple]:
    """Return the label, the events and the step of each state that is looked at."""
    if isinstance(events, dict):
        several = {label: spelt(each) for label, each in events.items()}
        kind = drawing(next(iter(several.values())))
        several = kind.several(several) if hasattr(kind, "several") else several
        return [(label, each, last(each)) for label, each in several.items()]
    told = spelt(events)
    if isinstance(told, dict):  # a race: each model has a picture
        return [(label, each, last(each)) for label, each in told.items()]
    return [(str(step), told, step) for step in range(last(told) + 1)]


def last(events: Recording) -> int:
    """Return the last step there is to look at."""
    if hasattr(kind := drawing(events), "last"):
        return kind.last(events)
    return max(event.get("step", 0) for event in events)


def frames(shown: list[tuple]) -> list[str]:
    """Return each state as a still."""
    return [drawing(events).frame(events, step) for _, events, step in shown]


def animate(events: list[dict]) -> str:
    """Return a recording as one moving picture, which also tells itself in words."""
    (_, first, _), *_ = shown = scenes(events)  # of a race, the first model's
    kind = drawing(first)
    told = [kind.describe(first, step) for _, each, step in shown if each is first]
    words = f"</title><desc>{escape(' '.join(told), False)}</desc>"
    return kind.animate(first).replace("</title>", words, 1)


def still(events: list[dict], step: int) -> Picture:
    """Return the state after some steps, and the messages that led there."""
    shown = scenes(events)
    if step not in range(len(shown)):
        most = len(shown) - 1
        raise ValueError(f"step is a number from 0 to {most}, not {step}")
    return Picture(*frames([shown[step]]))


def film(events: list[dict]) -> Picture:
    """Return all states: of a grid on one sheet, else a picture of each."""
    (_, first, _), *_ = shown = scenes(events)
    if hasattr(drawing(first), "sheet"):
        return Picture(drawing(first).sheet(first))
    return Picture(*frames(shown))


class Player:
    """Plays a recording: buttons, a slider and the arrow keys choose the step.

    Given several recordings by label, they choose among those, each seen to its end;
    several timelines are first shown all at once, on one scale. A race has models. If
    the labels are values of one knob, a slider that has its name goes over them.
    """

    def __init__(
        self, events: list[dict] | dict[str, list[dict]], knob: str | None = None
    ):
        self.scenes, several = scenes(events), isinstance(events, dict)
        self.knob = knob
        self.frames = frames(self.scenes)
        first, other = self.scenes[0][1], self.scenes[-1][1]
        self.stepped = first is other and not several or knob is not None
        moving = self.frames[0]
        if not several:
            sheet = getattr(drawing(first), "sheet", None)  # it is all seen at the end
            moving = sheet(first) if sheet else animate(events)
        self.fallback = image(moving if len(moving) < 30_000 else self.frames[-1])

    def __repr__(self) -> str:
        return f"Player: {len(self.frames)} states"

    def _repr_html_(self) -> str:
        """Return the picture, and the script that makes a player of it."""
        pieces, states = {}, []  # what frames have in common is written once
        for (label, events, step), svg in zip(self.scenes, self.frames):
            bare = re.sub("<title>.*?</title>", "", svg, flags=re.DOTALL)
            bare = re.sub('="([^"\']*)"', r"='\1'", bare)  # a notebook escapes "
            tags = re.split("(?=<)", bare)[1:]
            parts = [pieces.setdefault(tag, len(pieces)) for tag in tags]
            words = lines(drawing(events).describe(events, step))
            about = {"label": label, "words": words, "style": style(svg)}
            states.append(about | {"parts": parts})
        data = {"stepped": self.stepped, "states": states, "pieces": "".join(pieces)}
        plain = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        plain = plain.replace("</", "<\\/")  # or a word could end the script, and
        plain = plain.replace("<!--", "\\u003c!--")  # hide from the page where it ends
        script = SCRIPT
        if self.knob:
            script = script.replace('"Step"', json.dumps(self.knob))
        script = script.replace("DATA", plain)
        return f"{self.fallback}<script>{script}</script>"
