"""Tests precision: which bits are lost, and that a scaled loss brings them back."""

import copy
import functools
import math
import os
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import rounds
import torch
import torch.distributed as dist
from lesson import changed, quoted
from ringside import RankFailed, WrongRecording, check, load, still, torchrun
from ringside.draw.player import animate, spelt
from ringside.recording import Recording
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

STEM = "24_precision"
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / f"{STEM}.py"
HOW = {"quiet": True, "env": {"CUDA_VISIBLE_DEVICES": ""}}
KINDS = {"float32": 0, "bfloat16": 7, "float16": 10}  # bits of the digits


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A group of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("kind", "part"), [("bfloat16", 512), ("float16", 4096)])
def test_a_step_is_lost_if_it_is_smaller_than_the_lesson_says(kind, part):
    torch.manual_seed(0)
    weights = (torch.rand(10_000) * 8 + 0.25).to(getattr(torch, kind))
    steps = weights.float() / part
    assert (weights.float() + 0.999 * steps).to(weights.dtype).equal(weights)
    assert not (weights.float() + 1.1 * steps).to(weights.dtype).equal(weights)
    assert (weights.float() + 2.01 * steps).to(weights.dtype).gt(weights).all()


def test_the_gradient_at_a_pixel_is_what_the_lesson_says():
    pixels, wanted = runpy.run_path(SCRIPT)["photo"](3)
    made = torch.zeros_like(pixels, requires_grad=True)
    nn.functional.mse_loss(made, wanted).backward()
    assert made.grad.unique().item() == pytest.approx(-2 * 0.004 / 2**20)
    assert not made.grad.half().any() and made.grad.bfloat16().all()
    assert made.grad.sum().item() == pytest.approx(-0.008, rel=0.01)


