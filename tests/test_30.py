"""Tests launchers: who starts the ranks, who tells them what, and who ends them."""

import importlib
import json
import os
import pickle
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import psutil
import pytest
import torch
from lesson import changed, code_with, quoted
from ringside import (
    RankFailed,
    RankTimeout,
    WrongRecording,
    check,
    load,
    still,
    torchrun,
)
from ringside.draw import trees
from ringside.draw.player import animate, spelt
from ringside.recording import Recording

STEM = "30_launchers"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / f"{STEM}.py"
PAGE = json.loads((ROOT / "notebooks" / f"{STEM}.ipynb").read_text("utf-8"))["cells"]
PROSE = "\n".join("".join(c["source"]) for c in PAGE if c["cell_type"] == "markdown")


@pytest.fixture(scope="module")
def told():
    """Return what the processes of each way have recorded, by way and rank."""
    found = {}
    for event in load(STEM):
        found.setdefault(event["phase"], {})[event["rank"]] = event
    return found


def job() -> str:
    """Return the program of the ranks, as the script has it."""
    return re.search('JOB = """(.*?)"""', SCRIPT.read_text("utf-8"), re.DOTALL)[1]


def test_a_rank_without_a_gpu_of_its_own_is_told_so(tmp_path, monkeypatch):
    source = code_with(STEM, "def take_gpu").source
    [function] = re.findall(r"(?s)^(def .*?\n)\n\n", source, re.MULTILINE)
    (tmp_path / "gpus.py").write_text(f"import torch\n\n\n{function}", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    take_gpu = importlib.import_module("gpus").take_gpu
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    lines = torchrun(take_gpu, ranks=2, quiet=True, env=hidden).lines
    for line in sum(lines.values(), []):
        assert re.search("Torch not compiled with CUDA|NVIDIA|No CUDA GPUs", line)


def test_the_job_that_runs_anywhere_is_complete(tmp_path):
    """It starts, meets, adds and leaves, on three ranks, by its text alone."""
    names = {}
    exec(code_with(STEM, "JOB = ").source, names)
    (tmp_path / "anywhere.py").write_text(names["JOB"])
    run = torchrun(tmp_path / "anywhere.py", ranks=3, quiet=True)
    assert run.lines == {rank: [f"rank {rank} of 3 has 3"] for rank in range(3)}
    assert set(run.exit_codes.values()) == {0}


def test_the_fold_about_plain_python_is_right(tmp_path):
    """The same lines make a group where torchrun has started them, and else none."""
    lines = f"import os\nimport torch.distributed as dist\n{quoted(STEM, 'launched')}"
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
    rows = re.findall(r"(?m)^\| `([\d,]+)` \| (.*) \|$", PROSE)
    assert [variable for variable, _ in rows] == ["0,1,2,3", "2,3", "3,1"]
    for variable, row in rows:
        found = [f"GPU {gpu}" for gpu in variable.split(",")]
        assert row.split(" | ") == (found + ["–"] * 4)[:4]


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
    source = code_with(STEM, "get_device_properties").source
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
    names["uuids"](0, 1)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"cuda:{gpu} is its name" for gpu in range(count)]


def test_who_starts_whom(told):
    parents = {
        way: [event["parent"] for _, event in sorted(ranks.items())]
        for way, ranks in told.items()
    }
    three = ["you", "launcher", "launcher"]
    assert parents == {"by hand": ["you"] * 2} | dict.fromkeys(trees.BOSSES, three)


def test_who_sets_the_variables(told):
    sets = {
        way: {
            trees.setter(ranks[r], name) for r in (0, 1) for name in ranks[r]["knows"]
        }
        for way, ranks in told.items()
    }
    assert sets == {
        "by hand": {"you"},
        "mp.spawn": {"the rank"},
        "launch": {"launcher"},
        "torchrun": {"launcher"},
    }
    local = {way for way, ranks in told.items() if "LOCAL_RANK" in ranks[0]["knows"]}
    assert local == {"launch", "torchrun"}
    words = {way: ranks[1]["words"] for way, ranks in told.items()}
    assert words.pop("launch") == ["--local-rank=1"] and not any(words.values())


def test_what_follows_a_death(told):
    for way, ranks in told.items():
        ends = {rank: event["ends"] for rank, event in ranks.items()}
        if way == "by hand":
            assert ends == {0: "exit code 0", 1: "exit code 3"}
        else:
            assert ends == {-1: "exit code 1", 0: "SIGTERM", 1: "exit code 3"}


def test_the_page_shows_the_program_that_the_ranks_run():
    assert f"```\n{job().strip()}\n```" in PROSE
    spawned = re.search(r"```python\n(def spawned.*?)\n```", PROSE, re.DOTALL)[1]
    assert spawned in job()


@pytest.mark.parametrize(
    ("old", "new", "error", "says"),
    [
        ("        sys.exit(3)", "        sys.exit(4)", RankFailed, "end otherwise"),
        ("os.getppid()", "1", RankFailed, "KeyError: 1"),
        (
            "        sys.exit(3)",
            "        time.sleep(99)",
            RankTimeout,
            "1 of 1 ranks still",
        ),
    ],
)
def test_a_job_that_goes_otherwise_is_found_and_ended(old, new, error, says, tmp_path):
    """By hand, which is quick. No process of the job outlives the run."""
    here = ("TemporaryDirectory()", f"TemporaryDirectory(dir={str(tmp_path)!r})")
    path = changed(STEM, tmp_path, (old, new), here)
    seconds = 5 if error is RankTimeout else 60
    with pytest.raises(error, match=says):
        torchrun(path, ranks=1, quiet=True, timeout=seconds)
    assert processes(tmp_path) == []


