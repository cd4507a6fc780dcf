"""Make every call that all ranks make together, and see who has what after it.

    torchrun --standalone --nproc-per-node 4 scripts/03b_collectives.py
    torchrun --standalone --nproc-per-node gpu scripts/03b_collectives.py

The first line needs no GPU; the second gives each GPU a rank. Then try:

    --show gather         one only: a collective; or leftovers, operators, late,
                          halves, count; broken: short, long, mixed, absent, watched
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

BLOCK = 2**18  # numbers in a piece, when bytes are counted
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


def expected(name, rank, size, root):
    """Return by arithmetic what a rank gets: numbers, each with whose it is."""
    each, mine = range(size), rank == root
    return {
        "broadcast": [[root + 1, root]],
        "scatter": [[10 * (root + 1) + rank, root]],
        "gather": [[r + 1, r] for r in each] if mine else [],
        "reduce": [[size * (size + 1) // 2, *each]] if mine else [],
        "all_gather": [[r + 1, r] for r in each],
        "all_to_all": [[10 * (r + 1) + rank, r] for r in each],
        "all_reduce": [[size * (size + 1) // 2, *each]],
        "reduce_scatter": [[5 * size * (size + 1) + size * rank, *each]],
        "barrier": [],
    }[name]


def labelled(value):
    """Return a number that says whose it is: zeros, but for this rank's place."""
    places = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    places[dist.get_rank()] = value
    return places


def unlabelled(places):
    """Return a number, and the ranks that are in it."""
    return [int(places.sum()), *places.nonzero().flatten().tolist()]


def perform(name, rank, size, root, note):
    """Run a collective, check it, note who gave what to whom, and return a line."""
    kind = "numbers" if COLLECTIVES[name] in NUMBERS else "pieces"
    own = labelled(rank + 1)
    pieces = [labelled(10 * (rank + 1) + to) for to in range(size)]
    has = [unlabelled(number) for number in (pieces if kind == "pieces" else [own])]
    got = COLLECTIVES[name](own, pieces, root)
    found, right = list(map(unlabelled, got)), expected(name, rank, size, root)
    must(found == right, f"{name}: rank {rank} got {found}, not {right}")
    everyone = from_all([number.tolist() for number in got])
    sends = [
        [to, "gets", [[places[rank], rank]]]
        for to in range(size)
        for places in everyone[to]
        if to != rank and places[rank]
    ]
    note(kind, {"has": has})
    gets = {"gets": found} if found else {}
    note(name, {"has": has} | gets, sends=sends, call=name)
    shown = [" ".join(str(sum(places)) for places in theirs) for theirs in everyone]
    return columns(name, [numbers or "-" for numbers in shown], 3 * size + 2)


def from_all(value):
    """Return what each rank has."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def columns(what, values, width=8):
    """Return a line of a table, with a column for each rank."""
    return f"{what:16}" + "".join(f"{value!s:>{width}}" for value in values)


def must(true, message):
    """Raise ValueError if torch does not behave as this script says."""
    if not true:
        raise ValueError(message)


def operators(rank, size):
    """Combine rank + 1 of all ranks with each operator there is."""
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        result = torch.tensor([rank + 1.0 if name == "AVG" else rank + 1])
        try:
            dist.all_reduce(result, getattr(dist.ReduceOp, name))
            yield columns(name, from_all(result.item()))
        except (RuntimeError, ValueError) as error:
            yield f"{name:16}{error}".partition("\n")[0]


def leftovers(rank, size):
    """See what a reduce leaves in the tensors of all: only the root's is promised."""
    for count in (1, 4000):
        numbers = torch.full((count,), rank + 1)
        dist.reduce(numbers, 0)
        left = sorted({*numbers.tolist()}, reverse=True)
        yield columns(f"of {count}", from_all(" ".join(map(str, left))), 3 * size + 2)


def halves(rank, size):
    """Find the same sums with one call and with two."""
    pieces = torch.arange(size) + 10 * (rank + 1)
    half, sums = torch.zeros(1, dtype=torch.int64), pieces.clone()
    dist.reduce_scatter(half, list(pieces.split(1)))
    yield columns("reduce_scatter", from_all(half.item()), 4 * size + 4)
    whole = [torch.zeros_like(half) for _ in range(size)]
    dist.all_gather(whole, half)
    yield columns("then all_gather", from_all(spelled(torch.cat(whole))), 4 * size + 4)
    dist.all_reduce(sums)
    yield columns("all_reduce", from_all(spelled(sums)), 4 * size + 4)
    must(torch.equal(torch.cat(whole), sums), f"{whole} in two calls, {sums} in one")


def late(rank, size):
    """Let the last rank come late, and see who waits: with a barrier, and without."""
    ways = {"no barrier": ["all_reduce"], "barrier first": ["barrier", "all_reduce"]}
    for way, calls in ways.items():
        own = labelled(rank + 1)
        dist.barrier()
        time.sleep(0.6 * (rank == size - 1))
        begin = time.monotonic()
        for name in calls:
            COLLECTIVES[name](own, [], 0)
        total = int(own.sum())  # a GPU waits here
        waited = time.monotonic() - begin > 0.3
        must(waited == (rank < size - 1), f"rank {rank} waited: {waited}")
        yield columns(way, from_all(total), 4)
        yield columns("waited", from_all("yes" if waited else "no"), 4)


