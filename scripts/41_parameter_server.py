"""Add up gradients at a parameter server, and in a ring; count what the busiest sends.

    torchrun --standalone --nproc-per-node 4 scripts/41_parameter_server.py

Rank 0 is the server, and calls the workers by RPC; then the workers form a ring. Needs
no GPU. With --record PATH, rank 0 keeps who sent what, as JSON lines. The last line
begins with "ok". The lesson: notebooks/41_parameter_server.ipynb
"""

import gc
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
    place = workers.index(rank)
    right, left = workers[(place + 1) % size], workers[place - 1]
    chunks = grad.tensor_split(size)
    for step in range(2 * size - 2):
        give, take = (place - step) % size, (place - step - 1) % size
        came = torch.empty_like(chunks[take])
        begun = dist.isend(chunks[give], right)
        dist.recv(came, left)
        begun.wait()
        # In the first half a worker adds what comes. After that, complete chunks come.
        adds = step < size - 1
        chunks[take].copy_(chunks[take] + came if adds else came)
        note("scatter-reduce" if adds else "allgather", [(right, chunks[give])])


def report(rows, world_size, size):
    """Print what the busiest rank sent and got, and hold both against the formula."""
    n = max(1, world_size - 1)  # workers, each with a gradient of size bytes
    formulas = {"star": (world_size - 1) * size, "ring": 2 * (n - 1) * size // n}
    print("way   busiest sends   gets     sends/M   all messages")
    for way, formula in formulas.items():
        # The first three steps are the star's.
        part = [row for row in rows if (row["step"] < 3) == (way == "star")]
        messages = [(to, len(chunks)) for row in part for to, _, chunks in row["sends"]]
        # A sender has added up its bytes. What a rank gets stands in the messages.
        sent = max(row["holds"]["sent"][0][0] for row in part)
        got = [0] * world_size
        for to, chunks in messages:
            got[to] += chunks * size // n
        if not sent == max(got) == formula:
            raise ValueError(f"{way}: {sent} bytes sent, {got} got, not {formula}")
        print(f"{way}  {sent:13}  {sent:5}  {sent / size:10.2f}  {len(messages):13}")


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size)
    workers = [*range(1, world_size)] or [0]  # alone, rank 0 is its own worker
    chunk = 840 // len(workers)  # so that the ring's chunks have one size
    # A worker's gradient is 1, 10, 100 and so on: a sum's digits tell whose are in it.
    digit = 10 ** (workers.index(rank) % 18) if rank in workers else 0
    own = torch.full((chunk * len(workers),), digit)
    expected = own.clone()
    dist.all_reduce(expected)
    grad = own
    events = []

    def firsts(tensor):
        """Return each chunk's first number, and the workers whose digits are in it."""
        digits = [*enumerate(workers)]
        numbers = tensor[::chunk].tolist()
        return [[n, *(w for i, w in digits if n // 10**i % 10)] for n in numbers]

    def note(phase, sends=()):
        sent = sum(tensor.nbytes for _, tensor in sends)
        if phase not in ("star", "ring"):  # in each way, the bytes add up anew
            sent += events[-1]["holds"]["sent"][0][0]
        event = {"step": len(events), "rank": rank, "phase": phase}
        event["holds"] = {"grad": firsts(grad), "sent": [[sent]]}
        event["sends"] = [[to, "grad", firsts(tensor)] for to, tensor in sends]
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
        weights = torch.zeros_like(own)
        note("weights", [(worker, weights) for worker in range(1, world_size)])
        grad = star(weights, workers)
        note("gradients")
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)

    # The workers wait here until the server has all answers. Then comes the ring.
    dist.barrier()
    grad = own
    note("ring")
    if rank in workers:
        ring(grad, workers, rank, note)
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)
    else:  # the server has no place in the ring, and only notes that a step is over
        for phase in ("scatter-reduce", "allgather"):
            for _ in workers[1:]:
                note(phase)
    rpc.shutdown()  # it waits until all ranks have come
    rows = save_recording(args.record, events, picture="flow", pace=1.75, phases=PHASES)
    if rank == 0:
        report(rows, world_size, own.nbytes)
        print(f"ok: {len(workers)} workers, and both sums agree with dist.all_reduce")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