def test_a_rank_that_does_not_begin_is_told_with_its_last_words(tmp_path):
    names = runpy.run_path(str(SCRIPT))
    watch = names["watch"]
    watch.__globals__["JOB"] = "1 / 0\n" + names["JOB"]
    told = r"by hand: a rank did not begin\n(.*\n)*ZeroDivisionError"
    with pytest.raises(RuntimeError, match=told):
        watch("by hand", tmp_path)


def test_a_job_leaves_nothing_behind(tmp_path, monkeypatch):
    """Of torchrun, which makes folders of its own: they lie in the job's."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "job"
    elsewhere.mkdir(), folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    events = runpy.run_path(str(SCRIPT))["watch"]("torchrun", folder)
    assert {event["rank"]: event["ends"] for event in events}[0] == "SIGTERM"
    assert [*elsewhere.iterdir()] == [] and len([*folder.iterdir()]) > 5
    assert processes(folder) == []


def test_an_agent_that_is_asked_to_end_ends_its_ranks(tmp_path):
    """At SIGTERM it does. At SIGKILL nobody does: the page shows that."""
    text = "import os, time; open(str(os.getpid()), 'w'); time.sleep(100)"
    (tmp_path / "lone.py").write_text(text)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2", "lone.py"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=-3, stderr=-3) as agent:
        while len(names := [p.name for p in tmp_path.glob("[0-9]*")]) < 2:
            assert agent.poll() is None
            time.sleep(0.1)
        ranks = [psutil.Process(int(name)) for name in names]
        agent.terminate()
    _, alive = psutil.wait_procs(ranks, timeout=60)
    for rank in alive:
        rank.kill()
    assert alive == []


def test_a_script_that_spawns_without_a_guard_is_refused(tmp_path):
    (tmp_path / "lone.py").write_text(
        "from multiprocessing import get_context\n"
        "get_context('spawn').Process(target=print).start()\n"
    )
    said = subprocess.run(
        [sys.executable, tmp_path / "lone.py"], capture_output=True, text=True
    ).stderr
    assert "RuntimeError" in said and "bootstrapping phase" in said


def processes(folder):
    """Return those that work in a folder, wherever they come from."""
    found = psutil.process_iter(["cwd", "cmdline"])
    return [p.info for p in found if (p.info["cwd"] or "").startswith(f"{folder}")]


def in_a_file(index=0):
    return lambda: index


def test_what_a_spawned_process_could_find():
    """As exercise 2 and the page's table have it."""
    assert pickle.loads(pickle.dumps(in_a_file)) is in_a_file
    for function in (lambda: 0, in_a_file()):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            pickle.dumps(function)


def test_each_process_has_a_place_of_its_own():
    layout = trees.Layout(load(STEM))
    assert list(layout.ways) == ["by hand", "mp.spawn", "launch", "torchrun"]
    boxes = [layout.place(way, r) for way, ranks in layout.ways.items() for r in ranks]
    for i, (x, y, w, h) in enumerate(boxes):
        assert x > 0 and x + w < layout.width and y + h < layout.height
        for a, b, c, d in boxes[:i]:
            assert x >= a + c or a >= x + w or y >= b + d or b >= y + h
    for svg in (still(load(STEM), 4).svgs[0], animate(load(STEM))):
        ElementTree.fromstring(svg)


def test_the_picture_tells_itself_in_words():
    first, last = (repr(still(load(STEM), step)) for step in (0, 4))
    assert "ends with" not in first and "told by" not in first
    assert (
        "rank 0 is started by the agent, told by the agent, ends with SIGTERM" in last
    )
    assert "rank 0 is started by you, told by you, ends with exit code 0" in last
    assert "told by itself" in last


def test_a_job_of_one_way_is_drawn_alone():
    alone = [event for event in load(STEM) if event["phase"] == "by hand"]
    events = Recording(alone, **load(STEM).header)
    assert "mp.spawn" not in animate(events)


def test_a_recording_that_lacks_an_end_is_refused():
    event = {"step": 0, "rank": 0, "phase": "torchrun", "parent": "you"}
    with pytest.raises(WrongRecording, match="no 'ends', as trees needs it"):
        spelt(Recording([event], picture="trees"))


def right(command: str) -> str:
    """Return what exercise 3 asks for."""
    launcher, _, behind = command.partition("job.py")
    words = [w for w in launcher.split()[3:] if w.replace("-", "_") != "__use_env"]
    return " ".join(["torchrun", *words, "job.py"]) + behind


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda command: ..., "your turn"),
        (lambda command: print(end=""), "it returned None"),
        (lambda command: command[99], "it raised IndexError"),
        (lambda command: command, "still has the old launcher"),
        (lambda c: "torchrun" + c[34:], "no option --use_env"),
        (lambda c: "torchrun" + c[34:].replace(" --use_env", ""), "no option"),
        (lambda c: right(c).replace("torchrun ", ""), "begins with torchrun"),
        (lambda c: right(c).replace("=4", "=8"), "it is 'torchrun --nproc_per_node=4"),
        (
            lambda c: right(c).replace(" --use_env", ""),
            "what stands behind job.py is for the script",
        ),
        (right, "right: "),
    ],
)
def test_migrate(function, says, capsys):
    check.migrate(function)
    assert says in capsys.readouterr().out


def test_the_answer_about_four_ranks_and_two_gpus_is_right(capsys):
    exec(quoted(STEM, "check.gpus("), {"check": check})
    assert capsys.readouterr().out.startswith("right: ")
