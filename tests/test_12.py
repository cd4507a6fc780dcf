"""Tests the fastest all-reduce: what its script records, its ways, its checkers."""

import json
import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
import rounds
import torch.distributed as dist
from lesson import changed
from ringside import (
    RankFailed,
    WrongRecording,
    at_barriers,
    check,
    load,
    only,
    simulate,
    still,
    torchrun,
)
from ringside.draw.chart import lines, size_of
from ringside.draw.player import animate, spelt
from ringside.recording import Recording, table

STEM = "12_how_fast_can_it_get"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / f"{STEM}.py"
MEASURED = ROOT / "figures" / f"{STEM}_measured.json"
CPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def recordings():
    """What real runs on 1, 2, 4 and 8 ranks recorded."""
    runs = {n: torchrun(STEM, ranks=n, record=True, quiet=True) for n in (1, 2, 4, 8)}
    return {n: run.recording for n, run in runs.items()}


def replay(rows: list[list[dict]]) -> None:
    """Follow every message of a recording, from the states alone."""
    for before, after in zip(rows, rows[1:]):
        for rank, event in enumerate(after):
            if "to" not in event:  # another way begins
                continue
            far, came = event["to"] ^ rank, after[event["to"]]["gives"]
            assert far & (far - 1) == 0 and after[event["to"]]["to"] == rank
            had, now = before[rank]["chunks"], event["chunks"]
            begin = 0
            if event["phase"] != "swap_all":
                begin = (
                    (rank if event["phase"] == "halve" else event["to"]) // far * far
                )
            kept = had[begin : begin + len(came)]
            adds = event["phase"] != "double"
            new = [c + k * adds for c, k in zip(came, kept)]
            assert now == [*had[:begin], *new, *had[begin + len(came) :]]
            own = before[rank]["chunks"]
            given = event["gives"]
            assert given == own[own.index(given[0]) :][: len(given)]


def test_every_message_that_is_recorded_gives_what_its_partner_then_has(recordings):
    for ranks, events in recordings.items():
        rows = table(events)
        replay(rows)
        ones = [(c + 1) * (10**ranks - 1) // 9 for c in range(ranks)]
        steps = ranks.bit_length() - 1
        phases = ["whole", *["swap_all"] * steps, "chunks"]
        phases += [*["halve"] * steps, *["double"] * steps]
        assert [row[0]["phase"] for row in rows] == phases
        for row in (rows[steps], rows[-1]):
            assert [event["chunks"] for event in row] == [ones] * ranks
        for rank, event in enumerate(rows[2 * steps + 1]):  # where halving ends
            full = [c for c, v in enumerate(event["chunks"]) if v == ones[c]]
            assert full == [rank]


def test_the_bytes_are_those_that_the_lesson_counts(recordings):
    for ranks, events in recordings.items():
        own, tensor = [e for e in events if e["rank"] == ranks - 1], 32 * ranks
        sent = {"swap_all": 0, "halve": 0, "double": 0}
        for event in own:
            if "bytes" in event:
                sent[event["phase"]] += event["bytes"]
        assert sent["swap_all"] == math.log2(ranks) * tensor
        assert sent["halve"] == sent["double"] == (1 - 1 / ranks) * tensor


def test_a_changed_message_is_seen(recordings):
    events = [event | {} for event in recordings[4]]
    events[-1] |= {"gives": [1, *events[-1]["gives"][1:]]}
    with pytest.raises(AssertionError):
        replay(table(events))


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
def test_ranks_beyond_a_power_of_two_take_part(ranks):
    """The script compares with torch: if a rank were left out, it would fail."""
    run = torchrun(STEM, ranks=ranks, quiet=True)
    assert run.lines[0][-1] == (
        f"ok: {ranks} ranks, and both ways agree with dist.all_reduce"
    )
    assert run.exit_codes == dict.fromkeys(range(ranks), 0)


def test_a_recording_needs_a_power_of_two(capfd):
    with pytest.raises(RankFailed, match="--record needs 1, 2, 4 or 8 ranks"):
        torchrun(STEM, ranks=3, record=True, quiet=True)


@pytest.mark.parametrize(
    ("old", "new", "ranks"),
    [
        (
            "exchange(rank ^ far, (0, world_size), add",
            "exchange(rank ^ 1, (0, 4), add",
            4,
        ),
        ("(other, other + far), add_to=(own", "(own, own + far), add_to=(own", 4),
        ("(own, own + far), keep_in", "(other, other + far), keep_in", 4),
        ("            into.add_(arrived)", "            into.copy_(arrived)", 2),
        ("        chunks.add_(spare)", "        pass", 3),
    ],
)
def test_a_mistake_in_a_way_fails(old, new, ranks, tmp_path):
    path = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed, match="not equal"):
        torchrun(path, ranks=ranks, quiet=True)


