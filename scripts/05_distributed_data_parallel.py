"""Average gradients in five ways, DDP's among them; compare with one process.

    torchrun --standalone --nproc-per-node 4 scripts/05_distributed_data_parallel.py
    torchrun --standalone --nproc-per-node gpu scripts/05_distributed_data_parallel.py

The first line needs no GPU; the second gives each GPU a rank. Then try:

    --method buckets       one way only: each, flat, hooks, buckets or ddp
    --method no-wait       broken: begins every all-reduce, and waits for none
    --method weights       broken: averages the weights, not their gradients
    --bucket-mb 2          the size of a bucket, in MiB (else ours have 1, as DDP's first)
    --record times.jsonl   keep what happened when, on CPUs, and a trace beside it

The last line begins with "ok". The lesson: notebooks/05_distributed_data_parallel.ipynb
"""

import argparse
import functools
import gc
import json
import os
import sys
import time
from datetime import date, timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # here: once there is a group, this would keep it alive
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

METHODS, WRONG = ["each", "flat", "hooks", "buckets", "ddp"], ["no-wait", "weights"]
DRAWN = {  # what the profiler calls it, its kind in a picture, and its name there
    "backward": ("work", "backward"),
    "ready": ("mark", "layer"),
    "stop": ("wait", "stops"),
    "after": ("wait", "copies, waits"),
    "gloo:all_reduce": ("message", "all-reduce"),
}
CALLS, READY = [], []  # what one step did: bytes of each all-reduce, gradients ready
all_reduce = dist.all_reduce  # torch's own, which is not counted
TITLE = "Solid: backward, from the last layer. Striped: an all-reduce"


def average(weight):
    """Replace a gradient by its mean over all ranks."""
    dist.all_reduce(weight.grad)
    weight.grad /= dist.get_world_size()


def average_each(model):
    """After backward: one all-reduce for each gradient."""
    for weight in model.parameters():
        average(weight)


def average_flat(model):
    """After backward: one all-reduce for all gradients, in one flat buffer."""
    weights = list(model.parameters())
    flat = pack(weights)
    dist.all_reduce(flat)
    unpack(flat, weights)


def average_in_hooks(model, hook=average):
    """During backward: each gradient as soon as it is ready."""
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(hook)


def pack(weights):
    """Copy gradients into one flat buffer."""
    return torch.cat([weight.grad.flatten() for weight in weights])


def unpack(flat, weights):
    """Divide a buffer of sums by the ranks, and copy it back into the gradients."""
    flat /= dist.get_world_size()
    for piece, weight in zip(flat.split([w.numel() for w in weights]), weights):
        weight.grad.copy_(piece.view_as(weight))


def buckets_of(weights, cap):
    """From the last weight to the first: fill a bucket until it has cap bytes."""
    buckets, size = [], cap
    for weight in reversed(list(weights)):
        if size >= cap:
            buckets.append([])
            size = 0
        buckets[-1].append(weight)
        size += weight.nbytes
    return buckets


def start_when_full(bucket, started):
    """Begin a bucket's all-reduce when its last gradient is ready, and don't wait."""
    ready = []

    def hook(weight):
        ready.append(weight)
        if len(ready) == len(bucket):
            flat = pack(bucket)
            started.append((dist.all_reduce(flat, async_op=True), flat, bucket))
            ready.clear()

    for weight in bucket:
        weight.register_post_accumulate_grad_hook(hook)


def wait_for_all(started):
    """After backward: wait for every bucket, and put its averages in place."""
    while started:
        work, flat, bucket = started.pop(0)
        work.wait()
        unpack(flat, bucket)


def average_wrongly(weight):
    """Broken: replace a weight by its mean, as if it were the gradient."""
    dist.all_reduce(weight.data)
    weight.data /= dist.get_world_size()


def prepare(method, model, mb):
    """Return the model to call, and what to do after backward."""
    started = []
    if method in ("hooks", "weights"):
        average_in_hooks(model, average if method == "hooks" else average_wrongly)
    if method in ("buckets", "no-wait"):
        for bucket in buckets_of(model.parameters(), (mb or 1) * 2**20):
            start_when_full(bucket, started)
    if method == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=mb)
        model.register_comm_hook(None, allreduce_hook)  # the usual one, to be counted
    after = {"each": lambda: average_each(model), "flat": lambda: average_flat(model)}
    after["buckets"] = lambda: wait_for_all(started)
    return model, after.get(method, lambda: None)


def network():
    """Return the same six layers of 1 MiB on every rank."""
    torch.manual_seed(0)
    with torch.device("cpu"):  # where all machines draw the same numbers
        model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])
    for name, weight in model.named_parameters():
        weight.register_post_accumulate_grad_hook(functools.partial(note, name))
    return model.to(torch.get_default_device())


