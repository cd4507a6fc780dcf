"""What DDP and DP vs DDP share: how they take times, and say where they took them.

DDP sees a step with one_step. DP vs DDP makes threads of a CPU the devices of DP, and
takes the time of the slowest rank. Copy this file along with these scripts.
"""

import copy
import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector
from torch.profiler import ProfilerActivity, profile, record_function

# What a profile calls a gradient that is ready, and an all-reduce that begins.
READY = "torch::autograd::AccumulateGrad"
BEGINS = "c10d::allreduce_"
KEPT = [READY, BEGINS, "backward", "stops", "copies, waits", "gloo:all_reduce"]


def be_one_device():
    """Compute in one thread; keep freed memory, as GPUs do: or page faults count."""
    torch.set_num_threads(1)

    # Memory that goes back to Linux costs page faults when it is asked for again.
    if sys.platform == "linux":
        # These are M_TRIM_THRESHOLD, M_MMAP_THRESHOLD (2**25 is its most), M_ARENA_MAX.
        for parameter, value in (-1, 2**30), (-3, 2**25), (-8, 1):
            ctypes.CDLL(None).mallopt(parameter, value)


def dp_in_threads(model, x, devices):
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


def slowest(value):
    """Return the largest value of all ranks, which go on together."""
    # A tensor on the CPU goes by gloo: with NCCL, the GPUs would work to wait.
    value = torch.tensor(value)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return round(value.item(), 3)


def quiet_profile():
    """Return torch's profiler for CPUs, without the two lines that it prints itself."""
    os.environ["KINETO_LOG_LEVEL"] = "99"
    return profile(activities=[ProfilerActivity.CPU])


def spans_of(trace, names):
    """Return when, in microseconds, what has one of these names began and ended."""
    spans = [(s.name, s.time_range) for s in trace.events() if s.name in names]
    return [{"what": name, "begin": t.start, "end": t.end} for name, t in spans]


def one_step(model, batch, after=lambda: None):
    """Return a batch's gradients in one row, what took place when, and three counts."""
    model.zero_grad()
    loss = model(batch).square().mean()

    with quiet_profile() as trace:
        dist.barrier()  # so that the ranks begin nearly together
        with record_function("backward"):
            loss.backward()
        with record_function("copies, waits"):
            after()
        # Without this barrier, the end of what other threads do may be missing.
        dist.barrier()

    # Count the all-reduces, the gradients that are ready before the first of them
    # begins, and all gradients.
    spans = spans_of(trace, KEPT)
    names = [span["what"] for span in spans if span["what"] in (READY, BEGINS)]
    ready_before = [*names, BEGINS].index(BEGINS)
    counts = names.count(BEGINS), ready_before, names.count(READY)
    return parameters_to_vector(w.grad for w in model.parameters()), spans, counts


def measured_on(backend):
    """Return what a recording says of its times: that they were measured, and where."""
    gpus = f"{dist.get_world_size()} GPUs"
    cores = f"{os.cpu_count()} CPU cores"
    machine = f"{gpus if backend == 'nccl' else cores}, {backend}"
    version = torch.__version__.partition("+")[0]
    when = {"date": f"{date.today()}", "torch": version}
    return {"measured": True, "machine": machine} | when
