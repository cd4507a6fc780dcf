"""Time one process, DP and DDP on the same training, and print one table.

    torchrun --standalone --nproc-per-node 4 scripts/06_dp_vs_ddp.py
    torchrun --standalone --nproc-per-node gpu scripts/06_dp_vs_ddp.py

The first line needs no GPU, and about a minute; take as many ranks as you have cores.
The second gives each GPU a rank. With --rounds 3 or --samples 20, there is less to wait
for, and less to trust. With --record PATH, rank 0 keeps every measurement, one JSON
object per line. The last line begins with "ok".
The lesson: notebooks/06_dp_vs_ddp.ipynb
"""

import copy
import ctypes
import gc
import json
import os
import random
import shlex
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # here: once there is a group, this would keep it alive
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

STEPS = 3  # that are timed together
METHODS = ["one process", "DP", "DDP"]


def efficiency(alone, together):
    """Each rank does the work of one process: how much of its speed is kept?"""
    return alone / together


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
    """Take a few steps."""
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
        parts = threads.map(torch.clone, grad.chunk(devices))
        list(threads.map(torch.Tensor.backward, outputs, parts))
        weights = zip(*(replica.parameters() for replica in replicas))
        for weight, copies in zip(model.parameters(), weights):
            weight.grad = sum(one.grad for one in copies)

    joined = torch.cat([y.detach() for y in outputs]).requires_grad_()
    joined.register_hook(go_back)
    return joined


def lane(method, device, workload, samples):
    """Return a function that takes a few steps, after it has shown they are right."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, x, y = (part.to(device) for part in task(workload, world_size * samples))
    alone, forward = copy.deepcopy(model), model
    batch = x.chunk(world_size)[rank], y.chunk(world_size)[rank]
    if method == "DDP":
        forward = DistributedDataParallel(model)
    if method == "DP":
        batch, forward = (x, y), partial(data_parallel, model, devices=world_size)
        if device.type == "cuda":
            forward = nn.DataParallel(model, range(world_size))
    steps = partial(train, model, forward, *batch)
    steps()  # these may be slow: nobody looks at the clock
    if rank == 0 and method != "one process":
        train(alone, alone, x, y)
        weights = list(model.parameters()), list(alone.parameters())
        says = f"{method} does not take the steps of one process"
        torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-5, msg=says)
    return steps


def probe():
    """Return the time of a small piece of work, by that of computing it: 1 if calm."""
    x, begin, used = torch.ones(256, 256), time.perf_counter(), time.thread_time()
    for _ in range(60):
        x @ x
    return (time.perf_counter() - begin) / (time.thread_time() - used)


def slowest(value):
    """Return the largest value of all ranks, which go on together."""
    value = torch.tensor(value)  # for gloo: with NCCL, GPUs would work to wait
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return round(value.item(), 3)


def race(device, workload, samples, rounds):
    """Time all methods in turns, in another order each round, after a probe."""
    mine = METHODS if dist.get_rank() == 0 else METHODS[2:]
    lanes = {method: lane(method, device, workload, samples) for method in mine}
    slowest(0.0)  # all are ready
    rows = []
    for step in range(1, rounds + 1):
        row = {"step": step, "rank": 0, "workload": workload, "ms": {}}
        row["pace"] = slowest(probe())
        for method in random.Random(step).sample(METHODS, len(METHODS)):
            begin = time.perf_counter()
            if method in lanes:  # or rest, while rank 0 works
                lanes[method]()
            took = time.perf_counter() - begin
            row["ms"][method] = slowest(1000 * took / STEPS)
        rows.append(row)
    return rows


def report(workload, rows, samples, ranks):
    """Print one workload's table, of the calm rounds, if there are any."""
    calm = [row for row in rows if row["pace"] <= 1.25]
    trust = "too busy to trust" if 2 * len(calm) < len(rows) else "ms a step"
    print(f"a model that {workload}, {len(calm)} of {len(rows)} rounds calm: {trust}")
    print("method         median  middle half   samples/s  kept")
    for method in METHODS:
        times = torch.tensor([row["ms"][method] for row in calm or rows])
        low, ms, high = times.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        workers = ranks
        if method == "one process":
            alone, workers = ms, 1
        speed, kept = 1000 * workers * samples / ms, efficiency(alone, ms)
        spread = f"{low:5.1f}-{high:<7.1f}"
        print(f"{method:12}  {ms:7.1f}  {spread}{speed:9.0f}  {kept:4.2f}")


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
    if args.rounds < 1:
        parser.error(f"--rounds must be 1 or more, not {args.rounds}")
    if args.samples < 5:  # of which the second model takes a fifth
        parser.error(f"--samples must be 5 or more, not {args.samples}")

    device, backend = own_device()
    be_one_device()
    both = "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(both, timeout=timedelta(minutes=1))
    rows, sizes = [], {}
    samples = {"computes": args.samples, "communicates": args.samples // 5}
    for workload, count in samples.items():
        model, x, _ = task(workload, count)
        weights = sum(weight.nbytes for weight in model.parameters())
        sizes[workload] = weights, x.nbytes, model(x).nbytes
        own = race(device, workload, count, args.rounds)
        rows += own
        if rank == 0:
            report(workload, own, count, world_size)

    what = f"{os.cpu_count()} CPU cores" if backend == "gloo" else f"{world_size} GPUs"
    header = {"measured": True, "machine": f"{what}, {backend}"}
    header |= {"date": f"{date.today()}", "torch": torch.__version__.partition("+")[0]}
    header |= {"methods": METHODS, "samples": samples, "bytes": sizes}
    save_recording(args.record, [] if rank else rows, picture="race", **header)
    if rank == 0:
        print(f"ok: all took the steps of one process, on {world_size} ranks")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