def test_the_picture_shows_every_message_and_whose_numbers_it_has(recordings):
    for ranks, events in recordings.items():
        told = spelt(events)
        for event, bare in zip(told, events, strict=True):
            shown = 1 if bare["phase"] in ("whole", "swap_all") else ranks
            cells = event["holds"]["sums"]
            assert len(cells) == shown
            for (digits, *whose), value in zip(cells, bare["chunks"]):
                assert int(digits) == value and len(digits) == ranks
                there = [r for r in range(ranks) if digits[::-1][r] != "0"]
                assert whose == there
            for to, name, given in event["sends"]:
                assert (to, name) == (bare["to"], "sums")
                assert [int(v) for v, *_ in given] == bare["gives"][:shown]
        for svg in [still(events, len(table(events)) - 1).svgs[0], animate(events)]:
            ElementTree.fromstring(svg)
    assert len(spelt(only(load(STEM), "swap_all"))) == 3 * 4


def test_a_recording_that_lacks_a_field_is_refused():
    with pytest.raises(WrongRecording, match="no 'chunks', as swaps needs it"):
        spelt(Recording([{"step": 0, "rank": 0, "phase": "whole"}], picture="swaps"))


def told() -> dict:
    """Return the functions of the notebook; they find simulate as in the notebook."""
    found = rounds.told(STEM)
    found["simulate"] = simulate
    return found


def run_told(name: str, body: str, ranks: int, tmp_path, **how):
    """Run a function of the notebook on real ranks, after the words in body."""
    text = "import os, sys, torch\nimport torch.distributed as dist\n"
    text += f"sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport rounds\n"
    text += f"told = rounds.told({STEM!r})\ndist.init_process_group('gloo')\n"
    text += "rank, world_size = dist.get_rank(), dist.get_world_size()\n" + body
    text += "\ndist.destroy_process_group()\n"
    (tmp_path / f"{name}.py").write_text(text)
    return torchrun(tmp_path / f"{name}.py", ranks=ranks, quiet=True, env=CPU, **how)


