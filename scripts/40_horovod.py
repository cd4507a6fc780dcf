"""Average gradients by name and in one buffer, as Horovod does; train, and as DDP does.

    torchrun --standalone --nproc-per-node 4 scripts/40_horovod.py

Needs no GPU. Under `horovodrun -np 2 python scripts/40_horovod.py`, Horovod trains.
With --record PATH, rank 0 keeps who told what. The last line begins with "ok".
The lesson: notebooks/40_horovod.ipynb
"""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from shared import Parser, free_port, save_recording, start

# horovodrun sets no RANK and no WORLD_SIZE, and no place where torch's ranks can meet.
WITH_HOROVOD = "HOROVOD_RANK" in os.environ
if WITH_HOROVOD:
    import horovod.torch as hvd

    hvd.init()
    os.environ.update(RANK=f"{hvd.rank()}", WORLD_SIZE=f"{hvd.size()}")
    port = hvd.broadcast_object(free_port(), root_rank=0)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

# Four gradients, of one number each. Rank 0 has these, and rank 1 has twice as much.
NUMBERS = {"a": 2, "b": 20, "c": 200, "d": 2000}
DRAWN = {"picture": "flow", "pace": 2.5, "title": "Which gradients travel together"}
PHASES = {
    "backward": "Four gradients will be ready, on odd ranks in another order.",
    "names": "One more is ready. The ranks tell rank 0 names, and no gradient moves.",
    "fused": "Rank 0 answers which all have. They share a buffer: one all-reduce.",
}


def make(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def share(rank, world_size):
    torch.manual_seed(0)
    x = torch.randn(120, 4, dtype=torch.float64)[rank::world_size]
    return x, x.sum(1, keepdim=True)


def train(model, optimizer, x, y):
    for _ in range(10):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return [number for p in model.parameters() for number in p.flatten().tolist()]


def negotiate(ready):
    """Return the names that all ranks have ready, in the order of rank 0."""
    # Rank 0 decides the order, so that all ranks pack their buffers alike.
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, ready)
    return [name for name in everyone[0] if all(name in names for names in everyone)]


def fuse(grads):
    """Average several gradients by one all-reduce of one buffer."""
    # One buffer is one call, and the delay of a call is paid once for all of them.
    buffer = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(buffer)
    buffer /= dist.get_world_size()

    # Unpack: each gradient gets its part of the averages, in its own shape.
    for grad, part in zip(grads, buffer.split([grad.numel() for grad in grads])):
        grad.copy_(part.view_as(grad))


def horovods_way(rank, world_size):
    model, optimizer = make(rank)
    named = dict(model.named_parameters())
    if WITH_HOROVOD:
        # Its hooks hand in each gradient by name, and step() waits for the averages.
        optimizer = hvd.DistributedOptimizer(optimizer, named.items())
        hvd.broadcast_parameters(named, root_rank=0)
    else:
        # Rank 0's weights times N, averaged with zeros, are rank 0's weights for all.
        fuse([p.data.mul_(world_size * (rank == 0)) for p in named.values()])
        # Just before a step each rank has all gradients ready, so all of them travel.
        optimizer.register_step_pre_hook(
            lambda *_: fuse([named[name].grad for name in negotiate([*named])])
        )
    return train(model, optimizer, *share(rank, world_size))


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    events = []
    # The picture shows each number in the colours of the ranks that are in it.
    holds = {name: [[""]] for name in NUMBERS}

    def note(phase, names=(), receivers=()):
        event = {"step": len(events), "rank": rank, "phase": phase, "holds": {**holds}}
        event["sends"] = [[to, "names", [[" ".join(names)]]] for to in receivers]
        events.append(event | ({"call": "all_reduce"} if phase == "fused" else {}))

    ready = []
    grads = {}
    note("backward")
    for cycle, name in enumerate("badc" if rank % 2 else "abcd", start=1):
        # One more gradient is ready. Odd ranks finish theirs in another order.
        ready.append(name)
        grads[name] = torch.tensor([NUMBERS[name] * (rank + 1.0)])
        holds[name] = [[int(grads[name]), rank]]
        note("names", ready, [0] if rank else [])

        # What all ranks have travels now, in one buffer. The rest waits for a cycle.
        common = negotiate(ready)
        if common:
            fuse([grads[name] for name in common])
            ready = [name for name in ready if name not in common]
            holds |= {n: [[int(grads[n]), *range(world_size)]] for n in common}
            note("fused", common, range(1, world_size) if rank == 0 else ())
        if rank == 0:
            print(f"cycle {cycle} sends", *(common or ["nothing"]))
    # Rank r has r + 1 times rank 0's number, and the average of 1 to N is (N + 1) / 2.
    assert grads == {n: own * (world_size + 1) / 2 for n, own in NUMBERS.items()}

    # One training, three times: one process alone, DDP, and averages by names.
    alone = train(*make(0), *share(0, 1))
    model, optimizer = make(rank)
    ddp = train(DistributedDataParallel(model), optimizer, *share(rank, world_size))
    for weights in (ddp, horovods_way(rank, world_size)):
        torch.testing.assert_close(weights, alone, rtol=0, atol=1e-12)
    save_recording(args.record, events, phases=PHASES, **DRAWN)
    if rank == 0:
        print(f"ok: {world_size} ranks, and both ways end with one process's weights")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
