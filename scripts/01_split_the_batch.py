"""Split eight samples among ranks, average their gradients; compare with one process.

    torchrun --standalone --nproc-per-node 4 scripts/01_split_the_batch.py
    torchrun --standalone --nproc-per-node gpu scripts/01_split_the_batch.py

The first line needs no GPU; the second gives each GPU a rank. With three ranks, the
shares are unequal. With --record PATH, rank 0 keeps what every rank held, one JSON
object per line. The last line begins with "ok".
The lesson: notebooks/01_split_the_batch.ipynb
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

X = [1.0, 2.0, 1.0, 2.0, 3.0, 2.0, 2.0, 3.0]  # eight samples for a model of one weight
Y = [0.0, 0.0, 1.0, -3.0, 2.0, -1.0, 1.0, 1.0]
RATE = 0.25
PHASES = {
    "start": "The same weight everywhere, and in the middle all samples, each with its slope.",
    "split": "Each rank takes every N-th sample, from its own place on.",
    "backward": "Each rank finds the mean of its own slopes, and one process that of all.",
    "all-reduce": "Add up over all ranks, divide by their number: the mean of the means.",
    "step": "The same weight and the same gradient make the same new weight.",
}


def share(samples, rank, world_size):
    """Each rank takes every world_size-th sample, from its own number on."""
    return samples[rank::world_size]


def gradient(w, x, y):
    """Return the slope of the mean of (w * x - y)**2 / 2 at w."""
    w = w.clone().requires_grad_()
    loss = ((w * x - y) ** 2 / 2).mean()
    loss.backward()
    return w.grad


def total(value):
    """Return the sum of what all ranks have."""
    value = value.clone()
    dist.all_reduce(value)
    return value


def short(value):
    """Return a number for a recording: whole if it is whole."""
    value = round(float(value), 2)
    return int(value) if value == int(value) else value


def tell(rank, world_size, slopes, grad, mean, alone):
    """Return the step as events: what this rank held, and beside rank 0 one process."""
    batch = [[short(slope), i % world_size] for i, slope in enumerate(slopes)]
    one = {"w": [[1]], "slopes": batch}
    mine = {"w": [[1]], "slopes": share(batch, rank, world_size)}
    held = {"start": ({"w": [[1]]}, one), "split": (mine, one)}
    one = one | {"grad": [[short(alone)]]}
    held["backward"] = mine | {"grad": [[short(grad), rank]]}, one
    mine = mine | {"grad": [[short(mean), *range(world_size)]]}
    held["all-reduce"] = mine, one
    steps = [{"w": [[short(1 - RATE * found)]]} for found in (mean, alone)]
    held["step"] = mine | steps[0], one | steps[1]
    sends = {"split": {"sends": [[other, "slopes"] for other in range(world_size)]}}
    calls = {"all-reduce": {"call": "all_reduce"}}
    events = []
    for step, phase in enumerate(PHASES):
        mine, one = held[phase]
        event = {"step": step, "rank": rank, "phase": phase}
        events.append(event | {"holds": mine} | calls.get(phase, {}))
        if rank == 0:
            events.append(event | {"rank": -1, "holds": one} | sends.get(phase, {}))
    return events


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
    parser.add_argument("--record", type=Path)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    times = -(-world_size // len(X))  # with more than eight ranks, repeat the samples
    x, y = torch.tensor(X * times), torch.tensor(Y * times)
    w = torch.tensor(1.0)
    mine = share(x, rank, world_size), share(y, rank, world_size)
    grad, alone = gradient(w, *mine), gradient(w, x, y)
    count = torch.tensor(float(len(mine[0])))
    mean = total(grad) / world_size
    by_count = total(grad * count) / total(count)
    if not torch.allclose(by_count, alone):
        raise ValueError(f"the mean by count is {by_count}, not {alone}")
    if len(x) % world_size == 0 and not torch.allclose(mean, alone):
        raise ValueError(f"the mean of equal shares is {mean}, not {alone}")

    events = tell(rank, world_size, x * (w * x - y), grad, mean, alone)
    save_recording(args.record, events, picture="flow", phases=PHASES)
    rows = [None] * world_size
    dist.all_gather_object(rows, (int(count), grad.item()))
    if rank == 0:
        print("rank  samples  mean gradient")
        for other, (samples, found) in enumerate(rows):
            print(f"{other:4}  {samples:7}  {found:13.3f}")
        print(f"mean of the means        {mean:.3f}")
        print(f"mean by count            {by_count:.3f}")
        print(f"one process              {alone:.3f}")
        print(f"ok: by count, {world_size} ranks find the gradient of one process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
