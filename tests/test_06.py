"""Tests lesson 06: the benchmark, the race drawn from it, and the checkers."""

import copy
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import bench_start
import nbformat
import pytest
import torch
from ringside import Player, RankFailed, Recording, check, load, still, torchrun
from ringside.draw import race
from ringside.draw.chart import bars
from ringside.draw.player import animate
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "06_dp_vs_ddp"
COPIES = "list(threads.map(copy.deepcopy, [model] * devices))"
STALE = f"vars(train).setdefault(id(model), {COPIES})"  # made once, and kept


def broken(folder: Path, right: str, wrong: str) -> Path:
    """Return the script with a mistake."""
    text = (ROOT / "scripts" / f"{SCRIPT}.py").read_text()
    assert text.count(right) == 1
    (folder / f"{SCRIPT}.py").write_text(text.replace(right, wrong))
    return folder / f"{SCRIPT}.py"


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("DistributedDataParallel(model)", "model", "DDP does not"),
        ("sum(one.grad for one in copies)", "copies[0].grad", "DP does not"),
        (COPIES, STALE, "DP does not"),
    ],
)
def test_a_method_that_takes_other_steps_is_not_timed(right, wrong, says, tmp_path):
    path = broken(tmp_path, right, wrong)
    with pytest.raises(RankFailed, match=says):
        torchrun(path, "--rounds", 1, "--samples", 10, ranks=2, quiet=True)


def test_the_committed_table_has_what_the_lesson_promises():
    """A step of 50 ms or more, half a megabyte at most; DDP keeps 0.85."""
    events = load(SCRIPT)
    computes, communicates = (race.medians(events, w) for w in events.header["samples"])
    assert computes["one process"] >= 50
    assert events.header["bytes"]["computes"][0] <= 2**19
    assert computes["one process"] / computes["DDP"] >= 0.85
    assert communicates["one process"] / communicates["DDP"] < 0.5


