"""Time one process, DP and DDP on the same training, and print one table.

    torchrun --standalone --nproc-per-node 4 scripts/05_dp_vs_ddp.py
    torchrun --standalone --nproc-per-node gpu scripts/05_dp_vs_ddp.py

Take as many ranks as you have cores, or GPUs. With --rounds 3 or --samples 20 there is
less to wait for, and less to trust. With --record PATH, rank 0 keeps all times, as JSON
lines. The last line begins with "ok". The lesson: notebooks/05_dp_vs_ddp.ipynb
"""

import copy
import gc
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

from shared import Parser, own_device, save_recording, start
from timing import be_one_device, measured_on, slowest

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


def data_parallel(model, x, devices):
    """Do what nn.DataParallel does, on devices that are threads."""
    threads = ThreadPoolExecutor(devices)

    # DP keeps no replica for the next step, so every step copies the weights again.
    replicas = list(threads.map(copy.deepcopy, [model] * devices))
    parts = threads.map(torch.clone, x.chunk(devices))
    outputs = list(threads.map(lambda run, part: run(part), replicas, parts))

    # Each device finds the gradients of its own replica; the model gets their sum.
    def go_back(grad):
        list(threads.map(torch.Tensor.backward, outputs, grad.chunk(devices)))
        weights = zip(*(replica.parameters() for replica in replicas))
        for weight, copies in zip(model.parameters(), weights):
            weight.grad = sum(one.grad for one in copies)

    # Backward ends at the joined outputs, and from there the hook goes on in threads.
    joined = torch.cat([y.detach() for y in outputs]).requires_grad_()
    joined.register_hook(go_back)
    return joined


def race(device, workload, samples, rounds):
    """Time all methods in turns, after a round that only checks them."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    model, x, y = (part.to(device) for part in task(workload, world_size * samples))
    one, dp, ddp = (copy.deepcopy(model) for _ in METHODS)

    # DP is one process that takes the batch of all devices, and cuts it up. One process
    # alone and each rank of DDP take only the batch of one device.
    own_x = x.chunk(world_size)[rank]
    own_y = y.chunk(world_size)[rank]
    in_dp = partial(data_parallel, dp, devices=world_size)
    if x.is_cuda:
        in_dp = nn.DataParallel(dp, range(world_size))
    lanes = {
        "one process": partial(train, one, one, own_x, own_y),
        "DP": partial(train, dp, in_dp, x, y),
        "DDP": partial(train, ddp, DistributedDataParallel(ddp), own_x, own_y),
    }

    rows = []
    for step in range(rounds + 1):
        row = {"step": step, "rank": 0, "workload": workload, "ms": {}}

        # A machine gets warm, so the methods take turns, and another one begins.
        first = step % len(METHODS)
        for method in METHODS[first:] + METHODS[:first]:
            slowest(0.0)  # all begin together
            begin = time.perf_counter()
            if rank == 0 or method == "DDP":  # else rest, while rank 0 works
                lanes[method]()
            # The clock stops when the slowest rank has finished.
            ms = 1000 * (time.perf_counter() - begin) / STEPS
            row["ms"][method] = slowest(ms)
        rows.append(row)

        # A fast method may compute something else. So one more model trains in one
        # process, on the batches of all ranks, and DP and DDP must have its weights.
        if step == rank == 0:
            train(model, model, x, y)
            expected = list(model.parameters())
            for method, trained in ("DP", dp), ("DDP", ddp):
                weights = list(trained.parameters())
                says = f"{method} does not take the steps of one process"
                how = {"atol": 1e-4, "rtol": 1e-5, "msg": says}
                torch.testing.assert_close(weights, expected, **how)

    # The first round does not count: torch makes some things only when they are used.
    return rows[1:]


def report(workload, rows):
    """Print what a step took with each method, and how much speed each rank keeps."""
    print(f"a model that {workload}: ms a step, their middle half, kept")
    alone = statistics.median(row["ms"]["one process"] for row in rows)

    # The middle half of the times is without the fastest and the slowest quarter.
    for method in METHODS:
        times = torch.tensor([row["ms"][method] for row in rows])
        low, ms, high = times.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
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
