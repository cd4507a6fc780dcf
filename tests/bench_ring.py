"""How fast is the ring of lesson 04, next to torch's own? Run by hand:

    python tests/bench_ring.py [--quick]

Medians over interleaved rounds, as ratios to dist.all_reduce in the same round, with
the middle half of all rounds in brackets. Each round runs the methods in another
order. Rounds in which other programs took more than a tenth of the processors are
left out, and counted.
"""

import importlib.util
import os
import random
import statistics
import sys
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]


def taught():
    """Return the module that lesson 04's script is."""
    path = ROOT / "scripts" / "04_ring_all_reduce.py"
    spec = importlib.util.spec_from_file_location("ring_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def whole_gradient_ring(tensor, rank, world_size):
    """Pass the whole tensor N - 1 times, as tutorials do."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    passing, arrived = tensor.clone(), torch.empty_like(tensor)
    for _ in range(world_size - 1):
        send = dist.P2POp(dist.isend, passing, right)
        recv = dist.P2POp(dist.irecv, arrived, left)
        for request in dist.batch_isend_irecv([send, recv]):
            request.wait()
        tensor += arrived
        passing, arrived = arrived, passing


def main():
    """Time all methods on all sizes, and let rank 0 print the table."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    script = taught()

    def ring(tensor):
        ignore = lambda *args: None  # noqa: E731
        script.ring_all_reduce(tensor, spare, rank, world_size, ignore)

    methods = {
        "dist.all_reduce": dist.all_reduce,
        "itself": dist.all_reduce,  # what a ratio of 1 looks like on this machine
        "ring": ring,
        "whole gradient": lambda t: whole_gradient_ring(t, rank, world_size),
    }
    for mib, rounds, calls in ((1, 160, 16), (16, 480, 1), (64, 60, 1)):
        rounds = rounds // 5 if "--quick" in sys.argv else rounds
        tensor, spare = torch.empty(2, mib * 2**18)  # kept: new room costs page faults
        seconds, busy = {name: [] for name in methods}, 0
        for turn in range(rounds + 2):
            took, load = one_round(methods, turn, tensor, calls)
            if turn < 2:
                continue
            if load > 0.1:
                busy += 1
                continue
            for name in methods:
                seconds[name].append(took[name])
        if rank == 0:
            report(world_size, mib, seconds, busy)


def one_round(methods, turn, tensor, calls):
    """Return the seconds that each method took, and what others used meanwhile."""
    total = dist.get_world_size() ** calls
    names = random.Random(turn).sample(list(methods), len(methods))
    took, wall, others = {}, time.perf_counter(), foreign()
    for name in names:
        tensor.fill_(1)
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(
            calls
        ):  # short ones together: what others use has a coarse clock
            methods[name](tensor)
        dist.barrier()
        took[name] = (time.perf_counter() - begin) / calls
        assert tensor.eq(total).all(), name
    wall = time.perf_counter() - wall
    load = torch.tensor([(foreign() - others) / wall / os.cpu_count()])
    dist.broadcast(load, 0)
    return took, load.item()


def foreign() -> float:
    """Return the processor seconds used so far by all but these ranks."""
    times = psutil.cpu_times()
    used = times.user + times.nice + times.system
    ranks = psutil.Process(os.getppid()).children()
    return used - sum(sum(process.cpu_times()[:2]) for process in ranks)


def report(world_size, mib, seconds, busy):
    """Print the row of one size."""
    base = seconds["dist.all_reduce"]
    if len(base) < 4:
        print(f"{world_size} ranks {mib:3} MiB: the machine is too busy to tell")
        return
    row = f"{world_size} ranks {mib:3} MiB  {statistics.median(base) * 1e3:7.1f} ms"
    for name, times in seconds.items():
        if name == "dist.all_reduce":
            continue
        low, middle, high = statistics.quantiles(
            [a / b for a, b in zip(times, base)], n=4
        )
        row += f"   {name} {middle:.2f} [{low:.2f}-{high:.2f}]"
    print(row + (f"   ({busy} busy rounds left out)" if busy else ""), flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        main()
        dist.destroy_process_group()
    else:
        sys.path.insert(0, str(ROOT / "notebooks"))
        from ringside import torchrun

        print("time of dist.all_reduce, then each method as a ratio to it")
        for ranks in (2, 4):
            run = torchrun(
                __file__,
                *sys.argv[1:],
                ranks=ranks,
                timeout=600,
                quiet=True,
                warm=False,  # as from a terminal
            )
            print(*run.lines[0], sep="\n")
