"""Average gradients in five ways, as one process would; see when each does what.

    torchrun --standalone --nproc-per-node 4 scripts/05_distributed_data_parallel.py
    torchrun --standalone --nproc-per-node gpu scripts/05_distributed_data_parallel.py

The first line needs no GPU; the second gives each GPU a rank. Try --method buckets, one
way only, or --bucket-mb 2, larger buckets than DDP's first. With --record PATH, rank 0
keeps what happened when, of flat and buckets, on CPUs. The last line begins with "ok".
The lesson: notebooks/05_distributed_data_parallel.ipynb
"""

import copy
import gc
import json
import os
import shlex
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from datetime import date, timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: imported later, it keeps the group alive
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.profiler import ProfilerActivity, profile, record_function

METHODS, DRAWN = ["each", "flat", "hooks", "buckets", "ddp"], ["flat", "buckets"]
READY, BEGINS = "torch::autograd::AccumulateGrad", "c10d::allreduce_"  # in a profile
KEPT = [READY, BEGINS, "backward", "stops", "copies, waits", "gloo:all_reduce"]


def begin(weights):
    """Copy gradients into one flat buffer, and begin to add it up over all ranks."""
    grads = [weight.grad for weight in weights]
    flat = parameters_to_vector(grads)
    return dist.all_reduce(flat, async_op=True), flat, grads


def finish(work, flat, grads):
    """Wait for the sums, and put their averages where the gradients are."""
    work.wait()
    flat /= dist.get_world_size()
    vector_to_parameters(flat, grads)


def average(weights):
    """Begin, and wait until it is finished."""
    finish(*begin(weights))


def when_ready(weights, act):
    """During backward: act when the last of these weights has its gradient."""
    ready = []

    def hook(weight):
        ready.append(weight)
        if len(ready) == len(weights):
            ready.clear()
            act(weights)

    for weight in weights:
        weight.register_post_accumulate_grad_hook(hook)


def buckets_of(weights, cap):
    """From the last weight to the first: a bucket takes them until it has cap bytes."""
    buckets = [[]]
    for weight in reversed(list(weights)):
        if sum(each.nbytes for each in buckets[-1]) >= cap:
            buckets.append([])
        buckets[-1].append(weight)
    return buckets


def prepare(method, model, mb):
    """Return the model to call, and what is to be done after backward."""
    weights, begun = list(model.parameters()), []
    if method == "each":
        return model, lambda: [average([weight]) for weight in weights]
    if method == "flat":
        return model, lambda: average(weights)
    if method == "hooks":
        for weight in weights:
            when_ready([weight], record_function("stops")(average))
    if method == "buckets":
        for bucket in buckets_of(weights, (mb or 1) * 2**20):
            when_ready(bucket, lambda bucket: begun.append(begin(bucket)))
    if method == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=mb)

    def after():
        while begun:
            finish(*begun.pop(0))

    return model, after


def one_step(model, batch, after=lambda: None):
    """Return the gradients of a batch, in one row, and what took place when."""
    model.zero_grad()
    loss = model(batch).square().mean()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        dist.barrier()
        with record_function("backward"):
            loss.backward()
        with record_function("copies, waits"):
            after()
        dist.barrier()  # or the end of what other threads do may be missing
    spans = [(s.name, s.time_range) for s in trace.events() if s.name in KEPT]
    return parameters_to_vector(w.grad for w in model.parameters()), spans


def counted(spans):
    """Say how many all-reduces a step had, and what was ready before the first."""
    names = [name for name, _ in spans if name in (READY, BEGINS)]
    ready, of = names.index(BEGINS), names.count(READY)
    return f"{names.count(BEGINS):11}  {ready:2} of {of} gradients are ready"


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
    parser.add_argument("--method", choices=METHODS, help="one way only")
    parser.add_argument("--bucket-mb", type=float, help="MiB that make a bucket full")
    args, rank, world_size = start(parser)
    if args.bucket_mb is not None and not 0 < args.bucket_mb <= 1024:
        parser.error(f"--bucket-mb is above 0, 1024 at most, not {args.bucket_mb:g}")

    device, backend = own_device()
    if args.record:  # of gloo, whose all-reduces are seen in the profile
        device, backend = torch.device("cpu"), "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=1))

    os.environ["KINETO_LOG_LEVEL"] = "99"  # or each profile prints two lines of its own
    torch.manual_seed(0)  # drawn on CPUs, numbers are the same on all machines
    network = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).to(device)
    batch = torch.randn(192 * world_size, 512).to(device)
    right, _ = one_step(network, batch)
    methods = [args.method] if args.method else DRAWN if args.record else METHODS
    lines, events = ["method   all-reduces  the first begins when"], []
    for method in methods:
        model, after = prepare(method, copy.deepcopy(network), args.bucket_mb)
        name, told = method, None
        for _ in range(5 if args.record else 3):
            grads, spans = one_step(model, batch[rank::world_size], after)
            if not (grads - right).abs().max() <= 1e-4 * right.abs().max():  # or nan
                raise ValueError(f"{method}: not the gradients of one process")
            if counted(spans) != told:  # a first step, or one that goes otherwise
                told = counted(spans)
                lines.append(f"{name:8} {told}")
                name = "  later"
        event = {"step": 0, "rank": rank, "method": method}
        for what, time_range in spans:  # of the last step, in microseconds
            span = {"what": what, "begin": time_range.start, "end": time_range.end}
            events.append(event | span)

    header = {"machine": f"{os.cpu_count()} CPU cores, {backend}", "measured": True}
    header |= {"date": f"{date.today()}", "torch": torch.__version__.partition("+")[0]}
    save_recording(args.record, events, picture="spans", **header)
    if rank == 0:
        print(*lines, sep="\n")
        print(f"ok: {world_size} ranks have the gradients of one process, each time")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
