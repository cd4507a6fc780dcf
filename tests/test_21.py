"""Tests evaluation: what its script finds and records, its evaluate, its checkers."""

import json
import re
from fractions import Fraction
from itertools import chain, zip_longest
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist
from lesson import changed, functions_of
from ringside import Player, RankFailed, check, load, still, torchrun
from ringside.draw.player import spelt
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

SCRIPT = "21_evaluation"
ROOT = Path(__file__).resolve().parents[1]
CPU = {"CUDA_VISIBLE_DEVICES": ""}
WRONG = {0, 4, 8, 9, 10}
LINE = re.compile(r"(.{13}) tests +(\d+): +([\d.]+|nan)%(?:, +([-+\w.]+) points)?")


def by_hand(samples, ranks):
    """Return the tests and the accuracy of each way; no accuracy where it is nan."""
    order = list(range(samples))
    rounds, over = divmod(samples, ranks)
    padded = (order * ranks)[: (rounds + (over > 0)) * ranks]
    shares = [order[rank::ranks] for rank in range(ranks)]
    found = {"one process": order, "padded": padded, "exact": order}
    found["drop_last"] = order[: rounds * ranks]
    told = {way: (len(tests), of(tests)) for way, tests in found.items()}
    means = [of(mine) for mine in shares]
    mean = None if None in means else sum(means) / ranks
    return told | {"mean of means": (samples, mean)}


def of(tests):
    return Fraction(sum(i not in WRONG for i in tests), len(tests)) if tests else None


@pytest.mark.parametrize(
    ("samples", "ranks"), [(11, 8), (11, 3), (11, 2), (10, 5), (3, 4), (7, 1)]
)
def test_four_ways_on_any_number_of_ranks(samples, ranks):
    run = torchrun(SCRIPT, "--samples", samples, ranks=ranks, quiet=True)
    *lines, predictions, last = run.lines[0]
    told = by_hand(samples, ranks)
    truth = told["one process"][1]
    assert len(lines) == len(told)
    for line in lines:
        way, tests, percent, off = LINE.fullmatch(line).groups()
        count, right = told.pop(way.strip())
        assert int(tests) == count
        if right is None:
            assert (percent, off) == ("nan", "+nan")
            continue
        assert float(percent) == pytest.approx(float(100 * right), abs=0.051)
        if way != "one process  ":
            assert float(off) == pytest.approx(float(100 * (right - truth)), abs=0.051)
    assert predictions.split()[1:] == list("00011110101")[:samples]
    assert last.startswith(f"ok: {ranks} ranks")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return totals[0] / totals[1]", "return mine.mean()", "not close"),
        ("range(rank, samples, world_size)", "range(rank, samples)", "not close"),
        ("torch.stack(shares, dim=1)", "torch.stack(shares)", "but one process has"),
        ("flatten()[: args.samples]", "flatten()", "but one process has"),
    ],
)
def test_another_way_to_average_or_to_gather_fails(old, new, says, tmp_path):
    path = changed(SCRIPT, tmp_path, (old, new))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, ranks=3, quiet=True)


def test_a_picture_shows_who_tests_what_and_what_comes_out():
    recording = load(SCRIPT)
    told = {(e["step"], e["rank"]): e["holds"] for e in spelt(recording)}
    assert told[0, 3]["tests"] == [["3 ✓", 3], ["7 ✓", 3]]
    assert told[1, 3]["tests"] == [["3 ✓", 3], ["7 ✓", 3], ["0 ✗", 0, 3]]
    assert told[1, 0]["tests"][0] == ["0 ✗", 0, 3], "two stripes: tested twice"
    assert told[2, 0]["tests"] == [["0 ✗", 0], ["4 ✗", 0]]
    assert [told[step, 1]["gives"][0] for step in range(4)] == [
        ["66.7%", 1],
        ["2 of 3", 1],
        ["2 of 2", 1],
        ["2 of 3", 1],
    ]
    results = [told[step, 2]["result"][0] for step in range(4)]
    assert results == [[n, 0, 1, 2, 3] for n in ("58.3%", "50.0%", "75.0%", "54.5%")]
    for step in range(4):
        assert told[step, -1] == {"right": [["6 of 11"]], "accuracy": [["54.5%"]]}
        svg = still(recording, step).svgs[0]
        ElementTree.fromstring(svg)
        assert "one process" in svg and "the whole batch" not in svg
    assert repr(Player(recording)) == "Player: 4 states"


def test_an_empty_share_has_no_mean_in_the_picture():
    run = torchrun(SCRIPT, "--samples", 2, ranks=3, record=True, quiet=True)
    told = {(e["step"], e["rank"]): e["holds"] for e in spelt(run.recording)}
    assert told[0, 2] == {
        "tests": [],
        "gives": [["nan", 2]],
        "result": [["nan%", 0, 1, 2]],
    }
    assert told[3, 2]["gives"] == [["0 of 0", 2]]
    assert told[3, -1]["right"] == [["1 of 2"]]
    assert repr(Player(run.recording)) == "Player: 4 states"


