"""Start ranks, let each say who and where it is, and let them add one number.

    torchrun --standalone --nproc-per-node 4 scripts/00_four_ranks_tonight.py
    torchrun --standalone --nproc-per-node gpu scripts/00_four_ranks_tonight.py

The first line needs no GPU; the second gives each GPU a rank. Two nodes on one machine,
for a try: type one of these lines in one terminal, and the other in a second. On a
machine with GPUs, put CUDA_VISIBLE_DEVICES= before both, or they take the same GPUs.

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 \
        scripts/00_four_ranks_tonight.py
    torchrun --nnodes 2 --node-rank 1 --nproc-per-node 2 \
        scripts/00_four_ranks_tonight.py

With --record PATH, rank 0 keeps what each rank knew, one JSON object per line.
The last line begins with "ok". The lesson: notebooks/00_four_ranks_tonight.ipynb
"""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, own_device, save_recording, start

PHASES = {
    "start": "torchrun has started the ranks and told each one who it is.",
    "number": "Each rank brings one number: its own.",
    "all-reduce": "One call, made by all, leaves the sum on every rank.",
}


def where(rank, per_node):
    """A rank's node and its number there: ranks fill one node after another."""
    node, local_rank = divmod(rank, per_node)
    return node, local_rank


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    device, backend = own_device()
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    node, local_rank = int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])
    expected = where(rank, int(os.environ["LOCAL_WORLD_SIZE"]))
    if (node, local_rank) != expected:
        raise ValueError(f"rank {rank} is at {node, local_rank}, not at {expected}")

    number = torch.tensor(rank, device=device)
    dist.all_reduce(number)
    total = sum(range(world_size))
    if number != total:
        raise ValueError(f"the ranks add up to {number}, not to {total}")

    here = {"local_rank": [[local_rank]], "node": [[node]]}
    here["world_size"] = [[world_size]]
    held = [here, here | {"number": [[rank, rank]]}]
    held += [here | {"number": [[total, *range(world_size)]]}]
    events = [
        {"step": step, "rank": rank, "phase": phase, "holds": held[step]}
        for step, phase in enumerate(PHASES)
    ]
    events[-1]["call"] = "all_reduce"
    rows = save_recording(args.record, events, picture="flow", phases=PHASES)
    if rank == 0:
        print("rank  node  local_rank")
        for row in rows[:world_size]:
            [[node]], [[local_rank]] = row["holds"]["node"], row["holds"]["local_rank"]
            print(f"{row['rank']:4}  {node:4}  {local_rank:10}")
        print(f"ok: {world_size} ranks on {device.type} add up to {total}")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