SAME = """
for numel in (0, 1, 7, 1000, 10**6 + 3):
    tensor = torch.arange(float(numel)) * (rank + 1)
    dist.all_reduce(expected := tensor.clone())
    {}
    assert torch.equal(tensor, expected), numel
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_ring_in_segments_takes_any_size(ranks, tmp_path):
    """With up to 1000 numbers the chunks stay whole."""
    call = "told['ring_in_segments'](tensor, tensor.clone(), rank, world_size, 1000)"
    run_told("segments", SAME.format(call), ranks, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs memfd_create")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_shared_memory_takes_any_size_and_many_calls(ranks, tmp_path):
    body = "rows = told['rows_of_all'](rank, world_size, 10**6 + 3)\n"
    call = "told['through_shared_memory'](tensor, rows[:, :numel], rank, world_size)"
    run_told("shared", body + SAME.format(call), ranks, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs memfd_create")
def test_when_a_rank_dies_no_file_of_the_shared_memory_is_left(tmp_path):
    """The memory has no name in a folder, on any rank; so nobody has to delete one."""
    body = "rows = told['rows_of_all'](rank, world_size, 1000)\n"
    body += (
        "maps = [m.split(None, 5)[5] for m in open('/proc/self/maps') if 'row' in m]\n"
    )
    body += "print(rows.shape[0], *maps, end='', flush=True)\ndist.barrier()\n"
    body += "os.kill(os.getpid(), 9) if rank == 1 else dist.barrier()"
    with pytest.raises(RankFailed) as caught:
        run_told("dies", body, 3, tmp_path)
    assert caught.value.run.lines[0] == ["3 /memfd:rows (deleted)"]
    assert not any("rows" in name for name in os.listdir("/dev/shm"))


def test_the_picture_of_shared_memory_shows_what_lies_there_at_each_barrier():
    seen = at_barriers(told()["through_shared_memory"], ranks=3)
    begin, laid, added, fetched = table(seen)
    own = [[(c + 1) * 10**rank for c in range(3)] for rank in range(3)]
    sums = [111, 222, 333]
    for rank, chunks in enumerate(own):
        row = [0 if c == rank else value for c, value in enumerate(chunks)]
        assert (begin[rank]["chunks"], begin[rank]["row"]) == (chunks, [0, 0, 0])
        assert (laid[rank]["chunks"], laid[rank]["row"]) == (chunks, row)
        with_sum = [sums[c] if c == rank else v for c, v in enumerate(chunks)]
        assert added[rank]["chunks"] == added[rank]["row"] == with_sum
        assert (fetched[rank]["chunks"], fetched[rank]["row"]) == (sums, with_sum)
    [svg] = still(seen, 2).svgs
    assert "rank 1: chunks 010 222 030, row 010 222 030" in svg


def test_of_ranks_that_wait_and_one_that_fails_the_latter_is_told():
    def fails(tensor, rows, rank, world_size):
        dist.barrier()
        if rank == 2:
            raise ValueError("too few rows")

    real = dist.barrier
    with pytest.raises(ValueError, match="too few rows"):
        at_barriers(fails, ranks=3)
    assert dist.barrier is real


def test_without_a_slow_link_the_clocks_say_what_the_formula_says():
    words, part = told(), {"ring": 1.75, "swap_all": 3, "halving": 1.75}
    phases = {"ring": [words["ring"]], "swap_all": [words["swap_all"]]}
    phases["halving"] = [words["halve"], runpy.run_path(str(SCRIPT))["double"]]
    for way, tensors in part.items():
        assert words["last_clock"](phases[way]) == pytest.approx(100 * tensors)
        predicted = words["predict"](0, tensors, 1e8, 0, 1e9)
        assert predicted == pytest.approx(100 * tensors)


def test_the_lines_cross_where_the_lesson_says():
    predict = told()["predict"]
    for other, size in (((4, 1.5), 200_000), ((6, 1.5), 400_000)):
        same = predict(2, 2, size, 50e-6, 1e9)
        assert predict(*other, size, 50e-6, 1e9) == pytest.approx(same)
    for speed, wins in ((0.0682, True), (0.0684, False)):
        times = [predict(*c, 8192, 50e-6, speed * 1e9) for c in ((6, 1.75), (3, 3))]
        assert (times[0] < times[1]) is wins


def test_a_chart_of_lines_says_its_numbers():
    found = {"one": {8: 0.5, 2**20: 2}, "two": {8: 1, 2**20: 1.25}}
    svg = lines(found, {"one": {8: 0.4, 2**20: 3}}, "A title").svgs[0]
    ElementTree.fromstring(svg)
    told = re.search("<title>(.*?)</title>", svg)[1]
    assert told == (
        "A title, in milliseconds. one: 8 B 0.5, 1 MiB 2; two: 8 B 1, 1 MiB 1.25"
    )
    assert svg.count("stroke-dasharray") == 1, "what was predicted is dashed"
    assert svg == lines(found, {"one": {8: 0.4, 2**20: 3}}, "A title").svgs[0]
    sizes = (8, 2**10, 3 * 2**19)
    assert [size_of(size) for size in sizes] == ["8 B", "1 KiB", "1.5 MiB"]


def said(capsys) -> str:
    return capsys.readouterr().out


def more(ranks):
    return math.log2(ranks) - 2 + 2 / ranks or math.nan


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda n, d, b: math.log2(n) * d * b / more(n), "not yet: two ranks swap"),
        (
            lambda n, d, b: (2 * n - 2 - math.log2(n)) * d * b / more(n),
            "not yet: crossing(4, 5e-05, 1e+09) gave 400000: there swap_all meets the",
        ),
        (lambda n, d, b: math.log2(n) * d / more(n), "not yet: .*those are seconds"),
        (lambda n, d, b: more(n) / math.log2(n) / d / b, "not yet: .*upside down"),
        (lambda n, d, b: d * b, "not yet: .*gave 50000, not 200000 bytes"),
        (lambda n, d, b: 1 / 0, "not yet: .*it raised ZeroDivisionError"),
    ],
)
def test_crossing(function, says, capsys):
    check.crossing(function)
    found = said(capsys)
    assert re.match(says.replace("(4", r"\(4").replace("+09)", r"\+09\)"), found), found


RIGHT = """
def double(rank, world_size, exchange):
    far = 1
    while far < world_size:
        own = rank - rank % far
        other = own ^ far
        exchange(rank ^ far, (own, own + far), keep_in=(other, other + far))
        far *= 2
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", "right: "),
        ("keep_in=", "add_to=", "not yet: with 2 ranks, the sums are complete"),
        (
            "(own, own + far), k",
            "(other, other + far), k",
            "not yet: with 2 ranks, rank . gives chunk . before it has it",
        ),
        ("own ^ far", "own + far", "not yet: with 2 ranks, there is no chunk 2"),
        (
            "far < world_size",
            "far < world_size // 2",
            "not yet: .* ends without the sum",
        ),
        (
            "(own, own + far), k",
            "(own, own + 1), k",
            "not yet: with 4 ranks, rank . giv",
        ),
        ("rank ^ far", "rank + far", "not yet: with 2 ranks, it raised ValueError"),
        ("    far = 1", "    1 / 0", "not yet: with 2 ranks, it raised ZeroDivision"),
    ],
)
def test_doubling(old, new, says, capsys):
    exec(RIGHT.replace(old, new), found := {})
    check.doubling(found["double"])
    assert re.match(says, said(capsys))


