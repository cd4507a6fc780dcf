"""Make every call that all ranks make together, and see who has what after it.

    torchrun --standalone --nproc-per-node 4 scripts/11_collectives.py
    torchrun --standalone --nproc-per-node gpu scripts/11_collectives.py

The first line needs no GPU; the second gives each GPU a rank. Try --root 2, another
rank that gives to all, or gets from all. With --record PATH, rank 0 keeps what each had
and got. The last line begins with "ok". The lesson: notebooks/11_collectives.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, own_device, save_recording, start


def given(rank, world_size):
    """Return a rank's number and pieces, in rows with a place for each: [0, 2, 0]."""
    # A rank writes only in its own place, so a sum shows whose numbers are in it.
    rows = torch.zeros(1 + world_size, world_size, dtype=torch.int64)
    rows[0, rank] = rank + 1
    # One piece for each rank: piece t is meant for rank t.
    rows[1:, rank] = 10 * (rank + 1) + torch.arange(world_size)
    return rows


def calls(own, pieces, room, root):
    """Return every call that all ranks make; its result replaces own, or fills room."""
    # Only the root passes a list to gather and scatter; elsewhere, a list is an error.
    mine = dist.get_rank() == root
    return {
        "broadcast": lambda: dist.broadcast(own, root),
        "gather": lambda: dist.gather(own, [*room] if mine else None, root),
        "reduce": lambda: dist.reduce(own, root),
        "all_gather": lambda: dist.all_gather([*room], own),
        "all_reduce": lambda: dist.all_reduce(own),
        "scatter": lambda: dist.scatter(own, [*pieces] if mine else None, root),
        "all_to_all": lambda: dist.all_to_all_single(room, pieces),
        "reduce_scatter": lambda: dist.reduce_scatter(own, [*pieces]),
        "barrier": lambda: dist.barrier(),
    }


def meanings(rank, world_size, root):
    """Return by arithmetic what this rank gets from each call."""
    # No message is needed: a rank can work out what every other rank has given.
    all_given = torch.stack([given(r, world_size) for r in range(world_size)])
    numbers = all_given[:, 0]
    pieces = all_given[:, 1 + rank]  # those meant for this rank, from every rank
    nothing = numbers[:0]

    return {
        "broadcast": numbers[[root]],
        "gather": numbers if rank == root else nothing,
        "reduce": numbers.sum(0, keepdim=True) if rank == root else nothing,
        "all_gather": numbers,
        "all_reduce": numbers.sum(0, keepdim=True),
        "scatter": pieces[[root]],
        "all_to_all": pieces,
        "reduce_scatter": pieces.sum(0, keepdim=True),
        "barrier": nothing,
    }


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--root", type=int, default=0, help="who gives to all, or gets")
    args, rank, world_size = start(parser)
    if not 0 <= args.root < world_size:
        parser.error(f"--root must be one of 0 to {world_size - 1}, not {args.root}")

    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))

    # All ranks make the calls in the same order: the first call of one rank meets the
    # first call of the others.
    events = []
    for name, promised in meanings(rank, world_size, args.root).items():
        # A result may replace own, so each call gets fresh numbers, noted before it.
        has = given(rank, world_size)
        event = {"step": len(events), "rank": rank, "phase": name, "has": has.tolist()}
        own = has[0]
        pieces = has[1:]
        room = torch.zeros_like(pieces)
        calls(own, pieces, room, args.root)[name]()

        # A result from every rank fills room. What is promised to nobody is not read,
        # such as the tensor of a rank that is not the root, after reduce.
        got = room if name in ("gather", "all_gather", "all_to_all") else own[None]
        got = got[: len(promised)]
        if not got.equal(promised):
            raise ValueError(f"{name}: rank {rank} got {got}, not {promised}")
        events.append(event | {"gets": got.tolist()})

    # A line for each call, a column for each rank; the places of a number are added up.
    rows = save_recording(args.record, events, picture="together")
    if rank == 0:
        table = {"": [f"rank {r}" for r in range(world_size)]}
        for row in rows:
            got = " ".join(str(sum(places)) for places in row["gets"]) or "-"
            table.setdefault(row["phase"], []).append(got)
        for name, cells in table.items():
            print(f"{name:14}", *[f"{cell:>{3 * world_size + 3}}" for cell in cells])
        print(f"ok: {world_size} ranks got what the arithmetic says")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
