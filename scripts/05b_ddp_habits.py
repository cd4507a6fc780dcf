"""Watch what DDP does on its own: when it sends, what it averages, when it complains.

    torchrun --standalone --nproc-per-node 4 scripts/05b_ddp_habits.py
    torchrun --standalone --nproc-per-node gpu scripts/05b_ddp_habits.py

The first line needs no GPU; the second gives each GPU a rank. Then try:

    --habit wrap          one only: wrap, drift, no-sync, unused or options
    --habit uneven        broken: rank r has r + 1 batches, and the others leave
    --record wrap.jsonl   keep what every rank held, one JSON object per line

The last line begins with "ok". The lesson: notebooks/05b_ddp_habits.ipynb
"""

import argparse
import gc
import json
import os
import sys
import time
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # here: once there is a group, this would keep it alive
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

CALLS = []  # bytes of each all-reduce that a hook of DDP's asked for
all_reduce = dist.all_reduce  # torch's own, which is not counted
PHASES = {
    "made": "Every rank makes its model, and no two are alike.",
    "wrapped": "DDP copies rank 0's weights and buffers to all.",
    "changed": "By hand, every rank changes both again.",
    "forward": "DDP copies rank 0's buffers once more, but no weights.",
    "backward": "DDP averages the gradients, of whatever weights there are.",
}


class Layer(nn.Module):
    """One weight, one buffer, and a second weight that may stay unused."""

    def __init__(self, rank=0, unused=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.ones(1))
        if unused:
            self.spare = nn.Parameter(torch.ones(1))
        self.fill(rank)

    def fill(self, rank):
        """Put other numbers in on each rank."""
        with torch.no_grad():
            self.weight.fill_(rank + 1)
            self.seen.fill_(10 * (rank + 1))

    def forward(self, x):
        return (self.weight * x).sum()


def gradient(model, x, forward, backward):
    """Run forward and backward, each within no_sync() or not; return the gradient."""
    model.zero_grad()
    with model.no_sync() if forward else nullcontext():
        loss = model(x)
    with model.no_sync() if backward else nullcontext():
        loss.backward()
    return model.module.weight.grad.item()


def each_alone(model, batches):
    """Add up the gradients of several batches; average after each of them."""
    for x in batches:
        model(x).backward()


def accumulate(model, batches):
    """Add up the gradients of several batches; let the last backward average them."""
    with model.no_sync():
        for x in batches[:-1]:
            model(x).backward()
    model(batches[-1]).backward()


def count(tensor, *more, **options):
    """Note how many bytes an all-reduce takes, and let torch do it."""
    CALLS.append(tensor.nbytes)
    return all_reduce(tensor, *more, **options)


def from_all(value):
    """Return a number of every rank, whole if it is whole."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, round(value, 2))
    return [int(v) if v == int(v) else v for v in found]


def columns(what, values):
    """Return a line of a table, with a column for each rank."""
    return f"{what:32}" + "".join(f"{value:6}" for value in values)


def must(true, message):
    """Raise ValueError if DDP does not behave as this script says."""
    if not true:
        raise ValueError(message)


def wrap(rank, x, note):
    """Show what DDP copies, and when."""
    model = Layer(rank)
    note("made", model, rank, rank)
    wrapped = DistributedDataParallel(model)
    weights, buffers = note("wrapped", model, 0, 0, "broadcast")
    must({*weights, *buffers} == {1, 10}, "wrapping did not make the ranks equal")
    model.fill(rank)
    note("changed", model, rank, rank)
    loss = wrapped(x)
    weights, buffers = note("forward", model, rank, 0, "broadcast")
    must(weights[rank] == rank + 1, "a forward changed the weights")
    must({*buffers} == {10}, "a forward did not make the buffers equal")
    loss.backward()
    note("backward", model, rank, 0, "all_reduce")


def strangers(model):
    """Return the ranks whose weights are not those of rank 0."""
    own = nn.utils.parameters_to_vector(model.parameters()).detach()
    first = own.clone()
    dist.broadcast(first, 0)
    every = from_all(torch.equal(own, first))
    return [rank for rank, same in enumerate(every) if not same]


def drift(rank, x):
    """Change the last rank's weight after the first of three steps."""
    model = DistributedDataParallel(Layer())
    weight, last = model.module.weight, dist.get_world_size() - 1
    for step in (1, 2, 3):
        model.zero_grad()
        loss = model(x)
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            if step == 1 and rank == last:
                weight -= 0.25
        yield columns(f"step {step}   loss", from_all(loss.item()))
        yield columns("         weight", from_all(weight.item()))
        found = strangers(model)
        yield f"         strangers {found}"
        must(found == [last] * (last > 0), f"strangers are {found}")