def test_the_prose_has_the_numbers_of_the_table():
    events, path = load(SCRIPT), ROOT / "notebooks" / f"{SCRIPT}.ipynb"
    cells = nbformat.read(path, 4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    first, second = (race.medians(events, w) for w in events.header["samples"])
    small, large = (size / 1e6 for size, *_ in events.header["bytes"].values())
    (a, b), (c, d) = (
        [f"{2 * ms['one process'] / ms[method]:.2f}" for ms in (first, second)]
        for method in ("DDP", "DP")
    )
    lost, cost = (ms["DDP"] - ms["one process"] for ms in (first, second))
    for words in (
        f"two DDP ranks finish {a} times the samples of one process",
        f"computes for {first['one process']:.0f} ms a step and has {small:.1f} MB",
        f"computes for {second['one process']:.0f} ms and has {large:.0f} MB",
        f"two DDP ranks do {a} times the samples of one process.** DP does {c} times",
        f"loses {cost:.0f} ms on {large:.0f} MB: a megabyte costs about "
        f"{cost / large:.2f} ms here",
        f"Against that, {first['one process'] / small:.0f} ms of work is plenty, "
        f"{second['one process'] / large:.1f} is not enough",
        f"first model would lose {small * cost / large:.1f} ms. Its {lost:.0f} ms",
        f"*one process* steps fastest, in {first['one process']:.0f} and "
        f"{second['one process']:.0f} ms",
        f"first and second model: DDP {a} and {b} times, DP {c} and {d}",
    ):
        assert words in prose
    assert [min(ms, key=ms.get) for ms in (first, second)] == 2 * ["one process"]
    assert second["one process"] < second["DP"] < second["DDP"]


def test_the_charts_of_the_page_have_the_numbers_of_the_recording():
    events, path = load(SCRIPT), ROOT / "notebooks" / f"{SCRIPT}.ipynb"
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    drawn = [cell.outputs[-1].data for cell in cells if cell.source.startswith("kept")]
    assert len(drawn) == 1
    for workload in events.header["samples"]:
        times = race.medians(events, workload)
        kept = [f"{m} {times['one process'] / ms:.2f}" for m, ms in times.items()]
        said = f"{workload}: {', '.join(kept)}"
        assert said in drawn[0]["text/plain"]
        assert said in drawn[0]["text/html"]


def script():
    return runpy.run_path(f"{ROOT}/scripts/{SCRIPT}.py")


def test_the_script_prints_what_the_race_shows(capsys):
    events, report = load(SCRIPT), script()["report"]
    for workload in events.header["samples"]:
        own = [event for event in events if event["workload"] == workload]
        report(workload, own, events.header["samples"][workload], 2)
        title, _, *rows = capsys.readouterr().out.splitlines()
        calm, times = race.calm(events, workload), race.medians(events, workload)
        assert (
            title
            == f"a model that {workload}, {len(calm)} of 20 rounds calm: ms a step"
        )
        assert [row.split("  ")[0] for row in rows] == list(times)
        for row, ms in zip(rows, times.values()):
            assert row[12:].split()[0] == f"{ms:.1f}"
            assert row.split()[-1] == f"{times['one process'] / ms:.2f}"


def test_the_picture_that_the_notebook_keeps_is_of_the_committed_race():
    """That cell is not compared when it runs: it may differ, but not be an old one."""
    cells = nbformat.read(ROOT / "notebooks" / f"{SCRIPT}.ipynb", 4).cells
    [cell] = [cell for cell in cells if cell.source == "Player(race)"]
    kept = [output["data"]["text/html"] for output in cell.outputs]
    assert kept == [Player(load(SCRIPT))._repr_html_()]


def traffic(*given):
    """Return what the notebook's function of this name returns."""
    cells = nbformat.read(ROOT / "notebooks" / f"{SCRIPT}.ipynb", 4).cells
    [text] = [cell.source for cell in cells if cell.source.startswith("def traffic(")]
    found = {}
    exec(text[: text.index("\n\n\n")], found)
    return found["traffic"](*given)


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_the_bytes_of_dp_are_those_that_lesson_02_counts(devices):
    by_hand = runpy.run_path(f"{ROOT}/scripts/02_data_parallel.py")
    net, x = (
        nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)),
        torch.ones(4, 5),
    )
    by_hand["data_parallel"](net, x.repeat(devices, 1), devices).sum().backward()
    through = [0] * devices
    for (_, source, target), size in by_hand["TRAFFIC"].items():
        through[source] += size
        through[target] += size
    weights = sum(weight.nbytes for weight in net.parameters())
    told = traffic("DP", devices, weights, x.nbytes, net(x).nbytes)
    assert told == through[0] == max(through)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_bytes_of_ddp_are_those_that_the_ring_of_lesson_04_sends(ranks):
    ring = "04_ring_all_reduce"
    run = torchrun(ring, "--numel", 16, ranks=ranks, record=True, quiet=True)
    sent = [0] * ranks
    for event in run.recording:
        sent[event["rank"]] += event["bytes"]
    told = traffic("DDP", ranks, 16 * 8, 0, 0)  # the last are 8 bytes each
    assert [sent[rank - 1] + sent[rank] for rank in range(ranks)] == [told] * ranks


def made_up():
    """Ten rounds of two methods; others used the machine in the first six."""
    header = {"methods": ["one process", "DDP"], "samples": {"x": 10}, "ranks": 2}
    header |= {"measured": True, "machine": "m", "torch": "t", "date": "d"}
    paces = 6 * [(2.0, 1000)] + [(1.25, 0)] + 3 * [(1.0, 0)]
    events = [
        {"step": step, "rank": 0, "workload": "x", "pace": pace}
        | {"ms": {"one process": 50.0 + lost, "DDP": 60.0 + lost}}
        for step, (pace, lost) in enumerate(paces, 1)
    ]
    return Recording(events, picture="race", **header)


def test_a_disturbed_round_does_not_count():
    events = made_up()
    assert race.medians(events, "x") == {"one process": 50, "DDP": 60}
    assert len(race.calm(events, "x")) == 4, "1.25 times the best is still calm"
    for event in events:
        event["pace"] = 1.0
        event["ms"]["DDP"] = 1050.0 if event["step"] < 8 else 50.0
    assert race.medians(events, "x")["DDP"] == 1050


@pytest.mark.parametrize(("calm", "trusted"), [(0, False), (4, False), (5, True)])
def test_a_busy_machine_is_not_trusted(calm, trusted, capsys):
    events = made_up()
    for number, event in enumerate(events):
        event["pace"] = 1.0 if number < calm else 1.3
        event["ms"] = dict.fromkeys(
            script()["METHODS"], 50.0 if number < calm else 90.0
        )
    script()["report"]("x", list(events), 10, 2)
    title, _, alone, *_ = capsys.readouterr().out.splitlines()
    says = "ms a step" if trusted else "too busy to trust"
    assert title == f"a model that x, {calm} of 10 rounds calm: {says}"
    assert alone.split()[2] == ("50.0" if calm else "90.0")
    assert race.medians(events, "x")["DDP"] == (50 if calm else 90)


