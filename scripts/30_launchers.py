"""Start the same two ranks in four ways, let one die, and tell who did what.

    torchrun --standalone --nproc-per-node 4 scripts/30_launchers.py

Each of four ranks types one way to start them: rank 0 by hand, and the others the old
launcher, torchrun and mp.spawn. With fewer ranks, only rank 0 does. With --record PATH,
rank 0 keeps what all processes did, as JSON lines. The last line begins with "ok".
The lesson: notebooks/30_launchers.ipynb
"""

import gc
import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, free_port, save_recording, start

WAYS = "by hand", "launch", "torchrun", "mp.spawn"
# This process is a rank itself, and a job must not inherit what torchrun gave to it.
FROM_TORCHRUN = "(TORCHELASTIC|PET|GROUP|ROLE|LOCAL|MASTER)_.*|RANK|WORLD_SIZE"
JOB = """import json, os, signal, sys, time

NAMES = "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
INHERITED = [name for name in NAMES if name in os.environ]

def work():
    signal.alarm(100)  # whatever happens, this process ends
    rank, knows = os.environ["RANK"], [name for name in NAMES if name in os.environ]
    note = {"rank": int(rank), "parent": os.getppid(), "words": sys.argv[1:]}
    with open(f"rank{rank}.part", "w") as file:
        json.dump(note | {"inherited": INHERITED, "knows": knows}, file)
    os.replace(f"rank{rank}.part", f"rank{rank}")
    while not (os.path.exists("rank0") and os.path.exists("rank1")):
        time.sleep(0.01)
    if rank == "1":
        sys.exit(3)
    while not os.path.exists("enough"):  # rank 0 works on
        time.sleep(0.01)

def spawned(index, port):
    os.environ.update(RANK=f"{index}", WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    work()

if __name__ == "__main__":
    work()
"""


def commands(port):
    """Return what you type for each way: variables, and the words behind python."""
    # By hand you say yourself who meets, and where. RANK follows below.
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    # A launcher sets all variables itself, so these commands begin with none.
    old = ["-m", "torch.distributed.launch", "--master-port", port]
    new = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    two = ["--nproc-per-node", "2", "job.py"]
    # The new processes must find the function: it stands in job.py, and not here.
    spawn = (
        f"import job, torch; torch.multiprocessing.spawn(job.spawned, [{port!r}], 2)"
    )
    return {
        "by hand": [(meet | {"RANK": rank}, ["job.py"]) for rank in "01"],
        "launch": [({}, [*old, *two])],
        "torchrun": [({}, [*new, *two])],
        "mp.spawn": [({}, ["-c", spawn])],
    }


def watch(way, folder):
    """Type what starts a job, and wait for its end; return what each process did."""
    # The four ways run at the same time, so each takes a free port of its own.
    typed = commands(free_port())[way]
    (folder / "job.py").write_text(JOB)

    env = {k: v for k, v in os.environ.items() if not re.fullmatch(FROM_TORCHRUN, k)}
    # What torch leaves behind goes into the job's folder, which is removed.
    env |= {"OMP_NUM_THREADS": "1", "TMPDIR": f"{folder}"}

    started = []
    with (folder / "log").open("w") as out:
        for own, words in typed:
            options = {"env": env | own, "cwd": folder, "stdout": out, "stderr": out}
            started.append(subprocess.Popen([sys.executable, *words], **options))

    # Rank 1 dies. What ends without help is the launcher, or by hand rank 1 itself.
    started[-1].wait(100)
    # By now rank 0 has been ended. If it works on, it stops when it sees this file.
    (folder / "enough").touch()
    ends = [f"exit code {process.wait(100)}" for process in started]
    log = (folder / "log").read_text()
    notes = sorted(folder.glob("rank[01]"))
    if len(notes) < 2:
        raise RuntimeError(f"{way}: a rank did not begin\n{log[-2000:]}")

    # Only the parent hears how a rank ends. By hand that is you; a launcher's log says
    # it. A launcher is no rank itself, so the recording calls it -1.
    events = []
    if way != "by hand":
        launcher = {"step": 0, "rank": -1, "phase": way, "parent": "you"}
        events.append(launcher | {"ends": ends[0]})
        code = re.search(r"exit ?code[ :]+(\d)", log)[1]
        ends = ["SIGTERM" if "SIGTERM" in log else "nothing", f"exit code {code}"]

    parents = {os.getpid(): "you", started[0].pid: "launcher"}
    for path, end in zip(notes, ends):
        note = json.loads(path.read_text())
        note |= {"step": 0, "phase": way, "parent": parents[note["parent"]]}
        events.append(note | {"ends": end, "typed": [*typed[0][0]]})
    return events


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    dist.init_process_group("gloo", timeout=timedelta(minutes=3))

    # One way for each rank; a rank beyond the ways only waits for the others.
    shown = WAYS if world_size >= len(WAYS) else WAYS[:1]
    events = []
    with TemporaryDirectory() as folder:
        for way in shown[rank : rank + 1]:
            events = watch(way, Path(folder))
    rows = save_recording(args.record, events, picture="trees")
    if rank == 0:
        print("way       rank 1       rank 0       launcher")
        for way in shown:
            ends = {row["rank"]: row["ends"] for row in rows if row["phase"] == way}
            # Rank 1 dies by itself. Rank 0 is ended if there is a launcher, else not.
            if ends[1] != "exit code 3" or (ends[0] == "SIGTERM") != (-1 in ends):
                raise ValueError(f"{way}: the ranks end otherwise, with {ends}")
            print(f"{way:9} {ends[1]}  {ends[0]:11}  {ends.get(-1, 'there is none')}")
        print(f"ok: {len(shown)} of 4 ways, and only a launcher ends rank 0")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
