"""What does a boss cost on a slow link? Run by hand, as root:

    python tests/bench_star.py [PATH]

The link between two nodes is the link of one rank: of the server, whose four workers
are on the other node, or of one worker of a ring of four. A gradient has 4 MB. PATH, a
JSON file, then has the medians in milliseconds, and the bytes that the kernel counted.
"""

import json
import os
import statistics
import sys
import time
from datetime import date
from pathlib import Path

import asked
import torch
import torch.distributed as dist
from torch.distributed import rpc

LIMITS = ("off", "1000", "300", "100")  # Mbit/s
WORKERS, NUMEL, ROUNDS = 4, 2**20, 7


def answer(weights):
    """On a worker: return a gradient."""
    return torch.ones_like(weights)


def ring(grad, order, rank):
    """All-reduce in a ring of these ranks."""
    size, place = len(order), order.index(rank)
    chunks = grad.chunk(size)
    for step in range(2 * size - 2):
        give, take = (place - step) % size, (place - step - 1) % size
        came = torch.empty_like(chunks[take])
        begun = dist.isend(chunks[give], order[(place + 1) % size])
        dist.recv(came, order[place - 1])
        begun.wait()
        chunks[take].copy_(came + chunks[take] if step < size - 1 else came)


def main() -> None:
    """Time both ways, and print a line of JSON."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, here = dist.get_rank(), dist.get_world_size() // 2
    tcp = {"_transports": ["uv"], "_channels": ["basic"]}  # or one process copies
    options = rpc.TensorPipeRpcBackendOptions(**tcp)  # from the other
    where = {"rank": rank, "world_size": 2 * here, "rpc_backend_options": options}
    rpc.init_rpc(f"rank{rank}", backend=rpc.BackendType.TENSORPIPE, **where)
    workers = range(here, here + WORKERS)  # on the other node
    order = [0, *workers[:-1]]
    took, moved = {"star": [], "ring": []}, {}
    for turn in range(ROUNDS + 2):
        for way, times in took.items():
            grad = torch.ones(NUMEL)
            dist.barrier()
            before, clock = sent(), time.perf_counter()
            if way == "star" and rank == 0:
                calls = [
                    rpc.rpc_async(f"rank{w}", answer, args=(grad,)) for w in workers
                ]
                grad = sum(torch.futures.wait_all(calls))
            elif way == "ring" and rank in order:
                ring(grad, order, rank)
            seconds = time.perf_counter() - clock
            if rank == 0:
                assert grad.eq(WORKERS).all(), "a wrong sum"
                times += [seconds] if turn >= 2 else []
                moved[way] = sent() - before
            dist.barrier()
    rpc.shutdown()
    if rank == 0:
        found = {way: statistics.median(times) * 1000 for way, times in took.items()}
        found |= {f"{way} bytes": size for way, size in moved.items()}
        print(json.dumps({name: float(f"{n:.4g}") for name, n in found.items()}))


def sent() -> int:
    """Return the bytes that this node has sent over the link so far."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def bench() -> None:
    """Run both ways on each link, and keep the medians."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "notebooks"))
    from ringside import two_nodes

    kept = {"machine": f"{os.cpu_count()} CPU cores", "workers": WORKERS}
    kept |= {"torch": torch.__version__.partition("+")[0], "date": f"{date.today()}"}
    kept |= {"megabytes": NUMEL * 4 / 1e6, "links": {}}
    with two_nodes() as nodes:
        if not nodes.real:
            sys.exit("there is no link to measure")
        for limit in LIMITS:
            nodes.do("slow", limit)
            run = nodes.torchrun(Path(__file__), ranks=WORKERS, timeout=200)
            kept["links"][limit] = json.loads(run.lines["node0"][-1])
    if path := asked.WORDS.path:
        path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
        dist.destroy_process_group()
    else:
        bench()