def count(rank, size):
    """Count the bytes that this machine sends to itself, in pieces, and the arrows."""
    yield columns("", ["arrows", "counted"])
    for name, collective in COLLECTIVES.items():
        own, *pieces = torch.zeros(1 + size, BLOCK)
        counted = []
        for _ in range(4):  # the least: others may be sending, too
            dist.barrier()
            before = carried()
            dist.barrier()
            collective(own, pieces, 0)
            dist.barrier()
            counted.append((carried() - before) / own.nbytes)
        found = [expected(name, r, size, 0) for r in range(size)]
        arrows = sum(r != to for to in range(size) for _, *w in found[to] for r in w)
        yield columns(name, [arrows, f"{min(counted):.1f}"])


def carried():
    """Return how many bytes this machine has sent to itself, where Linux counts them."""
    counts = Path("/proc/net/dev")
    lines = counts.read_text().splitlines() if counts.exists() else []
    rows = [line.replace(":", " ").split() for line in lines]
    return sum(int(row[9]) for row in rows if row[0] == "lo")


def mixed(rank, size):
    """Broken: rank 0 calls all_reduce, and the others call broadcast."""
    own = labelled(rank + 1)
    if rank == 0:
        dist.all_reduce(own)
    else:
        dist.broadcast(own, 0)


def short(rank, size):
    """Broken: the root has one number to give, and rank r has room for r + 1."""
    numbers = torch.full((rank + 1,), rank + 1)
    dist.broadcast(numbers, 0)
    yield columns("broadcast", from_all(spelled(numbers)), 2 * size + 2)


def long(rank, size):
    """Broken: the root has more numbers to give than the others have room for."""
    numbers = torch.full((size - rank,), rank + 1)
    dist.broadcast(numbers, 0)


def absent(rank, size):
    """Broken: the last rank is busy elsewhere, and the others wait, for seconds."""
    if rank == size - 1:
        time.sleep(20)
    dist.all_reduce(labelled(rank + 1))


def watched(rank, size):
    """Broken: the last rank is busy elsewhere, and a barrier looks who has come."""
    group = dist.new_group(backend="gloo")
    if rank == size - 1:
        time.sleep(20)
    dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks=True)


def spelled(numbers):
    """Return numbers with a space between them."""
    return " ".join(str(number) for number in numbers.tolist())


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


NUMBERS = [broadcast, gather, reduce, all_gather, all_reduce]
PIECES = [scatter, all_to_all, reduce_scatter]  # these take one for each rank
COLLECTIVES = {each.__name__: each for each in [*NUMBERS, *PIECES, barrier]}
EXPERIMENTS = [leftovers, operators, late, halves, count, short]
EXPERIMENTS = {each.__name__: each for each in EXPERIMENTS}
BROKEN = {each.__name__: each for each in [mixed, long, absent, watched]}


@errors.record
def main():
    parser = argparse.ArgumentParser(usage="see the top of this script")
    names = [*COLLECTIVES, *EXPERIMENTS, *BROKEN]
    parser.add_argument("--show", choices=names, metavar="NAME")
    parser.add_argument("--root", type=int)
    parser.add_argument("--record", type=Path)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    root = args.root or 0
    if not 0 <= root < world_size:
        stop(f"--root must be one of ranks 0 to {world_size - 1}, not {root}")
    if args.show in BROKEN and world_size == 1:
        stop(f"--show {args.show} breaks nothing on one rank: take two or more")
    for flag in ("root", "record") if args.show not in (None, *COLLECTIVES) else ():
        if getattr(args, flag) is not None:
            stop(f"--{flag} is for collectives, not for {args.show}")
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    torch.set_default_device(device)
    limit = timedelta(seconds=4 if args.show == "absent" else 60)
    dist.init_process_group(backend, timeout=limit)
    events, lines = [], []

    def note(phase, holds, **more):
        if phase not in [event["phase"] for event in events]:
            event = {"step": len(events), "rank": rank, "phase": phase, "holds": holds}
            events.append(event | more)

    if args.show in EXPERIMENTS:
        lines += EXPERIMENTS[args.show](rank, world_size)
    elif args.show in BROKEN:
        BROKEN[args.show](rank, world_size)
        dist.barrier()  # the next call of those who came through
        must(False, f"{args.show} did not fail on {world_size} ranks")
    else:
        for name in [args.show] if args.show else COLLECTIVES:
            lines.append(perform(name, rank, world_size, root, note))
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "flow"}
    header["phases"] = PHASES | {name: f.__doc__ for name, f in COLLECTIVES.items()}
    header |= {"pace": 2, "fresh": ["gets"]}  # each step is a picture of its own
    save_recording(args.record, header, events)
    if rank == 0:
        for line in lines:
            print(line)
        print(f"ok: {world_size} ranks, and torch does what this script says")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
