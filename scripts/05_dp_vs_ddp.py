"""Time one process, DP and DDP on the same training, and print one table.

    torchrun --standalone --nproc-per-node 4 scripts/05_dp_vs_ddp.py

Take as many ranks as you have cores, or GPUs: --nproc-per-node gpu. With --rounds 3 or
--samples 20 you wait less, and trust less. With --record PATH, rank 0 keeps all times.
The last line begins with "ok". The lesson: notebooks/05_dp_vs_ddp.ipynb
"""

import copy
import gc
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

from shared import Parser, own_device, save_recording, start
from timing import be_one_device, dp_in_threads, measured_on, slowest

METHODS = ["one process", "DP", "DDP"]
STEPS = 3  # that are timed together


def task(workload, samples):
    """Return a model that computes much or sends much, and a batch."""
    torch.manual_seed(0)
    if workload == "computes":
        # A filter uses its weights anew at every place of an image: much to compute.
        x = torch.randn(samples, 3, 32, 32)
        layers = [nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(768, 10)]
    else:
        # A linear layer uses each weight once for each sample: much to send.
        x = torch.randn(samples, 1024)
        layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]
        layers += [nn.Linear(1024, 10)]
    return nn.Sequential(*layers), x, torch.randint(10, (samples,))


def train(model, forward, x, y):
    """Take a few steps: this is what the clock sees."""
    for _ in range(STEPS):
        model.zero_grad()
        nn.functional.cross_entropy(forward(x), y).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
    # A GPU works on its own: without this, the clock sees its orders, not its work.
    if x.is_cuda:
        torch.cuda.synchronize()


def race(device, workload, samples, rounds):
    """Time all methods in turns, after a round that only checks them."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, x, y = (part.to(device) for part in task(workload, world_size * samples))
    one, dp, ddp = (copy.deepcopy(model) for _ in METHODS)

    # DP is one process that takes the batch of all devices, and cuts it up. One process
    # alone and each rank of DDP take only the batch of one device.
    own = [part.chunk(world_size)[rank] for part in (x, y)]
    in_dp = partial(dp_in_threads, dp, devices=world_size)
    if x.is_cuda:
        in_dp = nn.DataParallel(dp, range(world_size))
    lanes = {
        "one process": partial(train, one, one, *own),
        "DP": partial(train, dp, in_dp, x, y),
        "DDP": partial(train, ddp, DistributedDataParallel(ddp), *own),
    }

    rows = []
    for step in range(rounds + 1):
        rows.append({"step": step, "rank": 0, "workload": workload, "ms": {}})
        # A machine gets warm, so the methods take turns, and another one begins.
        first = step % len(METHODS)
        for method in METHODS[first:] + METHODS[:first]:
            slowest(0.0)  # all begin together
            begin = time.perf_counter()
            if rank == 0 or method == "DDP":  # else rest, while rank 0 works
                lanes[method]()
            ms = 1000 * (time.perf_counter() - begin) / STEPS
            rows[-1]["ms"][method] = slowest(ms)  # when the last rank has finished

        # A fast method may compute something else. So one more model trains in one
        # process, on the batches of all ranks, and DP and DDP must have its weights.
        if step == rank == 0:
            train(model, model, x, y)
            for method, trained in ("DP", dp), ("DDP", ddp):
                pairs = zip(trained.parameters(), model.parameters())
                if not all(torch.allclose(a, b, atol=1e-4) for a, b in pairs):
                    raise ValueError(f"{method} does not take the steps of one process")

    # The first round does not count: torch makes some things only when they are used.
    return rows[1:]


def report(workload, rows):
    """Print what a step took with each method, and how much speed each rank keeps."""
    print(f"a model that {workload}: ms a step, their middle half, kept")
    alone = None
    for method in METHODS:
        # The middle half of the times is without the fastest and the slowest quarter.
        times = torch.tensor([row["ms"][method] for row in rows])
        low, ms, high = times.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        alone = alone or ms  # of the first method, one process
        print(f"{method:12}{ms:7.1f}   {low:5.1f} to {high:5.1f}   {alone / ms:.2f}")


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of all methods")
    parser.add_argument("--samples", type=int, default=160, help="in a rank's batch")
    args, rank, world_size = start(parser)
    if min(args.rounds, args.samples) < 1:
        parser.error("--rounds and --samples must be 1 or more")
    device, backend = own_device()
    if device.type == "cuda" and world_size > torch.cuda.device_count():
        parser.error("DP is one process: it needs all GPUs on one machine")

    # The group compares clocks by gloo even where GPUs send their gradients by NCCL.
    be_one_device()
    backends = "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backends, timeout=timedelta(minutes=1))
    # The model that communicates has fewer samples, so less work for each MB it sends.
    samples = {"computes": args.samples, "communicates": max(1, args.samples // 5)}
    rows = []
    for workload, count in samples.items():
        own = race(device, workload, count, args.rounds)
        rows += own
        if rank == 0:
            report(workload, own)

    # All ranks have the same times, so only rank 0 hands them in.
    header = {"picture": "race", "methods": METHODS, "samples": samples}
    save_recording(args.record, [] if rank else rows, **header, **measured_on(backend))
    if rank == 0:
        print(f"ok: all took the steps of one process, on {world_size} ranks")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
