"""Tests collectives: what its script does, prints and records, and its checkers."""

import re
import sys
import time
from datetime import timedelta
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from lesson import changed, functions_of, quoted
from ringside import (
    Player,
    RankFailed,
    Recording,
    check,
    load,
    only,
    still,
    torchrun,
)
from ringside.draw import flow
from ringside.draw.flow_layout import Layout
from ringside.draw.player import animate, image, spelt

ROOT = Path(__file__).resolve().parents[1]
COLLECTIVES = "11_collectives"
CPU = {"CUDA_VISIBLE_DEVICES": ""}
CAREFUL = CPU | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


@pytest.mark.parametrize(("ranks", "root"), [(5, 3), (8, 7), (2, 1)])
def test_what_is_recorded_is_what_each_collective_means(ranks, root):
    run = torchrun(COLLECTIVES, "--root", root, ranks=ranks, record=True, quiet=True)
    for rank in range(ranks):
        own = [event for event in run.recording if event["rank"] == rank]
        values = {event["phase"]: [*map(sum, event["gets"])] for event in own}
        pieces = [10 * (r + 1) + rank for r in range(ranks)]
        numbers = list(range(1, ranks + 1))
        assert values["broadcast"] == [root + 1]
        assert values["scatter"] == [pieces[root]]
        assert values["gather"] == (numbers if rank == root else [])
        assert values["reduce"] == ([sum(numbers)] if rank == root else [])
        assert values["all_gather"] == numbers
        assert values["all_to_all"] == pieces
        assert values["all_reduce"] == [sum(numbers)]
        assert values["reduce_scatter"] == [sum(pieces)]
        assert values["barrier"] == []


def test_every_collective_has_a_card_that_moves():
    cells = nbformat.read(ROOT / "notebooks" / f"{COLLECTIVES}.ipynb", 4).cells
    cards = [c for c in cells if re.search(r'^card\("', c.source, re.MULTILINE)]
    lines = [cell.source.splitlines()[-1] for cell in cards]
    names = [name for line in lines for name in re.findall('"(.+?)"', line)]
    recording = load(COLLECTIVES)
    assert sorted(names) == sorted({event["phase"] for event in recording})
    for line, cell in zip(lines, cards):
        own = only(recording, *re.findall('"(.+?)"', line))
        shown = cell.outputs[-1].data["text/html"]
        assert shown.startswith(image(animate(own)))


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("broadcast", "reduce"),
        ("all_gather", "reduce_scatter"),
        ("scatter", "gather"),
        ("all_to_all", "all_to_all"),
    ],
)
def test_opposites_have_the_same_arrows_turned_round(there, back):
    recording = load(COLLECTIVES)

    def arrows(name):
        """Return who gave to whom: whose numbers are in what each rank got."""
        made = [event for event in recording if event["phase"] == name]
        got = [(e["rank"], places) for e in made for places in e["gets"]]
        pairs = [(r, to) for to, places in got for r in range(4) if places[r]]
        return sorted((giver, to) for giver, to in pairs if giver != to)

    assert arrows(there) == sorted((giver, to) for to, giver in arrows(back))
    assert len(arrows(there)) == (12 if there.startswith("all") else 3)


def two_in_one(rank, world_size):
    """Print a sum and the numbers of all, each found by two calls."""
    total, mine = torch.tensor([rank + 1]), torch.tensor([rank + 1])
    dist.reduce(total, 0)
    dist.broadcast(total, 0)
    room = torch.zeros(world_size, 1, dtype=torch.int64)
    dist.gather(mine, [*room] if rank == 0 else None, 0)
    dist.broadcast(room, 0)
    print(total.item(), room.flatten().tolist())


def test_two_calls_in_one():
    lines = torchrun(two_in_one, ranks=4, quiet=True, env=CPU).lines
    assert [*lines.values()] == [["10 [1, 2, 3, 4]"]] * 4


