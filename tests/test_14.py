"""Tests DDP's habits: what its script prints and records, and its checkers."""

import itertools
import re
from contextlib import nullcontext
from inspect import signature
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from lesson import changed, code_with, quoted
from ringside import RankFailed, RankTimeout, check, torchrun
from ringside.draw.player import spelt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HABITS = "14_ddp_habits"
ROOT = Path(__file__).resolve().parents[1]


def test_a_rank_that_holds_other_numbers_fails(tmp_path):
    """Without DDP, nothing is copied, and nothing averaged on rank 0."""
    unwrapped = " = DistributedDataParallel(model)", " = model"
    path = changed(HABITS, tmp_path, unwrapped)
    says = "ValueError: (wrapped: rank 1 has .*: 2.0, .*: 20.0}|wrapped: rank 2 has "
    says += ".*: 3.0, .*: 30.0}|backward: rank 0 has .*: 1.0, .*: 10.0, .*: 1.0}), not"
    with pytest.raises(RankFailed, match=says):
        torchrun(path, ranks=3, quiet=True)


@pytest.mark.parametrize("ranks", [1, 5, 8])
def test_whose_numbers_are_where_on_any_number_of_ranks(ranks):
    lines = torchrun(HABITS, ranks=ranks, quiet=True).lines[0][:-1]
    found = {tuple(line[:18].split()): line[18:].split() for line in lines}
    own = [str(rank + 1) for rank in range(ranks)]
    assert found["wrapped", "weight"] == ["1"] * ranks
    assert found["forward", "weight"] == own
    assert found["forward", "buffer"] == ["10"] * ranks
    assert found["backward", "grad"] == [f"{(ranks + 1) / 2:g}"] * ranks


def test_a_recording_tells_whose_numbers_are_where():
    run = torchrun(HABITS, ranks=3, record=True, quiet=True)
    has = [event["has"] for event in run.recording if event["rank"] == 2]
    assert [numbers["weight"] for numbers in has] == [3, 1, 3, 3, 3]
    assert [numbers["buffer"] for numbers in has] == [30, 10, 30, 10, 10]
    assert [numbers.get("grad") for numbers in has] == [None] * 4 + [2]
    told = [event["holds"] for event in spelt(run.recording) if event["rank"] == 2]
    own, first = ["3", 2], ["1", 0]
    assert [holds["weight"] for holds in told] == [[own], [first], [own], [own], [own]]
    assert [holds["buffer"][0][1] for holds in told] == [2, 0, 2, 0, 0]
    assert told[-1]["grad"] == [["2", 0, 1, 2]]


def through_its_module(rank, world_size):
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    for forward in (model, model.module):
        model.zero_grad()
        forward(torch.tensor([rank + 1.0])).sum().backward()
        print(model.module.weight.grad.item())


def frozen(rank, world_size, late):
    model = nn.Linear(1, 1)
    model.bias.requires_grad_(late)
    wrapped = DistributedDataParallel(model)
    model.bias.requires_grad_(False)
    wrapped(torch.tensor([rank + 1.0])).sum().backward()
    print(model.weight.grad.item())


def with_buffers_off(rank, world_size):
    """Print a buffer after wrapping and after a forward, for each option."""
    names = ["broadcast_buffers", "init_sync"]
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters:
        names.append("forward_sync_buffers")  # torch 2.13 and newer
    for name in names:
        model = nn.Linear(1, 1)
        model.register_buffer("seen", torch.tensor([rank + 1.0]))
        wrapped = DistributedDataParallel(model, **{name: False})
        print(name, "wraps", model.seen.item())
        model.seen.fill_(rank + 1)
        wrapped(torch.ones(1))
        print(name, "forward", model.seen.item())


