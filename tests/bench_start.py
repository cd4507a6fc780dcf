"""How long do ranks take to start, and are their steps the same? Run by hand:

    python tests/bench_start.py [--quick]

Ways to start two ranks take turns, beside one process. Every clock starts as the
command does, and stops where the last rank has imported torch. Then all take steps of
the page on DP vs DDP, on its model that computes: the ranks with DDP.
"""

import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

import asked
import rounds
import torch
import torch.distributed as dist
import torch.distributed.nn  # early: imported later, it keeps the group alive
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

RANKS, ROUNDS, STEPS = 2, 10, 10
TORCHRUN = "-m torch.distributed.run --standalone --local-addr 127.0.0.1"


def command(way: str, ranks: int, steps: int) -> list[str]:
    """Return the words that start the ranks in this way."""
    words = [sys.executable]
    if way == "torchrun":
        words += [*TORCHRUN.split(), "--nproc-per-node", str(ranks)]
    return [*words, __file__, "be", way, str(ranks), str(steps), str(time.time())]


def take(way: str, ranks: int, steps: int = STEPS) -> tuple[float, float]:
    """Return the seconds to start, and the milliseconds of a step."""
    how = {"check": True, "capture_output": True, "text": True}
    done = subprocess.run(command(way, ranks, steps), **how)
    return json.loads(done.stdout)


def be_a_rank(rank: int, *given) -> None:
    """Work, and end as the scripts do."""
    work(rank, *given)
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def work(rank: int, ranks: int, steps: int, begin: float, store: str = "") -> None:
    """Take steps, and print what took how long."""
    ready = time.time() - begin
    if ranks > 1:
        where = {"init_method": f"file://{store}"} if store else {}
        dist.init_process_group("gloo", rank=rank, world_size=ranks, **where)
    lesson = rounds.taught("05_dp_vs_ddp")
    lesson.be_one_device()
    model, x, y = lesson.task("computes", 160)
    forward = DistributedDataParallel(model) if ranks > 1 else model
    lesson.train(model, forward, x, y)
    took = []
    for _ in range(steps):
        begin = time.perf_counter()
        lesson.train(model, forward, x, y)
        took.append(1000 * (time.perf_counter() - begin) / lesson.STEPS)
    last = torch.tensor(ready)
    if ranks > 1:
        dist.all_reduce(last, dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps([last.item(), statistics.median(took)]))


def main() -> None:
    """Time all ways in turns, and print a table."""
    ways = {"one process": [], "mp.spawn": [], "torchrun": []}
    for turn in range(1 if asked.WORDS.quick else ROUNDS):
        for way in random.Random(turn).sample([*ways], len(ways)):
            ways[way].append(take(way, 1 if way == "one process" else RANKS))
    print("median             start    a step")
    for way, taken in ways.items():
        seconds, ms = (statistics.median(column) for column in zip(*taken))
        print(f"{way:15}  {seconds:5.2f} s  {ms:5.1f} ms")
    spawn, run = (statistics.median(ms for _, ms in ways[w]) for w in [*ways][1:])
    print(f"a step of ranks by mp.spawn takes {spawn / run:.2f} of one by torchrun")


if __name__ == "__main__":
    if sys.argv[1:2] != ["be"]:
        main()
    else:
        way, ranks, steps, begin = sys.argv[2:]
        given = int(ranks), int(steps), float(begin)
        if way == "mp.spawn":
            with TemporaryDirectory() as folder:
                mp.spawn(be_a_rank, (*given, f"{folder}/store"), int(ranks))
        else:
            be_a_rank(int(os.environ.get("RANK", 0)), *given)
