"""Proves that a notebook which did not work turns the run red."""

import os
import runpy
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import nbval.kernel
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
FINE = "print(6 * 7)"
MARK = "RINGSIDE_GUARD"  # every process that nbval starts here bears it
LAUNCH = f"""import sys; sys.path.insert(0, {str(ROOT / "notebooks")!r})
from ringside import torchrun
torchrun("03_ring_all_reduce", {{}}, quiet=True)"""
STUCK = f"""import sys; sys.path.insert(0, {str(ROOT / "notebooks")!r})
from ringside import torchrun
torchrun("stuck.py", ranks=4, timeout=600)"""
HANGS = """import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
open("here " + os.environ["RANK"], "w").close()
dist.send(torch.zeros(0), (dist.get_rank() + 1) % 4)
"""


def judged(folder: Path, notebooks: dict[str, list], seconds: int) -> dict[str, str]:
    """Return what nbval, with our guard, says of each cell of these notebooks."""
    shutil.copy(ROOT / "notebooks" / "conftest.py", folder)
    for name, cells in notebooks.items():
        nb = nbformat.v4.new_notebook(cells=cells)
        nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(nb, folder / f"{name}.ipynb")
    line = [sys.executable, "-m", "pytest", "--nbval", "--junit-xml=judged.xml"]
    line += [f"--nbval-cell-timeout={seconds}", "-p", "no:cacheprovider"]
    how = {"cwd": folder, "env": os.environ | {MARK: str(folder)}}
    subprocess.run(line, capture_output=True, **how)
    found = {}
    for case in ElementTree.parse(folder / "judged.xml").iter("testcase"):
        told = [verdict.tag + (verdict.text or "") for verdict in case]
        found[f"{case.get('classname')} {case.get('name')}"] = "".join(told)
    return found


def left(folder: Path) -> list[psutil.Process]:
    """Return the processes that nbval started for these notebooks and left behind."""
    found = psutil.process_iter(["environ"])
    return [p for p in found if (p.info["environ"] or {}).get(MARK) == str(folder)]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """How nbval, with our guard, judges four notebooks, one good; and what is left."""
    folder, hangs = tmp_path_factory.mktemp("guard"), tmp_path_factory.mktemp("hangs")
    good = [nbformat.v4.new_code_cell(FINE, execution_count=1)]
    good[0].outputs = [nbformat.v4.new_output("stream", text="42\n")]
    notebooks = {
        "good": good,
        "failed": [ran(LAUNCH.format("'--numel', -1, ranks=2"), 1)],
        "stripped": [nbformat.v4.new_code_cell(FINE)],
    }
    (hangs / "stuck.py").write_text(HANGS.replace("here ", f"{hangs}/here "))
    hung = {"hung": [ran(STUCK, 1), ran("print()", 2)]}
    with ThreadPoolExecutor() as both:
        others = both.submit(judged, folder, notebooks, 120)
        for seconds in (12, 60):  # more, if so few let no rank come so far
            said = judged(hangs, hung, seconds)
            last = time.monotonic() + 10
            while left(hangs) and time.monotonic() < last:
                time.sleep(0.05)
            if left(hangs) or len([*hangs.glob("here ?")]) == 4:
                break
    return said | others.result(), left(hangs)


def ran(source: str, count: int):
    """Return a cell that has been run before, and whose output may vary."""
    cell = nbformat.v4.new_code_cell(source, execution_count=count)
    cell.metadata["tags"] = ["nbval-ignore-output"]
    return cell


HUNG = "a cell of this notebook hung, so none of its results count"


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("hung.ipynb Cell 0", f"hung.ipynb::Cell 0: {HUNG}"),
        ("hung.ipynb Cell 1", f"hung.ipynb::Cell 1: {HUNG}"),
        ("failed.ipynb Cell 0", "rank 0 left with exit code 2"),
        ("stripped.ipynb Cell 0", "stripped.ipynb::Cell 0: this cell has never been"),
    ],
)
def test_what_did_not_work_turns_red(verdicts, cell, reason):
    assert verdicts[0][cell].startswith("failure") and reason in verdicts[0][cell]


def test_what_worked_stays_green(verdicts):
    assert [cell for cell, told in verdicts[0].items() if not told] == [
        "good.ipynb Cell 0"
    ]


def test_a_cell_that_hangs_leaves_no_process(verdicts):
    assert verdicts[1] == []


@pytest.mark.parametrize(
    ("says", "starts"),
    [
        ([], 1),
        (["Kernel died before replying to kernel_info"], 2),  # its port was taken
        (["Kernel didn't respond in 60 seconds"], 2),  # its port for outputs was taken
        (["Kernel died before replying to kernel_info"] * 2, 2),
    ],
)
def test_a_kernel_that_lost_its_port_is_started_once_more(says, starts, monkeypatch):
    begun = []

    def start(**how):
        begun.append(how)
        if len(begun) <= len(says):
            raise RuntimeError(says[len(begun) - 1])
        return "manager", "client"

    monkeypatch.setattr(nbval.kernel, "start_new_kernel", start)
    runpy.run_path(str(ROOT / "notebooks" / "conftest.py"))
    if starts > len(says):
        found = nbval.kernel.start_new_kernel(kernel_name="python3")
        assert found == ("manager", "client")
    else:
        with pytest.raises(RuntimeError, match="Kernel di"):
            nbval.kernel.start_new_kernel(kernel_name="python3")
    assert begun == [{"kernel_name": "python3"}] * starts