def test_the_probe_sees_that_others_use_the_cores():
    probe, busy = script()["probe"], [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(busy) for _ in range(2 * os.cpu_count())]
    try:
        assert any(probe() > race.CALM for _ in range(10))
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_start_is_timed_until_the_ranks_are_ready(monkeypatch):
    begin = time.monotonic()
    ready, step = bench_start.take("mp.spawn", ranks=2, steps=1)
    assert ready > 0 and step > 0
    assert ready + step / 1000 < time.monotonic() - begin
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(subprocess.CalledProcessError):
        bench_start.take("torchrun", ranks=2)


def test_a_lane_counts_the_samples_of_all_its_ranks():
    events = made_up()
    lap = race.lap(events, "x")
    assert lap.header["lanes"] == ["one process, 72", "DDP, 120"]
    for lane, ms in ((0, 50), (1, 60)):
        own = [event for event in lap if event["lane"] == lane]
        assert all(e["end"] - e["begin"] <= ms for e in own)
        assert own[-1]["end"] == 6 * 60
    ElementTree.fromstring(animate(events))
    assert still(events, 0).svgs == still(copy.deepcopy(events), 0).svgs


def test_a_chart_says_its_numbers():
    groups = {"a": {"one": 1.0, "two": 0.25}, "b": {"one": 0.5, "two": 2.0}}
    svg = bars(groups, "A title", "unit").svgs[0]
    ElementTree.fromstring(svg)
    for word in ("A title", "unit", "one", "two", "0.25", "2.00", "a: one 1.00"):
        assert word in svg
    assert svg == bars(groups, "A title", "unit").svgs[0]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ((..., 3.2), "your turn"),
        (("most", 3.2), "each answer is a number"),
        ((1.25, 3.2), "the other way round"),
        ((0.2, 3.2), "a whole batch"),
        ((80, 3.2), "1 if all is kept"),
        ((0.8, 1.25), "four batches in it"),
        ((0.5, 3.2), "0.5 is not what is kept"),
        ((0.8, 4), "an efficiency of 1"),
        ((0.8, 0.8), "there are four of them"),
        ((0.8, 5), "4 / 1.25"),
        ((0.8, 2), "2 is not the ratio"),
        ((0.8, 3.2), "right: 0.8"),
    ],
)
def test_kept(answers, says, capsys):
    check.kept(*answers)
    assert says in capsys.readouterr().out


def ring(compute, size, slow, ranks):
    return 2 * (ranks - 1) / ranks * size * slow


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda c, s, m, n: ..., "your turn"),
        (lambda c, s, m, n: print(end=""), "returned None"),
        (lambda c, s, m, n: c, "have to be sent"),
        (lambda c, s, m, n: c + s * m, "sends the gradient once"),
        (lambda c, s, m, n: c + 2 * s * m, "sends two whole gradients"),
        (lambda c, s, m, n: c + 2 * (n - 1) * s * m, "as device 0 of DP does"),
        (ring, "without the time to compute"),
        (lambda c, s, m, n: 1, "gave 1, not 51.5"),
        (lambda c, s, m, n: 51.7, "gave 51.7, not 51.5"),
        (lambda c, s, m, n: 56.5, "gave 56.5, not 51.5"),
        (lambda c, s, m, n: 51.5, "step_time(10, 16, 2, 2) gave 51.5, not 42"),
        (lambda *given: given[0] + ring(*given) / 2, "sends one phase of the ring"),
        (lambda c, s, m, n: 1 / 0, "ZeroDivisionError"),
        (lambda *given: given[0] + ring(*given), "right: compute"),
    ],
)
def test_step_time(function, says, capsys):
    check.step_time(function)
    assert says in capsys.readouterr().out


RIGHT = {"a": "loaders", "b": "order", "c": "warm-up", "d": "batch"}


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (RIGHT | {"a": ...}, "your turn"),
        (RIGHT | {"a": "luck"}, "each one of loaders, order, warm-up, batch"),
        ({"a": "loaders"}, "flaws(a, b, c, d): missing a required argument: 'b'"),
        (RIGHT | {"a": "batch"}, "how many processes read"),
        (RIGHT | {"b": "warm-up"}, "what else changed"),
        (RIGHT | {"c": "order"}, "is 135 ms"),
        (RIGHT | {"d": "loaders"}, "how many samples"),
        (RIGHT, "right: other loaders"),
    ],
)
def test_flaws(answers, says, capsys):
    check.flaws(**answers)
    assert says in capsys.readouterr().out
