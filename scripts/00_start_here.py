"""Start ranks, let each say who and where it is, and let them add one number.

    torchrun --standalone --nproc-per-node 4 scripts/00_start_here.py
    torchrun --standalone --nproc-per-node gpu scripts/00_start_here.py

The first line needs no GPU; the second gives each GPU a rank. Two nodes on one machine,
for a try: type one of these lines in one terminal, and the other in a second. On a
machine with GPUs, put CUDA_VISIBLE_DEVICES= before both, or they take the same GPUs.

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 scripts/00_start_here.py
    torchrun --nnodes 2 --node-rank 1 --nproc-per-node 2 scripts/00_start_here.py

With --record PATH, rank 0 keeps what each rank knew, one JSON object per line.
The last line begins with "ok". The lesson: notebooks/00_start_here.ipynb
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

PHASES = {
    "start": "torchrun has started the ranks and told each one who it is.",
    "number": "Each rank brings one number: its own.",
    "all-reduce": "One call, made by all, leaves the sum on every rank.",
}


def where(rank, per_node):
    """A rank's node and its number there: ranks fill one node after another."""
    node, local_rank = divmod(rank, per_node)
    return node, local_rank


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
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    node, local_rank = int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])
    expected = where(rank, int(os.environ["LOCAL_WORLD_SIZE"]))
    if (node, local_rank) != expected:
        raise ValueError(f"rank {rank} is at {node, local_rank}, not at {expected}")

    number = torch.tensor(rank, device=device)
    dist.all_reduce(number)
    total = sum(range(world_size))
    if number != total:
        raise ValueError(f"the ranks add up to {number}, not to {total}")

    here = {"local_rank": [[local_rank]], "node": [[node]]}
    here["world_size"] = [[world_size]]
    held = [here, here | {"number": [[rank, rank]]}]
    held += [here | {"number": [[total, *range(world_size)]]}]
    events = [
        {"step": step, "rank": rank, "phase": phase, "holds": held[step]}
        for step, phase in enumerate(PHASES)
    ]
    events[-1]["call"] = "all_reduce"
    rows = save_recording(args.record, events, picture="flow", phases=PHASES)
    if rank == 0:
        print("rank  node  local_rank")
        for row in rows[:world_size]:
            [[node]], [[local_rank]] = row["holds"]["node"], row["holds"]["local_rank"]
            print(f"{row['rank']:4}  {node:4}  {local_rank:10}")
        print(f"ok: {world_size} ranks on {device.type} add up to {total}")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
