"""Tests elastic restarts: crews end and begin, the training ends as if undisturbed."""

import json
import os
import random
import re
import runpy
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import psutil
import pytest
import torch.distributed as dist
from lesson import changed, code_with
from ringside import RankFailed, agents, check, elastic, load, still, torchrun
from ringside.draw.player import animate, spelt
from ringside.standins import agents as fleet

STEM = "34_elastic"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / f"{STEM}.py"
FIGURE = ROOT / "figures" / f"{STEM}.jsonl"


def own() -> dict:
    """Return what some cells of the notebook define, without what they run."""
    parts = {"share": "def share(", "train": "def train("}
    names = {}
    import_lines = "import os, torch, torch.distributed as dist\n"
    values = "SAMPLES, BATCH, STEPS, EVERY = 24, 8, 12, 4\n"
    sources = [code_with(STEM, text).source for text in parts.values()]
    functions = import_lines + values + "\n\n".join(sources)
    exec(functions, names)
    text = code_with(STEM, "LOOP = f").source
    for name, source in zip(parts, sources):
        text = text.replace("{inspect.getsource(" + name + ")}", "{" + name + "_}")
        names[f"{name}_"] = source
    exec(text, names)
    exec(code_with(STEM, "KILL = ").source.partition("killed = ")[0], names)
    exec(code_with(STEM, "STAND = ").source, names)
    return names


def kill_and_restart(ranks: int, victim: int, step: int) -> None:
    """Kill a worker of a real job after a step; the job must end bit-equal."""
    cell, said = own(), StringIO()
    accident = cell["KILL"].replace("(1, 6)", f"({victim}, {step})")
    assert accident != cell["KILL"] or (victim, step) == (1, 6)
    with redirect_stdout(said):
        flags = f"--nproc-per-node {ranks} --max-restarts 1"
        job = elastic(accident + cell["LOOP"], flags, **cell["OWN_STORE"])
    alone = 0.0
    for number in range(12):
        alone += (cell["share"](number, 0, 1) - alone).sum().item() / 8 / 2
    assert job.code == 0, job.log[-2000:]
    saved = min(step // 4 * 4, 12)
    assert job.said.splitlines() == [
        f"restart 0: world size {ranks}, from step 0",
        f"restart 1: world size {ranks}, from step {saved}",
        f"ends with {alone}",
    ]


def kill_somewhere(dice: random.Random) -> None:
    """Kill a random worker of two to four after a random step."""
    ranks = dice.randint(2, 4)
    kill_and_restart(ranks, dice.randrange(ranks), dice.randint(1, 11))


def test_a_job_that_is_killed_before_its_first_save_ends_bit_equal():
    kill_and_restart(1, 0, 3)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return runpy.run_path(str(SCRIPT))


def test_a_crew_that_always_fails_uses_up_the_budget(script, tmp_path, capsys):
    """With two restarts, the third crew that fails is the last one."""
    story = [(1, [0], 3)] * 9
    with pytest.raises(RuntimeError, match="no crew has ended well"):
        script["agent"](story, tmp_path, budget=2)
    assert capsys.readouterr().out.count("steps 1 to 3: a worker failed") == 2
    assert {path.name for path in tmp_path.glob("*-0")} == {"0-0", "1-0", "2-0"}


def test_a_node_that_joins_costs_nothing(script, tmp_path, capsys):
    events = script["agent"]([(2, [], 2), (3, [], None)], tmp_path, budget=0)
    said = capsys.readouterr().out
    assert "a node joined, restarts left: 0" in said
    assert "crew 1: 3 ranks, steps 1 to 12: all ended well" in said
    ends = [e["ends"] for e in events if e.get("ends")]
    assert ends == ["SIGTERM", "SIGTERM"]


def test_a_worker_that_fails_before_its_first_step_is_told_at_once(
    script, tmp_path, monkeypatch
):
    begin, start = dist.init_process_group, time.monotonic()

    def init(backend, meet, rank, world_size):
        if rank == 0:
            raise OSError("no network")
        begin(backend, meet, rank=rank, world_size=world_size)

    monkeypatch.setattr(dist, "init_process_group", init)
    with pytest.raises(FileNotFoundError, match="0-0"):  # it has noted nothing
        script["agent"]([(2, [1], 3)], tmp_path)
    assert time.monotonic() - start < 40


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.save(state,", 'torch.save(state | {"weight": pull * 0},'),
        ("torch.save(state,", 'torch.save(state | {"step": state["step"] - 1},'),
        ("batch[rank::world_size]", "batch[rank::4]"),
        ("pull / BATCH / 2", "pull / (2 * world_size) / 2"),
    ],
)
def test_whatever_is_forgotten_is_found(old, new, tmp_path):
    path = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed, match="no crew has ended well"):
        torchrun(path, ranks=4, quiet=True)


