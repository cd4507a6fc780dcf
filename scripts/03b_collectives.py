"""Make every call that all ranks make together, and see who has what after it.

    torchrun --standalone --nproc-per-node 4 scripts/03b_collectives.py
    torchrun --standalone --nproc-per-node gpu scripts/03b_collectives.py

The first line needs no GPU; the second gives each GPU a rank. Try --root 2, another
rank that gives to all, or gets from all. With --record PATH, rank 0 keeps what every
rank had and got, one JSON object per line. The last line begins with "ok".
The lesson: notebooks/03b_collectives.ipynb
"""

import argparse
import gc
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors


def numbers(rank, to):
    """Each rank has one number: its rank + 1."""
    return rank + 1


def pieces(rank, to):
    """A piece for each rank: 10 (rank + 1) + the number of who is to get it."""
    return 10 * (rank + 1) + to


def broadcast(own, pieces, root):
    """Everyone gets the root's number."""
    dist.broadcast(own, root)
    return [own]


def scatter(own, pieces, root):
    """Everyone gets its piece from the root."""
    dist.scatter(own, pieces if dist.get_rank() == root else None, root)
    return [own]


def gather(own, pieces, root):
    """The root gets the numbers of all."""
    got = [torch.zeros_like(own) for _ in pieces] if dist.get_rank() == root else []
    dist.gather(own, got, root)
    return got


def reduce(own, pieces, root):
    """The root gets the sum of the numbers of all."""
    dist.reduce(own, root)
    return [own] if dist.get_rank() == root else []


def all_gather(own, pieces, root):
    """Everyone gets the numbers of all."""
    got = [torch.zeros_like(own) for _ in pieces]
    dist.all_gather(got, own)
    return got


def all_to_all(own, pieces, root):
    """Everyone gets its piece from each."""
    given = torch.stack(pieces)
    got = torch.zeros_like(given)
    dist.all_to_all_single(got, given)
    return list(got)


def all_reduce(own, pieces, root):
    """Everyone gets the sum of the numbers of all."""
    dist.all_reduce(own)
    return [own]


def reduce_scatter(own, pieces, root):
    """Everyone gets the sum of the pieces that are for it."""
    dist.reduce_scatter(own, pieces)
    return [own]


def barrier(own, pieces, root):
    """Nobody gets anything, but nobody goes on before all have come."""
    dist.barrier()
    return []


FAMILIES = {
    numbers: [broadcast, gather, reduce, all_gather, all_reduce],
    pieces: [scatter, all_to_all, reduce_scatter, barrier],
}


def expected(name, column, rank, root):
    """Return by arithmetic what a rank gets, if the column is what all have for it."""
    if name == "barrier" or (name in ("gather", "reduce") and rank != root):
        return []
    if name in ("broadcast", "scatter"):
        return [column[root]]
    if name in ("reduce", "all_reduce", "reduce_scatter"):
        return [[sum(number for number, _ in column), *range(len(column))]]
    return column


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


@errors.record
def main():
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, description=__doc__)
    parser.add_argument("--root", type=int, default=0)
    parser.add_argument("--record", type=Path)
    if os.environ.get("RANK", "0") != "0":  # rank 0 speaks, so it leaves first
        parser.error = lambda message: time.sleep(1) or parser.exit(2)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not 0 <= args.root < world_size:
        parser.error(f"--root must be one of 0 to {world_size - 1}, not {args.root}")
    if args.record and not args.record.absolute().parent.is_dir():
        parser.error(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    whose = [int(r == rank) for r in range(world_size)]  # goes along with its numbers
    events = []
    for number, collectives in FAMILIES.items():
        given = [number(rank, to) for to in range(world_size)]
        column = [[number(giver, rank), giver] for giver in range(world_size)]
        has = [[n, rank] for n in sorted({*given})]
        events.append({"phase": number.__name__, "holds": {"has": has}})
        for collective in collectives:
            name = collective.__name__
            own, *parts = (torch.tensor([n, *whose]) for n in [rank + 1, *given])
            got = collective(own, parts, args.root)
            got = [[int(n[0]), *n[1:].nonzero().flatten().tolist()] for n in got]
            right = expected(name, column, rank, args.root)
            if got != right:
                raise ValueError(f"{name}: rank {rank} got {got}, not {right}")
            holds = {"has": has, "gets": got}
            events.append({"phase": name, "holds": holds, "call": name})
    events = [{"step": step, "rank": rank} | each for step, each in enumerate(events)]
    told = {f.__name__: f.__doc__ for f in [*FAMILIES, *sum(FAMILIES.values(), [])]}
    header = {"picture": "flow", "phases": told, "pace": 2, "fresh": ["gets"]}
    rows = save_recording(args.record, events, **header)
    if rank == 0:
        for name in dict.fromkeys(row["call"] for row in rows if "call" in row):
            line = f"{name:16}"
            for got in (row["holds"]["gets"] for row in rows if row["phase"] == name):
                values = " ".join(str(value) for value, *_ in got) or "-"
                line += f"{values:>{3 * world_size + 2}}"
            print(line)
        print(f"ok: {world_size} ranks got what the arithmetic says")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
