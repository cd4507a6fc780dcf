"""How fast is Horovod beside DDP, on the two trainings of DP vs DDP? Run by hand:

    python tests/bench_horovod.py [PATH]

Needs `python3 scripts/course.py horovod`. Two ranks train with each method in turns, as
in DP vs DDP, and their first steps are compared. For each method, two processes read
the samples: DP, one process, has both, and each rank of DDP and of Horovod has one.
PATH, a JSON file, then has under "speed" what part of the speed of one process with one
reader each rank keeps: the median, the middle half.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import asked
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "notebooks")]
race = importlib.import_module("05_dp_vs_ddp")
ROUNDS, METHODS = 20, ["one process", "DP", "DDP", "Horovod"]
ALONE = METHODS[:2]  # rank 0 works, and the others rest


def reader(batch, workers):
    """Return a loader whose workers read a batch, sample by sample, for each step."""
    steps = [range(len(batch[0]))] * race.STEPS
    how = {"persistent_workers": True, "multiprocessing_context": "forkserver"}
    dataset = TensorDataset(*batch)
    return DataLoader(dataset, batch_sampler=steps, num_workers=workers, **how)


def train(model, forward, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(forward(x), y).backward()
        optimizer.step()


def rows_of(hvd, workload, samples):
    """Return for each round what a step took with each method, in ms."""
    rank, ranks = hvd.rank(), hvd.size()
    _, *batch = race.task(workload, ranks * samples)
    share, lanes = [part[rank::ranks] for part in batch], {}
    for method in METHODS:
        model, _, _ = race.task(workload, 1)
        loader = reader(share, 1)
        forward = DistributedDataParallel(model) if method == "DDP" else model
        if method == "DP":
            forward = partial(race.dp_in_threads, model, devices=ranks)
            loader = reader(batch, ranks)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if method == "Horovod":
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        lanes[method] = model, forward, optimizer, loader
    rows = []
    for number in range(ROUNDS + 1):
        row = {}
        for method in METHODS[number % 4 :] + METHODS[: number % 4]:
            race.slowest(0.0)  # all begin together
            begin = time.perf_counter()
            if rank == 0 or method not in ALONE:
                train(*lanes[method])
            row[method] = race.slowest(1000 * (time.perf_counter() - begin))
        rows.append(row)
        for method in METHODS[1:] if number == 0 else []:
            if rank == 0 or method not in ALONE:
                pair = (lanes[m][0].parameters() for m in (method, "DDP"))
                torch.testing.assert_close(*map(list, pair), atol=1e-4, rtol=1e-5)
    return rows[1:]


def be_rank():
    """Time all methods as one of the ranks, and let rank 0 print what each keeps."""
    import horovod.torch as hvd

    hvd.init()
    store = dist.TCPStore("127.0.0.1", 0, None, True) if hvd.rank() == 0 else None
    port = hvd.broadcast_object(store and store.port, root_rank=0, name="port")
    store = store or dist.TCPStore("127.0.0.1", port)
    how = {"store": store, "rank": hvd.rank(), "world_size": hvd.size()}
    dist.init_process_group("gloo", timeout=timedelta(minutes=1), **how)
    race.be_one_device()
    speed = {}
    for workload, samples in {"computes": 160, "communicates": 32}.items():
        speed[workload] = {}
        rows = rows_of(hvd, workload, samples)
        for method in METHODS[1:]:
            kept = torch.tensor([row["one process"] / row[method] for row in rows])
            parts = kept.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
            speed[workload][method] = [round(part, 2) for part in parts]
    if hvd.rank() == 0:
        print(json.dumps(speed))
    dist.destroy_process_group()


def main():
    from ringside.launch.client import environment

    tool = Path(sys.executable).with_name("horovodrun")
    line = [tool, "-np", "2", "--gloo", sys.executable, __file__]
    env = environment(PYTHONUNBUFFERED="1", CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(line, env=env, stdout=subprocess.PIPE, text=True, check=True)
    speed = json.loads(done.stdout[done.stdout.index("{") :])
    for workload, kept in speed.items():
        for method, (low, median, high) in kept.items():
            print(f"{workload:13} {method:8} {median:.2f}   {low:.2f} to {high:.2f}")
    if path := asked.WORDS.path:
        told = json.loads(path.read_text()) if path.exists() else {}
        text = json.dumps(told | {"speed": speed}, indent=1, sort_keys=True)
        path.write_text(text + "\n")


if __name__ == "__main__":
    be_rank() if "HOROVOD_RANK" in os.environ else main()
