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
    size = len(workers)
    chunks = grad.tensor_split(size)
    for step in range(2 * size - 2):
        # In the first half a worker adds what comes. After that, complete chunks come.
        adds = step < size - 1
        sends = []

        # The server has no place in the ring, and only notes that a step is over.
        if rank in workers:
            place = workers.index(rank)
            right, left = workers[(place + 1) % size], workers[place - 1]
            give, take = (place - step) % size, (place - step - 1) % size
            given = chunks[give].clone()
            came = torch.empty_like(chunks[take])
            begun = dist.isend(given, right)
            dist.recv(came, left)
            begun.wait()
            chunks[take].copy_(chunks[take] + came if adds else came)
            sends = [(right, given)]
        note("scatter-reduce" if adds else "allgather", sends)


def first_numbers(chunks, workers):
    """Return the first number of each chunk, and the workers whose digits are in it."""
    numbers = [int(chunk[0]) for chunk in chunks]
    digits = [*enumerate(workers)]
    return [[n, *(w for place, w in digits if n // 10**place % 10)] for n in numbers]


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    # One rank alone is the server, and its own worker.
    workers = [*range(1, world_size)] or [0]
    # The ring cuts a gradient into a chunk for each worker, all of one size.
    numel = 840 - 840 % len(workers)

    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size)

    # A worker's gradient is 1, 10, 100 and so on: a sum's digits tell whose are in it.
    own = torch.zeros(numel, dtype=torch.int64)
    if rank in workers:
        own += 10 ** (workers.index(rank) % 18)
    grad = own.clone()
    expected = own.clone()
    weights = torch.zeros_like(own)
    events = []
    dist.all_reduce(expected)

    def note(phase, sends=()):
        # Nothing moves from a rank to itself. A message is noted in chunks of the ring.
        sends = [(to, t.split(numel // len(workers))) for to, t in sends if to != rank]
        # Sent bytes add up within one way, and count anew in the other.
        before = 0 if phase in ("star", "ring") else events[-1]["holds"]["sent"][0][0]
        now = sum(chunk.nbytes for _, chunks in sends for chunk in chunks)

        event = {"step": len(events), "rank": rank, "phase": phase}
        held = {"grad": first_numbers(grad.tensor_split(len(workers)), workers)}
        event["holds"] = held | {"sent": [[before + now]]}
        event["sends"] = [[to, "grad", first_numbers(t, workers)] for to, t in sends]
        events.append(event)

    # On a worker, a thread of RPC runs this when the server calls.
    def gradient(weights):
        if rank:
            note("weights")
            note("gradients", [(0, grad)])
        return grad

    # From the barrier on, each worker can answer.
    OWN["gradient"] = gradient
    note("star")
    dist.barrier()
    if rank == 0:
        note("weights", [(worker, weights) for worker in workers])
        grad = star(weights, workers)
        note("gradients")
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)

    # The workers wait here until the server has all answers. Then comes the ring.
    dist.barrier()
    grad = own.clone()
    note("ring")
    ring(grad, workers, rank, note)
    if rank in workers:
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)

    # It waits until all ranks have come.
    rpc.shutdown()

    rows = save_recording(args.record, events, picture="flow", pace=1.75, phases=PHASES)
    if rank == 0:
        # The bytes that the busiest rank should send: n workers have size bytes each.
        n = len(workers)
        size = weights.nbytes
        formulas = {"star": (world_size - 1) * size, "ring": 2 * (n - 1) * size // n}
        print("way   busiest sends   gets     sends/M   all messages")
        for way, formula in formulas.items():
            # The first three steps are the star's.
            part = [row for row in rows if (row["step"] < 3) == (way == "star")]
            moved = [(r["rank"], to, len(c)) for r in part for to, _, c in r["sends"]]

            # What was really sent is counted by sender, and then by receiver.
            for end in (0, 1):
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
