"""Time one process, DP and DDP on the same training, and print one table.

    torchrun --standalone --nproc-per-node 4 scripts/06_dp_vs_ddp.py
    torchrun --standalone --nproc-per-node gpu scripts/06_dp_vs_ddp.py

Take as many ranks as you have cores, or GPUs. With --rounds 3 or --samples 20 there is
less to wait for, and less to trust. With --record PATH, rank 0 keeps all times, one
JSON object per line. The last line begins with "ok".
The lesson: notebooks/06_dp_vs_ddp.ipynb
"""

import copy
import ctypes
import gc
import json
import os
import shlex
import statistics
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: imported later, it keeps the group alive
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

METHODS = ["one process", "DP", "DDP"]
STEPS = 3  # that are timed together


def task(workload, samples):
    """Return a model that computes much or sends much, and a batch."""
    torch.manual_seed(0)
    if workload == "computes":
        x = torch.randn(samples, 3, 32, 32)
        layers = [nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(768, 10)]
    else:
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
    if x.is_cuda:
        torch.cuda.synchronize()  # until the GPU has done all that it was told


def be_one_device():
    """Compute in one thread; keep freed memory, as GPUs do: or page faults count."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD (2**25 is the most), M_ARENA_MAX
        for parameter, value in (-1, 2**30), (-3, 2**25), (-8, 1):
            ctypes.CDLL(None).mallopt(parameter, value)


def data_parallel(model, x, devices):
    """Do what nn.DataParallel does, on devices that are threads."""
    threads = ThreadPoolExecutor(devices)
    replicas = list(threads.map(copy.deepcopy, [model] * devices))  # on every step
    parts = threads.map(torch.clone, x.chunk(devices))
    outputs = list(threads.map(lambda run, part: run(part), replicas, parts))

    def go_back(grad):
        list(threads.map(torch.Tensor.backward, outputs, grad.chunk(devices)))
        weights = zip(*(replica.parameters() for replica in replicas))
        for weight, copies in zip(model.parameters(), weights):
            weight.grad = sum(one.grad for one in copies)

    joined = torch.cat([y.detach() for y in outputs]).requires_grad_()
    joined.register_hook(go_back)
    return joined


def slowest(value):
    """Return the largest value of all ranks, which go on together."""
    value = torch.tensor(value)  # for gloo: with NCCL, GPUs would work to wait
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return round(value.item(), 3)


def race(device, workload, samples, rounds):
    """Time all methods in turns, after a round without a clock that checks them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, x, y = (part.to(device) for part in task(workload, ranks * samples))
    one, dp, ddp = (copy.deepcopy(model) for _ in METHODS)
    own = x.chunk(ranks)[rank], y.chunk(ranks)[rank]
    devices = partial(data_parallel, dp, devices=ranks)
    if x.is_cuda:
        devices = nn.DataParallel(dp, range(ranks))
    lanes = {
        "one process": partial(train, one, one, *own),
        "DP": partial(train, dp, devices, x, y),
        "DDP": partial(train, ddp, DistributedDataParallel(ddp), *own),
    }
    rows = []
    for step in range(rounds + 1):
        row = {"step": step, "rank": 0, "workload": workload, "ms": {}}
        for method in METHODS[step % 3 :] + METHODS[: step % 3]:
            slowest(0.0)  # all begin together
            begin = time.perf_counter()
            if rank == 0 or method == "DDP":  # else rest, while rank 0 works
                lanes[method]()
            row["ms"][method] = slowest(1000 * (time.perf_counter() - begin) / STEPS)
        rows.append(row)
        if step == rank == 0:
            train(model, model, x, y)
            for method, trained in ("DP", dp), ("DDP", ddp):
                weights = list(trained.parameters()), list(model.parameters())
                says = f"{method} does not take the steps of one process"
                torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-5, msg=says)
    return rows[1:]


def report(workload, rows):
    """Print what a step took with each method, and how much speed each rank keeps."""
    print(f"a model that {workload}: ms a step, their middle half, kept")
    alone = statistics.median(row["ms"]["one process"] for row in rows)
    for method in METHODS:
        times = torch.tensor([row["ms"][method] for row in rows])
        low, ms, high = times.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        print(f"{method:12}{ms:7.1f}   {low:5.1f} to {high:5.1f}   {alone / ms:.2f}")


def save_recording(path, events, **header):
    """Return all ranks' events by step and rank; rank 0 writes them, one a line."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, events)
    rows = sorted(sum(gathered, []), key=lambda event: (event["step"], event["rank"]))
    if path and dist.get_rank() == 0:
        header = {"lesson": Path(__file__).stem, "ranks": len(gathered)} | header
        part = Path(f"{path}.part")
        part.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
        part.replace(path)
    return rows


class Parser(ArgumentParser):
    def error(self, message):
        """Say in one line what is wrong, and once: rank 0 speaks, and leaves first."""
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)
            self.exit(2)
        self.exit(2, f"{self.prog}: {message}\n")


def start(parser):
    """Return the arguments, this rank and the number of ranks."""
    parser.add_argument("--record", type=Path, metavar="PATH", help="a file to write")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        path = shlex.quote(sys.argv[0])
        parser.error(f"try torchrun --standalone --nproc-per-node 4 {path}")
    if args.record and (args.record.is_dir() or not args.record.parent.is_dir()):
        parser.error(f"--record must be a file in a folder, not {args.record}")
    return args, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def own_device():
    """Return a GPU for this rank and nccl, or if they are too few, the CPU and gloo."""
    gpus, local_rank = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank), "nccl"
    if gpus and local_rank == 0:
        print(f"too few GPUs ({gpus}): all ranks use the CPU", file=sys.stderr)
    return torch.device("cpu"), "gloo"


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="of all methods")
    parser.add_argument("--samples", type=int, default=160, help="in a rank's batch")
    args, rank, world_size = start(parser)
    if min(args.rounds, args.samples) < 1:
        parser.error("--rounds and --samples must be 1 or more")

    device, backend = own_device()
    be_one_device()
    both = "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(both, timeout=timedelta(minutes=1))
    rows = []
    samples = {"computes": args.samples, "communicates": max(1, args.samples // 5)}
    for workload, count in samples.items():
        own = race(device, workload, count, args.rounds)
        rows += own
        if rank == 0:
            report(workload, own)

    what = f"{os.cpu_count()} CPU cores" if backend == "gloo" else f"{world_size} GPUs"
    header = {"picture": "race", "measured": True, "machine": f"{what}, {backend}"}
    header |= {"date": f"{date.today()}", "torch": torch.__version__.partition("+")[0]}
    header |= {"methods": METHODS, "samples": samples}
    save_recording(args.record, [] if rank else rows, **header)
    if rank == 0:
        print(f"ok: all took the steps of one process, on {world_size} ranks")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
