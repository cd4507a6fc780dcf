"""How fast are our all-reduces, next to torch's? Run by hand:

    python tests/bench_ring.py [--quick] [--race [PATH]]

Medians over interleaved rounds, as ratios to dist.all_reduce in the same round, with
the middle half of all rounds in brackets. Goals at 16 and 64 MiB, on 2 and 4 ranks: a
ring takes 1.10 of torch's time at most, in segments 0.95, through shared memory 0.55.
"ring" is that of the ring; with "early receives", a ring of whole chunks, too, begins
all receives at the start.
With --race, all ways from 64 bytes to 64 MiB, and where their lines cross, next to what
two numbers predict; PATH, a JSON file, then has the medians in milliseconds.
"""

import json
import os
import statistics
import sys
from datetime import date
from math import log2
from pathlib import Path

import asked  # noqa: F401 first: it answers --help
import rounds
import torch
import torch.distributed as dist

GOALS = "torch", "itself", "ring", "early receives", "segments", "shared memory"


def whole_gradient_ring(tensor, rooms, rank, world_size):
    """Pass the whole tensor N - 1 times, as tutorials do."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    passing, arrived = rooms
    passing.copy_(tensor)
    for _ in range(world_size - 1):
        send = dist.P2POp(dist.isend, passing, right)
        recv = dist.P2POp(dist.irecv, arrived, left)
        for request in dist.batch_isend_irecv([send, recv]):
            request.wait()
        tensor += arrived
        passing, arrived = arrived, passing


def through_rank_0(tensor, spare, rank, world_size):
    """Let rank 0 add up all tensors, and send the sum to all."""
    for other in range(1, world_size):
        if rank == 0:
            dist.recv(spare, other)
            tensor += spare
        elif rank == other:
            dist.send(tensor, 0)
    for other in range(1, world_size):
        if rank == 0:
            dist.send(tensor, other)
        elif rank == other:
            dist.recv(tensor, 0)


def ways(rank, world_size, tensor, *rooms):
    """Return all ways, each as a function that adds up the tensors of all ranks."""
    ring = rounds.taught("03_ring_all_reduce").ring_all_reduce
    few = rounds.taught("12_how_fast_can_it_get")
    told = rounds.told("12_how_fast_can_it_get")
    rows = told["rows_of_all"](rank, world_size, len(tensor))
    own, spare, early = (rank, world_size), rooms[0], told["ring_in_segments"]
    found = {
        "torch": lambda: dist.all_reduce(tensor),
        "itself": lambda: dist.all_reduce(tensor),  # what a ratio of 1 looks like here
        "whole tensors": lambda: whole_gradient_ring(tensor, rooms, *own),
        "through rank 0": lambda: through_rank_0(tensor, spare, *own),
        "ring": lambda: ring(tensor, spare, *own, quiet),
        "early receives": lambda: early(tensor, spare, *own, most=len(tensor)),
        "segments": lambda: early(tensor, spare, *own),
        "shared memory": lambda: told["through_shared_memory"](tensor, rows, *own),
    }
    if len(tensor) % world_size == 0:
        cut, room = tensor.view(world_size, -1), spare.view(world_size, -1)
        swaps = {"swap_all": [few.swap_all], "halving": [few.halve, few.double]}
        for name, phases in swaps.items():
            found[name] = lambda p=phases: few.all_reduce(p, cut, room, *own, quiet)
    return found


def quiet(*args, **more):
    """Take the place of what notes messages."""


def main():
    """Time all methods on all sizes, and let rank 0 print the table."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def check(name, _):
        assert tensor.eq(world_size).all(), name
        tensor.fill_(1)

    sizes = [(mib * 2**20, times) for mib, times in ((1, 400), (16, 200), (64, 60))]
    if "--race" in sys.argv:
        sizes = [(2**power, 60) for power in (6, 9, 13, 16, 18, 20, 22, 24, 26)]
    lines = {}
    for size, times in sizes:
        rooms = torch.ones(3, size // 4)  # kept: new room costs page faults
        tensor = rooms[0]
        methods = ways(rank, world_size, *rooms)
        if "--race" not in sys.argv:
            methods = {name: methods[name] for name in GOALS}
        title = f"{world_size} ranks {size:8} bytes"
        if size >= 2**20:
            title = f"{world_size} ranks {size / 2**20:3g} MiB"
        calm = rounds.compare(title, methods, times, check)
        for name in methods if calm else ():
            median = statistics.median(took[name] for took in calm)
            lines.setdefault(name, {})[size] = median
    if rank == 0 and "--race" in sys.argv:
        tell(world_size, lines)
        for path in map(Path, sys.argv[sys.argv.index("--race") + 1 :][:1]):
            keep(path, world_size, lines)


def keep(path, ranks, lines):
    """Add the medians of a race to a file, and say what they were measured with."""
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
    kept["machine"] = f"{os.cpu_count()} CPU cores, gloo"
    kept["torch"] = torch.__version__.partition("+")[0]
    kept["date"] = f"{date.today()}"
    kept["bytes"] = [*lines["torch"]]
    kept[f"{ranks} ranks"] = {
        way: [float(f"{seconds * 1000:.3g}") for seconds in points.values()]
        for way, points in reversed(lines.items())
        if way != "itself"
    }
    path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def tell(n, lines):
    """Print the crossings of lines, as two numbers predict them and as measured."""
    known = lines.get("swap_all", {})
    if 2**22 not in known:
        print("  too few calm rounds to predict anything")
        return
    delay = min(known.values()) / log2(n)
    bandwidth = log2(n) * 2**22 / (known[2**22] - log2(n) * delay)
    print(f"  a step: delay {delay * 1e6:.0f} us, bandwidth {bandwidth / 1e9:.2f} GB/s")
    steps = {"halving": 2 * log2(n), "ring": 2 * (n - 1)}
    for other, count in steps.items():
        more = log2(n) - (2 - 2 / n)  # tensors that swap_all sends more
        said = (count - log2(n)) * delay * bandwidth / more if more else float("inf")
        later = [s for s in known if lines[other].get(s, 9e9) < known[s]]
        print(f"  {other} beats swap_all: predicted {said:.3g} bytes, seen {later}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        main()
        dist.destroy_process_group()
    else:
        print("time of dist.all_reduce, then each method as a ratio to it")
        for ranks in (2, 4, 8) if "--race" in sys.argv else (2, 4):
            rounds.run(__file__, ranks)
