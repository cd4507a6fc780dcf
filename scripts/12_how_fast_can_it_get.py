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
        # In binary, a rank and its partner differ in one digit.
        exchange(rank ^ far, (0, world_size), add_to=(0, world_size))
        far *= 2


def halve(rank, world_size, exchange):
    """Each step: give the partner's half of your chunks away, add to your own half."""
    far = world_size // 2
    while far:
        # The first chunk of a half is the rank, rounded down to a multiple of far.
        own = rank - rank % far
        other = own ^ far
        exchange(rank ^ far, (other, other + far), add_to=(own, own + far))
        far //= 2


def double(rank, world_size, exchange):
    """Each step: give all chunks that are complete, keep the partner's beside them."""
    # The steps of halve in reverse: the chunks that were given away come back as sums.
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

        # What is to be added comes into spare; a complete sum comes to its own place.
        arrived, gives = spare[: len(into)] if add_to else into, out[:, 0].tolist()

        # Both have begun before it waits for one, so partners do not block each other.
        for request in (dist.isend(out, partner), dist.irecv(arrived, partner)):
            request.wait()

        if add_to:
            into.add_(arrived)
        note(chunks, phase.__name__, to=partner, gives=gives, bytes=out.nbytes)

    # A rank beyond the power of two hands its numbers over, and waits for the sums.
    if rank >= power:
        dist.send(chunks, rank - power)
        dist.recv(chunks, rank - power)
        return

    # The rank that takes these numbers adds them to its own, and then stands for both.
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

    # The largest power of two among the ranks: 3 ranks are 2 and one beyond.
    power = 1 << world_size.bit_length() - 1

    # A chunk of four equal numbers for each of these ranks. Each rank moves them to a
    # decimal place of its own, so that a sum tells whose numbers are in it.
    first = torch.arange(1, power + 1).repeat_interleave(4).view(power, 4)

    # One way swaps whole tensors in few steps, the other swaps chunks and sends less.
    ways = {"whole": [swap_all], "chunks": [halve, double]}
    events = []

    def note(chunks, phase, **sent):
        event = {"step": len(events), "rank": rank, "phase": phase}
        events.append(event | {"chunks": chunks[:, 0].tolist()} | sent)

    for begin, phases in ways.items():
        chunks = first * 10 ** (rank % 18)
        spare = torch.empty_like(chunks)

        # torch makes the same sum in its own way, and tells what is right.
        expected = chunks.clone()
        dist.all_reduce(expected)

        note(chunks, begin)
        all_reduce(phases, chunks, spare, rank, world_size, note)
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
