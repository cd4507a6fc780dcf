"""Train so that no rank holds the whole model, and count the numbers that it holds.

    torchrun --standalone --nproc-per-node 4 scripts/42_nobody_holds_it_all.py
    torchrun --standalone --nproc-per-node gpu scripts/42_nobody_holds_it_all.py

The first line needs no GPU; the second gives each GPU a rank. With --record PATH, rank
0 keeps what each sent in the cut ring, as JSON lines. The last line begins with "ok".
The lesson: notebooks/42_nobody_holds_it_all.ipynb
"""

import gc
import warnings
from datetime import timedelta
from functools import partial
from importlib import import_module

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing import errors
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from shared import Parser, own_device, save_recording, start
from train_alone import Adder, make_sums

ring = import_module("03_ring_all_reduce")  # its name is no name in Python
STEPS, BATCH, LR = 5, 240, 4e-3


def pass_on(chunks, rank, world_size, note, send, add_to=None, keep_in=None):
    """Send a chunk right; add what comes from the left to a chunk, or keep it there."""
    recv = keep_in if add_to is None else add_to
    note(chunks, "scatter-reduce" if add_to == recv else "allgather", send, recv)
    arrived = torch.empty_like(chunks[recv])
    both = [dist.P2POp(dist.irecv, arrived, (rank - 1) % world_size)]
    both += [dist.P2POp(dist.isend, chunks[send], (rank + 1) % world_size)]
    for request in dist.batch_isend_irecv(both):
        request.wait()
    chunks[recv].copy_(arrived if add_to is None else chunks[recv] + arrived)


def cut_ring(grads, weights, update, rank, world_size, note=lambda *event: None):
    """Between the halves of the ring, update the one chunk whose sum is known here."""
    grads, weights = (row.tensor_split(world_size) for row in (grads, weights))
    own = (rank + 1) % world_size
    ring.scatter_reduce(
        rank, world_size, partial(pass_on, grads, rank, world_size, note)
    )
    note(grads, "update")
    update(weights[own], grads[own])

    # The second half would have copied sums of gradients. Now it copies new weights.
    ring.allgather(rank, world_size, partial(pass_on, weights, rank, world_size, note))
    note(weights)


def step_by_hand(model, rank, world_size):
    """Return an AdamW that sees one chunk of the weights, and a step for all."""
    # All weights in one row; the model's are views of it, so a change is seen in both.
    weights = parameters_to_vector(model.parameters()).detach()
    vector_to_parameters(weights, model.parameters())
    own = nn.Parameter(weights.tensor_split(world_size)[(rank + 1) % world_size])
    optimizer = torch.optim.AdamW([own], LR)

    def update(_, total):
        own.grad = total / world_size
        optimizer.step()

    def step():
        grads = parameters_to_vector(weight.grad for weight in model.parameters())
        cut_ring(grads, weights, update, rank, world_size)

    return optimizer, step


def train(model, batches, step):
    """Return the loss of each batch."""
    losses = []
    for text in batches:
        model.zero_grad()
        losses.append(nn.functional.cross_entropy(model(text).mT, text[:, 6:]))
        losses[-1].backward()
        step()
    return torch.stack(losses).detach()


def held(tensors):
    """Return how many numbers of some tensors, which may be cut, this rank holds."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(tensor.numel() for tensor in local if tensor.dim())


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    if args.record and world_size > 9:
        parser.error("--record has room for 9 ranks at most")
    device, backend = own_device()
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    torch.set_default_dtype(torch.float64)  # prints the same on every processor
    whole = make_sums()[: STEPS * BATCH].to(device).split(BATCH)
    shares = [text[rank::world_size] for text in whole]
    # torch warns that the answer is a view of something. It is never changed in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    found = {}
    for way in ("one process", "cut ring", "fully_shard"):
        torch.manual_seed(0)
        model = Adder(32).to(device)
        if way == "fully_shard":
            # A unit is whole while it is used: first each layer, then all that is left.
            for unit in [*model.body.layers, model]:
                fully_shard(unit, mesh=init_device_mesh(device.type, (world_size,)))
        if way == "cut ring":
            optimizer, step = step_by_hand(model, rank, world_size)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), LR)
            step = optimizer.step
        # Shares are equally large, so the mean of their means is the mean of all.
        losses = train(model, whole if way == "one process" else shares, step)
        dist.all_reduce(losses)
        found[way] = losses
        torch.testing.assert_close(losses, found["one process"], rtol=1e-9, atol=0)
        remembers = [t for state in optimizer.state.values() for t in state.values()]
        grads = [weight.grad for weight in model.parameters()]
        if rank == 0:
            numbers = map(held, (model.parameters(), grads, remembers))
            told = "{:6,} weights, {:6,} gradients, {:6,} of AdamW".format(*numbers)
            print(f"{way:11} {told}")
    # The same halves with numbers that tell whose they are: these are recorded.
    events = []

    def note(chunks, phase="done", send=None, recv=None):
        event = {"step": len(events), "rank": rank, "phase": phase, "send": send}
        events.append(event | {"recv": recv, "chunks": [int(c.sum()) for c in chunks]})

    grads = torch.arange(1, world_size + 1, device=device) * 10 ** (rank % 18)
    cut_ring(grads, grads * 0, torch.Tensor.copy_, rank, world_size, note)
    save_recording(args.record, events, picture="ring")
    if rank == 0:
        print(f"ok: {world_size} ranks, and each way has the losses of one process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
