"""Watch which gradients DDP averages, if a step has two losses.

    torchrun --standalone --nproc-per-node 4 scripts/15_two_losses.py
    torchrun --standalone --nproc-per-node gpu scripts/15_two_losses.py

The first line needs no GPU; the second gives each GPU a rank. Try moves of your own:
--moves "forward a, no_sync b, module b, backward a+b, zero_grad, forward a, backward a"
With --record PATH, rank 0 keeps the gradients after each move. The last line begins
with "ok". The lesson: notebooks/15_two_losses.ipynb
"""

import gc
import re
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

from shared import Parser, own_device, save_recording, start

MOVES = "forward a, forward b, backward a, backward b"
MOVES += ", zero_grad, forward a, forward b, backward a+b"
BACKWARDS = "backward a", "backward b", "backward a+b"


def play(ddp, moves, inputs, note):
    """Make moves, one after the other; note the gradient after each."""
    losses = {}
    for move in moves.split(", "):
        kind, _, which = move.partition(" ")
        if kind == "forward":
            # A forward of the wrapped model wakes DDP: the next backward averages.
            losses[which] = ddp(inputs[which])
        elif kind == "no_sync":
            # This neither wakes DDP nor puts it to sleep.
            with ddp.no_sync():
                losses[which] = ddp(inputs[which])
        elif kind == "module":
            # DDP does not see this forward, and stays as it is, awake or asleep.
            losses[which] = ddp.module(inputs[which])
        elif kind == "backward":
            # A loss is taken out, because backward frees its graph.
            sum(losses.pop(name) for name in which.split("+")).backward()
        else:
            ddp.zero_grad()
        note(move, ddp.module.weight.grad)


def rule(moves, world_size):
    """Return the gradient of each rank after each move, if DDP keeps to its rule."""
    # No forward has come yet, so DDP sleeps, and no rank has a gradient.
    awake = False
    grads = [None] * world_size
    slopes = {}  # what each loss that waits for its backward adds on rank 0
    after = []
    for move in moves.split(", "):
        kind, *names = re.split("[ +]", move)
        if kind in ("forward", "no_sync", "module") and names in (["a"], ["b"]):
            # Only a plain forward wakes DDP, and no kind of forward puts it to sleep.
            slopes[names[0]] = {"a": 1, "b": 10}[names[0]]
            awake = awake or kind == "forward"
        elif move in BACKWARDS and slopes.keys() >= {*names}:
            # First each rank adds its own gradient to the one that is there: on rank r
            # this is r + 1 times as much. If DDP is awake, it then averages the sums.
            slope = sum(slopes.pop(name) for name in names)
            grads = [(had or 0) + slope * (r + 1) for r, had in enumerate(grads)]
            if awake:
                grads = [sum(grads) / world_size] * world_size
            awake = False
        elif move == "zero_grad":
            grads = [None] * world_size
        else:
            raise ValueError(f"--moves: {move!r} is no move, or no forward is left")
        after.append(grads)
    return after


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--moves", default=MOVES, help="what happens, in its order")
    args, rank, world_size = start(parser)
    # Moves that make no sense are refused before the ranks wait for each other.
    try:
        right = rule(args.moves, world_size)
    except ValueError as error:
        parser.error(f"{error}")

    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    events = []
    calls = []  # the all-reduces since the last move

    def note(move, grad):
        step = len(events)
        grad = None if grad is None else round(grad.item(), 2)
        if grad != right[step][rank]:
            raise ValueError(f"{move}: rank {rank} has {grad}, not {right[step][rank]}")
        event = {"step": step, "rank": rank, "phase": move, "grad": grad}
        events.append(event | {"calls": len(calls)})
        calls.clear()

    # DDP calls this for each bucket that it averages, in place of its own all-reduce.
    def hook(calls, bucket):
        calls.append(bucket.index())
        return allreduce_hook(None, bucket)

    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    ddp.register_comm_hook(calls, hook)

    # The model has one weight, so its output, the loss, has the input as its gradient.
    inputs = {name: x * (rank + torch.ones(1)) for name, x in (("a", 1), ("b", 10))}
    play(ddp, args.moves, inputs, note)

    # All ranks make the same all-reduces, so the table has the number of rank 0.
    rows = save_recording(args.record, events, picture="moves")
    if rank == 0:
        print("move            all-reduces   grad of each rank")
        for step, move in enumerate(args.moves.split(", ")):
            of_ranks = [row for row in rows if row["step"] == step]
            grads = (row["grad"] for row in of_ranks)
            grads = ("-" if grad is None else f"{grad:g}" for grad in grads)
            print(f"{move:16}{of_ranks[0]['calls']:11}  ", *map("{:>5}".format, grads))
        print(f"ok: {world_size} ranks; DDP averaged what its rule says, and no more")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
