"""Average gradients in five ways, as one process would; see when each does what.

    torchrun --standalone --nproc-per-node 4 scripts/04_distributed_data_parallel.py

On GPUs: --nproc-per-node gpu. Try --bucket-mb 2. With --record PATH, rank 0 keeps when
flat and buckets do what in long steps, on CPUs. The last line begins with "ok".
The lesson: notebooks/04_distributed_data_parallel.ipynb
"""

import copy
import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.profiler import record_function

from shared import Parser, own_device, save_recording, start
from timing import measured_on, one_step

METHODS = ["each", "flat", "hooks", "buckets", "ddp"]


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
            ready.clear()  # for the next step
            act(weights)

    for weight in weights:
        weight.register_post_accumulate_grad_hook(hook)


def buckets_of(weights, cap):
    """From the last weight to the first: a bucket takes them until it has cap bytes."""
    buckets = [[]]
    # The gradient of the last weight is ready first, so the last weight comes first.
    for weight in reversed(list(weights)):
        # A weight is never cut, so a bucket may grow beyond the cap.
        if sum(each.nbytes for each in buckets[-1]) >= cap:
            buckets.append([])
        buckets[-1].append(weight)
    return buckets


def prepare(method, model, mb):
    """Return the model to call, and what is to be done after backward."""
    weights = list(model.parameters())
    begun = []
    # Two ways come late: they begin after backward, when all gradients are ready.
    late = {"each": [[weight] for weight in weights], "flat": [weights]}

    # A hook is a part of backward: while average waits in it, backward cannot go on.
    if method == "hooks":
        for weight in weights:
            when_ready([weight], record_function("stops")(average))

    # The cure: a hook only begins an all-reduce, and its end is left to after().
    if method == "buckets":
        for bucket in buckets_of(weights, (mb or 1) * 2**20):
            when_ready(bucket, lambda bucket: begun.append(begin(bucket)))

    # DDP begins in the same way, and finishes before backward returns.
    if method == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=mb)

    def after():
        for group in late.get(method, []):
            average(group)
        while begun:
            finish(*begun.pop(0))

    return model, after


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--method", choices=METHODS, help="one way only")
    parser.add_argument("--bucket-mb", type=float, help="MiB that make a bucket full")
    args, rank, world_size = start(parser)
    if args.bucket_mb is not None and not 0 < args.bucket_mb <= 1024:
        parser.error(f"--bucket-mb is above 0, 1024 at most, not {args.bucket_mb:g}")
    # The profile sees what CPUs do, and no GPU, so a recording is made on CPUs.
    device, backend = (torch.device("cpu"), "gloo") if args.record else own_device()
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    # Drawn on CPUs, with one seed, the numbers are the same on all ranks and machines.
    torch.manual_seed(0)
    network = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).to(device)
    samples = 192 if args.record else 16  # of each rank; a recording is of long steps
    batch = torch.randn(samples * world_size, 512).to(device)

    # Every way must find the gradients that one process finds for the whole batch.
    expected, *_ = one_step(network, batch)
    if rank == 0:
        print("method   all-reduces  the first begins when")
    events = []
    methods = ["flat", "buckets"] if args.record else METHODS
    for method in [args.method] if args.method else methods:
        model, after = prepare(method, copy.deepcopy(network), args.bucket_mb)
        rows = []
        # DDP makes new buckets before its second forward, so a later step can differ.
        for _ in range(5 if args.record else 2):
            grads, spans, counts = one_step(model, batch[rank::world_size], after)
            error = (grads - expected).abs().max()
            if not error <= 1e-4 * expected.abs().max():  # a nan is an error, too
                raise ValueError(f"{method}: not the gradients of one process")
            row = "{:11}  {:2} of {} gradients are ready".format(*counts)
            if rank == 0 and row not in rows:
                print(f"{'  later' if rows else method:8} {row}")
            rows.append(row)
        # A recording has the spans of the last step.
        events += [{"step": 0, "rank": rank, "method": method} | s for s in spans]
    save_recording(args.record, events, picture="spans", **measured_on(backend))
    if rank == 0:
        print(f"ok: {world_size} ranks have the gradients of one process, each time")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
