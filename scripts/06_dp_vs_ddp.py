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
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
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


def efficiency(alone, together):
    """Each rank does the work of one process: how much of its speed is kept?"""
    return alone / together


def traffic(method, world_size, weights, inputs, outputs):
    """Bytes in and out of the busiest device in a step: device 0 in DP, all in DDP."""
    others = world_size - 1
    if method == "one process":
        return 0
    if (
        method == "DP"
    ):  # weights out, gradients home; inputs out, outputs there and back
        return others * (2 * weights + inputs + 2 * outputs)
    return 4 * others * weights // world_size  # the ring of lesson 04, in and out


def computes():
    """Return a model that computes much for each number that it has to send."""
    layers = nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU()
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return model.append(nn.Linear(768, 10)), torch.randn(160, 3, 32, 32)


def communicates():
    """Return a model that has much to send, and little to compute."""
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(1024, 10)), torch.randn(32, 1024)


WORKLOADS = {"computes": computes, "communicates": communicates}


def sizes(workload):
    """Return the bytes of the weights, of a batch, and of what comes out of it."""
    model, x = WORKLOADS[workload]()
    return sum(w.nbytes for w in model.parameters()), x.nbytes, 4 * 10 * len(x)


def prepare(workload, rank, device, samples=None):
    """Return a model, the same on all ranks, and this rank's batch, or some of it."""
    torch.manual_seed(0)
    model, x = WORKLOADS[workload]()
    x = x[:samples]
    torch.manual_seed(rank)
    y = torch.randint(10, (len(x),))
    return model.to(device), torch.randn_like(x).to(device), y.to(device)


def train(model, forward, x, y, context):
    """Take a few steps; return the seconds for each."""
    finish(x)
    begin = time.perf_counter()
    for _ in range(STEPS):
        model.zero_grad()
        with context():
            loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.01 * weight.grad
    finish(x)
    return (time.perf_counter() - begin) / STEPS


def be_one_device():
    """Compute in one thread, and keep freed memory, as GPUs do: or page faults count."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        for parameter in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            ctypes.CDLL(None).mallopt(parameter, 2**30)


def finish(tensor):
    """Wait until a GPU has done what it was asked to do."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


class Threads(torch.autograd.Function):
    """What DataParallel does, on devices that are threads: scatter to gather."""

    @staticmethod
    def forward(ctx, replicas, x, *weights):
        ctx.runs = [None] * len(replicas)

        def work(number, part):
            for own, weight in zip(replicas[number].parameters(), weights):
                own.data.copy_(weight)
                own.grad = None
            with torch.enable_grad():
                ctx.runs[number] = replicas[number], replicas[number](part.clone())

        all_at_once(work, x.tensor_split(len(replicas)))
        return torch.cat([y.detach() for _, y in ctx.runs])

    @staticmethod
    def backward(ctx, grad):
        def work(number, part):
            ctx.runs[number][1].backward(part.clone())

        all_at_once(work, grad.split([len(y) for _, y in ctx.runs]))
        grads = ([own.grad for own in model.parameters()] for model, _ in ctx.runs)
        return None, None, *(sum(column) for column in zip(*grads))


