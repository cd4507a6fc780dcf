"""Time one process, DP and DDP on the same training, and print one table.

    torchrun --standalone --nproc-per-node 4 scripts/06_dp_vs_ddp.py
    torchrun --standalone --nproc-per-node gpu scripts/06_dp_vs_ddp.py

The first line needs no GPU, and about a minute; take as many ranks as you have cores.
The second gives each GPU a rank. Then try:

    --rounds 3               fewer rounds, and less to trust
    --record race.jsonl      keep every measurement, one JSON object per line

The last line begins with "ok". The lesson: notebooks/06_dp_vs_ddp.ipynb
"""

import argparse
import copy
import ctypes
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # here: once there is a group, this would keep it alive
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

STEPS = 3  # that are timed together
FEW = 8  # samples a rank that are enough to see whether the steps are right
METHODS = ["one process", "DP", "DDP", "DDP, spawn", "DDP, bf16"]
WORKLOADS = {"computes": (160, 3, 32, 32), "communicates": (32, 1024)}  # their batches


def efficiency(alone, together):
    """Each rank does the work of one process: how much of its speed is kept?"""
    return alone / together


def traffic(method, world_size, weights, inputs, outputs):
    """Bytes in and out of the busiest device in a step: device 0 in DP, all in DDP."""
    others = world_size - 1
    if method == "one process":
        return 0
    if method == "DP":
        # weights out, gradients home; inputs out, outputs there and back
        return others * (2 * weights + inputs + 2 * outputs)
    return 4 * others * weights // world_size  # the ring of lesson 04, in and out


def network(workload, device="cpu"):
    """Return a model, always the same: one that computes much, or one that sends much."""
    torch.manual_seed(0)
    if workload == "computes":
        layers = [nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(768, 10)]
    else:
        layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]
        layers.append(nn.Linear(1024, 10))
    return nn.Sequential(*layers).to(device)


def batch(workload, rank, samples, device):
    """Return a rank's samples and classes, the same whoever asks for them."""
    torch.manual_seed(rank)
    x = torch.randn(samples, *WORKLOADS[workload][1:])
    return x.to(device), torch.randint(10, (samples,)).to(device)


def sizes(workload):
    """Return the bytes of the weights, of a batch, and of what comes out of it."""
    weights = sum(weight.nbytes for weight in network(workload).parameters())
    samples = WORKLOADS[workload][0]
    return weights, 4 * math.prod(WORKLOADS[workload]), 4 * samples * 10


def train(model, forward, x, y, half=False):
    """Take a few steps; return the milliseconds for each."""
    finish = torch.cuda.synchronize if x.is_cuda else torch.cpu.synchronize
    finish()
    begin = time.perf_counter()
    for _ in range(STEPS):
        model.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.01 * weight.grad
    finish()
    return 1000 * (time.perf_counter() - begin) / STEPS


