"""Tests splitting the batch: when a mean of gradients is the gradient of a batch."""

import ast
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest
import torch
from lesson import changed
from ringside import RankFailed, check, load, torchrun
from ringside.draw.retell import SHARES, shares

SCRIPT = "01_split_the_batch"
ROOT = Path(__file__).resolve().parents[1]
PATH = ROOT / "scripts" / f"{SCRIPT}.py"
PAGE = nbformat.read(ROOT / "notebooks" / f"{SCRIPT}.ipynb", 4).cells
PROSE = "\n".join(cell.source for cell in PAGE if cell.cell_type == "markdown")
SPEC = importlib.util.spec_from_file_location("split_by_hand", PATH)
BY_HAND = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BY_HAND)


@pytest.mark.parametrize("ranks", [1, 5, 8, 9])
def test_the_ranks_find_what_one_process_finds(ranks):
    run = torchrun(SCRIPT, ranks=ranks, quiet=True)
    end = f"{ranks} ranks find the gradient of one process"
    assert run.lines[0][-1] == f"ok: by count, {end}"
    by_count, alone = (float(line.split()[-1]) for line in run.lines[0][-3:-1])
    assert by_count == alone == 4


def test_the_mean_of_means_is_wrong_for_three_ranks():
    run = torchrun(SCRIPT, ranks=3, quiet=True)
    means = {line[:20].strip(): float(line.split()[-1]) for line in run.lines[0][-4:-1]}
    assert means == {"mean of the means": 3.889, "mean by count": 4, "one process": 4}


@pytest.mark.parametrize(
    ("ranks", "right", "wrong", "says"),
    [
        (2, "means / world_size", "means.nextafter(means * 0) / 2", "equal shares"),
        (3, "slopes / samples", "slopes / samples * 1.0001", "the mean by count is"),
    ],
)
def test_another_gradient_is_noticed(ranks, right, wrong, says, tmp_path):
    """Whole numbers: if its last bit is another. By count: by one part in 10,000."""
    path = changed(SCRIPT, tmp_path, (right, wrong))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, ranks=ranks, quiet=True)


def test_what_was_recorded_adds_up():
    """Each gradient is the mean of the slopes beside it; all ranks end alike."""
    alone, *ranks = load(SCRIPT)
    for event in (alone, *ranks):
        assert event["grad"] == sum(event["slopes"]) / len(event["slopes"])
        assert (event["mean"], event["w"]) == (4, [1, 0])
    assert alone["slopes"] == [e["slopes"][i] for i in (0, 1) for e in ranks]


def parts(*names):
    """Return the code of a notebook's functions and numbers, by their names."""
    code = "\n\n".join(cell.source for cell in PAGE if cell.cell_type == "code")
    found = {}
    for node in ast.parse(code).body:
        name = getattr(node, "name", None)
        if isinstance(node, ast.Assign):
            name = getattr(node.targets[0], "id", None)
        found.setdefault(name, ast.unparse(node))
    return "\n\n".join(found[name] for name in names)


def test_what_is_said_of_the_eight_samples():
    """The numbers of the prose that no cell prints."""
    same = {}
    exec(parts("X", "Y"), same)
    x, y = same["X"], same["Y"]
    assert (x, y) == (BY_HAND.X, BY_HAND.Y)
    slopes = [a * (a - b) for a, b in zip(x, y)]
    pairs = [sum(slopes[i : i + 2]) / 2 for i in (0, 2, 4, 6)]
    assert "find {:g}, {:g}, {:g} and {:g}".format(*pairs) in PROSE
    best = sum(a * b for a, b in zip(x, y)) / sum(a * a for a in x)
    assert f"the best one, {best:.3f}" in PROSE
    added = re.search(r"> \( (\(.+) \) / 4", PROSE)[1]
    ranks = [slopes[rank::4] for rank in range(4)]
    assert added == " + ".join(f"({a:g} + {b:g})/2" for a, b in ranks)
    assert f"{x[2]:g} and {x[6]:g}, and subtracts {(x[2] + x[6]) / 2}" in PROSE
    assert f"subtracts {sum(x) / 8:g}, the mean of all eight" in PROSE


