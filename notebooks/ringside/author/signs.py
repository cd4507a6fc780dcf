"""Puts the signs up along the road: all that is said about pages from road.toml.

The picture of the map, README's lists, the top and the bottom of each page, the
choices and votes for teachers, what each page asks; and the tables of exercises, for
pages where no Python judges.
`python -m ringside --map` writes them.
"""

import json
import re
from pathlib import Path

import nbformat

from .. import road
from ..draw.roadmap import draw
from ..recording import ROOT
from .minutes import LABEL, label, minutes

TABLES = Path(__file__).parents[1] / "pages" / "tables.json"
MAP = ROOT / "figures" / "map.svg"
README = ROOT / "README.md"
SIGN = r"(?m)^\*\*You are here:\*\* .*$"
NEXT = r"(?m)^\*\*Next:\*\* .*$"
ROOM = "notebooks/"


def notebook(stem: str) -> Path:
    return ROOT / "notebooks" / f"{stem}.ipynb"


def main_roads(numbers: str) -> int:
    """Return the minutes that the main roads of some pages take together."""
    paths = (notebook(road.BY_NUMBER[each].stem) for each in numbers.split())
    return sum(minutes(nbformat.read(path, 4).cells)["main road"] for path in paths)


def sign(stem: str) -> str:
    """Return where a page stands: its part, its neighbours, what it rests on."""
    at = road.STEMS.index(stem)
    page, before, after = road.PAGES[at], road.STEMS[:at], road.STEMS[at + 1 :]
    [(part, pages)] = [row for row in road.PARTS.items() if page in row[1]]
    kind = "station" if part == "the evening" else "page"
    told = [f"{part}, {kind} {pages.index(page) + 1} of {len(pages)}"]
    told += [f"before: {road.link(before[-1])}"] if before else []
    told += [f"next: {road.link(after[0])}"] if after else []
    told += [f"rests on {road.links(page.rests_on)}"] if page.rests_on else []
    told += ["[the map](../README.md)", *map(road.link, ("glossary", "catalogue"))]
    return f"**You are here:** {' · '.join(told)}"


def onward(stem: str) -> str:
    """Return the last line of a road: where it goes on, and what is asked there."""
    after = road.PAGES[road.STEMS.index(stem) + 1 :]
    if not after:
        return "**Next:** this was the last page. Where now? [The map](../README.md)."
    return f"**Next:** {road.link(after[0].stem)}. {after[0].question}"


def wants() -> str:
    """Return README's first list: what you want, which pages, how long."""
    rows = ["| you want | read | minutes |", "|---|---|---|"]
    for row in road.TABLE["want"]:
        pages = road.links(row["pages"], ROOM)
        rows.append(f"| {row['want']} | {pages} | {main_roads(row['pages'])} |")
    return "\n".join(rows)


def pages() -> str:
    """Return README's list of all pages, part by part."""
    told = []
    for part, its in road.PARTS.items():
        told.append(f"\n**{part[0].upper()}{part[1:]}**\n")
        told += ["| page | question | come here if your script has | script |"]
        told += ["|---|---|---|---|"]
        for page in its:
            script = f"[{page.stem}.py](scripts/{page.stem}.py)"
            told.append(
                f"| {road.link(page.stem, ROOM)} | {page.question} |"
                f" {page.come_here} | {script} |"
            )
    return "\n".join(told).strip()


def choices() -> str:
    """Return the table for teachers: so much time, these pages."""
    rows = ["| you have | pages | main roads, minutes | exercises | you tell |"]
    rows += ["|---|---|---|---|---|"]
    for row in road.TABLE["route"]:
        chosen = row["pages"] or " ".join(road.BY_NUMBER)
        told = road.links(row["pages"]) or "all"
        rows.append(
            f"| {row['time']} | {told} | {main_roads(chosen)} | {row['exercises']} |"
            f" {road.linked(row['tell'])} |"
        )
    return "\n".join(rows)


def votes() -> str:
    """Return the table for teachers: one vote on each page outside of the evening."""
    rows = ["| page | vote on | a wrong answer believes | where to stop and talk |"]
    rows += ["|---|---|---|---|"]
    for page in road.PAGES:
        if page.vote:
            rows.append(f"| {road.link(page.stem)} | {' | '.join(page.vote)} |")
    return "\n".join(rows)


def own_questions() -> str:
    """Return what each page asks, for whoever looks for a question."""
    rows = ["| question | page |", "|---|---|"]
    rows += [f"| {page.question} | {road.link(page.stem)} |" for page in road.PAGES]
    return "\n".join(rows)


# What other pages have between two marks, by their names.
BLOCKS = {
    "teaching": {"choices": choices, "votes": votes},
    "questions": {"own questions": own_questions},
}


def between(text: str, name: str, new: str) -> str:
    """Return a text with something new between two marks of one name."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    old, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the marks {begin.strip()} and {end.strip()} are gone")
    return f"{before}{begin}\n{new}\n{end}{after}"


def put(pattern: str, new: str, text: str) -> str:
    """Return a text with something new in the one place of a pattern."""
    text, found = re.subn(pattern, lambda _: new, text)
    if found != 1:
        raise ValueError(f"{pattern} stands {found} times, not once: {text[:60]!r}")
    return text


def made() -> dict[Path, str]:
    """Return each file with signs, as it should be."""
    from .. import check  # needs torch, which pages are made without

    tables = {n: c.table for n, c in vars(check).items() if hasattr(c, "table")}
    files = {
        MAP: draw(),
        TABLES: json.dumps(tables, indent=1, ensure_ascii=False) + "\n",
    }
    text = between(README.read_text("utf-8"), "what you want", wants())
    files[README] = between(text, "all pages", pages())
    for stem in [*road.STEMS, *BLOCKS]:
        page = nbformat.read(notebook(stem), 4)
        for name, block in BLOCKS.get(stem, {}).items():
            cell = next(c for c in page.cells if f"<!-- {name} -->" in c.source)
            cell.source = between(cell.source, name, block())
        if stem not in BLOCKS:
            first = page.cells[0]
            first.source = put(SIGN, sign(stem), first.source)
            # Where the main road ends, and where the page does.
            for cell in (c for c in page.cells if re.search(NEXT, c.source)):
                cell.source = put(NEXT, onward(stem), cell.source)
            first.source = LABEL.sub(label(page.cells), first.source)
        files[notebook(stem)] = nbformat.writes(page) + "\n"
    return files


def put_up() -> None:
    """Write all signs."""
    for path, text in made().items():
        path.write_text(text, "utf-8")
