"""Proves that a notebook which did not work turns the run red."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
FINE = "print(6 * 7)"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """How nbval, with our guard, judges four notebooks: one good, three not."""
    folder = tmp_path_factory.mktemp("guard")
    shutil.copy(ROOT / "notebooks" / "conftest.py", folder)
    good = [nbformat.v4.new_code_cell(FINE, execution_count=1)]
    good[0].outputs = [nbformat.v4.new_output("stream", text="42\n")]
    failed = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'notebooks')!r})\n"
        "from ringside import torchrun\n"
        "torchrun('04_ring_all_reduce', '--numel', -1, ranks=2, quiet=True)"
    )
    notebooks = {
        "good": good,
        "hung": [ran("!sleep 100", 1), ran("assert _exit_code == 0", 2)],
        "failed": [ran(failed, 1)],
        "stripped": [nbformat.v4.new_code_cell(FINE)],
    }
    for name, cells in notebooks.items():
        nb = nbformat.v4.new_notebook(cells=cells)
        nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(nb, folder / f"{name}.ipynb")
    line = [sys.executable, "-m", "pytest", "--nbval", "--nbval-cell-timeout=12"]
    line += ["-p", "no:cacheprovider", "-rA", "--color=no"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=folder)
    return done.stdout


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
    assert f"{verdict} {name}" in verdicts
    assert reason in verdicts