def test_what_the_lesson_says_of_ddp_in_words_is_so():
    first, second = torchrun(through_its_module, ranks=2, quiet=True).lines.values()
    assert (first, second) == (["1.5", "1.0"], ["1.5", "2.0"])
    assert torchrun(frozen, False, ranks=2, quiet=True).lines[1] == ["1.5"]
    assert torchrun(frozen, True, ranks=2, quiet=True).lines[1] == ["2.0"]
    buffers = torchrun(with_buffers_off, ranks=2, quiet=True).lines[1]
    assert buffers[:4] == [
        "broadcast_buffers wraps 2.0",
        "broadcast_buffers forward 2.0",
        "init_sync wraps 2.0",
        "init_sync forward 1.0",
    ]
    new = ["forward_sync_buffers wraps 1.0", "forward_sync_buffers forward 2.0"]
    assert buffers[4:] in ([], new)


def backward_inside(model, batches):
    for batch in batches[:-1]:
        loss = model(batch)
        with model.no_sync():
            loss.backward()
    model(batches[-1]).backward()


def all_inside(model, batches):
    with model.no_sync():
        for batch in batches:
            model(batch).backward()


def none_inside(model, batches):
    for batch in batches:
        model(batch).backward()


def first_outside(model, batches):
    model(batches[0]).backward()
    with model.no_sync():
        for batch in batches[1:]:
            model(batch).backward()


def ends_outside(model, batches):
    for batch in batches:
        with nullcontext() if batch in batches[::2] else model.no_sync():
            model(batch).backward()


def pair_outside(model, batches):
    (none_inside if len(batches) == 2 else forward_inside)(model, batches)


def third_outside(model, batches):
    for i, batch in enumerate(batches):
        with nullcontext() if i == 2 else model.no_sync():
            model(batch).backward()


def every_backward_inside(model, batches):
    for batch in batches:
        with nullcontext() if batch is batches[-1] else model.no_sync():
            loss = model(batch)
        with model.no_sync():
            loss.backward()


def forgets_the_last(model, batches):
    with model.no_sync():
        for batch in batches[:-1]:
            model(batch).backward()


def forward_inside(model, batches):
    for batch in batches:
        with nullcontext() if batch is batches[-1] else model.no_sync():
            loss = model(batch)
        loss.backward()


def forgets_the_others(model, batches):
    for batch in batches:
        model.zero_grad()
        with nullcontext() if batch is batches[-1] else model.no_sync():
            loss = model(batch)
        loss.backward()


