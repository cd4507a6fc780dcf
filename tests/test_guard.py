"""Proves that a notebook which did not work turns the run red."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
FINE = "print(6 * 7)"
MARK = "RINGSIDE_GUARD"  # every process that nbval starts here bears it
LAUNCH = f"""import sys; sys.path.insert(0, {str(ROOT / "notebooks")!r})
from ringside import torchrun
torchrun("04_ring_all_reduce", {{}}, quiet=True)"""
STUCK = f"""import sys; sys.path.insert(0, {str(ROOT / "notebooks")!r})
import torch, torch.distributed as dist
from ringside import torchrun
def stuck(rank, world_size):
    dist.send(torch.zeros(0), (rank + 1) % world_size)
torchrun(stuck, ranks=4, timeout=600)"""


def judged(folder: Path, notebooks: dict[str, list], seconds: int) -> str:
    """Return what nbval, with our guard, says of notebooks made of these cells."""
    shutil.copy(ROOT / "notebooks" / "conftest.py", folder)
    for name, cells in notebooks.items():
        nb = nbformat.v4.new_notebook(cells=cells)
        nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(nb, folder / f"{name}.ipynb")
    line = [sys.executable, "-m", "pytest", "--nbval", "-rA", "--color=no"]
    line += [f"--nbval-cell-timeout={seconds}", "-p", "no:cacheprovider"]
    how = {"cwd": folder, "env": os.environ | {MARK: str(folder)}}
    return subprocess.run(line, capture_output=True, text=True, **how).stdout


def left(folder: Path) -> list[psutil.Process]:
    """Return the processes that nbval started for these notebooks and left behind."""
    found = psutil.process_iter(["environ"])
    return [p for p in found if (p.info["environ"] or {}).get(MARK) == str(folder)]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """How nbval, with our guard, judges four notebooks: one good, three not."""
    folder = tmp_path_factory.mktemp("guard")
    good = [nbformat.v4.new_code_cell(FINE, execution_count=1)]
    good[0].outputs = [nbformat.v4.new_output("stream", text="42\n")]
    notebooks = {
        "good": good,
        "hung": [ran(STUCK, 1), ran("print()", 2)],
        "failed": [ran(LAUNCH.format("'--numel', -1, ranks=2"), 1)],
        "stripped": [nbformat.v4.new_code_cell(FINE)],
    }
    for seconds in (12, 60):  # more, if so few let no rank come to its refusal
        said = judged(folder, notebooks, seconds)
        last = time.monotonic() + 10
        while left(folder) and time.monotonic() < last:
            time.sleep(0.05)
        if "rank 0 left with" in said or left(folder):
            break
    return said, left(folder)


def ran(source: str, count: int):
    """Return a cell that has been run before, and whose output may vary."""
    cell = nbformat.v4.new_code_cell(source, execution_count=count)
    cell.metadata["tags"] = ["nbval-ignore-output"]
    return cell


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("good.ipynb::Cell 0", "PASSED", ""),
        ("hung.ipynb::Cell 0", "FAILED", "a cell of this notebook hung"),
        ("hung.ipynb::Cell 1", "FAILED", "a cell of this notebook hung"),
        ("failed.ipynb::Cell 0", "FAILED", "rank 0 left with exit code 2"),
        ("stripped.ipynb::Cell 0", "FAILED", "this cell has never been run"),
    ],
)
def test_the_guard(verdicts, name, verdict, reason):
    assert f"{verdict} {name}" in verdicts[0]
    assert reason in verdicts[0]


def test_a_cell_that_hangs_leaves_no_process(verdicts):
    assert verdicts[1] == []
