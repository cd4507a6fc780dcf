"""How fast is the ring of lesson 04, next to torch's own? Run by hand:

    python tests/bench_ring.py [--quick]

Medians over interleaved rounds, as ratios to dist.all_reduce in the same round, with
the middle half of all rounds in brackets.
"""

import os

import rounds
import torch
import torch.distributed as dist


def whole_gradient_ring(tensor, rank, world_size):
    """Pass the whole tensor N - 1 times, as tutorials do."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    passing, arrived = tensor.clone(), torch.empty_like(tensor)
    for _ in range(world_size - 1):
        send = dist.P2POp(dist.isend, passing, right)
        recv = dist.P2POp(dist.irecv, arrived, left)
        for request in dist.batch_isend_irecv([send, recv]):
            request.wait()
        tensor += arrived
        passing, arrived = arrived, passing


def main():
    """Time all methods on all sizes, and let rank 0 print the table."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ring_all_reduce = rounds.taught("04_ring_all_reduce").ring_all_reduce

    def ring():
        ring_all_reduce(tensor, spare, rank, world_size, lambda *args: None)

    def check(name, _):
        assert tensor.eq(world_size).all(), name
        tensor.fill_(1)

    methods = {
        "dist.all_reduce": lambda: dist.all_reduce(tensor),
        "itself": lambda: dist.all_reduce(tensor),  # what a ratio of 1 looks like here
        "ring": ring,
        "whole gradient": lambda: whole_gradient_ring(tensor, rank, world_size),
    }
    for mib, times in ((1, 400), (16, 400), (64, 60)):
        tensor, spare = torch.empty(2, mib * 2**18)  # kept: new room costs page faults
        tensor.fill_(1)
        rounds.compare(f"{world_size} ranks {mib:3} MiB", methods, times, check)


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        main()
        dist.destroy_process_group()
    else:
        print("time of dist.all_reduce, then each method as a ratio to it")
        for ranks in (2, 4):
            rounds.run(__file__, ranks)