def by_its_name(model, batches):
    model.zero_grad()
    for batch in batches:
        model.require_backward_grad_sync = batch is batches[-1]
        model(batch).backward()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda model, batches: ..., "your turn"),
        (backward_inside, "the forward decides"),
        (all_inside, "no backward averages"),
        (none_inside, "3 backwards average"),
        (ends_outside, "2 backwards average"),
        (pair_outside, "with 2 batches, 2 backwards average"),
        (third_outside, "with 1 batch, no backward averages"),
        (first_outside, "averaged by none"),
        (forgets_the_last, "backward ran for 2"),
        (lambda model, batches: sum(map(model, batches)).backward(), "a sum keeps all"),
        (lambda model, batches: (model(1) + model(2)).backward(), "a sum keeps all"),
        (lambda model, batches: (model(1) / 2).backward(), "divide no loss"),
        (lambda model, batches: model.zero_grad(), "no backward ran"),
        (lambda model, batches: [*map(model, batches)], "no backward ran"),
        (forgets_the_others, "zero_grad forgot"),
        (forward_inside, "right: "),
        (every_backward_inside, "right: "),
        (by_its_name, "right: "),
        (None, "TypeError"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_accumulation(program, says, capsys):
    check.accumulation(program)
    assert says in capsys.readouterr().out


def test_the_notebooks_layer_is_that_of_the_script():
    script = (ROOT / "scripts" / f"{HABITS}.py").read_text()
    (layer,) = re.findall(
        r"^class Layer.*?(?=\n\n\n)", script, re.DOTALL | re.MULTILINE
    )
    cells = nbformat.read(ROOT / "notebooks" / f"{HABITS}.ipynb", 4).cells
    assert layer in [cell.source for cell in cells]


class Sum(nn.Module):
    """Has the output weight × x, so the gradient of its sum is the sum of x."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        if x.min() < 0:
            raise torch.OutOfMemoryError("made up")
        return self.weight * x


def evaluating(rank, world_size, after):
    """Train four steps; after one of them, rank 0 evaluates once, through DDP."""
    model = Sum()
    model.register_buffer("seen", torch.zeros(1))
    ddp = DistributedDataParallel(model)
    for step in range(1, 5):
        ddp.zero_grad()
        ddp(torch.tensor([10.0 * step + rank])).sum().backward()
        print(model.weight.grad.item())
        if (rank, step) == (0, after):
            with torch.no_grad():
                ddp(torch.ones(1))


def test_one_evaluation_on_rank_0_meets_a_copy_of_the_others():
    """But not after the first step: the others then wait for the order of buckets."""
    for after in (2, 3):
        run = torchrun(evaluating, after, ranks=2, quiet=True)
        assert run.lines == dict.fromkeys((0, 1), ["10.5", "20.5", "30.5", "40.5"])
    with pytest.raises(RankFailed) as caught:
        torchrun(evaluating, 1, ranks=2, quiet=True)
    assert "size doesn't match" in "".join(caught.value.run.stderr.values())


def skipping(rank, world_size, text, buffers=False):
    """Print the gradients of three steps; in the second one, rank 1 can't go on."""
    exec(text, names := {"torch": torch, "dist": dist})
    model, seen = Sum(), []
    if buffers:
        model.register_buffer("steps", torch.zeros(1))
    ddp = DistributedDataParallel(model)
    for step in range(3):
        ddp.zero_grad()
        failing = (rank, step) == (1, 1)
        batch = torch.tensor([-1.0 if failing else 10.0 * step + rank])
        try:
            if text:
                done = names["step_or_skip"](ddp, batch)
            else:
                ddp(batch).sum().backward()
                done = True
            seen.append(ddp.module.weight.grad.item() if done else "skip")
        except torch.OutOfMemoryError:
            seen.append("skip")
        except RuntimeError:
            seen.append("error")
    print(*seen)


def test_all_ranks_skip_a_batch_or_none_does():
    together = quoted(HABITS, "def step_or_skip")
    run = torchrun(skipping, together, ranks=2, quiet=True)
    assert run.lines == {0: ["0.5 skip 20.5"], 1: ["0.5 skip 20.5"]}
    run = torchrun(skipping, together, True, ranks=2, quiet=True)
    assert run.lines == {0: ["0.5 skip 20.5"], 1: ["0.5 skip 20.5"]}
    with pytest.raises(RankTimeout) as hangs:
        torchrun(skipping, "", True, ranks=2, quiet=True, timeout=10)
    assert hangs.value.run.lines == {0: [], 1: []}, "the job hangs"
    alone = torchrun(skipping, "", ranks=2, quiet=True)
    assert alone.lines == {0: ["0.5 15.5 error"], 1: ["0.5 skip 15.5"]}


def by_tokens(rank, world_size, text):
    exec(text, names := {"torch": torch, "dist": dist, "nullcontext": nullcontext})
    pieces = [[[2.0], [4.0, 5.0, 6.0]], [[10.0, 10.0], [7.0]]][rank]
    ddp = DistributedDataParallel(Sum())
    names["mean_of_tokens"](ddp, [torch.tensor(piece) for piece in pieces])
    print(f"{ddp.module.weight.grad.item():.3f}")
    ddp.zero_grad()
    for piece in pieces:
        with nullcontext() if piece is pieces[-1] else ddp.no_sync():
            (ddp(torch.tensor(piece)).mean() / len(pieces)).backward()
    print(f"{ddp.module.weight.grad.item():.3f}")
    ddp.zero_grad()
    uneven = [torch.tensor([number]) for number in ([1.0], [2.0, 3.0, 4.0])[rank]]
    names["mean_of_tokens"](ddp, uneven)
    print(f"{ddp.module.weight.grad.item():.3f}")


def test_the_mean_over_tokens_is_not_the_mean_of_pieces():
    run = torchrun(by_tokens, quoted(HABITS, "mean_of_tokens"), ranks=2, quiet=True)
    assert run.lines == dict.fromkeys(range(2), ["6.286", "6.000", "2.500"])


SIGNS = 1, 1, 1, -1, 1, 1, 1, -1, -1, -1


class Sometimes(nn.Module):
    """Two weights, of which the second one is not always used."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x):
        """Return a sum whose gradients are |x|, and for b 0 where x is negative."""
        return (self.a(x.abs()) + (self.b(x) if x > 0 else 0)).sum()


def in_groups(rank, world_size, text, accumulate):
    """Print how many pieces each group has, and the gradients of all ranks."""
    exec(text, names := {"itertools": itertools})
    exec(accumulate, names)
    batches = [torch.tensor([[sign * (rank + 1.0)]]) for sign in SIGNS]
    ddp = DistributedDataParallel(Sometimes(), find_unused_parameters=True)
    for group in names["groups"](batches, 4):
        names["accumulate"](ddp, group)
        grads = [weight.grad for weight in ddp.parameters()]
        print(len(group), *(None if g is None else f"{g.item():g}" for g in grads))
        ddp.zero_grad()


def test_a_last_group_is_shorter_and_a_layer_may_miss_some_pieces():
    accumulate = code_with(HABITS, "(model(pieces[-1]) / len(pieces)).backward()")
    texts = quoted(HABITS, "def groups"), accumulate.source
    run = torchrun(in_groups, *texts, ranks=2, quiet=True)
    lines = ["4 1.5 1.125", "4 1.5 1.125", "2 1.5 None"]
    assert run.lines == {0: lines, 1: lines}


def after_join(rank, world_size, text, cured):
    """Train three epochs in which rank 1 has a batch more, and one step with all."""
    exec(text, given := {"dist": dist})
    kinds = {"SGD": {}, "momentum": {"momentum": 0.9}, "Adam": None}
    for kind, words in kinds.items():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        if words is not None:
            optimizer = torch.optim.SGD(model.parameters(), 0.1, **words)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            (model(torch.tensor([[x]])) - 1).square().mean().backward()
            optimizer.step()

        for _ in range(3):
            with model.join():
                for number in range(2 + rank):
                    step(1.0 + rank + number)
            if cured:
                given["take_over"](optimizer, world_size - 1)
        step(1.0)
        print(kind, f"{model.module.weight.item():.4f}")


@pytest.mark.parametrize("cured", [False, True])
def test_after_join_the_optimizers_differ_until_one_is_taken_over(cured):
    """As the fold on join says; its own function is the cure."""
    text = quoted(HABITS, "def take_over")
    run = torchrun(after_join, text, cured, ranks=2, quiet=True)
    pairs = dict(zip(("SGD", "momentum", "Adam"), zip(*run.lines.values())))
    equal = {kind for kind, (one, other) in pairs.items() if one == other}
    assert equal == ({"SGD", "momentum", "Adam"} if cured else {"SGD"})


def scales(rank, world_size, text, cured):
    exec(text, given := {"dist": dist})
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", 1024.0, growth_interval=1)
    with model.join():
        for _ in range(1 + rank):
            scaler.scale(model(torch.ones(1, 1)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    if cured:
        given["take_over"](scaler, world_size - 1)
    print(scaler.get_scale())


def test_after_join_the_scalers_differ_until_one_is_taken_over():
    text = quoted(HABITS, "def take_over")
    for cured, own in ((False, 2048.0), (True, 4096.0)):
        run = torchrun(scales, text, cured, ranks=2, quiet=True)
        assert run.lines == {0: [str(own)], 1: ["4096.0"]}
