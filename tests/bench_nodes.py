"""On which link does it pay to send fewer bytes, or less often? Run by hand, as root:

    python tests/bench_nodes.py [PATH]

Two nodes with one rank each train a model with 8 MB of gradients, by three ways that
take turns, on links of several speeds. PATH, a JSON file, then has the medians in
milliseconds of a batch, and the two numbers of the fastest all-reduce for each link.
"""

import json
import os
import statistics
import sys
import time
from contextlib import nullcontext
from datetime import date
from pathlib import Path

import asked
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

LIMITS = ("off", "3000", "1000", "300", "100", "30")  # Mbit/s
LONGEST = 30  # seconds that the rounds of one link may take
MICRO = 4  # batches of one step, if only the last one sends


def main() -> None:
    """Time the three ways, and print a line of JSON."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(16, 512)
    models = {
        way: DistributedDataParallel(model()) for way in ("fp32", "fp16", "micro")
    }
    models["fp16"].register_comm_hook(None, fp16_compress_hook)
    small, large = torch.ones(4), torch.ones(2**20)

    def batches(way: str, count: int, sends: bool = True) -> None:
        ddp = models[way]
        for number in range(count):
            last = sends and number == count - 1
            with nullcontext() if last else ddp.no_sync():
                ddp(x).square().mean().backward()
        ddp.zero_grad()

    methods = {
        "small": lambda: dist.all_reduce(small),
        "large": lambda: dist.all_reduce(large),
        "alone": lambda: batches("fp32", 1, sends=False),
        "fp32": lambda: batches("fp32", 1),
        "fp16": lambda: batches("fp16", 1),
        "no_sync": lambda: batches("micro", MICRO),
    }
    took, bytes_, begin, go = {name: [] for name in methods}, {}, 0, torch.ones(1)
    for turn in range(23):
        if turn == 3:
            begin = time.monotonic()
        for name, method in methods.items():
            dist.barrier()
            before, clock = sent(), time.perf_counter()
            method()
            seconds = time.perf_counter() - clock
            dist.barrier()
            if turn >= 3:
                took[name].append(seconds / (MICRO if name == "no_sync" else 1))
                bytes_[name] = sent() - before
        if turn >= 7 and time.monotonic() - begin > LONGEST:
            go.fill_(0)
        dist.broadcast(go, 0)
        if not go:
            break
    if dist.get_rank() == 0:
        found = {name: statistics.median(times) * 1000 for name, times in took.items()}
        size = large.nbytes
        found["delay"] = found.pop("small") / 2  # a ring of two takes two steps
        rest = found.pop("large") - 2 * found["delay"]
        found["megabytes_per_second"] = size / rest / 1000
        found |= {f"{way} bytes": bytes_[way] for way in ("fp32", "fp16", "no_sync")}
        found["rounds"] = len(took["fp32"])
        print(json.dumps({name: float(f"{n:.4g}") for name, n in found.items()}))


def model() -> torch.nn.Module:
    layers = [torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 1024)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, 512))


def sent() -> int:
    """Return the bytes that this node has sent over the link so far."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def bench() -> None:
    """Run the three ways on each link, and keep the medians."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "notebooks"))
    from ringside import two_nodes

    kept = {"machine": f"{os.cpu_count()} CPU cores, gloo"}
    kept |= {"torch": torch.__version__.partition("+")[0], "date": f"{date.today()}"}
    kept["links"] = {}
    with two_nodes() as nodes:
        if not nodes.real:
            sys.exit("there is no link to measure")
        for limit in LIMITS:
            nodes.do("slow", limit)
            run = nodes.torchrun(Path(__file__), ranks=1, timeout=300)
            kept["links"][limit] = json.loads(run.lines["node0"][-1])
    if path := asked.WORDS.path:
        path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
        dist.destroy_process_group()
    else:
        bench()
