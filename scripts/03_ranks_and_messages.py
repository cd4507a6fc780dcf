"""Let processes that share nothing agree on a sum, by messages alone, in two ways.

    torchrun --standalone --nproc-per-node 4 scripts/03_ranks_and_messages.py
    torchrun --standalone --nproc-per-node gpu scripts/03_ranks_and_messages.py

The first line needs no GPU; the second gives each GPU a rank. With --record PATH,
rank 0 keeps what every rank held and sent, one JSON object per line.
The last line begins with "ok". The lesson: notebooks/03_ranks_and_messages.ipynb
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


def chain(rank, world_size, number, see):
    """Add up to the right, one rank after another, and pass the sum back."""
    came = torch.zeros_like(number)
    for giver in range(world_size - 1):
        if rank == giver:
            dist.send(number, giver + 1)
        elif rank == giver + 1:
            dist.recv(came, giver)
            number += came
        see("there", number, giver, giver + 1)
    for giver in range(world_size - 1, 0, -1):
        if rank == giver:
            dist.send(number, giver - 1)
        elif rank == giver - 1:
            dist.recv(number, giver)
        see("back", number, giver, giver - 1)


def circle(rank, world_size, number, see):
    """All at once, pass on to the right what came last from the left, and add it."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    given, came = number.clone(), torch.zeros_like(number)
    for _ in range(world_size - 1):
        exchange(given, right, came, left)
        number += came
        see("circle", number, rank, right, given)
        given = came.clone()


def exchange(given, right, came, left, group=None):
    """Begin to send and to receive, both at once, and only then wait for both."""
    both = [dist.P2POp(dist.isend, given, right, group)]
    both += [dist.P2POp(dist.irecv, came, left, group)]
    for request in dist.batch_isend_irecv(both):
        request.wait()


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

    def see(phase, number, giver=None, taker=None, given=None):
        given = number if given is None else given
        sent = {"to": taker, "given": given.tolist()} if rank == giver else {}
        event = {"step": len(events), "rank": rank, "phase": phase}
        events.append(event | {"places": number.tolist()} | sent)

    for way in (chain, circle):
        number = torch.zeros(world_size, dtype=torch.int64)
        number[rank] = rank + 1  # a place for each rank shows who is in a sum
        expected = number.clone()
        dist.all_reduce(expected)
        see("numbers", number)
        way(rank, world_size, number, see)
        if not torch.equal(number, expected):
            raise ValueError(f"{way.__name__}: {number} on rank {rank}, not {expected}")
    rows = save_recording(args.record, events, picture="sums")
    if rank == 0:
        for way, phases in {"chain": ["there", "back"], "circle": ["circle"]}.items():
            sent = [row for row in rows if "to" in row and row["phase"] in phases]
            steps = len({row["step"] for row in sent})
            print(f"{way:6}  sum {expected.sum()}, messages {len(sent)}, steps {steps}")
        print(f"ok: {world_size} ranks agree, and with dist.all_reduce")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