def without_unscale(kind):
    """Return how far a clipped step goes if nobody unscales before."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer, scaler = kind([weight], lr=1), torch.amp.GradScaler("cpu")
    scaler.scale(3 * weight).backward()
    nn.utils.clip_grad_norm_([weight], max_norm=1.0)
    scaler.step(optimizer)
    return abs(weight.item())


def test_adam_hides_what_sgd_shows():
    assert without_unscale(torch.optim.SGD) < 0.00002
    assert without_unscale(torch.optim.Adam) > 0.9


def test_with_too_large_a_scale_the_first_steps_are_skipped():
    """The answer of the sandbox: seven halvings, and one step that is taken."""
    lines = torchrun(STEM, "--exponent", 30, ranks=3, **HOW).lines[0]
    assert lines[-1].endswith("16 bits lose 8 steps, and a scale keeps 1")
    assert lines[3].count("skip") == 7
    assert [*map(int, lines[4].split()[-8:])] == [*range(30, 22, -1)]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    scaler.unscale_(optimizer)\n", "", "the weight is"),
        ("way == WAYS[2] else", "way != WAYS[0] else", "16 bits have kept something"),
        ("scaler.step(optimizer)", "optimizer.step()", "is taken, with an inf on"),
        ("    scaler.update()\n", "", "being called after step"),
        (
            "return allreduce_hook(None, bucket)",
            "fut = torch.futures.Future()\n"
            "    fut.set_result(bucket.buffer())\n    return fut",
            "the ranks disagree",
        ),
        (
            "max_norm=1.0",
            "max_norm=0.001 if scaler.is_enabled() else 1.0",
            "the weight is",
        ),
    ],
)
def test_whatever_is_left_out_is_found(old, new, says, tmp_path):
    path = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, "--exponent", 24, ranks=2, **HOW)


def in_pieces(rank, world_size, script, kind):
    """Print the weight after two steps, and the all-reduces, by number of pieces."""
    sys.path.append(os.path.dirname(script))
    told = runpy.run_path(script)
    for number in (1, 2, 8):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        ddp, calls = DistributedDataParallel(model), []
        ddp.register_comm_hook(calls, told["note_and_average"])
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=kind == "float16")
        torch.manual_seed(rank)
        data = torch.randn(16, 4), torch.randn(16, 1)
        pieces = [*zip(*(part.chunk(number) for part in data))]
        for _ in range(2):
            told["take_step"](ddp, pieces, optimizer, scaler, getattr(torch, kind))
        weights = nn.utils.parameters_to_vector(model.parameters())
        print(len(calls), *weights.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_in_pieces_makes_the_steps_of_the_whole_batch(kind):
    lines = torchrun(in_pieces, f"{SCRIPT}", kind, ranks=2, **HOW).lines
    assert lines[0] == lines[1]
    whole, *others = [[*map(float, line.split())] for line in lines[0]]
    assert whole[0] == 2  # in two steps, with one bucket
    exact = 1e-6 if kind == "float32" else 4 * 2.0 ** -KINDS[kind] * 0.1
    for found in others:
        assert found[0] == 2
        assert found[1:] == pytest.approx(whole[1:], abs=exact)


def test_the_scaler_belongs_into_the_checkpoint(alone):
    told = runpy.run_path(SCRIPT)
    pieces = [tuple(half[..., :64, :64] for half in told["photo"](3))]

    def train(state, steps, forget=()):
        model = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        scaler = torch.amp.GradScaler("cpu", 2.0**18, growth_interval=2)
        parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
        for name in state or ():
            if name not in forget:
                parts[name].load_state_dict(copy.deepcopy(state[name]))
        ddp = DistributedDataParallel(model)
        for _ in range(steps):
            told["take_step"](ddp, pieces, optimizer, scaler, torch.float16)
        return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}

    whole, stopped = train(None, 9), train(None, 5)
    same = train(stopped, 4)
    assert same["scaler"] == whole["scaler"]
    assert same["model"]["weight"].equal(whole["model"]["weight"])
    other = train(stopped, 4, forget=["scaler"])
    assert not other["model"]["weight"].equal(whole["model"]["weight"])


def with_an_inf(rank, world_size, sync):
    """Print whether a step was taken, where rank 1 has an infinite gradient."""
    model = nn.Linear(1, 1, bias=False)
    ddp = DistributedDataParallel(model)
    before = model.weight.clone()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    ddp.require_backward_grad_sync = sync
    scaler.scale(ddp(torch.tensor([math.inf if rank else 1.0]))).backward()
    scaler.step(optimizer)
    scaler.update()
    print(model.weight.equal(before), scaler.get_scale())


@pytest.mark.parametrize("sync", [True, False])
def test_the_all_reduce_is_what_tells_the_other_ranks(sync):
    lines = torchrun(with_an_inf, sync, ranks=2, **HOW).lines
    skipped, taken = ["True 32768.0"], ["False 65536.0"]
    assert lines == {0: skipped if sync else taken, 1: skipped}


@pytest.mark.skipif(dist.is_nccl_available(), reason="needs a torch without NCCL")
def test_the_hook_for_bf16_refuses_a_torch_without_nccl(alone):
    ddp = DistributedDataParallel(nn.Linear(1, 1))
    with pytest.raises(TypeError, match="NCCL.*XCCL"):
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)


def test_the_fp16_hook_of_torch_loses_what_that_of_the_lesson_loses(alone):
    told = rounds.told(STEM)
    found = []
    for state, hook in (
        (None, default_hooks.fp16_compress_hook),
        (torch.float16, told["compressed"]),
    ):
        ddp = DistributedDataParallel(nn.Linear(4, 1, bias=False))
        ddp.register_comm_hook(state, hook)
        ddp(torch.tensor([1.5e-8, 0.001, 3.0, 7e4])).sum().backward()
        found.append(ddp.module.weight.grad[0])
    assert found[0].equal(found[1])
    assert found[0][0] == 0 and found[0][3] == math.inf


def test_autocast_leaves_a_table_alone_and_a_table_in_bf16_moves_half_the_bytes():
    """Why the lesson's table gains, and must be made bf16 by hand; no clock."""
    rows, moved = torch.arange(100).reshape(4, 25), {}
    for kind in (torch.float32, torch.bfloat16):
        table = nn.EmbeddingBag(100, 8, sparse=True)
        with torch.autocast("cpu", torch.bfloat16):
            assert table(rows).dtype == torch.float32
            assert nn.Linear(8, 8)(torch.ones(1, 8)).dtype == torch.bfloat16
        table.to(kind)(rows).square().mean().backward()
        moved[kind] = table.weight.nbytes, table.weight.grad._values().nbytes
    whole, half = moved.values()
    assert half == (whole[0] / 2, whole[1] / 2)


def test_the_picture_shows_what_is_lost_and_who_had_an_inf():
    events = load(STEM)
    bars = spelt(events)
    for lane, way in enumerate(("32 bits", "16 bits", "16 bits, scaled")):
        own = [event for event in events if event["phase"] == way]
        above = [b for b in bars if b["lane"] == lane and b["kind"] != "message"]
        for bar, event in zip(above, own, strict=True):
            lost = event["infs"] or lane == 1
            assert bar["kind"] == ("wait" if lost else "work")
            assert bar["what"] == ("skips" if event["infs"] else event["weight"])
    below = [bar["what"] for bar in bars if bar["kind"] == "message"]
    assert [below[0], below[1], below[-1]] == ["inf: 3", "scale 2^22", "inf: 0, 3"]
    for svg in (still(events, 0).svgs[0], animate(events)):
        ElementTree.fromstring(svg)