class Net(torch.nn.Sequential):
    """A model with buffers, which are others on each rank."""

    def __init__(self, rank):
        torch.manual_seed(0)
        super().__init__(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3))
        self[0].running_mean += rank


def made_up(samples):
    x = torch.linspace(-2, 2, 2 * samples).reshape(samples, 2)
    return x, torch.arange(samples) % 3


def evaluated(rank, world_size):
    for samples in (83, 3):
        model, data = Net(rank), TensorDataset(*made_up(samples))
        dice = torch.get_rng_state()
        numbers, classes = evaluate(model, data, rank, world_size)  # noqa: F821
        same_dice = torch.equal(dice, torch.get_rng_state())
        rest = model.training, same_dice
        print(json.dumps([numbers.tolist(), classes.tolist(), *rest]))


@pytest.mark.parametrize("ranks", [1, 4])
def test_what_you_write_on_monday_finds_what_one_process_finds(
    ranks, tmp_path, monkeypatch
):
    """With a short last batch, with an empty share, with the buffers of rank 0."""
    cells = functions_of(SCRIPT, tmp_path)
    for function in (cells.evaluate, cells.gather):
        function.__module__ = __name__
        monkeypatch.setitem(globals(), function.__name__, function)
    run = torchrun(evaluated, ranks=ranks, env=CPU, quiet=True)
    for samples, *said in zip((83, 3), *run.lines.values(), strict=True):
        x, y = made_up(samples)
        output = Net(rank=0).eval()(x).detach()
        right = (output.argmax(1) == y).double().mean().item()
        for line in said:
            (loss, accuracy), classes, training, same_dice = json.loads(line)
            assert loss == pytest.approx(cross_entropy(output, y).item(), rel=1e-5)
            assert accuracy == right
            assert classes == output.argmax(1).tolist()
            assert training and same_dice


def slices(lists):
    whole = [None] * sum(map(len, lists))
    for rank, mine in enumerate(lists):
        whole[rank :: len(lists)] = mine
    return whole


def by_zip(lists):
    rows = zip_longest(*lists)
    return [text for row in rows for text in row if text is not None]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda lists: ..., "your turn"),
        (lambda lists: print(end=""), "it returned None"),
        (lambda lists: 1 / 0, "ZeroDivisionError"),
        (lambda lists: 7, "a list must come back, not 7"),
        (lambda lists: "".join(lists[0]), "a list must come back, not '0: text"),
        (lambda lists: [*chain(*lists)], "7 samples on 3 ranks: that is rank by rank"),
        (lambda lists: [*chain(*zip(*lists))], "only 2 whole rounds came back"),
        (lambda lists: sorted(chain(*lists)), "sorted by their letters"),
        (lambda lists: [*chain(*zip_longest(*lists))], "an empty place is left"),
        (lambda lists: [*chain(*lists, lists[0])], "10 texts came back, not 7"),
        (lambda lists: slices(lists)[::-1], "all texts are there, but place 0 has"),
        (lambda lists: slices([x[::-1] for x in lists]), "but place 0 has '4: text 6'"),
        (lambda lists: [0] * sum(map(len, lists)), "not the texts that the ranks gave"),
        (lambda lists: lists.pop() and 3, "a list must come back"),
        (slices, "right: "),
        (by_zip, "right: "),
        (lambda lists: tuple(slices(lists)), "right: "),
        (None, "TypeError"),
    ],
)
def test_in_order(function, says, capsys):
    check.in_order(function)
    assert says in capsys.readouterr().out


def test_a_loop_throws_the_dice_of_its_rank_unless_its_loader_has_dice():
    for own, same in ((None, False), (torch.Generator(), True)):
        before = torch.get_rng_state()
        list(DataLoader([1, 2], generator=own))
        assert torch.equal(before, torch.get_rng_state()) is same


def evaluates(rank, world_size, forwards, grad):
    model = DistributedDataParallel(torch.nn.BatchNorm1d(1))
    x = torch.tensor([[float(rank)], [2.0]])
    model(x).sum().backward()
    with torch.set_grad_enabled(grad):
        for _ in range(forwards[rank]):
            model.eval()(x)
    dist.barrier()


def test_in_no_grad_the_first_forward_alone_copies_buffers():
    """So ranks may differ in all others; the page says to take model.module."""
    torchrun(evaluates, [3, 7], False, ranks=2, quiet=True, env=CPU)
    for forwards, grad in (([0, 7], False), ([3, 7], True)):
        with pytest.raises(RankFailed):
            torchrun(evaluates, forwards, grad, ranks=2, quiet=True, env=CPU, timeout=8)
