"""Opens pages alone, in folders as Colab, Kaggle and a download give them one."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from ringside.pages import bring

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "notebooks" / "01_split_the_batch.ipynb"
ADDRESS = "https://github.com/somebody/"


def ran(page: dict, place: Path) -> nbformat.NotebookNode:
    """Run a page up to its first ranks, in a folder that holds nothing else."""
    cells = page["cells"]
    last = next(n for n, c in enumerate(cells) if "torchrun(" in "".join(c["source"]))
    text = json.dumps(page | {"cells": cells[: last + 1]})
    alone = nbformat.reads(text, 4)
    client = NotebookClient(alone, timeout=300, resources={"metadata": {"path": place}})
    client.execute()
    return alone


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder without the course, a home of its own, and an address that is here."""
    there = tmp_path / "there" / "a.course"
    for room in ("notebooks", "scripts", "figures"):
        aside = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        shutil.copytree(ROOT / room, there / room, ignore=aside)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(there)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{there.parent.as_uri()}/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", ADDRESS)
    home = tmp_path / "home"
    startup = home / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    # Colab's kernels do not look for modules in the folder that they are in, torch is
    # there before the page asks for it, and Kaggle has two GPUs: these are made up.
    text = "import sys; sys.path.remove('')\nimport torch\n"
    (startup / "0.py").write_text(f"{text}torch.cuda.device_count = lambda: 2\n")
    monkeypatch.setenv("IPYTHONDIR", str(home / ".ipython"))
    monkeypatch.setenv("HOME", str(home))
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "TERM"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "a place"
    work.mkdir()
    return work


def test_a_page_that_is_opened_alone_brings_the_course_and_goes_on(place):
    page = bring.alone(json.loads(PAGE.read_text("utf-8")), "somebody/a.course")
    for _ in range(2):  # the second time, it is there
        done = ran(page, place)
        brought = os.path.join("a place", "a.course", "notebooks")
        assert brought in done.cells[1].outputs[0].text
        assert "rank 3" in str(done.cells[-1].outputs)


def test_without_a_network_it_says_so(place):
    shutil.rmtree(place.parent / "there")
    page = bring.alone(json.loads(PAGE.read_text("utf-8")), "somebody/a.course")
    with pytest.raises(CellExecutionError, match="The course can't be brought"):
        ran(page, place)


def test_a_page_of_a_folder_without_an_address_asks_for_the_folder(place):
    page = bring.alone(json.loads(PAGE.read_text("utf-8")), "")
    with pytest.raises(CellExecutionError, match="needs the folder that it comes from"):
        ran(page, place)


def test_in_its_own_folder_the_cell_does_nothing(monkeypatch):
    monkeypatch.chdir(ROOT / "notebooks")
    for repository in ("somebody/a.course", ""):
        page = bring.alone({"cells": [{"cell_type": "markdown"}]}, repository)
        exec(page["cells"][1]["source"], {})
        assert Path.cwd() == ROOT / "notebooks"


def test_the_cell_asks_for_what_the_course_imports():
    [needs] = re.findall(r"needs = (\[\".*\])", bring.CLONES)
    assert json.loads(needs) == ["torch", "matplotlib", "ipywidgets", "psutil"]
