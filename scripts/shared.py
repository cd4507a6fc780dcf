"""What all scripts of the course share: how they begin and record.

A script reads its words with Parser and start, takes a device with own_device or a
port with free_port, and keeps what happened with save_recording. Copy this file along
with a script.
"""

import json
import os
import shlex
import socket
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: imported later, it keeps the group alive


class Parser(ArgumentParser):
    """Python's own parser, but only rank 0 prints what is wrong: all have the same."""

    def __init__(self, about):
        super().__init__(description=about, formatter_class=RawDescriptionHelpFormatter)

    def error(self, message):
        """Say in one line what is wrong, and once: rank 0 speaks, and leaves first."""
        # When one rank fails, torchrun ends the others: so these let rank 0 speak.
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)
            self.exit(2)
        self.exit(2, f"{self.prog}: {message}\n")


def start(parser):
    """Return the arguments, this rank and how many there are; compute in one thread."""
    parser.add_argument("--record", type=Path, metavar="PATH", help="a file to write")
    args = parser.parse_args()

    # Nobody has told this process which rank it is: it was started without torchrun.
    if "RANK" not in os.environ:
        path = shlex.quote(sys.argv[0])
        parser.error(f"try torchrun --standalone --nproc-per-node 4 {path}")

    # A wrong path is told now, and not at the end, when all the work is done.
    if args.record and (args.record.is_dir() or not args.record.parent.is_dir()):
        parser.error(f"--record must be a file in a folder, not {args.record}")

    # torchrun leaves all cores to a single rank. With small tensors that is far slower.
    torch.set_num_threads(1)
    return args, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def own_device():
    """Return a GPU for this rank and nccl, or if they are too few, the CPU and gloo."""
    gpus, local_rank = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])

    # NCCL refuses two ranks on one GPU, so all ranks of a machine take GPUs, or none.
    if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]):
        # Each machine counts its GPUs from 0: the local rank chooses, not the rank.
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank), "nccl"

    # One rank says it for all of its machine.
    if gpus and local_rank == 0:
        print(f"too few GPUs ({gpus}): all ranks use the CPU", file=sys.stderr)
    return torch.device("cpu"), "gloo"


def free_port():
    """Return the number of a port of this machine that nobody uses now, as text."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        return str(door.getsockname()[1])


def save_recording(path, events, **header):
    """Return all ranks' events by step and rank; rank 0 writes them, one a line."""
    # A rank knows only what it did itself, so each sends its events to all.
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, events)

    # Sorted, the same events make the same file, whichever rank was quicker.
    rows = sorted(sum(gathered, []), key=lambda event: (event["step"], event["rank"]))

    # Written aside and then renamed: a kill leaves the old file whole.
    if path and dist.get_rank() == 0:
        header = {"lesson": Path(sys.argv[0]).stem, "ranks": len(gathered)} | header
        part = Path(f"{path}.part")
        part.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
        part.replace(path)
    return rows