@pytest.mark.skipif(sys.platform != "linux", reason="others count for all processes")
def test_each_call_sends_as_many_bytes_as_the_lesson_says(tmp_path):
    count = functions_of(COLLECTIVES, tmp_path).count
    lines = torchrun(count, ranks=4, quiet=True, env=CPU).lines[0]
    counted = {name: float(found) for name, found in map(str.split, lines)}
    pieces = {"broadcast": 3, "gather": 3, "reduce": 3.75, "all_gather": 12}
    pieces |= {"all_reduce": 6, "scatter": 3, "all_to_all": 12}
    pieces |= {"reduce_scatter": 24, "barrier": 0}
    assert counted == pytest.approx(pieces, abs=0.11)


def long_reduce(rank, world_size, count):
    numbers = torch.full((count,), rank + 1)
    dist.reduce(numbers, 0)
    print(*sorted({*numbers.tolist()}))


def test_a_long_reduce_leaves_other_sums_than_a_short_one():
    how = {"ranks": 2, "quiet": True, "env": CPU}
    found = [torchrun(long_reduce, n, **how).lines for n in (2**17, 10**6)]
    assert [lines[0] for lines in found] == [["3"], ["3"]]
    assert found[0][1] == ["2 3"] and found[1][1] != ["2 3"]


def test_an_all_reduce_is_a_reduce_scatter_and_then_an_all_gather(capsys, tmp_path):
    (tmp_path / "halves.py").write_text(
        "import torch\nimport torch.distributed as dist\n"
        + quoted(COLLECTIVES, "def halves").partition("\n\n\nrun =")[0]
        + "\ndist.init_process_group('gloo')\n"
        + "halves(dist.get_rank(), dist.get_world_size())\n"
        + "dist.destroy_process_group()\n"
    )
    lines = torchrun(tmp_path / "halves.py", ranks=4, quiet=True, env=CPU).lines
    for rank, [line] in lines.items():
        assert f"rank {rank} | {line}\n" in page()


def page():
    """Return the prose of the lesson."""
    cells = nbformat.read(ROOT / "notebooks" / f"{COLLECTIVES}.ipynb", 4).cells
    return "\n\n".join(c.source for c in cells if c.cell_type == "markdown")


def operators(rank, world_size, *names):
    for name in names:
        kind = torch.float64 if name == "AVG" else torch.int64  # means: fractions
        number = torch.tensor([rank + 1], dtype=kind)
        dist.all_reduce(number, getattr(dist.ReduceOp, name))
        print(number.item())


def test_the_operators_make_what_the_fold_says():
    told = dict(re.findall(r"`([A-Z]+)` ([\d.]*\d)", page()))
    assert len(told) == 8
    lines = torchrun(operators, *told, ranks=4, quiet=True, env=CPU).lines
    assert [*lines.values()] == [[*told.values()]] * 4


@pytest.mark.skipif(torch.__version__ < "2.13", reason="the page is about torch 2.13")
def test_torch_warns_of_the_old_names_that_the_page_says():
    rows = re.findall(r"(?m)^\| `dist\.(\w+)` \| `dist\.(\w+)` \| (.+) \|$", page())
    assert len(rows) == 3
    for old, new, who in rows:
        if torch.__version__ >= "2.14" and "not" in who:
            assert hasattr(dist, old) and hasattr(dist, new)
            continue
        with pytest.warns(FutureWarning, match=rf"{old}` is deprecated.*{new}`"):
            try:
                found = getattr(dist, old)
                found.SUM if old == "reduce_op" else found(None, None)
            except (AttributeError, TypeError, ValueError):
                pass  # without a group there is nothing to do


def watched(rank, world_size, late, seconds):
    watch = dist.new_group(backend="gloo")
    time.sleep(seconds if rank == late else 0)
    dist.monitored_barrier(watch, timedelta(seconds=1), wait_all_ranks=True)
    print("all have come")


def test_nobody_fails_when_the_rank_with_the_list_is_late():
    how = {"ranks": 3, "quiet": True, "env": CPU}
    assert torchrun(watched, 0, 2, **how).lines[2] == ["all have come"]
    with pytest.raises(RankFailed, match="Ranks 2 failed to pass monitoredBarrier"):
        torchrun(watched, 2, 4, **how)


def absent(rank, world_size):
    group = dist.new_group(timeout=timedelta(seconds=2))
    time.sleep(6 if rank == 2 else 0)
    dist.all_reduce(torch.ones(1), group=group)


