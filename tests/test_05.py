"""Tests DP vs DDP: the benchmark, the race drawn from it, and the checkers."""

import copy
import itertools
import re
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
from lesson import changed, quoted
from ringside import Player, RankFailed, Recording, check, load, still, torchrun
from ringside.draw import race
from ringside.draw.chart import bars
from ringside.draw.player import animate
from ringside.recording import read
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "05_dp_vs_ddp"
COPIES = "list(threads.map(copy.deepcopy, [model] * devices))"
STALE = f"vars(slowest).setdefault(id(model), {COPIES})"  # made once, and kept


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("DistributedDataParallel(ddp)", "ddp", "DDP does not"),
        ("sum(one.grad for one in copies)", "copies[0].grad", "DP does not"),
        (COPIES, STALE, "DP does not"),
    ],
)
def test_a_method_that_takes_other_steps_is_not_timed(right, wrong, says, tmp_path):
    path = changed(SCRIPT, tmp_path)  # with timing.py beside it
    texts = {file: file.read_text() for file in (path, tmp_path / "timing.py")}
    assert sum(text.count(right) for text in texts.values()) == 1
    for file, text in texts.items():
        file.write_text(text.replace(right, wrong))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, "--rounds", 1, "--samples", 10, ranks=2, quiet=True)


def megabytes(workload):
    """Return the gradients of a model of the script, in MB."""
    model, *_ = script()["task"](workload, 1)
    return sum(weight.nbytes for weight in model.parameters()) / 1e6


def test_the_committed_table_has_what_the_lesson_promises():
    """A step of 50 ms or more, half a megabyte at most; DDP keeps 0.85."""
    events = load(SCRIPT)
    computes, communicates = (race.medians(events, w) for w in events.header["samples"])
    assert computes["one process"] >= 50
    assert megabytes("computes") <= 0.5
    assert computes["one process"] / computes["DDP"] >= 0.85
    assert communicates["one process"] / communicates["DDP"] < 0.5
    assert events.header["machine"] == "2 CPU cores, gloo"
    assert max(event["step"] for event in events) == 20


def page():
    return nbformat.read(ROOT / "notebooks" / f"{SCRIPT}.ipynb", 4).cells


def prose():
    return "\n".join(cell.source for cell in page() if cell.cell_type == "markdown")


def test_alone_a_step_is_the_shortest_and_dp_comes_next_where_much_is_sent():
    events = load(SCRIPT)
    first, second = (race.medians(events, w) for w in events.header["samples"])
    assert [min(ms, key=ms.get) for ms in (first, second)] == 2 * ["one process"]
    assert second["one process"] < second["DP"] < second["DDP"]


def test_the_middle_halves_overlap_on_one_model_only():
    events = load(SCRIPT)
    apart = {}
    for workload in events.header["samples"]:
        own = [event["ms"] for event in events if event["workload"] == workload]
        quarters = torch.tensor([0.25, 0.75])
        (_, high), (low, _) = (
            torch.tensor([ms[method] for ms in own]).quantile(quarters).tolist()
            for method in ("DP", "DDP")
        )
        apart[workload] = high < low
    assert apart == {"computes": False, "communicates": True}


def test_the_cell_that_counts_the_bytes_has_those_of_the_second_model():
    model, x, _ = script()["task"](
        "communicates", load(SCRIPT).header["samples"]["communicates"]
    )
    sizes = [sum(w.nbytes for w in model.parameters()), x.nbytes, model(x).nbytes]
    [cell] = [c.source for c in page() if c.source.startswith("def traffic(")]
    assert re.findall(r"sizes = ([\d_]+), ([\d_]+), ([\d_]+)", cell) == [
        tuple(f"{size:_}" if size > 9999 else f"{size}" for size in sizes)
    ]


def printed(begin):
    """Return what a cell of measured times has printed on the page."""
    [cell] = [cell for cell in page() if cell.source.startswith(begin)]
    return "".join(output.get("text", "") for output in cell.outputs)


def test_the_cells_on_published_tables_print_what_the_page_rests_on():
    table = printed("for gpus, together in")
    assert "16 GPUs: 104 ms, 0.93 kept, 14.92 times" in table
    assert "work for each MB: 0.95 ms" in table
    assert "lost on a MB, at most: 0.037 ms" in table
    spent = re.findall(r"(\w+) .* readers = (\d+)", printed("published = "))
    assert min(spent, key=lambda row: int(row[1]))[0] == "DP"


def test_autocast_leaves_gradients_in_32_bits():
    layer = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.ones(2, 4))
    out.sum().backward()
    assert (out.dtype, layer.weight.grad.dtype) == (torch.bfloat16, torch.float32)


def script():
    return runpy.run_path(f"{ROOT}/scripts/{SCRIPT}.py")


