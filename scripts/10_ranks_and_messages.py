"""Let processes that share nothing agree on a sum, by messages alone, in two ways.

    torchrun --standalone --nproc-per-node 4 scripts/10_ranks_and_messages.py
    torchrun --standalone --nproc-per-node gpu scripts/10_ranks_and_messages.py

The first line needs no GPU; the second gives each GPU a rank. With --record PATH,
rank 0 keeps what every rank held and sent, one JSON object per line.
The last line begins with "ok". The lesson: notebooks/10_ranks_and_messages.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, own_device, save_recording, start


def chain(rank, world_size, number, see):
    """Add up to the right, one rank after another, and pass the sum back."""
    came = torch.zeros_like(number)

    # There: a rank receives the sum so far, and adds its own number.
    for giver in range(world_size - 1):
        if rank == giver:
            dist.send(number, giver + 1)
        elif rank == giver + 1:
            dist.recv(came, giver)
            number += came
        see("there", number, giver, giver + 1)

    # And back: a rank keeps only the sum that it receives. Only the last rank has made
    # it, and the others copy it, so all ranks agree, to the last bit of a float.
    for giver in range(world_size - 1, 0, -1):
        if rank == giver:
            dist.send(number, giver - 1)
        elif rank == giver - 1:
            dist.recv(number, giver)
        see("back", number, giver, giver - 1)


def circle(rank, world_size, number, see):
    """All at once, pass on to the right what has just come from the left; add it."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    given, came = number.clone(), torch.zeros_like(number)

    for _ in range(world_size - 1):
        exchange(given, right, came, left)
        number += came
        see("circle", number, rank, right, given)
        # A clone, because the next step fills came again while given is sent.
        given = came.clone()


def exchange(given, right, came, left, group=None):
    """Begin to send and to receive, both at once, and only then wait for both."""
    # If every rank first waited in a send, none would come to its recv: a deadlock.
    both = [dist.P2POp(dist.isend, given, right, group)]
    both += [dist.P2POp(dist.irecv, came, left, group)]
    for request in dist.batch_isend_irecv(both):  # begins both
        request.wait()


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)

    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))

    # After each step, see notes what this rank holds and, if it is the giver, gave.
    events = []

    def see(phase, number, giver=None, taker=None, given=None):
        given = number if given is None else given
        sent = {"to": taker, "given": given.tolist()} if rank == giver else {}
        event = {"step": len(events), "rank": rank, "phase": phase}
        events.append(event | {"places": number.tolist()} | sent)

    for way in (chain, circle):
        # A number has a place for each rank, so that a sum shows who is in it.
        number = torch.zeros(world_size, dtype=torch.int64)
        number[rank] = rank + 1

        # torch's own sum tells what is right, and each rank holds its sum against it.
        expected = number.clone()
        dist.all_reduce(expected)

        see("numbers", number)
        way(rank, world_size, number, see)
        if not torch.equal(number, expected):
            raise ValueError(f"{way.__name__}: {number} on rank {rank}, not {expected}")

    # The chain takes fewer messages, and the circle fewer steps: count both.
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