def all_at_once(work, parts):
    """Run work(number, part) for all parts, each in a thread of its own."""
    calls = enumerate(parts)
    threads = [threading.Thread(target=work, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wrap(method, model, world_size, device):
    """Return what is called in place of the model."""
    if method == "one process":
        return model
    if method == "DP" and device.type == "cuda":
        return nn.DataParallel(model, range(world_size))
    if method == "DP":
        replicas = [copy.deepcopy(model) for _ in range(world_size)]
        return lambda x: Threads.apply(replicas, x, *model.parameters())
    return DistributedDataParallel(model)


def same_steps(workload, method, forward, model, rank, world_size, device):
    """Raise ValueError unless a method's steps are those of one process."""
    if method in ("one process", "DDP, bf16"):
        return  # it is the measure itself; half as many bits may differ
    whole = [prepare(workload, r, device, FEW)[1:] for r in range(world_size)]
    x, y = (torch.cat(parts) for parts in zip(*whole))
    alone = prepare(workload, rank, device)[0]
    train(alone, alone, x, y, nullcontext)
    if method != "DP":
        x, y = whole[rank]
    train(model, forward, x, y, nullcontext)
    for (name, own), right in zip(model.named_parameters(), alone.parameters()):
        if not torch.allclose(own, right, atol=1e-4):
            apart = (own - right).abs().max()
            raise ValueError(f"{method}: {name} ends {apart:.1e} from one process")


def lane(workload, method, rank, world_size, device):
    """Return a function that takes a few steps, after it has shown they are right."""
    model, x, y = prepare(workload, rank, device)
    forward = wrap(method, model, world_size, device)
    same_steps(workload, method, forward, model, rank, world_size, device)
    if method == "DP":
        x, y = x.repeat(world_size, *[1] * (x.dim() - 1)), y.repeat(world_size)
    half = functools.partial(torch.autocast, device.type, torch.bfloat16)
    context = half if "bf16" in method else nullcontext
    return lambda: train(model, forward, x, y, context)


def spawned(rank, world_size, meeting, backend, orders, answers):
    """Be one of the processes of mp.spawn: take steps when asked."""
    be_one_device()
    device = torch.device("cpu" if backend == "gloo" else f"cuda:{rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meets = {"init_method": f"file://{meeting}", "world_size": world_size, "rank": rank}
    dist.init_process_group(backend, **meets, timeout=timedelta(minutes=1))
    dist.barrier()
    answers.put(None)
    lanes = {w: lane(w, "DDP, spawn", rank, world_size, device) for w in WORKLOADS}
    while (workload := orders[rank].get()) is not None:
        answers.put(lanes[workload]())
    lanes.clear()
    gc.collect()
    dist.destroy_process_group()


class Spawned:
    """The processes that rank 0 starts with mp.spawn, and a way to ask them."""

    def __init__(self, world_size, backend):
        self.folder, queue = tempfile.TemporaryDirectory(), mp.get_context("spawn")
        self.orders = [queue.SimpleQueue() for _ in range(world_size)]
        self.answers, begin = queue.SimpleQueue(), time.perf_counter()
        args = (
            world_size,
            f"{self.folder.name}/meet",
            backend,
            self.orders,
            self.answers,
        )
        self.processes = mp.spawn(spawned, args, world_size, join=False)
        self.collect()
        self.startup = round(time.perf_counter() - begin, 2)

    def ask(self, workload):
        for order in self.orders:
            order.put(workload)
        return max(self.collect()) if workload else self.processes.join()

    def collect(self):
        return [self.answers.get() for _ in self.orders]


def startup(world_size):
    """Return the seconds until fresh processes have met: one alone, and all."""
    gone = ("TORCHELASTIC", "MASTER", "RANK", "WORLD", "LOCAL", "GROUP", "ROLE")
    env = {k: v for k, v in os.environ.items() if not k.startswith(gone)}
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    run = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    run += ["--nproc-per-node", str(world_size)]
    seconds = []
    for more, words in ((alone, []), ({}, run)):
        line = [sys.executable, *words, __file__, "--rounds", "0"]
        begin = time.perf_counter()
        subprocess.run(line, env=env | more, check=True, capture_output=True)
        seconds.append(round(time.perf_counter() - begin, 2))
    return seconds


def probe(group):
    """Return the milliseconds that all ranks need for the same work, all at once."""
    x = torch.ones(256, 256)
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(20):
        x @ x
    took = torch.tensor(1000 * (time.perf_counter() - begin))
    dist.all_reduce(took, dist.ReduceOp.MAX, group=group)
    return took.item()


def machine(device):
    """Return what the times were measured on."""
    if device.type == "cuda":
        return f"{torch.cuda.device_count()} GPUs, nccl"
    return f"{os.cpu_count()} CPU cores, gloo"


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


def report(rows, world_size):
    """Return the lines of the table, from what was measured in undisturbed rounds."""
    lines = []
    for workload in WORKLOADS:
        own = [row for row in rows if row["workload"] == workload]
        calm = 1.25 * min(row["pace"] for row in own)
        good = [row for row in own if row["pace"] <= calm]
        busy = len({row["step"] for row in own} - {row["step"] for row in good})
        lines.append(f"a model that {workload}: ms a step, and what comes of it")
        lines.append("method         median  middle half   samples/s  kept  MB busiest")
        samples, first = len(WORKLOADS[workload]()[1]), None
        for method in METHODS:
            times = sorted(r["ms"] for r in good if r["method"] == method)
            middle = statistics.median(times)
            low, high = times[len(times) // 4], times[-1 - len(times) // 4]
            first = first or middle
            count = samples * (1 if method == METHODS[0] else world_size)
            mega = traffic(method, world_size, *sizes(workload)) / 1e6
            lines.append(
                f"{method:12}  {middle:7.1f}  {low:5.1f}-{high:<7.1f}"
                f"{1000 * count / middle:9.0f}  {efficiency(first, middle):4.2f}"
                f"  {mega:10.2f}"
            )
        if busy:
            lines.append(f"(left out: {busy} rounds in which others used the machine)")
    return lines


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
    if args.rounds < 0:
        stop(f"--rounds must be 1 or more, not {args.rounds}")  # 0 only starts and ends
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    dist.barrier()
    be_one_device()
    lanes = {
        (w, m): lane(w, m, rank, world_size, device)
        for w in WORKLOADS
        for m in METHODS * (args.rounds > 0)
        if m != "DDP, spawn" and (rank == 0 or m.startswith("DDP"))
    }
    control = dist.new_group(backend="gloo", timeout=timedelta(minutes=10))
    spawn = Spawned(world_size, backend) if rank == 0 and args.rounds else None
    rows = []
    for number in range(args.rounds < 2, args.rounds + 1):
        for workload in WORKLOADS:
            turn = number % len(METHODS)
            pace = probe(control)
            for method in METHODS[turn:] + METHODS[:turn]:
                dist.barrier(control)
                run = lanes.get((workload, method))
                ms = 1000 * (run() if run else 0)
                dist.barrier(control)
                if rank == 0 and method == "DDP, spawn":
                    ms = 1000 * spawn.ask(workload)
                if rank == 0 and number:  # the first round warms up
                    row = {"step": number, "rank": 0, "workload": workload}
                    row |= {"method": method, "ms": round(ms, 3)}
                    rows.append(row | {"pace": round(pace, 3)})
    lanes.clear()
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "race"}
    header |= {
        "measured": True,
        "machine": machine(device),
        "torch": torch.__version__.partition("+")[0],
    }
    header |= {"date": f"{date.today()}", "methods": METHODS, "startup": {}}
    header["samples"] = {w: len(make()[1]) for w, make in WORKLOADS.items()}
    header["bytes"] = {workload: sizes(workload) for workload in WORKLOADS}
    if rank == 0 and args.rounds:
        spawn.ask(None)
        print(*report(rows, world_size), sep="\n")
        if args.rounds > 2:
            names = "one process", "DDP", "DDP, spawn"
            header["startup"] = dict(zip(names, [*startup(world_size), spawn.startup]))
            print("seconds to start:", header["startup"])
    dist.barrier(control)
    save_recording(args.record, header, rows)
    if rank == 0 and args.rounds:
        print(f"ok: all but bf16 took the steps of one process, on {world_size} ranks")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
