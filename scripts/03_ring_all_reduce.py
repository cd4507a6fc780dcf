"""Add up one tensor per rank with a ring of messages; let torch check the sum.

    torchrun --standalone --nproc-per-node 4 scripts/03_ring_all_reduce.py
    torchrun --standalone --nproc-per-node gpu scripts/03_ring_all_reduce.py

The first line needs no GPU; the second gives each GPU a rank. Try --numel 10, which
four ranks cannot share evenly. With --record PATH, rank 0 keeps what each sent, as JSON
lines. The last line begins with "ok". The lesson: notebooks/03_ring_all_reduce.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, own_device, save_recording, start


def scatter_reduce(rank, world_size, exchange):
    """Each step: send one chunk right, add the one from the left to your own."""
    for step in range(world_size - 1):
        # After the first step, this is the chunk that has just been added to.
        send = (rank - step) % world_size
        exchange(send, add_to=(send - 1) % world_size)


def allgather(rank, world_size, exchange):
    """Each step: send one complete chunk right, keep the one from the left."""
    for step in range(world_size - 1):
        # It begins with chunk rank + 1, which scatter_reduce has made complete here.
        send = (rank + 1 - step) % world_size
        exchange(send, keep_in=(send - 1) % world_size)


def ring_all_reduce(tensor, spare, rank, world_size, note):
    """Leave the sum over all ranks in tensor; what comes to be added lies in spare."""
    chunks = tensor.tensor_split(world_size)
    left = (rank - 1) % world_size
    right = (rank + 1) % world_size

    def exchange(send, add_to=None, keep_in=None):
        adds = add_to is not None
        recv = add_to if adds else keep_in
        note(chunks, "scatter-reduce" if adds else "allgather", send, recv)

        # What is to be added comes into spare; a complete sum replaces our own chunk.
        arrived = spare[: len(chunks[recv])] if adds else chunks[recv]

        # Begin both, and only then wait: if every rank first sent, none would receive.
        both = [dist.P2POp(dist.irecv, arrived, left)]
        both += [dist.P2POp(dist.isend, chunks[send], right)]
        for request in dist.batch_isend_irecv(both):
            request.wait()

        # Only after its wait() has a number surely arrived, so add it no earlier.
        if adds:
            chunks[recv].add_(arrived)

    # First every sum comes to exist, each on one rank; then the sums are copied.
    scatter_reduce(rank, world_size, exchange)
    allgather(rank, world_size, exchange)
    note(chunks)


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--numel", type=int, default=16, help="numbers of each rank")
    args, rank, world_size = start(parser)
    if args.numel < 0:
        parser.error(f"--numel must be 0 or more, not {args.numel}")
    if args.record and world_size > min(args.numel, 9):
        parser.error("--record needs a number for each rank, and at most 9 ranks")

    device, backend = own_device()
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    events = []

    def note(chunks, phase="done", send=None, recv=None):
        size = 0 if send is None else chunks[send].nbytes
        firsts = [int(chunk[:1].sum()) for chunk in chunks]  # 0 for an empty chunk
        event = {"step": len(events), "rank": rank, "phase": phase, "send": send}
        events.append(event | {"recv": recv, "bytes": size, "chunks": firsts})

    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
        events.clear()  # those of the last type are kept

        # Sums of small whole numbers are exact, in whatever order a ring adds.
        tensor = (torch.arange(args.numel, device=device) * (rank + 1) % 4).to(dtype)
        if dtype == torch.int64:
            # A rank's digit tells whose numbers are in a sum. Each chunk has numbers of
            # its own, so that a sum in the wrong chunk is noticed.
            for c, chunk in enumerate(tensor.tensor_split(world_size)):
                chunk.fill_((c + 1) * 10 ** (rank % 18))

        # Ranks can agree on wrong sums, so the ring is held against torch's own sum.
        expected = tensor.clone()
        dist.all_reduce(expected)
        spare = torch.empty_like(tensor)
        ring_all_reduce(tensor, spare, rank, world_size, note)
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0)  # exactly

    rows = save_recording(args.record, events, picture="ring")
    if rank == 0:
        print("rank  messages  bytes sent  complete first")
        for r in range(world_size):
            own = [row for row in rows if row["rank"] == r]
            size = sum(row["bytes"] for row in own)
            # What a rank sends first in allgather is the chunk that is complete on it.
            first = own[world_size - 1]["send"]
            print(f"{r:4}  {len(own) - 1:8}  {size:10}         chunk {first or 0}")
        print(f"ok: {world_size} ranks, and the ring agrees with dist.all_reduce")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
