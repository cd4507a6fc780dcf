"""Tests two losses: that DDP keeps to the rule of its script, and its checkers."""

import runpy
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lesson import changed, code_with, quoted
from ringside import RankFailed, check, load, torchrun
from ringside.check.lesson_15 import right
from ringside.draw.player import spelt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEM = "15_two_losses"
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / f"{STEM}.py"
CPU = {"CUDA_VISIBLE_DEVICES": ""}
HOW = {"ranks": 2, "quiet": True, "env": CPU}
KINDS = ["forward a", "no_sync a", "module a", "forward b", "no_sync b", "module b"]


def orders():
    """Return all orders of two forwards and their backwards, one after the other."""
    found = []
    for a, b in product(KINDS[:3], KINDS[3:]):
        ends = ["backward a, backward b", "backward b, backward a", "backward a+b"]
        found += [f"{a}, {b}, {end}" for end in ends]
        found += [f"{b}, {a}, {end}" for end in ends]
        found += [f"{a}, backward a, {b}, backward b"]
    return found


def test_ddp_keeps_to_the_rule_in_every_order_of_moves():
    """The script compares each gradient with its rule; it begins with DDP asleep."""
    cases = orders()
    assert len(cases) == 63
    moves = ", zero_grad, ".join(cases)
    lines = torchrun(STEM, "--moves", moves, **HOW).lines[0]
    assert lines[-1].startswith("ok")


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (
            "            awake = False\n",
            "",
            r"backward b: rank (0 has 1|1 has 2)1.5, not 16.5",
        ),
        ("ddp = DistributedDataParallel", "ddp = print and Alone", "not 1.5"),
    ],
)
def test_another_rule_or_another_wrapper_is_found(right, wrong, says, tmp_path):
    alone = (
        "\n\nclass Alone(DistributedDataParallel):\n    def forward(self, x):\n"
        "        return self.module(x)\n\n\ndef play("
    )
    path = changed(STEM, tmp_path, (right, wrong), ("\n\ndef play(", alone))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, **HOW)


def test_the_picture_shows_whose_gradient_it_is_and_each_all_reduce():
    told = [event for event in spelt(load(STEM)) if event["rank"] == 2]
    holds = [event["holds"]["grad"] for event in told]
    assert holds[2] == [["2.5", 0, 1, 2, 3]]
    assert holds[3] == [["32.5", 2]]
    assert holds[4:7] == [[], [], []]
    assert holds[7] == [["27.5", 0, 1, 2, 3]]
    calls = [event["call"] for event in told]
    assert calls == [None, None, "all_reduce", None, None, None, None, "all_reduce"]


def many_backwards(rank, world_size):
    """Print what two calls of backward give with static_graph."""
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False), static_graph=True)
    losses = [ddp(torch.tensor([slope * (rank + 1)])) for slope in (1.0, 10.0)]
    for loss in losses:
        loss.backward()
    print(ddp.module.weight.grad.item())


def test_static_graph_does_not_average_the_second_backward():
    lines = torchrun(many_backwards, **HOW).lines
    assert [*lines.values()] == [["11.5"], ["21.5"]]


def added_later(rank, world_size):
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    ddp = DistributedDataParallel(model)
    model.append(nn.Linear(1, 1, bias=False))
    for layer in model:
        nn.init.ones_(layer.weight)
    ddp(torch.tensor([rank + 1.0])).backward()
    print(*(layer.weight.grad.item() for layer in model))


def test_a_layer_that_is_added_later_is_not_averaged():
    assert [*torchrun(added_later, **HOW).lines.values()] == [["1.5 1.0"], ["1.5 2.0"]]


def replaced_later(rank, world_size, wrapped_again):
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(2)))
    ddp = DistributedDataParallel(model)
    model[1] = nn.Linear(1, 1, bias=False)
    for layer in model:
        nn.init.ones_(layer.weight)
    ddp = DistributedDataParallel(model) if wrapped_again else ddp
    for _ in range(2):
        ddp.zero_grad()
        ddp(torch.tensor([rank + 1.0])).sum().backward()
        print(*(layer.weight.grad.item() for layer in model))
        dist.barrier()


def test_a_layer_that_replaces_another_one_ends_in_an_error():
    """The old one never reports: nothing is averaged, and the next forward raises."""
    with pytest.raises(RankFailed) as failure:
        torchrun(replaced_later, False, **HOW)
    assert "Expected to have finished reduction" in failure.value.details
    lines = failure.value.run.lines
    assert [*lines.values()] == [["1.0 1.0"], ["2.0 2.0"]]
    lines = torchrun(replaced_later, True, **HOW).lines
    assert [*lines.values()] == [["1.5 1.5"] * 2] * 2


def wraps_again_and_again(rank, world_size):
    """Print the number of all-reduces of a step, after a model was wrapped thrice."""
    model, calls = nn.Linear(1, 1, bias=False), []
    ddp = None
    for _ in range(3):
        del ddp
        ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(calls, counts)
    ddp(torch.tensor([rank + 1.0])).backward()
    print(model.weight.grad.item(), len(calls))


