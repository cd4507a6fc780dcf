"""Puts notebooks, scripts and pictures where Sphinx reads them, with what pages add."""

import json
import re
import shutil
import subprocess
from functools import cache
from html import escape
from pathlib import Path

from .. import road
from ..author import signs
from ..draw import roadmap
from ..recording import ROOT
from . import bring, forms

HERE = Path(__file__).parent
RAN = ROOT / "figures" / "ran.json"
START = """
# Ringside

![Four ranks in a ring pass chunks to the right.](figures/03_ring_all_reduce.svg)

Data-parallel PyTorch, seen from inside the ring. Each page asks one question, lets you
bet on the answer, builds the mechanism in a few lines, and runs it as real processes.
The picture above moves because four processes really sent those messages.

**In one evening** you turn a training that you have into one that uses every device of
your machine, find six mistakes that no error tells you of, and see how gradients
travel. You can read all of it here. Bets and many exercises work on the page. To run
the cells, and to change them, you need the course on a machine of yours, with or
without GPUs:

{run}

## What do you want tonight?

{wants}

## The map

{roadmap}

{parts}
"""


def stage(to: Path) -> None:
    """Fill an empty folder with all that Sphinx reads."""
    beside = to / "beside"
    for room in ("notebooks", "scripts"):
        (to / room).mkdir()
        (beside / room).mkdir(parents=True)
    shutil.copytree(ROOT / "figures", to / "figures")
    (to / "pages").mkdir()
    for name in ("pages.js", "pages.css", "scorer.js"):
        shutil.copy(HERE / name, to / "pages")
    shutil.copy(HERE / "conf.py", to)

    ran = json.loads(RAN.read_text("utf-8")) if RAN.exists() else {}
    for stem in [*road.STEMS, *road.TABLE["look_up"]]:
        path = ROOT / "notebooks" / f"{stem}.ipynb"
        bring.write(path, beside / "notebooks", repository())
        page = json.loads(path.read_text("utf-8"))
        page["cells"] = staged(stem, page["cells"], ran.get(stem))
        (to / "notebooks" / path.name).write_text(json.dumps(page), "utf-8")
    scripts = sorted((ROOT / "scripts").glob("*.py"))
    for path in scripts:
        shutil.copy(path, beside / "scripts")
        (to / "scripts" / f"{path.stem}.md").write_text(of_script(path), "utf-8")
    (to / "index.md").write_text(start([path.stem for path in scripts]), "utf-8")


# ---- A page ----------------------------------------------------------------------


def staged(stem: str, cells: list[dict], ran: dict | None) -> list[dict]:
    """Return a page's cells with links to pages, and with forms where it asks."""
    found, bets = [], forms.bets_of(cells)
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            outputs = map(forms.without_answers, cell["outputs"])
            outputs = [output for output in outputs if output.get("text") != ""]
            if forms.asks(source):  # the fields below take its place
                outputs = [o for o in outputs if "your turn" not in str(o.get("text"))]
            found.append(cell | {"outputs": outputs})
            found += map(prose, forms.behind(source, bets))
        else:
            source = re.sub(r"(?<=\]\(\.\./scripts/)(\w+)\.py\)", r"\1.md)", source)
            source = source.replace("../README.md", "../index.md")
            found.append(cell | {"source": source})
    if stem in road.STEMS:
        strip = run_it(f"notebooks/{stem}.ipynb", ran)
        found.insert(1, prose(strip))
    return [cell | {"id": f"cell-{at}"} for at, cell in enumerate(found)]


def prose(source: str) -> dict:
    """Return a cell with some words, or HTML."""
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def run_it(path: str, ran: dict | None) -> str:
    """Return the strip that says how a page is run, and with what it last ran."""
    told = (
        "Last run with torch {torch}, Python {python}, {processor}, on {date}."
        if ran
        else ""
    )
    told = escape(told.format(**ran or {}))
    page = f'<a href="{Path(path).name}" download>This page as a notebook</a>'
    there = ""
    if repository():
        place = f'<a href="https://codespaces.new/{repository()}">Codespaces</a>'
        there = f"<p>Or type the last line in {place} (not tried). "
        there += "In Kaggle or Colab, upload this page as a notebook: its first cell "
        there += "brings the course (played through, but not there).</p>"
    return (
        '<details class="ringside-run"><summary>Run this page</summary>'
        f"<p>On a machine of yours, with or without GPUs:</p>{to_type()}"
        f"<p>{page}. {told}</p>{there}</details>"
    )


def to_type() -> str:
    """Return the commands that bring the course, if it is known whence, and open it."""
    lines = ["python3 scripts/course.py lab"]
    if repository():
        name = repository().rpartition("/")[2]
        lines.insert(0, f"git clone https://github.com/{repository()} && cd {name}")
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


@cache
def repository() -> str:
    """Return owner and name of the repository that this is a copy of, or nothing.

    Whatever else stands in the address of a remote, such as a password, is left out.
    """
    line = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        told = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    found = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(\.git)?/?\s*$", told)
    return found[1] if found else ""


# ---- Other pages -----------------------------------------------------------------


def of_script(path: Path) -> str:
    """Return a page that shows a script, and has it to download."""
    text, name = path.read_text("utf-8"), path.name
    fence = "`" * 4
    first = re.sub(r'^(#!.*\n)?"""', "", text).partition("\n")[0].strip('". ')
    return (
        f"# {name}\n\n{first}.\n\n"
        f'<p><a href="{name}" download>Download {name}</a></p>\n\n'
        f"{fence}python\n{text}{fence}\n"
    )


def start(scripts: list[str]) -> str:
    """Return the first page, with the map to click and the order of all pages."""
    parts = []
    for part, pages in road.PARTS.items():
        rows = "\n".join(f"notebooks/{page.stem}" for page in pages)
        parts.append(toctree(part[0].upper() + part[1:], rows))
    rows = "\n".join(
        f"{n} <notebooks/{stem}>" for stem, n in road.TABLE["look_up"].items()
    )
    parts.append(toctree("To look up", rows))
    rows = "\n".join(f"scripts/{stem}" for stem in scripts)
    parts.append(toctree("Scripts", rows))
    drawn = roadmap.draw("notebooks/{}.html")
    return START.format(
        run=to_type(), wants=signs.wants(), roadmap=drawn, parts="\n".join(parts)
    )


def toctree(caption: str, rows: str) -> str:
    fence = "`" * 3
    return f"{fence}{{toctree}}\n:hidden:\n:caption: {caption}\n\n{rows}\n{fence}\n"
