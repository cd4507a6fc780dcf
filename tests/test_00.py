"""Tests four ranks tonight: ranks and nodes, for real and by the checkers."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from lesson import quoted
from ringside import RankFailed, check, torchrun

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "00_four_ranks_tonight"


@pytest.mark.parametrize("ranks", [5, 8])
def test_the_ranks_add_up(ranks):
    run = torchrun(SCRIPT, ranks=ranks, record=True, quiet=True)
    assert run.lines[0][-1].endswith(f"add up to {ranks * (ranks - 1) // 2}")
    assert run.lines[0][1:-1] == [f"{r:4}  {0:4}  {r:10}" for r in range(ranks)]
    total = [sum(range(ranks)), *range(ranks)]
    assert [e["holds"]["number"] for e in run.recording[-ranks:]] == [[total]] * ranks


@pytest.fixture
def placed(tmp_path):
    """Runs the script on four ranks that are told another place than they have."""
    path = ROOT / "scripts" / f"{SCRIPT}.py"

    def run(place):
        text = f"import os, runpy, sys\nsys.path.append({str(path.parent)!r})\n"
        text += "rank = int(os.environ['RANK'])\n"
        text += f"os.environ |= {place}\n"
        text += f"runpy.run_path({str(path)!r}, run_name='__main__')\n"
        (tmp_path / "placed.py").write_text(text)
        return torchrun(tmp_path / "placed.py", ranks=4, quiet=True)

    return run


def test_two_nodes(placed):
    """Ranks 0 to 3, local ranks 0 and 1 twice: what agents on two nodes tell them."""
    place = "{'GROUP_RANK': f'{rank // 2}', 'LOCAL_RANK': f'{rank % 2}', "
    said = placed(place + "'LOCAL_WORLD_SIZE': '2'}")
    assert [row.split() for row in said.lines[0][1:-1]] == [
        ["0", "0", "0"],
        ["1", "0", "1"],
        ["2", "1", "0"],
        ["3", "1", "1"],
    ]
    assert not any(said.lines[rank] for rank in (1, 2, 3))


def test_a_place_that_is_not_its_own_is_refused(placed):
    """A rank whose variables contradict each other says so."""
    with pytest.raises(RankFailed, match="rank 3 is at .0, 3., not at .1, 0."):
        placed("{'LOCAL_WORLD_SIZE': '3'}")


def page():
    return nbformat.read(ROOT / "notebooks" / f"{SCRIPT}.ipynb", 4).cells


def test_the_script_for_monday_is_complete(tmp_path):
    """It starts, meets, adds and leaves, on three ranks, by its text alone."""
    [source] = [c.source for c in page() if c.source.startswith("JOB = ")]
    names = {}
    exec(source, names)
    (tmp_path / "job.py").write_text(names["JOB"])
    run = torchrun(tmp_path / "job.py", ranks=3, quiet=True)
    said = {rank: [f"rank {rank} of 3 has 3"] for rank in range(3)}
    assert run.lines == said
    assert set(run.exit_codes.values()) == {0}


def test_the_fold_about_plain_python_is_right(tmp_path):
    """The same lines make a group where torchrun has started them, and else none."""
    lines = f"import os\nimport torch.distributed as dist\n{quoted(SCRIPT, 'launched')}"
    lines += "print(rank, local_rank, world_size, dist.is_initialized())\n"
    lines += "if launched:\n    dist.destroy_process_group()\n"
    (tmp_path / "both.py").write_text(lines)
    run = torchrun(tmp_path / "both.py", ranks=2, quiet=True)
    assert run.lines == {0: ["0 0 2 True"], 1: ["1 1 2 True"]}
    plain = subprocess.run(
        [sys.executable, tmp_path / "both.py"], capture_output=True, text=True
    )
    assert (plain.stdout, plain.returncode) == ("0 0 1 False\n", 0), plain.stderr


def test_the_table_of_visible_gpus_says_what_the_arithmetic_says():
    """Of a device that is not there, the table has a dash."""
    [source] = [c.source for c in page() if "def visible(" in c.source]
    names = {}
    exec(source, names)
    prose = "\n".join(c.source for c in page() if c.cell_type == "markdown")
    rows = re.findall(r"(?m)^\| `([\d,]+)` \| (.*) \|$", prose)
    assert [variable for variable, _ in rows] == ["0,1,2,3", "2,3", "3,1"]
    for variable, row in rows:
        found = names["visible"](variable)
        assert row.split(" | ") == [found.get(f"cuda:{i}", "–") for i in range(4)]


@pytest.mark.parametrize(
    ("count", "given", "asked"),
    [
        (0, None, []),
        (1, None, ["0", ""]),
        (4, None, ["0,1,2,3", "1,2,3"]),
        (2, "4,6", ["4,6", "6"]),
    ],
)
def test_gpus_are_asked_where_there_are_some(count, given, asked, monkeypatch, capsys):
    """All that this process may use, and then all but the first."""
    [source] = [c.source for c in page() if "get_device_properties" in c.source]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    named = SimpleNamespace(uuid="its name")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: named)
    runs = []
    names = {"os": os, "torch": torch, "torchrun": lambda *f, **how: runs.append(how)}
    exec(source, names)
    variables = [{"CUDA_VISIBLE_DEVICES": variable} for variable in asked]
    assert runs == [{"ranks": 1, "env": env} for env in variables]
    capsys.readouterr()
    names["gpus"](0, 1)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"cuda:{gpu} is its name" for gpu in range(count)]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ((..., 1, 12), "your turn"),
        (("two", 1, 12), "a whole number"),
        ((2, 1, 3), "the number of nodes"),
        ((2, 1, 4), "on each node"),
        ((2, 1, 7), "do not make 7"),
        ((3, 1, 12), "nodes count from 0"),
        ((9, 1, 12), "not of a machine"),
        ((0, 1, 12), "rank 9 is not on node 0"),
        ((2, 9, 12), "begin anew"),
        ((2, 2, 12), "rank 8 is the first"),
        ((1, 1, 12), "node 1 has ranks 4 to 7"),
        ((2, 0, 12), "local rank 0 on that node is rank 8"),
        ((2, 3, 12), "not number 3"),
        ((2, 1, 12), "right: node 2"),
    ],
)
def test_rank_9(answers, says, capsys):
    check.rank_9(*answers)
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ((4, ...), "your turn"),
        ((4, 2), "is a list"),
        ((0, [2, 3]), "not visible"),
        ((6, [2, 3]), "it is cuda:1"),
        ((5, [2, 3]), "that is not 5"),
        ((4, [0, 1]), "ranks 0 and 1 find"),
        ((4, [0, 1, 2, 3]), "two ranks find theirs"),
        ((4, [3]), "it is not [3]"),
        ((4, [3, 2]), "right: GPU 4 is cuda:0"),
    ],
)
def test_gpus(answers, says, capsys):
    check.gpus(*answers)
    assert says in capsys.readouterr().out