def counts(calls, bucket):
    calls.append(bucket.index())
    flat = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(flat, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def test_a_model_that_is_wrapped_again_is_averaged_once():
    lines = torchrun(wraps_again_and_again, **HOW).lines
    assert [*lines.values()] == [["1.5 1"]] * 2


def watches(rank, world_size, source):
    names = {"torch": torch, "dist": dist}
    exec(source, names)
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    for last in (2.0, 2.0 + rank, float("nan")):
        ddp.module.weight.grad = torch.tensor([[1.0, last]])
        print(names["not_averaged"](ddp))


def test_the_watch_names_what_differs_and_takes_no_gradient_for_zero():
    source = code_with(STEM, "def not_averaged").source
    lines = torchrun(watches, source, **HOW).lines
    assert [*lines.values()] == [["[]", "['weight']", "['weight']"]] * 2


def test_the_rule_of_the_checker_is_that_of_the_script():
    rule = runpy.run_path(str(SCRIPT))["rule"]
    for moves in orders():
        kinds = [move.split()[0] for move in moves.split(", ")]
        first, second = rule(moves, 2)[-1]
        assert (first == second) == right(kinds)[-1]


def test_the_answers_of_the_first_exercise_are_what_ddp_does():
    lines = [
        "forward b, forward a, backward b, backward a",
        "no_sync a, forward b, backward a+b",
        "forward a, backward a, module b, backward b",
    ]
    rule = runpy.run_path(str(SCRIPT))["rule"]
    assert [rule(moves, 4)[-1][3] for moves in lines] == [29, 27.5, 42.5]


def sleeps_never(moves):
    return ["forward" in moves[: i + 1] for i, m in enumerate(moves) if m == "backward"]


def looks_back(*wakes):
    """Return a wrong rule: the move before a backward decides."""

    def function(moves):
        found = enumerate(moves)
        return [i > 0 and moves[i - 1] in wakes for i, m in found if m == "backward"]

    return function


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda moves: None, "it returned None"),
        (lambda moves: 1, "TypeError"),
        (lambda moves: [1] * moves.count("backward"), "give True or False for each"),
        (lambda moves: [True], "there are 0 backwards"),
        (lambda moves: [True] * moves.count("backward"), "DDP sleeps until the first"),
        (lambda moves: [False] * moves.count("backward"), "so DDP is awake"),
        (sleeps_never, "no forward has come since the last backward"),
        (looks_back("forward", "module"), "module does not wake DDP"),
        (looks_back("forward", "no_sync"), "no_sync does not wake DDP"),
        (looks_back("forward"), "no_sync does not put it to sleep"),
        (right, "right: "),
    ],
)
def test_averages(function, says, capsys):
    check.averages(function)
    assert says in capsys.readouterr().out


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(1, 1, bias=False) for _ in range(2))
        nn.init.ones_(self.a.weight)
        nn.init.ones_(self.b.weight)

    def forward(self, x):
        return self.b(self.a(x))


def tied(rank, world_size, first):
    model = Two()
    if first:
        model.b.weight = model.a.weight
    ddp = DistributedDataParallel(model)
    model.b.weight = model.a.weight
    for step in (1, 2):
        ddp.zero_grad()
        ddp(torch.tensor([rank + 1.0])).sum().backward()
        print(step, model.a.weight.grad.item())
        dist.barrier()


def test_a_shared_weight_is_averaged_if_it_was_shared_before_wrapping():
    tie, wrap = quoted(STEM, "model.b.weight").splitlines()
    assert tie.endswith("= model.a.weight") and "DistributedDataParallel" in wrap
    run = torchrun(tied, True, ranks=2, quiet=True)
    assert run.lines == {0: ["1 3.0", "2 3.0"], 1: ["1 3.0", "2 3.0"]}
    with pytest.raises(RankFailed, match="Expected to have finished reduction") as late:
        torchrun(tied, False, ranks=2, quiet=True)
    assert late.value.run.lines == {0: ["1 2.0"], 1: ["1 4.0"]}


class Scaled(nn.Module):
    """A loss that learns its own scale."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, outputs, targets):
        squares = (outputs - targets).square().mean()
        return squares * torch.exp(-self.scale) + self.scale


def learns_its_loss(rank, world_size, text, watch):
    """Print the gradient of the loss's weight, if the loss is beside DDP or inside."""
    exec(text, names := {"nn": nn, "torch": torch, "dist": dist})
    exec(watch, names)
    for inside in (False, True):
        torch.manual_seed(0)
        model, loss = nn.Linear(1, 1), Scaled()
        x = torch.tensor([[rank + 1.0]])
        if inside:
            ddp = DistributedDataParallel(names["Task"](model, loss))
            ddp(x, 2 * x).backward()
        else:
            ddp = DistributedDataParallel(model)
            loss(ddp(x), 2 * x).backward()
        print(f"{loss.scale.grad.item():.2f}", names["not_averaged"](ddp))


def test_a_weight_of_the_loss_is_averaged_if_the_loss_is_wrapped_too():
    watch = code_with(STEM, "def not_averaged").source
    run = torchrun(learns_its_loss, quoted(STEM, "class Task"), watch, **HOW)
    assert run.lines == {0: ["-1.16 []", "-6.13 []"], 1: ["-11.10 []", "-6.13 []"]}
    page = (SCRIPT.parents[1] / "notebooks" / f"{STEM}.ipynb").read_text()
    assert "| -1.16 | -11.10 |" in page and "| -6.13 | -6.13 |" in page
