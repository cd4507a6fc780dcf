"""Add up gradients at a parameter server, and in a ring; count what the busiest sends.

    torchrun --standalone --nproc-per-node 4 scripts/41_parameter_server.py

Rank 0 is the server, and calls the workers by RPC; then the workers form a ring. Needs
no GPU. With --record PATH, rank 0 keeps who sent what, as JSON lines. The last line
begins with "ok". The lesson: notebooks/41_parameter_server.ipynb
"""

import gc
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, save_recording, start

OWN = {}  # what a process keeps for those who call it
PHASES = {
    "star": "Each worker has its gradient, and rank 0, the server, has the weights.",
    "weights": "Star: the server sends the weights, here zeros, to each worker.",
    "gradients": "Star: each worker answers with its gradient. The server adds up.",
    "ring": "The same gradients once more, and no server.",
    "scatter-reduce": "Ring: each sends a chunk to the right, where it is added.",
    "allgather": "Ring: each sends a complete chunk to the right.",
}


def answer(weights):
    """On a worker, for the server: return the gradient at these weights."""
    return OWN["gradient"](weights)


def star(weights, workers):
    """On the server: call all workers; return the sum of all gradients."""
    calls = [rpc.rpc_async(f"rank{w}", answer, args=(weights,)) for w in workers]
    return sum(torch.futures.wait_all(calls))


def ring(grad, workers, rank, note):
    """All-reduce in a ring of the workers, as in the ring."""
    size, chunks = len(workers), grad.tensor_split(len(workers))
    for step in range(2 * size - 2):
        sends, adds = [], step < size - 1
        if rank in workers:
            place = workers.index(rank)
            give, take = (place - step) % size, (place - step - 1) % size
            sends = [(workers[(place + 1) % size], chunks[give].clone())]
            came = torch.empty_like(chunks[take])
            begun = dist.isend(*sends[0][::-1])
            dist.recv(came, workers[place - 1]), begun.wait()
            chunks[take].copy_(chunks[take] + came if adds else came)
        note("scatter-reduce" if adds else "allgather", sends)


def first_numbers(chunks, workers):
    """Return the first number of each chunk, and the workers whose digits are in it."""
    numbers, digits = [int(chunk[0]) for chunk in chunks], [*enumerate(workers)]
    return [[n, *(w for place, w in digits if n // 10**place % 10)] for n in numbers]


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    workers = [*range(1, world_size)] or [0]
    numel = 840 - 840 % len(workers)  # all workers get equal chunks

    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size)
    events, own = [], torch.zeros(numel, dtype=torch.int64)
    if rank in workers:  # digits that tell whose numbers are in a sum
        own += 10 ** (workers.index(rank) % 18)
    grad, expected, weights = own.clone(), own.clone(), torch.zeros_like(own)
    dist.all_reduce(expected)

    def note(phase, sends=()):
        sends = [(to, t.split(numel // len(workers))) for to, t in sends if to != rank]
        before = [] if phase in ("star", "ring") else events[-1]["holds"]["sent"][0]
        bytes_ = sum(chunk.nbytes for _, chunks in sends for chunk in chunks)
        event = {"step": len(events), "rank": rank, "phase": phase}
        held = {"grad": first_numbers(grad.tensor_split(len(workers)), workers)}
        event["holds"] = held | {"sent": [[sum(before, bytes_)]]}
        event["sends"] = [[to, "grad", first_numbers(t, workers)] for to, t in sends]
        events.append(event)

    def gradient(weights):  # a thread of RPC runs this when the server calls
        if rank:
            note("weights")
            note("gradients", [(0, grad)])
        return grad

    OWN["gradient"] = gradient
    note("star")
    dist.barrier()  # from here on, each worker can answer
    if rank == 0:
        note("weights", [(worker, weights) for worker in workers])
        grad = star(weights, workers)
        note("gradients")
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)  # exactly
    dist.barrier()
    grad = own.clone()
    note("ring")
    ring(grad, workers, rank, note)
    if rank in workers:
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)
    rpc.shutdown()  # waits until all have come

    rows = save_recording(args.record, events, picture="flow", pace=1.75, phases=PHASES)
    if rank == 0:
        n, size = len(workers), weights.nbytes
        formulas = {"star": (world_size - 1) * size, "ring": 2 * (n - 1) * size // n}
        print("way   busiest sends   gets     sends/M   all messages")
        for way, formula in formulas.items():
            part = [row for row in rows if (row["step"] < 3) == (way == "star")]
            moved = [(r["rank"], to, len(c)) for r in part for to, _, c in r["sends"]]
            for end in (0, 1):  # who sends, who gets
                total = Counter({0: 0})
                for message in moved:
                    total[message[end]] += message[2] * size // n
                if max(total.values()) != formula:
                    raise ValueError(f"{way}: {total} bytes, not {formula}")
            row = f"{formula:13}  {formula:5}  {formula / size:10.2f}  {len(moved):13}"
            print(f"{way}  {row}")
        print(f"ok: {len(workers)} workers, and both sums agree with dist.all_reduce")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
