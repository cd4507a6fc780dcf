"""Tests DP: what the script refuses, catches and records, and its checkers."""

import importlib.util
import os
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from lesson import changed, functions_of, quoted
from ringside import RankFailed, check, load, still, torchrun
from ringside.draw import player, timeline
from ringside.draw.retell import COPIES, copies
from torch import nn

STEM = "13_data_parallel"
ROOT = Path(__file__).resolve().parents[1]
PATH = ROOT / "scripts" / f"{STEM}.py"
PAGE = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4).cells
PROSE = "\n".join(cell.source for cell in PAGE if cell.cell_type == "markdown")
SPEC = importlib.util.spec_from_file_location("data_parallel_by_hand", PATH)
BY_HAND = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BY_HAND)


# Replicas that are made once, and kept, learn nothing of the first update.
STALE = "; replicas = vars(data_parallel).setdefault('kept', replicas)"


@pytest.mark.parametrize("ranks", [5, 8])
def test_more_ranks(ranks):
    run = torchrun(STEM, ranks=ranks, quiet=True)
    assert run.lines[0][-1] == f"ok: {ranks} devices find the gradient of one process"


@pytest.mark.parametrize(("rows", "each"), [(10, [3, 3, 3, 1]), (6, [2, 2, 2, 0])])
def test_bytes_are_what_the_rows_say(rows, each):
    run = torchrun(STEM, "--rows", rows, ranks=4, quiet=True)
    table = [[int(word) for word in line.split()] for line in run.lines[0][1:-1]]
    away, copies = sum(each[1:]), sum(count > 0 for count in each[1:])
    assert [row[1] for row in table] == each
    assert table[0][2:] == [away * 48 + copies * 848, away * 16 + copies * 848]
    for device, count in list(enumerate(each))[1:]:
        other = [count * 16 + 848, count * 48 + 848] if count else [0, 0]
        assert table[device][2:] == other


@pytest.mark.parametrize(("ranks", "rows"), [(1, 64), (2, 64), (8, 64), (4, 3)])
def test_what_is_recorded_passes_device_0(ranks, rows):
    run = torchrun(STEM, "--rows", rows, ranks=ranks, record=True, quiet=True)
    assert all(0 in (event["rank"], event["to"]) for event in run.recording)
    assert len(run.recording) == 5 * (min(ranks, rows) - 1)
    told = [[*COPIES].index(event["phase"]) for event in run.recording]
    assert told == sorted(told), "the picture tells another order"
    drawn = copies(run.recording)
    for step, phase in enumerate(COPIES):
        bars = [e for e in drawn if e["step"] == step and "to" not in e]
        assert [bar["lane"] for bar in bars] == list(range(ranks))
        busy = [bar["lane"] for bar in bars if bar["kind"] != "wait"]
        if phase in ("loss", "update"):
            assert busy == [0]
        elif phase in ("forward", "backward") or min(ranks, rows) > 1:
            assert busy == list(range(min(ranks, rows)))
        else:
            assert not busy
        assert bars[0]["what"] == (phase if busy else "idle")
    sent = dict.fromkeys(range(ranks), 0)
    for event in run.recording:
        sent[event["rank"]] += event["bytes"]
    assert [int(line.split()[2]) for line in run.lines[0][1:-1]] == list(sent.values())
    for step in range(len(COPIES)):
        assert still(run.recording, step).svgs[0].count("<title>") == 1
    assert len(player.animate(run.recording)) < 40_000


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("grad: move(grad, BACK[phase], target, source)", "grad: 2 * grad"),
        ('move(out, "gather", d, 0) for', "(out.detach() if d else out) for"),
        ("enumerate(batch.chunk(devices))", "enumerate(batch.chunk(devices)[::-1])"),
        ("range(len(pieces))]", f"range(len(pieces))]{STALE}"),
    ],
)
def test_another_gradient_is_noticed(right, wrong, tmp_path):
    path = changed(STEM, tmp_path, (right, wrong))
    with pytest.raises(RankFailed, match="find another gradient"):
        torchrun(path, ranks=2, quiet=True)


