"""Tests the learning rate: which one gives back what fewer steps have lost."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from lesson import changed, functions_of
from ringside import RankFailed, WrongRecording, check, load, still, torchrun
from ringside.draw import paths
from ringside.draw.chart import spreads
from ringside.draw.player import animate, spelt
from ringside.recording import Recording

STEM = "25_learning_rate"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / f"{STEM}.py"
CPU = {"CUDA_VISIBLE_DEVICES": ""}
RULES = ("as before", "linear", "warm-up", "square root")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def script(monkeypatch):
    """Return the script's names; seeds(...) gives its networks other seeds."""
    found = runpy.run_path(str(SCRIPT))
    inside = found["train"].__globals__
    return found | {"seeds": lambda *range_: inside.update(SEEDS=range(*range_))}


def ends(script, size, rule, lr, ranks):
    """Return the scores at the end, of the whole batch at once."""
    batch = script["BATCH"] * ranks
    return script["train"](script["Nets"](size), rule, lr, batch)[-1]


@pytest.mark.parametrize(("size", "ranks"), [(1, 2), (2.5, 4), (1, 8)])
def test_all_shares_one_by_one_are_the_batch_at_once(script, size, ranks):
    piled_up, at_once = script["Nets"](size), script["Nets"](size)
    batch = script["BATCH"] * ranks
    script["train"](piled_up, "warm-up", 0.03, batch, range(ranks), ranks)
    script["train"](at_once, "warm-up", 0.03, batch)
    for one, other in zip(piled_up.parameters(), at_once.parameters()):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_real_ranks_of_the_calm_task_train_as_one_process():
    """Of the steep task on 1 to 4 ranks: test_scripts."""
    run = torchrun(SCRIPT, "--size", 1, ranks=2, quiet=True, env=CPU)
    scores = {line[:12].strip(): float(line[12:18]) for line in run.lines[0][:-1]}
    assert list(scores) == ["1 rank", *RULES]
    assert abs(scores["linear"] - scores["1 rank"]) < 1.5
    assert scores["as before"] < scores["1 rank"] - 1.5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(loss(nets, share) / len(ranks))", "loss(nets, share)"),
        ("DistributedDataParallel(Nets(args.size))", "Nets(args.size)"),
        ("train(one, *setting", "train(one, rule, args.lr * 1.001, batch"),
    ],
)
def test_ranks_that_train_otherwise_are_found(old, new, tmp_path):
    path = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed, match="not close"):
        torchrun(path, ranks=2, quiet=True, env=CPU)


def test_twenty_other_seeds_say_the_same(script):
    """What the notebook says of its five."""
    script["seeds"](5, 25)
    calm = {rule: ends(script, 1, rule, 0.03, 8) for rule in RULES}
    alone = ends(script, 1, "linear", 0.03, 1)
    assert calm["as before"].max() < 80 and (alone - calm["linear"]).max() <= 3
    assert 1 < (alone - calm["warm-up"]).mean() < 3
    assert (calm["square root"] > calm["as before"] + 5).all()
    steep = {rule: ends(script, 2.5, rule, 0.03, 8) for rule in RULES}
    assert steep["linear"].max() < 15
    assert ends(script, 2.5, "linear", 0.03, 4).max() < 15
    assert steep["warm-up"].min() > steep["as before"].max()
    rate, inside = script["rate"], script["train"].__globals__
    inside["rate"] = lambda *how: rate(*how[:3], epochs=2 * how[3])  # a shorter one
    assert (ends(script, 2.5, "warm-up", 0.03, 8) + 5).lt(steep["warm-up"]).sum() > 15
    inside["rate"] = rate
    assert steep["square root"].max() < steep["as before"].min() + 5
    near = {rule: ends(script, 1, rule, 0.1, 8) for rule in RULES}
    assert near["linear"].max() < 15
    assert near["warm-up"].max() < near["square root"].min()


def test_the_recording_does_not_hang_on_the_last_bits(script):
    """Other processors round otherwise: weights that differ a little score alike."""
    for rule in RULES:
        told = []
        for more in (0, 1e-12):
            nets = script["Nets"](2.5)
            with torch.no_grad():
                for weight in nets.parameters():
                    weight *= 1 + more * torch.randn_like(weight)
            told.append(script["train"](nets, rule, 0.03, 4 * script["BATCH"]))
        assert all(map(torch.equal, *told)), rule


