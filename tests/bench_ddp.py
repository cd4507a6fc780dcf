"""How fast are the ways of lesson 05, next to torch's own DDP? Run by hand:

    python tests/bench_ddp.py [--quick]

Medians over interleaved rounds on two ranks, as ratios to a step with DDP in the same
run, with the middle half of all rounds in brackets. Both have buckets of 25 MiB, the
first of 1 MiB. Rounds in which other programs took more than a tenth of the processors
are left out, and counted.
"""

import gc
import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[1]


def taught():
    """Return the module that lesson 05's script is."""
    path = ROOT / "scripts" / "05_distributed_data_parallel.py"
    spec = importlib.util.spec_from_file_location("ddp_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def computes() -> tuple[nn.Module, torch.Tensor]:
    """Return a model with long steps and few weights, and a batch."""
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10)), torch.randn(
        256, 3, 16, 16
    )


def communicates() -> tuple[nn.Module, torch.Tensor]:
    """Return a model with short steps and many weights, and a batch."""
    layers = [[nn.Linear(1024, 1024), nn.ReLU()] for _ in range(6)]
    return nn.Sequential(*sum(layers, [])), torch.randn(64, 1024)


def ways(script, make):
    """Return what takes a step, by the name of the way, all with equal weights."""

    def model():
        torch.manual_seed(0)
        return make()[0]

    def step(model, after=lambda: None):
        model.zero_grad()
        model(batch).square().mean().backward()
        after()
        return model

    batch, found = make()[1], {}
    for name in ("DDP", "itself"):  # what a ratio of 1 looks like on this machine
        wrapped = DistributedDataParallel(model())
        found[name] = lambda wrapped=wrapped: step(wrapped)
    for name in ("each", "flat", "hooks"):
        mine, after = script.prepare(name, model(), None)
        found[name] = lambda mine=mine, after=after: step(mine, after)
    ours, started = model(), []
    first, *_ = script.buckets_of(ours.parameters(), 2**20)
    rest = list(ours.parameters())[: -len(first)]
    for bucket in [first, *script.buckets_of(rest, 25 * 2**20)]:
        script.start_when_full(bucket, started)
    found["buckets"] = lambda: step(ours, lambda: script.wait_for_all(started))
    alone = model()
    found["alone"] = lambda: step(alone)  # no averaging at all: what can't be beaten
    return found


def main():
    """Time all ways on both models, and let rank 0 print the table."""
    dist.init_process_group("gloo")
    script, rounds = taught(), 12 if "--quick" in sys.argv else 40
    for make in (computes, communicates):
        torch.manual_seed(dist.get_rank())
        methods = ways(script, make)
        seconds, busy = {name: [] for name in methods}, 0
        for turn in range(4 * rounds):
            took, load = one_round(methods, turn)
            if turn < 3:
                continue
            if len(seconds["DDP"]) == rounds:
                break
            busy += load > 0.1
            for name in methods if load <= 0.1 else ():
                seconds[name].append(took[name])
        if dist.get_rank() == 0:
            report(make, seconds, busy)


def one_round(methods, turn):
    """Return the seconds that each way took, and what others used meanwhile."""
    names = list(methods)
    names = names[turn % len(names) :] + names[: turn % len(names)]
    took, right, wall, others = {}, None, time.perf_counter(), foreign()
    for name in names:
        dist.barrier()
        begin = time.perf_counter()
        model = methods[name]()
        dist.barrier()
        took[name] = time.perf_counter() - begin
        if name != "alone":
            grads = torch.cat([weight.grad.flatten() for weight in model.parameters()])
            right = grads if right is None else right
            assert torch.allclose(grads, right, rtol=1e-3, atol=1e-6), name
    wall = time.perf_counter() - wall
    load = torch.tensor([(foreign() - others) / wall / os.cpu_count()])
    dist.broadcast(load, 0)
    return took, load.item()


def foreign() -> float:
    """Return the processor seconds used so far by all but these ranks."""
    times = psutil.cpu_times()
    used = times.user + times.nice + times.system
    ranks = psutil.Process(os.getppid()).children()
    return used - sum(sum(process.cpu_times()[:2]) for process in ranks)


def report(make, seconds, busy):
    """Print the row of one model."""
    base, size = seconds["DDP"], sum(w.nbytes for w in make()[0].parameters()) / 2**20
    name = f"{make.__name__} ({size:.1f} MiB)"
    if len(base) < 4:
        print(f"{name}: the machine is too busy to tell")
        return
    row = f"{name:24} {statistics.median(base) * 1e3:6.1f} ms"
    for way, times in list(seconds.items())[1:]:
        ratios = [a / b for a, b in zip(times, base)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        row += f"   {way} {middle:.2f} [{low:.2f}-{high:.2f}]"
    print(row + (f"   ({busy} busy rounds left out)" if busy else ""), flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        main()
        gc.collect()  # what main leaves behind can keep the group alive
        dist.destroy_process_group()
    else:
        sys.path.insert(0, str(ROOT / "notebooks"))
        from ringside import torchrun

        print("time of a step with DDP, then each way as a ratio to it")
        run = torchrun(__file__, *sys.argv[1:], ranks=2, timeout=600, quiet=True)
        print(*run.lines[0], sep="\n")