def count(rank, world_size, threads):
    """Count for a second, in threads of rank 0, and in one thread of every other."""

    def turns(end):
        done = 0
        while time.monotonic() < end:
            done += sum(i % 7 for i in range(1000))
        return done

    dist.barrier()
    ends = [time.monotonic() + 1] * (1 if rank else threads)
    with ThreadPoolExecutor(len(ends)) as pool:
        print(sum(pool.map(turns, ends)))


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core is one, however it is shared")
@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="no lock to wait for"
)
def test_four_threads_get_less_done_than_four_processes_beside_them():
    """Whatever else this machine does, it does to both."""
    for _ in range(3):
        lines = torchrun(count, 4, ranks=5, quiet=True).lines
        threads, *processes = (int(line) for (line,) in lines.values())
        if 1.5 * threads < sum(processes):
            return
    raise AssertionError(f"threads {threads}, processes {processes}")


def test_names_of_arrows_keep_clear_of_other_arrows():
    """Of arrows side by side, the one to the farthest lane stands on the right."""
    run = torchrun(STEM, ranks=8, record=True, quiet=True)
    drawn = copies(run.recording)
    one = [event for event in drawn if event["step"] == 0]
    svg = timeline.links(timeline.Layout(drawn), one[::-1])
    ends = [part.split("V") for part in svg.split('d="M')[1].split('"')[0].split("M")]
    places = [(float(x.split()[0]), float(y)) for x, y in ends]
    far = [y for _, y in sorted(places)]
    assert far == sorted(far) and len(set(far)) == len(set(dict(places))) == 7


def test_what_a_replica_writes_is_lost_but_for_buffers_of_device_0():
    norm = nn.BatchNorm1d(1, momentum=1.0)
    BY_HAND.data_parallel(norm, torch.arange(8.0).view(8, 1), 4)
    assert norm.running_mean.item() == 0.5
    assert norm.num_batches_tracked.item() == 1
    norm.told = []
    shell = norm._replicate_for_data_parallel()
    shell.calls = 1
    shell.told.append(1)
    assert not hasattr(norm, "calls")
    assert norm.told == [1], "torch's own shells share a list"


def test_weights_that_are_absent_or_shared_are_replicated_so():
    BY_HAND.TRAFFIC.clear()
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    replica = BY_HAND.replicate(net, 1)
    assert replica[1].weight is replica[0].weight is not net[0].weight
    assert replica[0].bias is None
    assert dict(BY_HAND.TRAFFIC) == {("replicate", 0, 1): 16}


def test_a_layer_inside_sends_the_gradient_of_its_rows_home():
    BY_HAND.TRAFFIC.clear()
    rows = torch.ones(8, 2, requires_grad=True)
    layer = nn.Linear(2, 3)
    BY_HAND.data_parallel(layer, rows, 4).sum().backward()
    back = [BY_HAND.TRAFFIC["scatter back", device, 0] for device in range(4)]
    assert back == [0, 16, 16, 16]
    assert torch.allclose(rows.grad, layer.weight.sum(0).expand(8, 2))


def test_what_is_said_of_the_nine_phases():
    """Five are copies; device 3 takes part in these, and computes in two more."""
    copied = {
        event["phase"] for event in load(STEM) if 3 in (event["rank"], event["to"])
    }
    assert len(COPIES) == 9 and len(copied) == 5
    drawn = copies(load(STEM))
    kinds = [e["kind"] for e in drawn if e["lane"] == 3 and "to" not in e]
    assert [kinds.count(kind) for kind in ("message", "work", "wait")] == [5, 2, 2]
    first = [e["kind"] for e in drawn if e["lane"] == 0 and "to" not in e]
    assert "wait" not in first


CALLS = []


class Counting(nn.Module):
    def forward(self, rows):
        CALLS.append(len(rows))
        return rows


def test_what_is_said_of_the_calls_of_three_forwards():
    CALLS.clear()
    for _ in range(3):
        BY_HAND.data_parallel(Counting(), torch.zeros(64, 8), 4)
    told = f"{len(CALLS)} calls, with 3 × 64 = {sum(CALLS)} rows"
    assert told.replace("12", "twelve") in PROSE


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without GPUs")
def test_the_real_one_passes_through_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = nn.Linear(2, 2)
        wrapped = nn.DataParallel(layer, device_ids=[0, 1])
    assert wrapped.device_ids == []
    assert torch.equal(wrapped(torch.ones(3, 2)), layer(torch.ones(3, 2)))
    with pytest.raises(RuntimeError, match="device type could not be determined"):
        torch.nn.parallel.data_parallel(layer, torch.ones(3, 2))


