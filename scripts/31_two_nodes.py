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

PIECE = 125  # numbers of 8 bytes in a chunk: 1000 bytes


def around(order, chunks, spare, rank, note):
    """All-reduce in a ring, in which the ranks stand in this order."""
    size, place = len(order), order.index(rank)
    right, left = order[(place + 1) % size], order[place - 1]
    for step in range(2 * size - 2):
        give, take = (place - step) % size, (place - step - 1) % size
        requests = [dist.isend(chunks[give], right), dist.irecv(spare, left)]
        for request in requests:
            request.wait()
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
    node, local_rank = int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])
    per_node, host = int(os.environ["LOCAL_WORLD_SIZE"]), os.uname().nodename
    if per_node == world_size:  # one node plays two
        per_node, host = -(-world_size // 2), "(as if)"
        node, local_rank = divmod(rank, per_node)
    if rank != node * per_node + local_rank:
        raise ValueError(f"rank {rank} is local rank {local_rank} of node {node}")

    ranks = range(world_size)
    orders = {"in order": [*ranks]}
    orders["in turns"] = sorted(ranks, key=lambda other: other % per_node)
    events = []

    def note(phase, **sent):
        event = {"step": len(events), "rank": rank, "phase": phase, "node": node}
        events.append(event | sent)

    for phase, order in orders.items():
        chunks = torch.arange(world_size * PIECE).view(world_size, PIECE) * (rank + 1)
        expected = chunks.clone()
        dist.all_reduce(expected)
        note(phase)
        around(order, chunks, chunks[0].clone(), rank, partial(note, phase))
        torch.testing.assert_close(chunks, expected, rtol=0, atol=0)  # exactly

    rows = save_recording(args.record, events, picture="crossings")
    hosts = [None] * world_size
    dist.all_gather_object(hosts, host)
    if rank == 0:
        nodes = [event["node"] for event in rows[:world_size]]
        print("rank  group rank  local rank  host")
        for other in ranks:
            print(f"{other:4}  {nodes[other]:10}", end="  ")
            print(f"{other % per_node:10}  {hosts[other]}")
        for phase, order in orders.items():
            sent = [e for e in rows if e["phase"] == phase and "to" in e]
            total, link = sum(e["bytes"] for e in sent), over_the_link(sent, nodes)
            print(f"ring {order}: {total} bytes, {link} of them over the link")
        print(f"ok: {world_size} ranks, and both rings agree with dist.all_reduce")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
