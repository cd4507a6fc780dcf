"""Say which task of Slurm is which rank, whoever has started the ranks.

    torchrun --standalone --nproc-per-node 4 scripts/32_slurm.py

There each rank is taken for a task of two nodes. With Slurm, on two nodes of its own:

    srun --nodes 2 --ntasks-per-node 2 python scripts/32_slurm.py

Without a cluster, put python3 scripts/slurm.py run before srun. No GPU is used. With
--record PATH, rank 0 keeps who is where, as JSON lines: the same lines, whether Slurm
is there or not. The last line begins with "ok". The lesson: notebooks/32_slurm.ipynb
"""

import gc
import os
import subprocess
from datetime import timedelta
from math import ceil

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, save_recording, start


def from_slurm(env):
    """Give a task of srun the variables that torchrun gives to a rank."""
    # Slurm has counted the tasks. Its numbers only get the names that torchrun uses.
    env["RANK"], env["LOCAL_RANK"] = env["SLURM_PROCID"], env["SLURM_LOCALID"]
    env["WORLD_SIZE"] = env["SLURM_NTASKS"]

    # The list of nodes has a short form. Rank 0 is on the first node that it names.
    nodes = ["scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]]
    env["MASTER_ADDR"] = subprocess.check_output(nodes, text=True).split()[0]

    # Two jobs may share a node, and need two ports: the job's number makes the port.
    env["MASTER_PORT"] = str(20000 + int(env["SLURM_JOB_ID"]) % 10000)


# If a task has a RANK already, torchrun's agent has started it, and the RANK stays. All
# other tasks take their numbers from Slurm, before anything asks for the rank.
IS_A_TASK = "SLURM_PROCID" in os.environ
STARTED_BY = "torchrun" if IS_A_TASK and "RANK" in os.environ else "srun"
if IS_A_TASK and STARTED_BY == "srun":
    from_slurm(os.environ)


def seat(rank, world_size):
    """Return the node, the task and the local rank of this process."""
    # torchrun alone plays srun, which deals out the tasks to two nodes.
    if not IS_A_TASK:
        node, local = divmod(rank, ceil(world_size / 2))
        return {"node": node, "task": rank, "local": local}

    names = {"node": "SLURM_NODEID", "task": "SLURM_PROCID", "local": "LOCAL_RANK"}
    return {name: int(os.environ[variable]) for name, variable in names.items()}


def flaw(rows, came):
    """Return what is wrong with the numbers of all ranks, or None."""
    # If two tasks took one number, two ranks would read the same share of the data.
    if came != len(rows) or [row["rank"] for row in rows] != [*range(came)]:
        return f"{came} processes came, as ranks {[row['rank'] for row in rows]}"

    # The local rank chooses the GPU, so on each node it counts from 0.
    for node in {row["node"] for row in rows}:
        local = sorted(row["local"] for row in rows if row["node"] == node)
        if local != [*range(len(local))]:
            return f"node {node} has the local ranks {local}"
    return None


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))

    # Each process that is there adds one.
    came = torch.ones(1)
    dist.all_reduce(came)

    event = {"step": 0, "rank": rank, "phase": STARTED_BY} | seat(rank, world_size)
    rows = save_recording(args.record, [event], picture="jobs")

    # Every rank has all rows, so every rank stops if some number cannot be right.
    wrong = flaw(rows, int(came))
    if wrong:
        raise ValueError(wrong)

    if rank == 0:
        line = "node {node}  task {task}  local rank {local}  rank {rank}"
        for row in rows:
            print(line.format(**row))
        print(f"ok: {world_size} processes are ranks 0 to {world_size - 1}, each once")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
