"""Reads the map of the course, road.toml, and follows it."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Page(NamedTuple):
    stem: str  # of its notebook, script, recording and picture
    name: str  # short: the text of each link to it
    question: str  # its title
    rests_on: str  # numbers of the pages whose words it uses
    come_here: str  # if your script has ...
    vote: Sequence[str] = ()  # on what, a wrong answer, where to talk


def number(stem: str) -> str:
    """Return the number with which a page's files begin."""
    return stem.partition("_")[0]


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
PAGES = [Page(**row) for row in TABLE["page"]]
STEMS = [page.stem for page in PAGES]
NAMES = {page.stem: page.name for page in PAGES} | TABLE["look_up"]
BY_NUMBER = {number(page.stem): page for page in PAGES}
PARTS = {  # its pages, by the name of each part
    name: [page for page in PAGES if page.stem.startswith(digit)]
    for digit, name in TABLE["parts"].items()
}


def link(stem: str, room: str = "") -> str:
    """Return a link to a page, for a file beside it or for one above its room."""
    return f"[{NAMES[stem]}]({room}{stem}.ipynb)"


def links(numbers: str, room: str = "") -> str:
    """Return links to several pages, which are named by their numbers."""
    return ", ".join(link(BY_NUMBER[each].stem, room) for each in numbers.split())


def linked(text: str) -> str:
    """Return a text with a link in place of each number of a page."""
    return re.sub(r"\b\d\d\b", lambda found: links(found[0]), text)


def below(stem: str) -> set[str]:
    """Return all pages that a page rests on, and those that these rest on."""
    page = next(page for page in PAGES if page.stem == stem)
    found = {BY_NUMBER[other].stem for other in page.rests_on.split()}
    return found.union(*map(below, found))
