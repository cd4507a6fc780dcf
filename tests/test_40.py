"""Tests Horovod: the same training in Horovod, run or as it was recorded."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import nbformat
import pytest
import torch
from lesson import changed, functions_of
from ringside import RankFailed, check, torchrun
from ringside.standins import horovod

STEM = "40_horovod"
ROOT = Path(__file__).resolve().parents[1]
PAGE = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4)
KEPT = json.loads((ROOT / "figures" / f"{STEM}_measured.json").read_text())
CPU = {"CUDA_VISIBLE_DEVICES": ""}
RUNS = {  # the functions that Horovod runs, and their arguments
    "with_horovod": [(True,), (False,)],
    "calls_of_horovod": [()],
    "by_names": [()],
    "two_orders": [()],
    "old": [()],
    "traced": [()],
    "traps": [()],
    "frozen": [()],
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return functions_of(STEM, tmp_path_factory.mktemp("cells"))


@pytest.fixture
def no_horovod(monkeypatch):
    monkeypatch.setattr(horovod, "find_spec", lambda name: None)


def test_each_run_of_the_page_is_kept_as_the_page_has_it(cells, no_horovod, capsys):
    for name, sets in RUNS.items():
        for args in sets:
            ended = horovod.horovodrun(getattr(cells, name), *args)
            assert "changed" not in str(ended), f"keep it again: {name}"
    told = capsys.readouterr().out
    assert told.count("python3 scripts/course.py horovod") == 1
    assert len(KEPT) == 9 + 1  # with its speed
    assert "rank 1 | means [2.0, 2.0, 1.5]" in told


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_changed_function_is_not_passed_off_as_recorded(
    ranks, cells, no_horovod, capsys, monkeypatch
):
    monkeypatch.setattr(horovod, "text_of_script", lambda *_: "another text")
    ended = horovod.horovodrun(cells.by_names, ranks=ranks)
    assert ended.code == 2 and "only Horovod itself" in capsys.readouterr().out


def kept(name):
    return next(run for key, run in KEPT.items() if key.startswith(name))[2]


def test_what_was_recorded_is_what_ddp_computes(cells):
    alone = cells.train(*cells.make(0), *cells.share(0, 1))
    ours = json.loads(KEPT["with_horovod True on 2"][2][1][0])
    torch.testing.assert_close(ours, alone, rtol=0, atol=1e-12)
    calls = torchrun(cells.calls_of_torch, ranks=2, quiet=True, env=CPU)
    for rank, [line, large] in enumerate(kept("calls")):
        assert json.loads(line) == json.loads(calls.lines[rank][0])
        assert large == "40000: inf"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_all_have_travels_together(ranks):
    lines = torchrun(STEM, ranks=ranks, quiet=True).lines[0]
    told = [line.partition(" sends ")[2] for line in lines[:4]]
    two = ["nothing", "a b", "nothing", "c d"]
    assert told == (two if ranks > 1 else list("abcd"))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("    buffer /= dist.get_world_size()\n", "", "AssertionError"),
        ("world_size * (rank == 0)", "1", "not close"),
        (
            "(model, optimizer, *share(rank,",
            "(model, optimizer, *share(0,",
            "not close",
        ),
        ("if all(name in names for names in everyone)", "", "KeyError"),
    ],
)
def test_a_script_that_forgets_something_does_not_say_ok(old, new, told, tmp_path):
    path = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed, match=told):
        torchrun(path, ranks=2, quiet=True, timeout=20)


@pytest.mark.skipif(not find_spec("horovod"), reason="Horovod is not installed")
def test_the_script_runs_unchanged_under_horovodrun(tmp_path):
    tool = shutil.which("horovodrun", path=Path(sys.executable).parent)
    path, kept = ROOT / "scripts" / f"{STEM}.py", tmp_path / "recording.jsonl"
    line = [tool, "-np", "2", "--gloo", sys.executable, path, "--record", kept]
    env = horovod.environment(PYTHONUNBUFFERED="1")
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120)
    said = torchrun(STEM, "--record", tmp_path / "other.jsonl", ranks=2, quiet=True)
    assert done.stdout.splitlines()[-1] == f"[0]<stdout>:{said.lines[0][-1]}"
    assert kept.read_bytes() == (tmp_path / "other.jsonl").read_bytes()


def cycles(orders, all_of=all, forget=set, sort=list):
    gone, found = set(), []
    for i in range(len(orders[0])):
        have = [order[: i + 1] for order in orders]
        now = [n for n in have[0] if n not in gone and all_of(n in h for h in have)]
        gone |= forget(now)
        found.append(sort(now))
    return found


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "right"),
        ({"all_of": any}, "travels"),
        ({"forget": lambda now: set()}, "went before"),
        ({"sort": lambda now: now[::-1]}, "order of rank 0"),
    ],
)
def test_cycles(change, told, capsys):
    check.cycles(lambda orders: cycles(orders, **change))
    assert told in capsys.readouterr().out


SENT = "        with model.no_sync():\n    "
MOVED = [  # what is changed in the solution of exercise 3, and what is said to it
    ({}, "right"),
    ({SENT: ""}, "21 all-reduces in 10 steps"),
    ({"    mean /= world_size\n": ""}, "all_reduce sums"),
    ({"    dist.all_reduce(mean)\n    mean /= world_size\n": ""}, "the losses are"),
    (
        {"        clip_grad_norm_(model.parameters(), 0.5)\n": ""},
        "clip what is averaged",
    ),
    ({".module.weight": ".weight"}, "rank 0 raises AttributeError"),
    ({'print("loss"': '("loss"'}, "does not print"),
]


@pytest.mark.parametrize(("changes", "told"), MOVED, ids=[t for _, t in MOVED])
def test_moved(changes, told, cells, tmp_path, capsys, monkeypatch):
    text = "".join(c.source for c in PAGE.cells if c.cell_type == "markdown")
    [code] = re.findall(r"```python\n(def moved.*?)check", text, re.DOTALL)
    for old, new in changes.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    path = tmp_path / "moved.py"
    path.write_text(Path(cells.__file__).read_text() + "\n\n" + code)
    spec = spec_from_file_location("moved", path)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "moved", module)
    spec.loader.exec_module(module)
    check.moved(module.moved, horovod.Ended(0, kept("old"), []))
    assert told in capsys.readouterr().out


def test_the_traps_are_what_the_page_says():
    """A step that nobody made, weights apart, a mean over two epochs, a limit."""
    (steps, weight, means), (steps_1, weight_1, means_1) = kept("traps")
    assert steps == steps_1 == "steps: 1 · moved: True"
    assert weight != weight_1
    assert means == "means: [10.0, 11.0, 16.0, 20.5]"
    assert means_1 == means[:-1] + ", 10.5, 11.0]"
    assert kept("frozen") == [["HorovodInternalError"], []]