def be_one_device():
    """Compute in one thread, and keep freed memory, as GPUs do: or page faults count."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        for parameter in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            ctypes.CDLL(None).mallopt(parameter, 2**30)


class Threads(torch.autograd.Function):
    """What DataParallel does, on devices that are threads: scatter to gather."""

    @staticmethod
    def forward(ctx, replicas, x, *weights):
        def work(replica, part):
            for own, weight in zip(replica.parameters(), weights):
                own.data.copy_(weight)
                own.grad = None
            return replica(part.clone())

        ctx.replicas = replicas
        ctx.outputs = all_at_once(work, replicas, x.tensor_split(len(replicas)))
        return torch.cat([y.detach() for y in ctx.outputs])

    @staticmethod
    def backward(ctx, grad):
        parts = grad.split([len(y) for y in ctx.outputs])
        all_at_once(lambda y, part: y.backward(part.clone()), ctx.outputs, parts)
        grads = ([own.grad for own in model.parameters()] for model in ctx.replicas)
        return None, None, *(sum(column) for column in zip(*grads))


def all_at_once(work, *parts):
    """Return what work returns for each of the parts, each in a thread of its own."""
    with ThreadPoolExecutor(len(parts[0])) as threads:
        return list(threads.map(work, *parts))


def wrap(method, model, world_size, device):
    """Return what is called in place of the model."""
    if method.startswith("DDP"):
        return DistributedDataParallel(model)
    if method == "DP" and device.type == "cuda":
        return nn.DataParallel(model, range(world_size))
    if method == "DP":
        replicas = [copy.deepcopy(model) for _ in range(world_size)]
        return lambda x: Threads.apply(replicas, x, *model.parameters())
    return model


def lane(workload, method, rank, world_size, device):
    """Return a function that takes a few steps, after it has shown they are right."""
    model = network(workload, device)
    forward = wrap(method, model, world_size, device)
    if method in ("DP", "DDP", "DDP, spawn"):  # in bf16, half the bits may differ
        few = [batch(workload, r, FEW, device) for r in range(world_size)]
        whole = [torch.cat(column) for column in zip(*few)]
        alone = network(workload, device)
        train(alone, alone, *whole)
        train(model, forward, *(whole if method == "DP" else few[rank]))
        weights = list(model.parameters()), list(alone.parameters())
        says = f"{method} does not take the steps of one process"
        torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-5, msg=says)
    x, y = batch(workload, rank, WORKLOADS[workload][0], device)
    if method == "DP":  # a batch for each of its devices
        x, y = torch.cat([x] * world_size), torch.cat([y] * world_size)
    return lambda: train(model, forward, x, y, half=method == "DDP, bf16")


def spawned(rank, world_size, rounds, meeting, backend, turn, times):
    """Be one of the processes of mp.spawn: take steps when it is their turn."""
    be_one_device()
    device = torch.device("cpu" if backend == "gloo" else f"cuda:{rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meets = {"init_method": f"file://{meeting}", "world_size": world_size, "rank": rank}
    dist.init_process_group(backend, **meets, timeout=timedelta(minutes=1))
    turn.wait()  # all have met
    lanes = {w: lane(w, "DDP, spawn", rank, world_size, device) for w in WORKLOADS}
    for workload in list(WORKLOADS) * len(rounds):
        turn.wait()
        times[rank] = lanes[workload]()
        turn.wait()
    lanes.clear()
    gc.collect()
    dist.destroy_process_group()


def spawn(world_size, rounds, folder, backend):
    """Start ranks with mp.spawn; return them, a way to give a turn, and the seconds."""
    context, begin = mp.get_context("spawn"), time.perf_counter()
    turn = context.Barrier(world_size + 1, timeout=300)
    times = context.Array("d", world_size)
    args = world_size, rounds, f"{folder}/meeting", backend, turn, times
    processes = mp.spawn(spawned, args, world_size, join=False)
    turn.wait()
    seconds = time.perf_counter() - begin

    def take_turn():
        turn.wait()
        turn.wait()
        return max(times)

    return processes, take_turn, seconds


def startup(world_size):
    """Return the seconds in which one process starts, and in which torchrun's meet."""
    meet = "import torch.distributed as dist; dist.init_process_group('gloo')"
    line = "-m torch.distributed.run --standalone --local-addr 127.0.0.1 --no-python"
    line = [*line.split(), "--nproc-per-node", str(world_size), sys.executable]
    for words in ["-c", "import torch"], [*line, "-c", meet]:
        begin = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        yield time.perf_counter() - begin


def probe(control):
    """Return the milliseconds that all ranks need for the same work, all at once."""
    x = torch.ones(256, 256)
    dist.barrier(control)
    begin = time.perf_counter()
    for _ in range(20):
        x @ x
    took = torch.tensor(1000 * (time.perf_counter() - begin))
    dist.all_reduce(took, dist.ReduceOp.MAX, group=control)
    return took.item()


def measure(rounds, lanes, control):
    """Let all methods take turns, in another order each round; return the times."""
    rows = []
    for number in rounds:
        turn = number % len(METHODS)
        for workload in WORKLOADS:
            pace = probe(control)
            for method in METHODS[turn:] + METHODS[:turn]:
                dist.barrier(control)
                run = lanes.get((workload, method))
                ms = run() if run else 0
                dist.barrier(control)
                row = {"step": number, "rank": 0, "workload": workload}
                row |= {"method": method, "ms": round(ms, 3), "pace": round(pace, 3)}
                rows.append(row)
    return [row for row in rows if row["step"]]  # round 0 warms up