def note(name, weight):
    """Keep the name of a gradient that is ready; tell the profiler, layer by layer."""
    READY.append(name)
    if name.endswith("weight"):
        with record_function(f"ready {int(name[0]) + 1}"):
            pass


def count(tensor, *more, async_op=False, **options):
    """Note an all-reduce, and let torch do it."""
    CALLS.append((tensor.nbytes, len(READY)))
    with record_function("call" if async_op else "stop"):
        return all_reduce(tensor, *more, async_op=async_op, **options)


def one_step(model, batch, after=lambda: None):
    """Return the gradients of a batch, in one row, and when backward began."""
    model.zero_grad()
    loss = model(batch).square().mean()
    CALLS.clear()
    READY.clear()
    dist.barrier()
    clock = time.perf_counter()
    with record_function("backward"):
        loss.backward()
    with record_function("after"):
        after()
    return pack(list(model.parameters())), clock


def timeline(step, lane, path):
    """Return what happened in one step, and when, as a profiler saw it."""
    for _ in range(8):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        _, clock = step()
        dist.barrier()  # or the end of what other threads do may be missing
    if lane == 0:
        trace.export_chrome_trace(str(path.with_suffix(".trace.json")))
    first = torch.tensor(clock, dtype=torch.float64)
    all_reduce(first, dist.ReduceOp.MIN)
    spans = [(e.time_range.start, e.time_range.end, e.name) for e in trace.events()]
    begun, over = next(span[:2] for span in spans if span[2] == "backward")
    zero, events = begun - (clock - first.item()) * 1e6, []
    for begin, end, name in sorted(spans):
        name, _, number = name.partition(" ")
        if name in DRAWN and not (name == "stop" and begin > over):
            kind, what = DRAWN[name]
            event = {"step": 0, "rank": dist.get_rank(), "lane": lane, "kind": kind}
            times = {"begin": begin - zero, "end": end - zero}  # in microseconds
            event |= {key: round(time / 1000, 2) for key, time in times.items()}
            events.append(event | {"what": f"{what} {number}".strip()})
    return events


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
    parser.add_argument("--method", choices=METHODS + WRONG)
    parser.add_argument("--bucket-mb", type=float)
    parser.add_argument("--record", type=Path)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.bucket_mb is not None and not 0 < args.bucket_mb <= 1024:
        stop(f"--bucket-mb is above 0, and 1024 at most, not {args.bucket_mb:g}")
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    gpus = 0 if args.record else torch.cuda.device_count()
    if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    dist.all_reduce = count  # from now on, whoever calls it

    torch.manual_seed(1)
    batch = torch.randn(192 * world_size, 512, device="cpu").to(device)
    alone, _ = one_step(network(), batch)
    methods = [args.method] if args.method else METHODS
    drawn = methods if args.method else ["flat", "buckets"]
    drawn = drawn if args.record else []
    lines, events = ["method   all-reduces   MiB  the first begins when"], []
    for method in methods:
        model, after = prepare(method, network(), args.bucket_mb)
        step = functools.partial(one_step, model, batch[rank::world_size], after)
        done = None
        for name in (method, "  later", "  later"):
            grads, _ = step()
            if (grads - alone).abs().max() > 1e-4 * alone.abs().max():
                raise ValueError(f"{method}: not the gradients of one process")
            if done != CALLS:  # not what the first step did
                size, ready = sum(size for size, _ in CALLS) / 2**20, CALLS[0][1]
                row = f"{name:8} {len(CALLS):11} {size:5.2f}"
                lines.append(f"{row}  {ready:2} of {len(READY)} gradients are ready")
            done = [*CALLS]
        if method == "ddp":
            sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")
            sizes = " + ".join(f"{int(size) / 2**20:.2f}" for size in sizes)
            lines.append(f"  DDP's own log says: {sizes} MiB")
        if method in drawn:
            lane = drawn.index(method) * world_size + rank
            events += timeline(step, lane, args.record)

    lanes = [f"{method}, rank {r}" for method in drawn for r in range(world_size)]
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "timeline"}
    header |= {"lanes": lanes, "hues": [*range(world_size)] * len(drawn), "unit": "ms"}
    header |= {"title": TITLE, "measured": True, "date": f"{date.today()}"}
    header |= {"machine": f"{os.cpu_count()} CPU cores, {backend}"}
    header |= {"torch": torch.__version__.partition("+")[0]}
    save_recording(args.record, header, events)
    if rank == 0:
        for line in lines:
            print(line)
        print(f"ok: {world_size} ranks have the gradients of one process, each time")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