def test_detail_names_the_rank_that_stays_away_and_else_nobody_does():
    how = {"ranks": 3, "quiet": True}
    with pytest.raises(RankFailed, match="Ranks 2 failed to pass monitoredBarrier"):
        torchrun(absent, env=CAREFUL, **how)
    with pytest.raises(RankFailed, match="rank [01] raised .*(Timed out|by peer)"):
        torchrun(absent, env=CPU, **how)


def test_sizes_that_differ_are_noticed_by_detail_alone(tmp_path):
    sized = functions_of(COLLECTIVES, tmp_path).sized
    how = {"ranks": 4, "quiet": True}
    lines = torchrun(sized, [1, 2, 3, 4], env=CPU, **how).lines
    assert [*lines.values()] == [["[1]"], ["[1, 2]"], ["[1, 3, 3]"], ["[1, 2, 4, 4]"]]
    with pytest.raises(RankFailed, match="TensorShape"):
        torchrun(sized, [1, 2, 3, 4], env=CAREFUL, **how)
    with pytest.raises(RankFailed, match="rank [123] was killed"):
        torchrun(sized, [4, 3, 2, 1], env=CPU, **how)
    lines = torchrun(sized, [4, 3, 2, 1], True, env=CPU, **how).lines
    assert [*lines.values()] == [["[1, 1, 1, 1]"]] * 4


def test_a_root_that_is_not_there_gets_one_line(capsys):
    cells = nbformat.read(ROOT / "notebooks" / f"{COLLECTIVES}.ipynb", 4).cells
    [source] = [c.source for c in cells if "def chosen" in c.source]
    names = {"interact_manual": lambda **_: lambda function: function, "names": []}
    body = source[source.index("@") : source.rindex("chosen(")]
    exec(body, names)
    assert names["chosen"]("gather", 3, 3) is None
    said = capsys.readouterr().out
    assert said == "3 ranks are ranks 0 to 2: none of them is 3\n"


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("lambda: dist.all_reduce(own)", "lambda: own", "all_reduce: rank"),
        ("dist.broadcast(own, root)", "dist.broadcast(own, 0)", "broadcast: rank"),
        ("dist.all_to_all_single(room, pieces)", "room.copy_(pieces)", "all_to_all: "),
    ],
)
def test_a_call_that_gives_something_else_fails(right, wrong, says, tmp_path):
    path = changed(COLLECTIVES, tmp_path, (right, wrong))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, "--root", 1, ranks=2, quiet=True)


def test_every_arrow_is_drawn_from_a_number_that_arrived():
    raw = torchrun(COLLECTIVES, ranks=3, record=True, quiet=True).recording
    recording = spelt(raw)
    assert {event["phase"] for event in recording} > {"gather", "barrier", "pieces"}
    assert not any("sends" in event for event in recording)
    layout = Layout(recording)
    for event in recording:
        own, call = event["rank"], event["phase"]
        sends = [s for s in flow.sends(layout, event["step"]) if s[1] == own]
        whose = [r for _, *many in event["holds"].get("gets", []) for r in many]
        assert sorted(giver for giver, *_ in sends) == sorted({*whose} - {own})
        pieces = call in ("scatter", "all_to_all", "reduce_scatter")
        for giver, _, _, cells in sends:
            number = 10 * (giver + 1) + own if pieces else giver + 1
            assert cells == [[number, giver]]
    gathered = still(only(raw, "gather"), 1).svgs[0]
    assert gathered.count(">gets</text>") == 1, "what is empty has no room"


def test_calls_begin_at_rest_with_what_all_have_for_them():
    raw = torchrun(COLLECTIVES, ranks=2, record=True, quiet=True).recording
    told = spelt(only(raw, "reduce", "all_reduce", "scatter", "barrier"))
    phases = [event["phase"] for event in told if event["rank"] == 1]
    own = ["numbers", "reduce", "all_reduce"]
    assert phases == [*own, "pieces", "scatter", "barrier"]
    assert [event["step"] for event in told if event["rank"] == 1] == [*range(6)]
    has = {event["phase"]: event["holds"]["has"] for event in told if event["rank"]}
    assert has["numbers"] == has["reduce"] == [[2, 1]]
    assert has["pieces"] == has["barrier"] == [[20, 1], [21, 1]]
    calls = [event.get("call") for event in told if event["rank"] == 1]
    assert calls == [None, "reduce", "all_reduce", None, "scatter", "barrier"]