def report(rows, world_size):
    """Print a table of each workload, without the rounds that others disturbed."""
    for workload, (samples, *_) in WORKLOADS.items():
        own = [row for row in rows if row["workload"] == workload]
        most = 1.25 * min(row["pace"] for row in own)
        calm = [row for row in own if row["pace"] <= most]
        print(f"a model that {workload}: ms a step, and what comes of it")
        print("method         median  middle half   samples/s  kept  MB busiest")
        for method in METHODS:
            times = sorted(row["ms"] for row in calm if row["method"] == method)
            ms, quarter, ranks = statistics.median(times), len(times) // 4, world_size
            if method == "one process":
                alone, ranks = ms, 1
            mega = traffic(method, world_size, *sizes(workload)) / 1e6
            line = f"{method:12}  {ms:7.1f}  {times[quarter]:5.1f}"
            line += f"-{times[-1 - quarter]:<7.1f}{1000 * ranks * samples / ms:9.0f}"
            print(f"{line}  {efficiency(alone, ms):4.2f}  {mega:10.2f}")
        if busy := (len(own) - len(calm)) // len(METHODS):
            print(f"(left out: {busy} rounds in which others used the machine)")


def save_recording(path, header, events):
    """Return all ranks' events by step and rank; rank 0 writes them, one a line."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, events)
    rows = sorted(sum(gathered, []), key=lambda event: (event["step"], event["rank"]))
    if path and dist.get_rank() == 0:
        part = Path(f"{path}.part")
        part.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
        part.replace(path)
    return rows


def stop(message):
    """End with one line, from rank 0, and exit code 2."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"{Path(__file__).name}: {message}\n")
    else:
        time.sleep(1)  # the first rank to leave ends the others
    sys.exit(2)


@errors.record
def main():
    parser = argparse.ArgumentParser(usage="see the top of this script")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--record", type=Path)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.rounds < 1:
        stop(f"--rounds must be 1 or more, not {args.rounds}")
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    be_one_device()
    control = dist.new_group(backend="gloo", timeout=timedelta(minutes=10))
    rounds = range(args.rounds < 2, args.rounds + 1)  # the first of several warms up
    mine = [m for m in METHODS if rank == 0 or m.startswith("DDP")]
    mine.remove("DDP, spawn")
    pairs = [(workload, method) for workload in WORKLOADS for method in mine]
    lanes = {pair: lane(*pair, rank, world_size, device) for pair in pairs}
    folder = tempfile.TemporaryDirectory()
    if rank == 0:
        processes, take_turn, seconds = spawn(world_size, rounds, folder.name, backend)
        lanes |= {(workload, "DDP, spawn"): take_turn for workload in WORKLOADS}
    rows = measure(rounds, lanes, control)
    lanes.clear()
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "race"}
    what = f"{os.cpu_count()} CPU cores" if backend == "gloo" else f"{world_size} GPUs"
    header |= {"measured": True, "machine": f"{what}, {backend}"}
    header |= {"torch": torch.__version__.partition("+")[0], "date": f"{date.today()}"}
    header |= {"methods": METHODS, "samples": {w: WORKLOADS[w][0] for w in WORKLOADS}}
    header["bytes"] = {workload: sizes(workload) for workload in WORKLOADS}
    if rank == 0:
        processes.join()
        report(rows, world_size)
        names = "one process", "DDP", "DDP, spawn"
        found = [*startup(world_size), seconds] if args.rounds > 2 else []
        header["startup"] = {n: round(s, 2) for n, s in zip(names, found)}
        print("seconds to start:", header["startup"] or "not taken in a short run")
    dist.barrier(control)  # the others wait here, and longer than a minute if need be
    save_recording(args.record, header, rows if rank == 0 else [])
    if rank == 0:
        print(f"ok: all but bf16 took the steps of one process, on {world_size} ranks")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
