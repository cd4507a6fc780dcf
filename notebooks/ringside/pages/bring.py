"""Makes a page that was opened alone, as in Kaggle or Colab, bring the course."""

import json
from pathlib import Path

CELL = """\
# Was this page opened alone? Then this brings the course, and goes on inside it.
import importlib.util, os, subprocess, sys

if not os.path.isdir("ringside"):
{brings}
"""
CLONES = """\
    if not os.path.isdir("{name}"):
        clone = ["git", "clone", "--depth=1", "https://github.com/{repository}"]
        done = subprocess.run(clone, capture_output=True, text=True)
        if done.returncode:
            hint = "Kaggle has a switch for the internet, in the panel on the right."
            raise SystemExit(f"{{done.stderr}}The course can't be brought. {{hint}}")
    os.chdir("{name}/notebooks")
    sys.path.insert(0, os.getcwd())
    needs = ["torch", "matplotlib", "ipywidgets", "psutil"]
    needs = [name for name in needs if importlib.util.find_spec(name) is None]
    if needs:
        subprocess.run([sys.executable, "-m", "pip", "install", *needs], check=True)
    print("The course is in", os.getcwd())"""
ASKS = """\
    hint = "put it back, or open the page there"
    raise SystemExit(f"This page needs the folder that it comes from: {hint}.")"""


def alone(page: dict, repository: str) -> dict:
    """Return a notebook whose first cell brings the course, or says what is missing."""
    name = repository.rpartition("/")[2]
    brings = CLONES.format(name=name, repository=repository) if repository else ASKS
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "id": "bring",
        "metadata": {},
        "outputs": [],
        "source": CELL.format(brings=brings).strip(),
    }
    return page | {"cells": [page["cells"][0], cell, *page["cells"][1:]]}


def write(path: Path, to: Path, repository: str) -> None:
    """Write a notebook as a page to download."""
    page = alone(json.loads(path.read_text("utf-8")), repository)
    text = json.dumps(page, indent=1, ensure_ascii=False)
    (to / path.name).write_text(text + "\n", "utf-8")
