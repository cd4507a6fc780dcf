"""How fast are the ways of DDP, next to torch's own DDP? Run by hand:

    python tests/bench_ddp.py [--quick]

Medians over interleaved rounds on two ranks, as ratios to a step with DDP in the same
run, with the middle half of all rounds in brackets. Both have buckets of 4 MiB.
"""

import gc
import os

import asked  # noqa: F401 first: it answers --help
import rounds
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CAP = 4  # MiB in a bucket, DDP's too


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
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=CAP)
        found[name] = lambda wrapped=wrapped: step(wrapped)
    for name in ("each", "flat", "hooks", "buckets"):
        mine, after = script.prepare(name, model(), CAP)
        found[name] = lambda mine=mine, after=after: step(mine, after)
    alone = model()
    found["alone"] = lambda: step(alone)  # no averaging at all: what can't be beaten
    return found


def same_gradients():
    """Return a check that all ways find the gradients that the first one found."""
    right = []

    def check(name, model):
        if name != "alone":
            grads = torch.cat([weight.grad.flatten() for weight in model.parameters()])
            right[:] = right or [grads]
            assert torch.allclose(grads, right[0], rtol=1e-3, atol=1e-6), name

    return check


def main():
    """Time all ways on both models, and let rank 0 print the table."""
    dist.init_process_group("gloo")
    script = rounds.taught("04_distributed_data_parallel")
    for make in (computes, communicates):
        torch.manual_seed(dist.get_rank())
        size = sum(weight.nbytes for weight in make()[0].parameters()) / 2**20
        title = f"{make.__name__} ({size:.1f} MiB)"
        rounds.compare(title, ways(script, make), 60, same_gradients())


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        main()
        gc.collect()  # what main leaves behind can keep the group alive
        dist.destroy_process_group()
    else:
        print("time of a step with DDP, then each way as a ratio to it")
        rounds.run(__file__, 2)
