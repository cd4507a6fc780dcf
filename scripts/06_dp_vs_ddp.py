"""Time one process, DP and DDP on the same training, and print one table.

    torchrun --standalone --nproc-per-node 4 scripts/06_dp_vs_ddp.py
    torchrun --standalone --nproc-per-node gpu scripts/06_dp_vs_ddp.py

The first line needs no GPU, and about a minute; take as many ranks as you have cores.
The second gives each GPU a rank. With --rounds 3, there is less to wait for, and less
to trust. With --record PATH, rank 0 keeps every measurement, one JSON object per line.
The last line begins with "ok". The lesson: notebooks/06_dp_vs_ddp.ipynb
"""

import argparse
import copy
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from timeit import timeit

import torch
import torch.distributed as dist
import torch.distributed.nn  # here: once there is a group, this would keep it alive
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

STEPS = 3  # that are timed together
METHODS = ["one process", "DP", "DDP", "DDP, spawn", "DDP, bf16"]
WORKLOADS = {"computes": (160, 3, 32, 32), "communicates": (32, 1024)}  # their batches


def efficiency(alone, together):
    """Each rank does the work of one process: how much of its speed is kept?"""
    return alone / together


def traffic(method, world_size, weights, inputs, outputs):
    """Bytes in and out of the busiest device in a step: device 0 in DP, all in DDP."""
    if method == "DP":  # weights out, grads home; inputs out, outputs there and back
        return (world_size - 1) * (2 * weights + inputs + 2 * outputs)
    return 4 * (world_size - 1) * weights // world_size  # the ring, in and out


def task(workload, world_size):
    """Return a model that computes much or sends much, and a batch for all ranks."""
    torch.manual_seed(0)
    if workload == "computes":
        layers = [nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(768, 10)]
    else:
        layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]
        layers.append(nn.Linear(1024, 10))
    samples, *shape = WORKLOADS[workload]
    x = torch.randn(world_size * samples, *shape)
    return nn.Sequential(*layers), x, torch.randint(10, (len(x),))


def train(model, forward, x, y, half=False):
    """Take a few steps."""
    for _ in range(STEPS):
        model.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
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
        for weight, *copies in zip(*(m.parameters() for m in [model, *replicas])):
            weight.grad = sum(one.grad for one in copies)

    joined = torch.cat([y.detach() for y in outputs]).requires_grad_()
    joined.register_hook(go_back)
    return joined


def lane(workload, method, device, team):
    """Return a function that takes a few steps, after it has shown they are right."""
    rank, world_size = dist.get_rank(team), dist.get_world_size(team)
    model, x, y = (part.to(device) for part in task(workload, world_size))
    alone, forward = copy.deepcopy(model), model
    own = x.chunk(world_size)[rank], y.chunk(world_size)[rank]
    if method.startswith("DDP"):
        forward = DistributedDataParallel(model, process_group=team)
    if method == "DP":
        own, forward = (x, y), partial(data_parallel, model, devices=world_size)
        if device.type == "cuda":
            forward = nn.DataParallel(model, range(world_size))
    steps = partial(train, model, forward, *own, half=method == "DDP, bf16")
    steps()  # these may be slow: nobody looks at the clock
    if rank == 0 and method in ("DP", "DDP", "DDP, spawn"):  # bf16 rounds too much
        train(alone, alone, x, y)
        weights = list(model.parameters()), list(alone.parameters())
        says = f"{method} does not take the steps of one process"
        torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-5, msg=says)
    return steps


def startup(world_size):
    """Return the seconds in which each way starts processes that import torch."""
    spawn = f"import torch.multiprocessing as mp; mp.spawn(abs, nprocs={world_size})"
    line = "-m torch.distributed.run --standalone --local-addr 127.0.0.1 --no-python"
    line = [*line.split(), "--nproc-per-node", str(world_size), sys.executable]
    ways = {"one process": ["-c", "import torch"], "DDP, spawn": ["-c", spawn]}
    for method, words in (ways | {"DDP": [*line, "-c", "import torch"]}).items():
        how = {"check": True, "capture_output": True}
        start = partial(subprocess.run, [sys.executable, *words], **how)
        yield method, round(timeit(start, number=1), 2)


def probe():
    """Return the time of a small piece of work, by that of computing it: 1 if calm."""
    x, begin, used = torch.ones(256, 256), time.perf_counter(), time.thread_time()
    for _ in range(60):
        x @ x
    return (time.perf_counter() - begin) / (time.thread_time() - used)


def slowest(value):
    """Return the largest value of all ranks, which go on together."""
    value = torch.tensor(value)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return round(value.item(), 3)