def test_a_recording_that_lacks_a_scale_is_refused():
    event = {"step": 1, "rank": 0, "phase": "32 bits", "weight": "1.5", "infs": []}
    with pytest.raises(WrongRecording, match="no 'exponent', as bits needs it"):
        spelt(Recording([event], picture="bits"))


def test_the_exercise_means_what_torch_does():
    for kind, part in (("bfloat16", 32), ("float16", 256)):
        four, more = torch.tensor([4.0, 9.0], dtype=getattr(torch, kind))
        assert (torch.nextafter(four, more) - four).item() == 1 / part
    gradient = torch.tensor(2.0**-30)
    assert [(gradient * 2**n).half().item() for n in (5, 6)] == [0, 2.0**-24]


def right(scale, good_steps, found_inf):
    """Return what exercise 3 asks for, as torch's scaler does it."""
    scaler = torch.amp.GradScaler("cpu", scale, growth_interval=3)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for bad in [False] * good_steps + [found_inf]:
        weight.grad = None
        scaler.scale(weight * (math.inf if bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale(), scaler.state_dict()["_growth_tracker"]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *given: ..., "your turn"),
        (lambda *given: print(end=""), "it returned None"),
        (lambda *given: 1 / 0, "ZeroDivisionError"),
        (lambda *given: 3, "return a scale and a number, not 3"),
        (lambda s, n, inf: (s, n + 1) if n < 2 else (2 * s, 0), "halves the scale"),
        (lambda s, n, inf: (s / 2, n) if inf else right(s, n, inf), "no longer in a"),
        (lambda s, n, inf: (s / 4, 0) if inf else right(s, n, inf), "not 0.5"),
        (lambda s, n, inf: (s / 2, 0) if inf else (s, n + 1), "the third good step"),
        (
            lambda s, n, inf: (2 * s, 3) if n > 1 and not inf else right(s, n, inf),
            "counting begins again",
        ),
        (lambda s, n, inf: (s / 2, 0) if inf else (2 * s, 0), "only good step number"),
        (lambda s, n, inf: (s / 2, 0) if inf else (s, 7), "it is (1.0, 1), not"),
        (right, "right: "),
    ],
)
def test_next_scale(function, says, capsys):
    check.next_scale(function)
    assert says in capsys.readouterr().out


def guarded(rank, world_size, text):
    """Take three steps, of which rank 1 has a NaN in the second."""
    exec(text, names := {"torch": torch, "nn": nn})
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = ddp(torch.tensor([math.nan if (rank, step) == (1, 1) else 1.0])).sum()
        loss.backward()
        print(names["guarded_step"](ddp, optimizer, loss))
    print(ddp.module.weight.isfinite().item())


def test_all_ranks_skip_a_step_with_a_nan_and_one_says_that_it_was_its_own():
    run = torchrun(guarded, quoted(STEM, "def guarded_step"), ranks=2, quiet=True)
    assert run.lines[0] == ["True", "False", "True", "True"]
    assert run.lines[1] == ["True", "my loss is nan", "False", "True", "True"]


def sparse(rank, world_size):
    ddp = DistributedDataParallel(nn.Embedding(1000, 4, sparse=True))
    ddp(torch.tensor([[7], [7, 8, 9]][rank])).sum().backward()
    grad = ddp.module.weight.grad
    print(grad._values().numel(), grad.to_dense()[6:11, 0].tolist())
    decays = functools.partial(torch.optim.SGD, weight_decay=0.1)
    decays.__name__ = "weight decay"
    kinds = torch.optim.SGD, torch.optim.SparseAdam, torch.optim.AdamW, decays
    for kind in kinds:
        try:
            kind(ddp.parameters(), lr=0.1).step()
            print(f"{kind.__name__} takes it")
        except RuntimeError:
            print(f"{kind.__name__} refuses")
    try:
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        print("clipping takes it")
    except (RuntimeError, NotImplementedError):
        print("clipping refuses")


def test_ddp_averages_a_sparse_gradient_of_different_rows():
    run = torchrun(sparse, ranks=2, quiet=True)
    assert run.lines[0] == run.lines[1]
    assert run.lines[0] == [
        "12 [0.0, 1.0, 0.5, 0.5, 0.0]",
        "SGD takes it",
        "SparseAdam takes it",
        "AdamW refuses",
        "weight decay refuses",
        f"clipping {'refuses' if torch.__version__ < '2.14' else 'takes it'}",
    ]
