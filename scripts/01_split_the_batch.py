"""Split eight samples among ranks, average their gradients; compare with one process.

    torchrun --standalone --nproc-per-node 4 scripts/01_split_the_batch.py
    torchrun --standalone --nproc-per-node gpu scripts/01_split_the_batch.py

The first line needs no GPU; the second gives each GPU a rank. With three ranks, the
shares are unequal. With --record PATH, rank 0 keeps what every rank had, one JSON
object per line. The last line begins with "ok".
The lesson: notebooks/01_split_the_batch.ipynb
"""

import gc
import json
import os
import shlex
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

X = [1.0, 2.0, 1.0, 2.0, 3.0, 2.0, 2.0, 3.0]  # eight samples for a model of one weight
Y = [0.0, 0.0, 1.0, -3.0, 2.0, -1.0, 1.0, 1.0]
RATE = 0.25


def share(samples, rank, world_size):
    """Each rank takes every world_size-th sample, from its own number on."""
    return samples[rank::world_size]


def gradient(w, x, y):
    """Return the slope of the mean of (w * x - y)**2 / 2 at w."""
    w = w.clone().requires_grad_()
    loss = ((w * x - y) ** 2 / 2).mean()
    loss.backward()
    return w.grad


def short(value):
    """Return a number with three decimals at most, whole if it is whole."""
    value = round(value.item(), 3)
    return int(value) if value.is_integer() else value


def told(rank, w, x, y, grad, mean):
    """Return what a rank had, found and got, as one event; rank -1 is one process."""
    slopes = [short(slope) for slope in x * (w * x - y)]
    weights = [short(w), short(w - RATE * mean)]  # before the step, and after it
    numbers = {"slopes": slopes, "grad": short(grad), "mean": short(mean), "w": weights}
    return {"step": 0, "rank": rank} | numbers


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


class Parser(ArgumentParser):
    def error(self, message):
        """Say in one line what is wrong, and once: rank 0 speaks, and leaves first."""
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)
            self.exit(2)
        self.exit(2, f"{self.prog}: {message}\n")


def start(parser):
    """Return the arguments, this rank and the number of ranks."""
    parser.add_argument("--record", type=Path, metavar="PATH", help="a file to write")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        path = shlex.quote(sys.argv[0])
        parser.error(f"try torchrun --standalone --nproc-per-node 4 {path}")
    if args.record and (args.record.is_dir() or not args.record.parent.is_dir()):
        parser.error(f"--record must be a file in a folder, not {args.record}")
    return args, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def own_device():
    """Return a GPU for this rank and nccl, or if they are too few, the CPU and gloo."""
    gpus, local_rank = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank), "nccl"
    if gpus and local_rank == 0:
        print(f"too few GPUs ({gpus}): all ranks use the CPU", file=sys.stderr)
    return torch.device("cpu"), "gloo"


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    args, rank, world_size = start(parser)
    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    times = -(-world_size // len(X))  # with more than eight ranks, repeat the samples
    x, y = torch.tensor(X * times), torch.tensor(Y * times)
    w = torch.tensor(1.0)
    mine = share(x, rank, world_size), share(y, rank, world_size)
    grad, alone, count = gradient(w, *mine), gradient(w, x, y), len(mine[0])
    found = torch.tensor([grad, grad * count, count])
    dist.all_reduce(found)  # three sums in one call
    means, slopes, samples = found
    mean, by_count = means / world_size, slopes / samples
    if not torch.allclose(by_count, alone):
        raise ValueError(f"the mean by count is {by_count}, not {alone}")
    if len(x) % world_size == 0 and mean != alone:  # whole numbers: to the last bit
        raise ValueError(f"the mean of equal shares is {mean}, not {alone}")

    events = [told(rank, w, *mine, grad, mean)]
    if rank == 0:
        events.append(told(-1, w, x, y, alone, alone))
    rows = save_recording(args.record, events, picture="shares")
    if rank == 0:
        print("rank  samples  mean gradient")
        for row in rows[1:]:  # the first is one process
            print(f"{row['rank']:4}  {len(row['slopes']):7}  {row['grad']:13.3f}")
        print(f"mean of the means        {mean:.3f}")
        print(f"mean by count            {by_count:.3f}")
        print(f"one process              {alone:.3f}")
        print(f"ok: by count, {world_size} ranks find the gradient of one process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
