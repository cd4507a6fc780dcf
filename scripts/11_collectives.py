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
    rows = torch.zeros(1 + world_size, world_size, dtype=torch.int64)
    rows[0, rank] = rank + 1
    rows[1:, rank] = 10 * (rank + 1) + torch.arange(world_size)
    return rows


def calls(own, pieces, room, root):
    """Return every call that all ranks make; its result replaces own, or fills room."""
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
    all_given = torch.stack([given(r, world_size) for r in range(world_size)])
    numbers, pieces = all_given[:, 0], all_given[:, 1 + rank]
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
    events = []
    for name, right in meanings(rank, world_size, args.root).items():
        rows = given(rank, world_size)  # fresh ones for each call
        event = {"step": len(events), "rank": rank, "phase": name, "has": rows.tolist()}
        own, pieces, room = rows[0], rows[1:], torch.zeros_like(rows[1:])
        calls(own, pieces, room, args.root)[name]()
        got = room if name in ("gather", "all_gather", "all_to_all") else own[None]
        got = got[: len(right)]  # the rest is promised to nobody
        if not got.equal(right):
            raise ValueError(f"{name}: rank {rank} got {got}, not {right}")
        events.append(event | {"gets": got.tolist()})
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