def test_the_answer_to_exercise_2_is_what_happens():
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.register_buffer("seen", torch.tensor(0))
            self.register_buffer("total", torch.tensor(0))

        def forward(self, rows):
            self.calls += 1
            self.seen += len(rows)
            self.total = self.total + len(rows)
            return rows

    three = Three()
    for _ in range(3):
        BY_HAND.data_parallel(three, torch.zeros(10, 1), 4)
    assert (three.calls, three.seen.item(), three.total.item()) == (0, 9, 0)


def right(outputs):
    if isinstance(outputs[0], tuple):
        return tuple(right(parts) for parts in zip(*outputs))
    return torch.stack(outputs) if outputs[0].dim() == 0 else torch.cat(outputs)


def only_rows_come_back(outputs):
    if outputs[0].dim():
        return torch.cat(outputs)


def only_rows(outputs):
    return torch.cat(outputs)


def stacks(outputs):
    return torch.stack(outputs)


def backwards(outputs):
    return torch.cat(outputs[::-1])


def a_list(outputs):
    return outputs


def copied(outputs):
    if isinstance(outputs[0], tuple):
        return tuple(copied(list(parts)) for parts in zip(*outputs))
    joined = torch.stack(outputs) if outputs[0].dim() == 0 else torch.cat(outputs)
    return torch.tensor(joined.tolist())


def lists_of_tuples(outputs):
    if isinstance(outputs[0], tuple):
        return [lists_of_tuples(list(parts)) for parts in zip(*outputs)]
    return torch.stack(outputs) if outputs[0].dim() == 0 else torch.cat(outputs)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda outputs: ..., "your turn"),
        (only_rows_come_back, "losses: it returned None"),
        (only_rows, "losses: it raised RuntimeError"),
        (stacks, "rows: it raised RuntimeError"),
        (backwards, "out of order"),
        (a_list, "join them to a tensor, not to a list"),
        (copied, "can't find its way back"),
        (lists_of_tuples, "collected to a tuple, not to a list"),
        (lambda outputs: torch.zeros(1), "the shape is (1,), not (3, 2)"),
    ],
)
def test_collect(function, says, capsys):
    check.collect(function)
    assert says in capsys.readouterr().out


def test_collect_takes_what_is_right(capsys):
    check.collect(lambda outputs: right(list(outputs)))
    assert capsys.readouterr().out.startswith("right: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="its tensors are on the CPU")
def test_the_two_lines_with_the_loss_in_forward_find_the_gradient(tmp_path):
    """Of rows in one piece as of rows in four, and so does the cell that adds up."""
    with_loss = functions_of(STEM, tmp_path).WithLoss
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x, y = torch.randn(10, 12).split([8, 4], dim=1)
    nn.functional.mse_loss(net(x), y).backward()
    alone = net[0].weight.grad.clone()
    net.zero_grad()
    names = {"nn": nn, "net": net, "x": x, "y": y, "WithLoss": with_loss}
    exec(quoted(STEM, "WithLoss(net)").replace(".cuda()", ""), names)
    assert torch.allclose(net[0].weight.grad, alone, atol=1e-6)
    net.zero_grad()
    pieces = [with_loss(net)(*piece) for piece in zip(x.chunk(4), y.chunk(4))]
    loss, count = torch.cat(pieces).sum(dim=0)
    (loss / count).backward()
    assert torch.allclose(net[0].weight.grad, alone, atol=1e-6)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_file_of_a_wrapped_model_loads(wrapped, tmp_path):
    """And so does one of a bare model: the names are only changed if they must be."""
    old, new = nn.Linear(2, 1), nn.Linear(2, 1)
    torch.save((nn.DataParallel(old) if wrapped else old).state_dict(), tmp_path / "a")
    code = quoted(STEM, "consume_prefix_in_state_dict_if_present")
    exec(code, {"torch": torch, "path": tmp_path / "a", "model": new})
    assert new.weight.equal(old.weight)