def test_the_recording_has_each_crew_and_how_it_ended():
    events = load(STEM)
    crews = {}
    for event in events:
        crews.setdefault(event["phase"], {}).setdefault(event["rank"], []).append(event)
    steps = {
        crew: [[e["step"] for e in mine] for mine in by_rank.values()]
        for crew, by_rank in crews.items()
    }
    assert steps == {
        "crew 0": [[1, 2, 3, 4, 5]] * 4,
        "crew 1": [[5, 6]] * 4,
        "crew 2": [[5, 6, 7, 8, 9]] * 2,
        "crew 3": [[9, 10, 11, 12]] * 4,
    }
    ends = [[mine[-1]["ends"] for mine in crew.values()] for crew in crews.values()]
    term, kill = "SIGTERM", "SIGKILL"
    assert ends[:2] == [[term, term, term, kill], [term, term, kill, kill]]
    assert ends[2:] == [[term, term], [None] * 4]
    kept = {
        key for line in FIGURE.read_text().splitlines()[1:] for key in json.loads(line)
    }
    assert kept == {"step", "rank", "phase", "ends"}


def test_the_picture_shows_steps_twice_and_who_is_gone():
    events = load(STEM)
    bars = spelt(events)
    first = [bar for bar in bars if bar["lane"] == 0]
    works = [bar["what"] for bar in first if bar["kind"] == "work"]
    assert works == [*"12345", *"56", *"56789", "9", "10", "11", "12"]
    begins = [bar["begin"] for bar in first if bar["kind"] == "work"]
    assert begins == sorted(begins) and len({*begins}) == 16, "time goes on"
    files = [bar["what"] for bar in first if bar["kind"] == "message"]
    assert files == ["save", "loads 4", "loads 4", "save", "loads 8", "save"]
    gone = [bar["lane"] for bar in bars if bar["what"] == "no such rank"]
    assert gone == [2, 3]
    for svg in (still(events, 2).svgs[0], animate(events)):
        ElementTree.fromstring(svg)


def test_no_agent_and_no_worker_is_left():
    """Also if a worker ignores SIGTERM, and the cell raises."""
    text = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    text += "print('here', flush=True)\ntime.sleep(90)\n"
    with pytest.raises(KeyError), agents(text) as begin:
        agent = begin("--standalone --nproc-per-node 1")
        agent.until("here")
        process = psutil.Process(agent.process.pid)
        there = [process, *process.children(recursive=True)]
        assert len(there) == 2
        raise KeyError
    assert not agent.place.parent.exists()
    for _ in range(500):
        left = [p for p in there if p.is_running() and p.status() != "zombie"]
        if not left:
            return
        time.sleep(0.02)
    pytest.fail(f"{left}")


def test_an_agent_that_ends_without_the_word_is_told(monkeypatch):
    monkeypatch.setattr(fleet, "LINE", [sys.executable, "-c", "raise SystemExit(3)"])
    with agents("") as begin:
        agent = begin("--standalone --nproc-per-node 1")
        with pytest.raises(TimeoutError, match="no worker says 'hello'"):
            agent.until("hello")


def rightly(deaths, steps, every):
    total = begin = 0
    for last in [*deaths, steps]:
        total += last - begin
        begin = last // every * every
    return total


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (rightly, "right: it counts the steps of 6 jobs"),
        (lambda deaths, steps, every: sum(deaths) + steps, "not begin at step 0"),
        (lambda deaths, steps, every: steps, "taken more than once"),
        (lambda *given: rightly(*given) - given[1], "add all the others"),
        (lambda *given: 99, "it is 13, not 99"),
        (lambda *given: 13.0, "return a number of steps"),
        (lambda *given: None, "it returned None"),
        (lambda *given: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_steps_in_all(function, told, capsys):
    check.steps_in_all(function)
    assert told in capsys.readouterr().out


def test_the_page_shows_what_it_claims():
    """The words of torchrun in their order, and three lives of the job of two nodes."""
    page = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4)
    texts = [
        "".join(o.get("text", "") for o in c.get("outputs", [])) for c in page.cells
    ]
    said = "\n".join(texts)
    order = "FAILED.*\nStopping.*\nRendezvous'ing.*\nStarting"
    assert re.search(order, said)
    lives = re.findall(r"restart (\d): world size (\d), from step (\d)", said)
    assert lives[2:5] == [("0", "2", "0"), ("1", "1", "4"), ("1", "2", "8")]
    assert os.sep + "tmp" not in said


def test_what_the_page_says_of_the_measured_runs_holds():
    kept = json.loads((ROOT / "figures" / f"{STEM}_measured.json").read_text())
    assert (kept["jobs"], kept["one store"], kept["own stores"]) == (20, 0, 20)
    assert kept["time-out"] == 10
    short, long = kept["cut"]["5"], kept["cut"]["20"]
    assert [line.partition(",")[0] for line in short] == [
        "restart 0: world size 2",
        "ended",
    ]
    assert 5 < float(short[1].split()[-2]) < kept["time-out"]
    assert [line[8:] for line in long[:3]] == [
        "0: world size 2",
        "1: world size 1",
        "1: world size 2",
    ]
    assert kept["joins, one store"] == ["exit codes 1 1", "wait timeout after 60000ms"]
    assert kept["train.py"]["bit-equal"]
    steps = [int(line.split()[4]) for line in kept["train.py"]["said"]]
    assert steps == [0, 100], "saved every 20 steps, and an epoch has 35"
