"""Say which rank is where, and count the bytes that two rings send between nodes.

    torchrun --standalone --nproc-per-node 4 scripts/31_two_nodes.py

That is one node, whose ranks are taken for two nodes' in equal halves. For two nodes,
type this on each of them; node0 is the name of one, which both must be able to reach:

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \\
        --rdzv-endpoint node0:29500 scripts/31_two_nodes.py

No GPU is used. With --record PATH, rank 0 keeps each message, as JSON lines: the same
lines, whether the nodes are real or not. The last line begins with "ok". The lesson:
notebooks/31_two_nodes.ipynb
"""

import gc
import os
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, save_recording, start

# The numbers in a chunk. Each has 8 bytes, so a message has 1000.
PIECE = 125


def around(order, chunks, spare, rank, note):
    """All-reduce in a ring, in which the ranks stand in this order."""
    size, place = len(order), order.index(rank)
    right, left = order[(place + 1) % size], order[place - 1]

    for step in range(2 * size - 2):
        # What a rank takes now, it gives in the next step.
        give, take = (place - step) % size, (place - step - 1) % size
        requests = [dist.isend(chunks[give], right), dist.irecv(spare, left)]
        for request in requests:
            request.wait()

        # In the first half a rank adds what comes. After that, complete sums come.
        chunks[take] = spare + (chunks[take] if step < size - 1 else 0)
        note(to=right, bytes=spare.nbytes)


def over_the_link(rows, nodes):
    """Return the bytes of the messages whose two ends are on different nodes."""
    return sum(e["bytes"] for e in rows if nodes[e["rank"]] != nodes[e["to"]])


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))

    # torchrun tells each rank the number of its node: the group rank.
    node = int(os.environ["GROUP_RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    host = os.uname().nodename

    # If all ranks are on one node, it plays two: the first half of the ranks is node 0.
    if per_node == world_size:
        per_node = -(-world_size // 2)
        host = "(as if)"
        node, local_rank = divmod(rank, per_node)

    # The ranks fill one node, and then the next. What follows rests on that.
    if rank != node * per_node + local_rank:
        raise ValueError(f"rank {rank} is local rank {local_rank} of node {node}")

    # In order, a ring crosses the link at two places. In turns, neighbours are on
    # different nodes, and if the nodes are of one size, every message crosses.
    ranks = range(world_size)
    orders = {"in order": [*ranks]}
    orders["in turns"] = sorted(ranks, key=lambda other: other % per_node)
    events = []

    def note(phase, **sent):
        event = {"step": len(events), "rank": rank, "phase": phase, "node": node}
        events.append(event | sent)

    for phase, order in orders.items():
        # The numbers are whole: their sum is exact, in whatever order they are added.
        chunks = torch.arange(world_size * PIECE).view(world_size, PIECE) * (rank + 1)
        expected = chunks.clone()
        dist.all_reduce(expected)

        # The first event of a ring has no message: nothing has crossed yet.
        note(phase)
        around(order, chunks, chunks[0].clone(), rank, partial(note, phase))
        torch.testing.assert_close(chunks, expected, rtol=0, atol=0)

    rows = save_recording(args.record, events, picture="crossings")
    # Each machine has another name, so names are printed, and never recorded.
    hosts = [None] * world_size
    dist.all_gather_object(hosts, host)

    if rank == 0:
        # The rows begin with the first event of each rank, in the order of the ranks.
        nodes = [event["node"] for event in rows[:world_size]]
        print("rank  group rank  local rank  host")
        for other in ranks:
            print(f"{other:4}  {nodes[other]:10}", end="  ")
            print(f"{other % per_node:10}  {hosts[other]}")

        for phase, order in orders.items():
            sent = [e for e in rows if e["phase"] == phase and "to" in e]
            total = sum(e["bytes"] for e in sent)
            link = over_the_link(sent, nodes)
            print(f"ring {order}: {total} bytes, {link} of them over the link")
        print(f"ok: {world_size} ranks, and both rings agree with dist.all_reduce")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