@pytest.mark.parametrize("ranks", [1, 3, 9])
def test_the_loop_for_monday_is_that_of_one_process(ranks, tmp_path):
    """Also with nine ranks, one of which has no sample."""
    text = f"""
import gc, os
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
{parts("X", "Y", "share", "train_together")}
dist.init_process_group("gloo")
train_together(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
gc.collect()
dist.destroy_process_group()
"""
    (tmp_path / "monday.py").write_text(text)
    run = torchrun(tmp_path / "monday.py", ranks=ranks, quiet=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.tensor(BY_HAND.X)[:, None], torch.tensor(BY_HAND.Y)[:, None]
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    says = [f"mean loss before the last step: {loss:.3f}"]
    assert list(run.lines.values()) == [says] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_the_picture_shows_what_was_recorded(ranks):
    run = torchrun(SCRIPT, ranks=ranks, record=True, quiet=True)
    states = shares(run.recording)
    assert len(states) == len(SHARES) * (ranks + 1)
    for event in run.recording:
        mine = [s for s in states if s["rank"] == event["rank"]]
        assert [s["phase"] for s in mine] == list(SHARES)
        held = {s["phase"]: s["holds"] for s in mine}
        alone = event["rank"] < 0
        assert ("slopes" in held["start"]) == alone
        for step, count in enumerate((1 + alone, 2, 3, 3, 3)):
            assert list(mine[step]["holds"]) == ["w", "slopes", "grad"][:count]
        whose = [0 if alone else event["rank"]]
        assert held["split"]["slopes"][0] == [event["slopes"][0], *whose]
        own, everyone = ([], []) if alone else (whose, range(ranks))
        assert held["backward"]["grad"] == [[event["grad"], *own]]
        assert held["step"]["grad"] == [[event["mean"], *everyone]]
        assert [s["holds"]["w"][0][0] for s in mine] == [1, 1, 1, 1, event["w"][1]]


def needs_samples(means, counts):
    return sum(m * c * c / c for m, c in zip(means, counts)) / sum(counts)


def by_ranks(means, counts):
    return sum(m * c for m, c in zip(means, counts)) / len(means)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda means, counts: ..., "your turn"),
        (lambda means, counts: print(end=""), "returned None"),
        (
            lambda means, counts: sum(means) / len(means),
            "gave the mean of the means, 2.5",
        ),
        (lambda means, counts: sum(m * c for m, c in zip(means, counts)), "gave a sum"),
        (by_ranks, "divided by the ranks"),
        (lambda means, counts: 7, "gave 7, not 3.25"),
        (lambda means, counts: 1.8, "gave 1.8, not 3.25"),
        (lambda means, counts: 12.5, "gave 12.5, not 3.25"),
        (lambda means, counts: 3.25, "[2, 2, 2, 2]) gave 3.25, not 4"),
        (needs_samples, "weigh([5.0, 0.0], [3, 0]): it raised ZeroDivision"),
        (lambda means, counts: sum(means) / sum(counts), "stands for all samples"),
        (
            lambda means, counts: sum(m / c for m, c in zip(means, counts)),
            "divided by its count already",
        ),
        (lambda means, counts: means / counts, "TypeError"),
    ],
)
def test_weigh(function, says, capsys):
    check.weigh(function)
    assert says in capsys.readouterr().out


def slope(w, x, y):
    return x * (w * x - y)


def alone(w, x, y, all_reduce):
    return w - 0.25 * slope(w, x, y).mean()


def total(w, x, y, all_reduce):
    return w - 0.25 * all_reduce(slope(w, x, y).mean())


def means(w, x, y, all_reduce):
    ranks = all_reduce(1)
    mean = slope(w, x, y).sum() / max(len(x), 1)
    return w - 0.25 * all_reduce(mean) / ranks


def by_own(w, x, y, all_reduce):
    return w - 0.25 * all_reduce(slope(w, x, y).sum()) / max(len(x), 1)


def uphill(w, x, y, all_reduce):
    return w + 0.25 * all_reduce(slope(w, x, y).sum()) / all_reduce(len(x))


def no_rate(w, x, y, all_reduce):
    return w - all_reduce(slope(w, x, y).sum()) / all_reduce(len(x))


def forgets(w, x, y, all_reduce):
    w = w - 0.25 * all_reduce(slope(w, x, y).sum()) / all_reduce(len(x))


def stays_away(w, x, y, all_reduce):
    if len(x) != 3:
        return alone(w, x, y, all_reduce)
    return w - all_reduce(slope(w, x, y).sum())


def one_raises(w, x, y, all_reduce):
    return 0 * all_reduce(1 // int(x[0].item() != 2))


def when_it_has_some(w, x, y, all_reduce):
    if len(x) == 0:
        return w
    return w - 0.25 * all_reduce(slope(w, x, y).sum()) / all_reduce(len(x))


def by_autograd(w, x, y, all_reduce):
    w.requires_grad_()
    ((w * x - y) ** 2 / 2).sum().backward()
    return w - 0.25 * all_reduce(w.grad) / all_reduce(len(x))


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda w, x, y, all_reduce: ..., "your turn"),
        (forgets, "it returned None"),
        (alone, "the weights end apart"),
        (total, "4 times too long"),
        (means, "which is the mean of the means"),
        (by_own, "4 times too long"),
        (uphill, "with 1 rank, w becomes 2: a step goes down the slope, so subtract"),
        (no_rate, "where is the rate"),
        (lambda *given: 1 - no_rate(*given), "which is the gradient"),
        (when_it_has_some, "not all ranks call all_reduce equally often"),
        (stays_away, "the weights end apart"),
        (lambda w, x, y, all_reduce: 1 / 0, "ZeroDivisionError"),
        (one_raises, "with 4 ranks, it raised ZeroDivisionError"),
        (lambda *given: len(given[1]) == 4 and alone(*given), "with 2 ranks, the weig"),
        (by_autograd, "right: all ranks take the step"),
    ],
)
def test_step(program, says, capsys, recwarn):
    check.step(program)
    assert says in capsys.readouterr().out
    assert not recwarn.list
    assert torch.is_grad_enabled()