def test_the_notebook_keeps_the_picture_of_the_committed_recording():
    cells = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4).cells
    [player] = [c for c in cells if "Player(run.recording)" in c.source]
    shown = [o for o in player.outputs if "data" in o]
    assert len(load(STEM)) == 4 * 8
    assert "8 states" in shown[0].data["text/plain"]


def test_the_table_of_the_fastest_ways_is_that_of_the_race():
    page = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4).cells
    rows = re.findall(
        r"(?m)^\| (\d ranks) \| (.*) \|$", "\n".join(c.source for c in page)
    )
    kept, fastest = json.loads(MEASURED.read_text()), {}
    columns = [kept["bytes"].index(size) for size in (64, 8192, 2**20, 2**26)]
    for ranks in ("2 ranks", "4 ranks", "8 ranks"):
        ways = kept[ranks]
        fastest[ranks] = [min(ways, key=lambda w: ways[w][place]) for place in columns]
    assert {n: row.replace("`", "").split(" | ") for n, row in rows} == fastest
    assert {row[-1] for row in fastest.values()} == {"shared memory"}, "no messages"


def test_the_benchmark_finds_all_ways():
    """In a process that does not know where the course is."""
    code = (
        "import bench_ring, torch, torch.distributed as dist\n"
        "own = {'store': dist.HashStore(), 'rank': 0, 'world_size': 1}\n"
        "dist.init_process_group('gloo', **own)\n"
        "found = bench_ring.ways(0, 1, *torch.ones(3, 8))\n"
        "print({*bench_ring.GOALS} < {*found})"
    )
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    how = {"cwd": ROOT / "tests", "env": env, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", code], **how)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
