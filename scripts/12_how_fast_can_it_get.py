"""Add up one tensor per rank in few steps, in two ways; let torch check the sums.

    torchrun --standalone --nproc-per-node 4 scripts/12_how_fast_can_it_get.py

One way takes the fewest steps, the other sends the fewest bytes. No GPU is used. With
--record PATH, rank 0 keeps what each rank sent, as JSON lines. The last line begins
with "ok". The lesson: notebooks/12_how_fast_can_it_get.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, save_recording, start


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


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
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
