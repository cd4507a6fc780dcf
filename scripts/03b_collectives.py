"""Make every call that all ranks make together, and see who has what after it.

    torchrun --standalone --nproc-per-node 4 scripts/03b_collectives.py
    torchrun --standalone --nproc-per-node gpu scripts/03b_collectives.py

The first line needs no GPU; the second gives each GPU a rank. Then try:

    --root 2              the rank that gives to all, or gets from all
    --record flow.jsonl   keep what every rank had and got, one JSON object per line

The last line begins with "ok". The lesson: notebooks/03b_collectives.ipynb
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

PHASES = {
    "numbers": "Each rank has one number: its rank + 1.",
    "pieces": "A piece for each rank: 10 (rank + 1) + the number of who is to get it.",
}


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
    "numbers": [broadcast, gather, reduce, all_gather, all_reduce],
    "pieces": [scatter, all_to_all, reduce_scatter, barrier],
}


def expected(name, rank, world_size, root):
    """Return by arithmetic what a rank gets: numbers, each with whose it is."""
    each, mine = range(world_size), rank == root
    total = world_size * (world_size + 1) // 2
    return {
        "broadcast": [[root + 1, root]],
        "scatter": [[10 * (root + 1) + rank, root]],
        "gather": [[r + 1, r] for r in each] if mine else [],
        "reduce": [[total, *each]] if mine else [],
        "all_gather": [[r + 1, r] for r in each],
        "all_to_all": [[10 * (r + 1) + rank, r] for r in each],
        "all_reduce": [[total, *each]],
        "reduce_scatter": [[10 * total + world_size * rank, *each]],
        "barrier": [],
    }[name]


def labelled(value, rank, world_size):
    """Return a number that says whose it is: zeros, but for this rank's place."""
    places = torch.zeros(world_size, dtype=torch.int64)
    places[rank] = value
    return places


def perform(collective, numbers, rank, world_size, root):
    """Make a call with a rank's numbers; return what it got, and who got it."""
    name, ranks = collective.__name__, range(world_size)
    own, *pieces = (labelled(n, rank, world_size) for n in [rank + 1, *numbers])
    got = collective(own, pieces * world_size if len(pieces) == 1 else pieces, root)
    found = [[int(n.sum()), *n.nonzero().flatten().tolist()] for n in got]
    right = [expected(name, r, world_size, root) for r in ranks]
    if found != right[rank]:
        raise ValueError(f"{name}: rank {rank} got {found}, not {right[rank]}")
    heard = [to for to in ranks for _, *whose in right[to] if rank in whose]
    return found, [to for to in heard if to != rank]


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
    parser.add_argument("--root", type=int, default=0)
    parser.add_argument("--record", type=Path)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not 0 <= args.root < world_size:
        stop(f"--root must be one of ranks 0 to {world_size - 1}, not {args.root}")
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    events = []

    def note(phase, holds, **more):
        event = {"step": len(events), "rank": rank, "phase": phase, "holds": holds}
        events.append(event | more)

    for family, collectives in FAMILIES.items():
        numbers = [rank + 1]
        if family == "pieces":
            numbers = [10 * (rank + 1) + to for to in range(world_size)]
        has = {"has": [[number, rank] for number in numbers]}
        note(family, has)
        for collective in collectives:
            got, heard = perform(collective, numbers, rank, world_size, args.root)
            given = numbers * world_size  # to each rank
            sends = [[to, "gets", [[given[to], rank]]] for to in heard]
            holds = has | ({"gets": got} if got else {})
            note(collective.__name__, holds, sends=sends, call=collective.__name__)
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "flow"}
    told = {each.__name__: each.__doc__ for each in sum(FAMILIES.values(), [])}
    header |= {"phases": PHASES | told, "pace": 2, "fresh": ["gets"]}
    rows = save_recording(args.record, header, events)
    if rank == 0:
        for name in told:
            line = f"{name:16}"
            for event in (row for row in rows if row["phase"] == name):
                got = [str(number) for number, *_ in event["holds"].get("gets", [])]
                line += f"{' '.join(got) or '-':>{3 * world_size + 2}}"
            print(line)
        print(f"ok: {world_size} ranks got what the arithmetic says")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
