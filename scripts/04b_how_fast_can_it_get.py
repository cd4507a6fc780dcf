"""Add up one tensor per rank in few steps, in two ways; let torch check the sums.

    torchrun --standalone --nproc-per-node 4 scripts/04b_how_fast_can_it_get.py

One way takes the fewest steps, the other sends the fewest bytes. No GPU is used. With
--record PATH, rank 0 keeps what each rank sent, as JSON lines. The last line begins
with "ok". The lesson: notebooks/04b_how_fast_can_it_get.ipynb
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


def swap_all(rank, world_size, exchange):
    """Each step: swap all you have with a partner, twice as far away as the last."""
    far = 1
    while far < world_size:
        exchange(rank ^ far, (0, world_size), add_to=(0, world_size))
        far *= 2


def halve(rank, world_size, exchange):
    """Each step: give the partner's half of your chunks away, add to your own half."""
    far = world_size // 2
    while far:
        own = rank - rank % far
        other = own ^ far
        exchange(rank ^ far, (other, other + far), add_to=(own, own + far))
        far //= 2


def double(rank, world_size, exchange):
    """Each step: give all chunks that are complete, keep the partner's beside them."""
    far = 1
    while far < world_size:
        own = rank - rank % far
        other = own ^ far
        exchange(rank ^ far, (own, own + far), keep_in=(other, other + far))
        far *= 2


def all_reduce(phases, chunks, spare, rank, world_size, note):
    """Run the phases on a power of two ranks; a rank beyond hands its numbers over."""
    power = len(chunks)

    def exchange(partner, give, add_to=None, keep_in=None):
        out, into = (chunks[slice(*part)] for part in (give, add_to or keep_in))
        arrived, gives = spare[: len(into)] if add_to else into, out[:, 0].tolist()
        for request in (dist.isend(out, partner), dist.irecv(arrived, partner)):
            request.wait()  # both have begun before it waits for one
        if add_to:
            into.add_(arrived)
        note(chunks, phase.__name__, to=partner, gives=gives, bytes=out.nbytes)

    if rank >= power:
        dist.send(chunks, rank - power)
        dist.recv(chunks, rank - power)
        return
    if rank + power < world_size:
        dist.recv(spare, rank + power)
        chunks.add_(spare)
    for phase in phases:
        phase(rank, power, exchange)
    if rank + power < world_size:
        dist.send(chunks, rank + power)


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


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    args, rank, world_size = start(parser)
    if args.record and world_size not in (1, 2, 4, 8):
        parser.error("--record needs 1, 2, 4 or 8 ranks")

    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    power = 1 << world_size.bit_length() - 1  # of two: 3 ranks are 2 and one beyond
    first = torch.arange(1, power + 1).repeat_interleave(4).view(power, 4)
    events, ways = [], {"whole": [swap_all], "chunks": [halve, double]}

    def note(chunks, phase, **sent):
        event = {"step": len(events), "rank": rank, "phase": phase}
        events.append(event | {"chunks": chunks[:, 0].tolist()} | sent)

    for begin, phases in ways.items():
        chunks = first * 10 ** (rank % 18)
        expected = chunks.clone()
        dist.all_reduce(expected)
        note(chunks, begin)
        all_reduce(phases, chunks, first.clone(), rank, world_size, note)
        torch.testing.assert_close(chunks, expected, rtol=0, atol=0)  # exactly

    rows = save_recording(args.record, events, picture="swaps")
    if rank == 0:
        print("way            steps  bytes that rank 0 sends")
        for names in (["swap_all"], ["halve", "double"]):
            sent = [e["bytes"] for e in rows if e["rank"] == 0 and e["phase"] in names]
            print(f"{', '.join(names):13}  {len(sent):5}  {sum(sent):23}")
        print(f"ok: {world_size} ranks, and both ways agree with dist.all_reduce")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
