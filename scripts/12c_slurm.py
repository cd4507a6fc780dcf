"""Say which task of Slurm is which rank, whoever has started the ranks.

    torchrun --standalone --nproc-per-node 4 scripts/12c_slurm.py

There each rank is taken for a task of two nodes. With Slurm, on two nodes of its own:

    srun --nodes 2 --ntasks-per-node 2 python scripts/12c_slurm.py

Without a cluster, put python3 scripts/slurm.py run before srun. No GPU is used. With
--record PATH, rank 0 keeps who is where, as JSON lines: the same lines, whether Slurm
is there or not. The last line begins with "ok". The lesson: notebooks/12c_slurm.ipynb
"""

import gc
import json
import os
import shlex
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from datetime import timedelta
from math import ceil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors


def from_slurm(env):
    """Give a task of srun the variables that torchrun gives to a rank."""
    env["RANK"], env["LOCAL_RANK"] = env["SLURM_PROCID"], env["SLURM_LOCALID"]
    env["WORLD_SIZE"] = env["SLURM_NTASKS"]
    nodes = ["scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]]
    env["MASTER_ADDR"] = subprocess.check_output(nodes, text=True).split()[0]
    env["MASTER_PORT"] = str(20000 + int(env["SLURM_JOB_ID"]) % 10000)


TASK = "SLURM_PROCID" in os.environ
BY = "torchrun" if TASK and "RANK" in os.environ else "srun"
if TASK and BY == "srun":
    from_slurm(os.environ)  # before anybody asks for the rank


def seat(rank, world_size):
    """Return the node, the task and the local rank of this process."""
    if not TASK:  # torchrun alone: as if srun had dealt out tasks to two nodes
        node, local = divmod(rank, ceil(world_size / 2))
        return {"node": node, "task": rank, "local": local}
    names = {"node": "SLURM_NODEID", "task": "SLURM_PROCID", "local": "LOCAL_RANK"}
    return {name: int(os.environ[variable]) for name, variable in names.items()}


def flaw(rows, came):
    """Return what is wrong with the numbers of all ranks, or None."""
    if came != len(rows) or [row["rank"] for row in rows] != [*range(came)]:
        return f"{came} processes came, as ranks {[row['rank'] for row in rows]}"
    for node in {row["node"] for row in rows}:
        local = sorted(row["local"] for row in rows if row["node"] == node)
        if local != [*range(len(local))]:
            return f"node {node} has the local ranks {local}"
    return None


def save_recording(path, events, **header):
    """Return all ranks' events by step and rank; rank 0 writes them, one a line."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, events)
    rows = sorted(sum(gathered, []), key=lambda event: (event["step"], event["rank"]))
    if path and dist.get_rank() == 0:
        header = {"lesson": Path(__file__).stem, "ranks": len(gathered)} | header
        part = Path(f"{path}.part")
        part.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
        part.replace(path)
    return rows


class Parser(ArgumentParser):
    def error(self, message):
        """Say in one line what is wrong, and once: rank 0 speaks, and leaves first."""
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)
            self.exit(2)
        self.exit(2, f"{self.prog}: {message}\n")


def start(parser):
    """Return the arguments, this rank and the number of ranks."""
    parser.add_argument("--record", type=Path, metavar="PATH", help="a file to write")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        path = shlex.quote(sys.argv[0])
        parser.error(f"try torchrun --standalone --nproc-per-node 4 {path}")
    if args.record and (args.record.is_dir() or not args.record.parent.is_dir()):
        parser.error(f"--record must be a file in a folder, not {args.record}")
    return args, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    args, rank, world_size = start(parser)
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    came = torch.ones(1)
    dist.all_reduce(came)  # each process that is there adds one
    event = {"step": 0, "rank": rank, "phase": BY} | seat(rank, world_size)
    rows = save_recording(args.record, [event], picture="jobs")
    if wrong := flaw(rows, int(came)):
        raise ValueError(wrong)
    if rank == 0:
        for row in rows:
            print(
                "node {node}  task {task}  local rank {local}  rank {rank}".format(
                    **row
                )
            )
        print(f"ok: {world_size} processes are ranks 0 to {world_size - 1}, each once")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