def race(workload, device, team, rounds):
    """Time all methods in turns, in another order each round, after a probe."""
    rank, world_size = dist.get_rank(), dist.get_world_size(team)
    mine = ["DDP, spawn"] if rank >= world_size else ["DDP", "DDP, bf16"]
    if rank == 0:
        mine += ["one process", "DP"]
    lanes = {method: lane(workload, method, device, team) for method in mine}
    dist.barrier()  # all are ready
    for step in range(1, rounds + 1):
        row = {"step": step, "rank": 0, "workload": workload, "ms": {}}
        row["pace"] = slowest(probe() if rank < world_size else 1.0)
        for name in random.Random(step).sample(METHODS, len(METHODS)):
            took = timeit(lanes.get(name, "pass"), number=1)  # or rest
            row["ms"][name] = slowest(1000 * took / STEPS)
        yield row


def spawned(rank, world_size):
    """Be a rank that mp.spawn starts: do as the others do, numbered behind them."""
    os.environ |= {"RANK": str(world_size + rank), "LOCAL_RANK": str(rank)}
    os.environ.pop("TORCHELASTIC_ERROR_FILE", None)  # it is rank 0's
    main()
    gc.collect()
    dist.destroy_process_group()


def report(workload, rows, header):
    """Print one workload's table, of the calm rounds, if there are any."""
    every = [row["ms"] for row in rows]
    calm = [row["ms"] for row in rows if row["pace"] <= 1.25]
    trust = "too busy to trust" if 2 * len(calm) < len(rows) else "ms a step"
    print(f"a model that {workload}, {len(calm)} of {len(rows)} rounds calm: {trust}")
    print("method         median  middle half   samples/s  kept  MB busiest")
    for method in METHODS:
        times = torch.tensor([ms[method] for ms in calm or every])
        low, ms, high = times.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        ranks = header["ranks"]
        if method == "one process":
            alone, ranks = ms, 1
        speed = 1000 * ranks * header["samples"][workload] / ms
        mega = traffic(method, ranks, *header["bytes"][workload]) / 1e6
        says = f"{speed:9.0f}  {efficiency(alone, ms):4.2f}  {mega:10.2f}"
        print(f"{method:12}  {ms:7.1f}  {low:5.1f}-{high:<7.1f}{says}")


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


@errors.record  # torchrun hears of an exception in here
def main():
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS)
    parser.format_help = lambda: __doc__
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--record", type=Path)
    if os.environ.get("RANK", "0") != "0":  # rank 0 alone speaks, and leaves first
        parser.error = lambda message: time.sleep(1) or parser.exit(2)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f'try torchrun --standalone --nproc-per-node 4 "{sys.argv[0]}"')
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.rounds < 1:
        parser.error(f"--rounds must be 1 or more, not {args.rounds}")
    if args.record and (args.record.is_dir() or not args.record.parent.is_dir()):
        parser.error(f"--record must be a file in a folder, not {args.record}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    be_one_device()
    if rank == 0:  # if it fails, it ends them
        others = mp.spawn(spawned, (world_size,), world_size, join=False, daemon=True)
    both = {"rank": rank, "world_size": 2 * world_size}  # torchrun's and mp.spawn's
    dist.init_process_group("gloo", **both, timeout=timedelta(minutes=5))
    team, _ = dist.new_subgroups(world_size, backend=backend)

    header = {"ranks": world_size, "picture": "race", "measured": True}
    what = f"{os.cpu_count()} CPU cores" if backend == "gloo" else f"{world_size} GPUs"
    header |= {"machine": f"{what}, {backend}", "date": f"{date.today()}"}
    header |= {"torch": torch.__version__.partition("+")[0], "methods": METHODS}
    header |= {"samples": {}, "bytes": {}}
    rows = []
    for workload in WORKLOADS:
        model, x, _ = task(workload, 1)
        weights = sum(weight.nbytes for weight in model.parameters())
        header["samples"][workload] = len(x)
        header["bytes"][workload] = weights, x.nbytes, model(x).nbytes
        own = list(race(workload, device, team, args.rounds))
        if rank == 0:
            rows += own
            report(workload, own, header)
    if rank == 0:
        header["startup"] = dict(startup(world_size)) if args.rounds > 2 else {}
        taken = [f"{ms} {method}" for method, ms in header["startup"].items()]
        print("seconds to start:", *taken or ["not taken in a short run"], sep="  ")
    save_recording(args.record, rows, **header)
    if rank == 0:
        others.join()
        print(f"ok: all but bf16 took the steps of one process, on {world_size} ranks")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
