"""Watch what DDP does unasked: what it copies from rank 0, what it averages, and when.

    torchrun --standalone --nproc-per-node 4 scripts/05b_ddp_habits.py
    torchrun --standalone --nproc-per-node gpu scripts/05b_ddp_habits.py

The first line needs no GPU; the second gives each GPU a rank. With --record PATH,
rank 0 keeps what every rank held, one JSON object per line.
The last line begins with "ok". The lesson: notebooks/05b_ddp_habits.ipynb
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
import torch.distributed.nn  # early: imported later, it keeps the group alive
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel


class Layer(nn.Module):
    """One weight and one buffer, with other numbers on each rank."""

    def __init__(self, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([rank + 1.0]))
        self.register_buffer("seen", 10 * torch.tensor([rank + 1.0]))

    def forward(self, x):
        """Return a loss whose gradient is x."""
        return (self.weight * x).sum()


def wrap(rank, note):
    """Wrap a model, change it by hand, take a step; note whose numbers it then has."""
    model = Layer(rank)
    note("made", model, weight_of=rank, buffer_of=rank)
    wrapped = DistributedDataParallel(model)
    note("wrapped", model, weight_of=0, buffer_of=0)
    model.load_state_dict(Layer(rank).state_dict())
    note("changed", model, weight_of=rank, buffer_of=rank)
    loss = wrapped(torch.tensor([rank + 1.0]))
    note("forward", model, weight_of=rank, buffer_of=0)
    loss.backward()
    note("backward", model, weight_of=rank, buffer_of=0)


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
    events = []

    def note(phase, model, weight_of, buffer_of):
        has = {"weight": model.weight.item(), "buffer": model.seen.item()}
        right = {"weight": weight_of + 1, "buffer": 10 * (buffer_of + 1)}
        if phase == "backward":
            has["grad"] = round(model.weight.grad.item(), 2)
            right["grad"] = (1 + world_size) / 2  # the mean of 1, 2, 3 ...
        if has != right:
            raise ValueError(f"{phase}: rank {rank} has {has}, not {right}")
        event = {"step": len(events), "rank": rank, "phase": phase}
        events.append(event | {"has": has})

    wrap(rank, note)
    rows = save_recording(args.record, events, picture="habits")
    if rank == 0:
        for phase in dict.fromkeys(row["phase"] for row in rows):
            held = [row["has"] for row in rows if row["phase"] == phase]
            for name in held[0]:
                print(f"{phase:10}{name:8}", *[f"{has[name]:5g}" for has in held])
        print(f"ok: {world_size} ranks; DDP copied and averaged as this script says")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