@pytest.fixture
def taught(script, tmp_path):
    """Return the notebook's functions, with what it takes from the script."""
    found = functions_of(STEM, tmp_path)
    for name in ("Nets", "loss", "score", "shuffled", "BATCH", "EPOCHS", "TRAIN"):
        setattr(found, name, script[name])
    return found


def test_the_steep_task_is_five_times_as_steep_until_it_is_warm(script, taught):
    calm, steep = (taught.steepness(script["Nets"](size)) for size in (1, 2.5))
    assert (steep / calm).min() > 3 and (steep / calm).max() < 8
    warmed = script["Nets"](2.5)
    script["train"](warmed, "warm-up", 0.03, 8 * script["BATCH"])
    assert (taught.steepness(warmed) < calm).all()
    for size, bears, fails in ((1, 0.25, 0.5), (2.5, 0.03, 0.12)):
        assert ends(script, size, "as before", bears, 8).min() > 20
        assert ends(script, size, "as before", fails, 8).max() < 20


def test_adam_needs_another_rule_for_each_of_three_rates(script, taught):
    script["seeds"](5, 15)
    for lr, best in ((0.003, "linear"), (0.01, "square root"), (0.03, "as before")):
        alone = taught.with_adam(lr, 16)
        found = {
            rule: min(alone, taught.with_adam(script["rate"](rule, lr, 8, 0), 128))
            for rule in ("as before", "square root", "linear")
        }
        assert max(found, key=found.get) == best
        assert sorted(found.values())[-1] > sorted(found.values())[-2] + 1


def test_each_line_of_the_picture_has_its_scores_and_a_name_of_its_own():
    events = load(STEM)
    layout = paths.Layout(events)
    assert layout.ways == ["1 rank", *RULES]
    assert {len(scores) for scores in layout.scores.values()} == {17}
    for step in range(17):
        heights = sorted(paths.places(layout, step).values())
        gaps = [b - a for a, b in zip(heights, heights[1:])]
        assert min(gaps) > paths.NEAR - 0.01
        assert heights[0] > paths.TOP and heights[-1] < paths.TOP + paths.TALL + 0.01
    told = repr(still(events, 16))
    assert "1 rank: 84.0; 4 ranks, as before: 66.0; 4 ranks, linear: 8.2" in told
    for svg in (still(events, 3).svgs[0], animate(events)):
        ElementTree.fromstring(svg)


def test_names_that_end_at_the_bottom_move_up():
    events = [
        {"step": 0, "rank": 0, "phase": way, "score": 1} for way in ("1 rank", "a")
    ]
    layout = paths.Layout(
        Recording(events, picture="paths", ranks=2, every=1, tests=99)
    )
    top, bottom = sorted(paths.places(layout, 0).values())
    assert bottom - top == paths.NEAR and bottom <= paths.TOP + paths.TALL


def test_a_recording_that_lacks_a_score_is_refused():
    with pytest.raises(WrongRecording, match="no 'score', as paths needs it"):
        spelt(Recording([{"step": 1, "rank": 0, "phase": "linear"}], picture="paths"))


def test_a_chart_of_spreads_tells_the_worst_and_the_best():
    found = {"task": {"rule": {1: [50.0, 60.0], 8: [8.0, 90.0]}}}
    chart = spreads(found, "right answers")
    assert repr(chart) == "Right answers. task, rule: 1 50 to 60, 8 8 to 90"
    ElementTree.fromstring(chart.svgs[0])


def right(step, lr, ranks, warm_steps):
    """Return what exercise 2 asks for."""
    part = min(1, step / warm_steps) if warm_steps else 1
    return lr * (1 + (ranks - 1) * part)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *given: ..., "your turn"),
        (lambda *given: print(end=""), "it returned None"),
        (lambda s, lr, n, w: lr + lr * (n - 1) * min(1, s / w), "ZeroDivisionError"),
        (lambda *given: "fast", "return a number, not 'fast'"),
        (lambda s, lr, n, w: lr * n, "the warm-up is not over yet"),
        (lambda s, lr, n, w: lr, "it stays at lr"),
        (lambda s, lr, n, w: lr * n * min(1, s / max(w, 1)), "begins at lr, not at 0"),
        (lambda s, lr, n, w: right(s + 1, lr, n, w), "one step too early"),
        (
            lambda s, lr, n, w: lr + lr * (n - 1) * s / w if w else lr * n,
            "it goes on rising",
        ),
        (lambda s, lr, n, w: 1000.0, "not 1000"),
        (right, "right: "),
    ],
)
def test_warm_up(function, says, capsys):
    check.warm_up(function)
    assert says in capsys.readouterr().out