def recording():
    """Return three steps: a rest, a call, and another call."""
    phases = [("rest", {}), ("give", {"gets": []}), ("take", {"gets": []})]
    events = []
    for step, (phase, more) in enumerate(phases):
        for rank in range(2):
            holds = {"has": [[rank + 1, rank]]} | ({"gets": [[7, 0]]} if more else {})
            event = {"step": step, "rank": rank, "phase": phase, "holds": holds}
            if more and rank == 0:
                event["sends"] = [[1, "gets", [[5, 0]]]]
            events.append(event | more)
    return Recording(events, picture="flow", pace=2, fresh=["gets"])


def test_a_part_of_a_recording_begins_at_rest():
    part = only(recording(), "take")
    assert [e["phase"] for e in part] == ["rest", "rest", "take", "take"]
    assert [e["step"] for e in part] == [0, 0, 1, 1]
    assert part.header["pace"] == 2
    assert repr(Player(part)) == "Player: 2 states"
    with pytest.raises(ValueError, match="no phase 'give all', but rest, give, take"):
        only(recording(), "give all")


def test_a_message_shows_what_travels_and_not_what_is_made_of_it():
    picture = flow.frame(recording(), 1)
    assert picture.count(">5</text>") == 1
    assert picture.count(">7</text>") == 2


def test_a_long_picture_draws_once_what_it_shows_often():
    picture = flow.animate(recording())
    assert picture.count(">5</text>") == 1
    assert picture.count('class="f12"') == 1 and picture.count('class="f32"') == 1
    assert "7.6s" in picture, "1.2 + 2 steps of 2 s + 2.4"


def told(rank, mean):
    return f"mean loss {mean}" if rank == 0 else None


def divides_first(rank, world_size, loss, all_reduce):
    loss /= world_size
    all_reduce(loss)
    return told(rank, f"{loss.item():.2f}")


def calls_twice(rank, world_size, loss, all_reduce):
    all_reduce(loss)
    all_reduce(loss)
    return told(rank, loss.item() / world_size)


def empties_first(rank, world_size, loss, all_reduce):
    loss.zero_()
    all_reduce(loss)
    return told(rank, loss.item() / world_size)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda r, n, loss, add: None, "no rank calls all_reduce"),
        (lambda r, n, loss, add: add(loss) if r == 0 else None, "only rank 0 made"),
        (
            lambda r, n, loss, add: add(loss) if r else None,
            "only ranks 1, 2 and 3 made",
        ),
        (lambda r, n, loss, add: add(loss), "rank 0 told nothing"),
        (
            lambda r, n, loss, add: (add(loss), "mean")[1],
            "ranks 1, 2 and 3 told it, too",
        ),
        (lambda r, n, loss, add: (add(loss), r or None)[1], "3 told, not rank 0"),
        (lambda r, n, loss, add: (add(loss), told(r, loss.item()))[1], "mean is 2.5"),
        (
            lambda r, n, loss, add: (add(loss), None if r else 2.5)[1],
            "returned 2.5, and",
        ),
        (
            lambda r, n, loss, add: (add(loss), told(r, loss.item() / 4))[1],
            "mean is 1.5",
        ),
        (lambda r, n, loss, add: (add(loss), told(r, "nan"))[1], "not the text 'mean"),
        (lambda r, n, loss, add: (add(loss), told(r, loss / n))[1], "'mean loss 2.5'"),
        (lambda r, n, loss, add: 1 / 0, "rank 0 raised ZeroDivisionError"),
        (lambda r, n, loss, add: (r or add(loss), add(loss)), "[2, 1, 1, 1]"),
        (calls_twice, "'mean loss 10.0': the mean is 2.5"),
        (empties_first, "'mean loss 0.0': the mean is 2.5"),
        (lambda r, n, loss, add: (add(loss), told(r, loss.item() / n))[1], "right: "),
        (divides_first, "right: "),
        (None, "TypeError"),
    ],
)
def test_mended(program, says, capsys):
    check.mended(program)
    assert says in capsys.readouterr().out