def test_the_script_prints_what_the_race_shows(capsys):
    events, report = load(SCRIPT), script()["report"]
    for workload in events.header["samples"]:
        own = [event for event in events if event["workload"] == workload]
        report(workload, own)
        title, *rows = capsys.readouterr().out.splitlines()
        times = race.medians(events, workload)
        assert title.startswith(f"a model that {workload}: ms a step")
        assert [row.split("  ")[0] for row in rows] == list(times)
        for row, ms in zip(rows, times.values()):
            assert row[12:].split()[0] == f"{ms:.1f}"
            assert row.split()[-1] == f"{times['one process'] / ms:.2f}"


def test_two_nodes_with_a_gpu_each_are_refused(monkeypatch, capsys):
    """DP is one process, and sees the GPUs of its own node only."""
    given = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [f"{SCRIPT}.py"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    with pytest.raises(SystemExit) as end:
        script()["main"].__wrapped__()
    assert end.value.code == 2
    refused = "DP is one process: it needs all GPUs on one machine"
    assert refused in " ".join(capsys.readouterr().err.split())


def test_each_round_begins_with_another_method(tmp_path):
    words = ["--rounds", 3, "--samples", 5, "--record", tmp_path / "again.jsonl"]
    torchrun(SCRIPT, *words, ranks=1, quiet=True)
    events = read(tmp_path / "again.jsonl")
    firsts = [[*event["ms"]][0] for event in events if event["workload"] == "computes"]
    assert sorted(firsts) == sorted(script()["METHODS"])


def test_the_picture_that_the_notebook_keeps_is_of_the_committed_race():
    """That cell is not compared when it runs: it may differ, but not be an old one."""
    [cell] = [cell for cell in page() if cell.source == "Player(race)"]
    kept = [output["data"]["text/html"] for output in cell.outputs]
    assert kept == [Player(load(SCRIPT))._repr_html_()]


def traffic(*given):
    """Return what the notebook's function of this name returns."""
    [text] = [cell.source for cell in page() if cell.source.startswith("def traffic(")]
    found = {}
    exec(text[: text.index("\n\n\n")], found)
    return found["traffic"](*given)


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_the_bytes_of_dp_are_those_that_lesson_02_counts(devices):
    by_hand = runpy.run_path(f"{ROOT}/scripts/13_data_parallel.py")
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
    ring = "03_ring_all_reduce"
    run = torchrun(ring, "--numel", 16, ranks=ranks, record=True, quiet=True)
    sent = [0] * ranks
    for event in run.recording:
        sent[event["rank"]] += event["bytes"]
    told = traffic("DDP", ranks, 16 * 8, 0, 0)  # the last are 8 bytes each
    assert [sent[rank - 1] + sent[rank] for rank in range(ranks)] == [told] * ranks


def made_up():
    """Ten rounds of two methods; another program worked in the first four."""
    header = {"methods": ["one process", "DDP"], "samples": {"x": 10}, "ranks": 2}
    header |= {"measured": True, "machine": "m", "torch": "t", "date": "d"}
    events = [
        {"step": step, "rank": 0, "workload": "x"}
        | {"ms": {"one process": 50.0 + lost, "DDP": 60.0 + lost}}
        for step, lost in enumerate(4 * [1000] + 6 * [0], 1)
    ]
    return Recording(events, picture="race", **header)


def test_some_slow_rounds_move_no_median():
    events = made_up()
    assert race.medians(events, "x") == {"one process": 50, "DDP": 60}
    for event in events:
        event["ms"]["DDP"] = 1050.0 if event["step"] < 8 else 50.0
    assert race.medians(events, "x")["DDP"] == 1050


def test_a_start_is_timed_until_the_ranks_are_ready(monkeypatch):
    begin = time.monotonic()
    ready, step = bench_start.take("mp.spawn", ranks=1, steps=1)
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


def late(rank, world_size, text):
    exec(text, names := {"torch": torch, "time": time})
    pauses = (time.sleep(0.3 * rank) for _ in itertools.count())
    batches = (torch.ones(8, 64) for _ in pauses)
    for layers in ([nn.Linear(64, 64)], [nn.Linear(64, 64), nn.BatchNorm1d(64)]):
        ddp = DistributedDataParallel(nn.Sequential(*layers))
        print(*names["where_time_goes"](ddp, batches))


def test_a_slow_loader_is_seen_in_the_backward_of_the_others():
    text = quoted(SCRIPT, "def where_time_goes")
    run = torchrun(late, text, ranks=2, quiet=True)
    for line, with_buffers in zip(run.lines[0], (False, True)):
        load, forward, backward = map(float, line.split())
        assert (forward if with_buffers else backward) > load
    for line in run.lines[1]:
        load, forward, backward = map(float, line.split())
        assert load >= 300 and load > max(forward, backward)