def uneven(model, rank, x):
    """Take a step for each batch: rank 0 has one, and the last rank has most."""
    for _ in range(rank + 1):
        model.zero_grad()
        model(x).backward()
    return rank + 1


def no_sync(rank, x):
    """Show which half of a step has to be within no_sync()."""
    model, own = DistributedDataParallel(Layer()), from_all(x.item())
    mean = [round(sum(own) / len(own), 2)] * len(own)
    for forward in (False, True):
        for backward in (False, True):
            grads = from_all(gradient(model, x, forward, backward))
            inside = ["neither", "backward", "forward", "both"][2 * forward + backward]
            yield columns(f"{inside} in no_sync()", grads)
            must(grads == (own if forward else mean), "not the forward decides")
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    for use in (each_alone, accumulate):
        model.zero_grad()
        CALLS.clear()
        use(model, [x, x, x])
        grads = from_all(model.module.weight.grad.item())
        yield columns(f"{use.__name__}, with {len(CALLS)} all-reduces", grads)
        must(len({*grads}) == 1, f"{use.__name__}: gradients differ")


def unused(rank, x):
    """Show what becomes of a weight that no loss depends on."""
    for option in ("", "find_unused_parameters", "static_graph"):
        options = {option: True} if option else {}
        model = DistributedDataParallel(Layer(unused=True), **options)
        for step in (1, 2):
            try:
                model.zero_grad()
                model(x).backward()
            except RuntimeError as error:
                must(not option, f"{option}: {error}")
                says = str(error)
                yield f"step {step} raised RuntimeError: {says.partition('. ')[0]} ..."
                yield from [part for part in says.splitlines() if " indices " in part]
                continue
            grads = from_all(model.module.weight.grad.item())
            yield columns(f"{option or 'no option'}, step {step}", grads)
            must(not option or len({*grads}) == 1, f"{option}: gradients differ")
            must(model.module.spare.grad is None, "the unused weight has a gradient")


def options(rank, x):
    """Show what some options and helpers do, each in one line."""
    model = DistributedDataParallel(Layer(unused=True), gradient_as_bucket_view=True)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    CALLS.clear()
    (model(x) + model.module.spare.sum() * x.sum()).backward()
    storages = {w.grad.untyped_storage().data_ptr() for w in model.parameters()}
    yield columns("gradient_as_bucket_view: tensors", from_all(len(storages)))
    yield columns("fp16_compress_hook: bytes sent", from_all(sum(CALLS)))
    size = sum(w.grad.nbytes for w in model.parameters())
    yield columns("without it", from_all(size))
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    norms = from_all(norm.item())
    yield columns("clip_grad_norm_: norms", norms)
    must(len({*norms}) == 1, "norms differ between ranks")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DistributedDataParallel(Layer(), check_reduction=True)
    yield columns("check_reduction: warnings", from_all(len(caught)))
    with Join([model]):
        steps = uneven(model, rank, x)
    yield columns("Join: steps", from_all(steps))
    yield columns("Join: last gradients", from_all(model.module.weight.grad.item()))


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
    habits = {"drift": drift, "no-sync": no_sync, "unused": unused, "options": options}
    parser.add_argument("--habit", choices=["wrap", *habits, "uneven"])
    parser.add_argument("--record", type=Path)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")
    if args.record and args.habit not in (None, "wrap"):
        stop(f"--record keeps the habit wrap, not {args.habit}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    dist.all_reduce = count  # from now on, whoever calls it
    events, lines = [], []

    def note(phase, model, weight_of, buffer_of, call=None):
        weights, buffers = from_all(model.weight.item()), from_all(model.seen.item())
        lines.append(columns(f"{phase:10}weight", weights))
        lines.append(columns("          buffer", buffers))
        holds = {"weight": [[weights[rank], weight_of]]}
        holds["buffer"] = [[buffers[rank], buffer_of]]
        if model.weight.grad is not None:
            grads = from_all(model.weight.grad.item())
            lines.append(columns("          gradient", grads))
            holds["grad"] = [[grads[rank], *range(world_size)]]
        event = {"step": len(events), "rank": rank, "phase": phase, "holds": holds}
        events.append(event | ({"call": call} if call else {}))
        return weights, buffers

    x = torch.tensor([rank + 1.0])
    if args.habit == "uneven":
        return uneven(DistributedDataParallel(Layer()), rank, x)
    if args.habit in (None, "wrap"):
        wrap(rank, x, note)
    for name, habit in habits.items():
        if args.habit in (None, name):
            lines += habit(rank, x)
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "flow"}
    save_recording(args.record, header | {"phases": PHASES}, events)
    if rank == 0:
        for line in lines:
            print(line)
        print(f"ok: {world_size} ranks, and DDP does what this script says")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
