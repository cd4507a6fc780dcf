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
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, save_recording, start

WAYS = "by hand", "launch", "torchrun", "mp.spawn"
OTHERS = "(TORCHELASTIC|PET|GROUP|ROLE|LOCAL|MASTER)_.*|RANK|WORLD_SIZE"
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
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    old = ["-m", "torch.distributed.launch", "--master-port", port]
    new = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    two = ["--nproc-per-node", "2", "job.py"]
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
    (folder / "job.py").write_text(JOB)
    with socket.create_server(("127.0.0.1", 0)) as free:
        typed = commands(f"{free.getsockname()[1]}")[way]
    env = {k: v for k, v in os.environ.items() if not re.fullmatch(OTHERS, k)}
    env |= {"OMP_NUM_THREADS": "1", "TMPDIR": f"{folder}"}  # where torch leaves files
    started, out = [], (folder / "log").open("w")
    try:
        for own, words in typed:
            options = {"env": env | own, "cwd": folder, "stdout": out, "stderr": out}
            started.append(subprocess.Popen([sys.executable, *words], **options))
        started[-1].wait(100)  # the launcher or, where there is none, rank 1
        time.sleep(0.5)
        (folder / "enough").touch()  # whoever still works may end
        codes = [process.wait(100) for process in started]
    finally:
        for process in started:
            process.terminate()
        out.close()
    log = (folder / "log").read_text()
    try:
        ranks = [(folder / name).read_text() for name in ("rank0", "rank1")]
    except FileNotFoundError:  # a rank has not come so far
        raise RuntimeError(f"{way}: a rank did not begin\n{log[-2000:]}") from None
    who = {os.getpid(): "you", started[0].pid: "launcher"}
    code = re.search(r"exit ?code[ :]+(\d)", log) or [0, codes[-1]]
    first = "SIGTERM" if "SIGTERM" in log else f"exit code {codes[0]}"
    ends, events = (first, f"exit code {code[1]}"), []
    for note, end in zip(map(json.loads, ranks), ends):
        note |= {"step": 0, "phase": way, "parent": who[note["parent"]], "ends": end}
        events.append(note | {"typed": [*typed[0][0]]})
    if len(started) == 1:
        launcher = {"step": 0, "rank": -1, "phase": way, "parent": "you"}
        events.append(launcher | {"ends": f"exit code {codes[0]}"})
    return events


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    dist.init_process_group("gloo", timeout=timedelta(minutes=3))
    events, shown = [], WAYS if world_size >= len(WAYS) else WAYS[:1]
    with TemporaryDirectory() as folder:
        for way in shown[rank : rank + 1]:
            events = watch(way, Path(folder))
    rows = save_recording(args.record, events, picture="trees")
    if rank == 0:
        print("way       rank 1       rank 0       launcher")
        for way in shown:
            ends = {row["rank"]: row["ends"] for row in rows if row["phase"] == way}
            if ends[1] != "exit code 3" or (ends[0] == "SIGTERM") != (-1 in ends):
                raise ValueError(f"{way}: the ranks end otherwise, with {ends}")
            print(f"{way:9} {ends[1]}  {ends[0]:11}  {ends.get(-1, 'there is none')}")
        print(f"ok: {len(shown)} of 4 ways, and only a launcher ends rank 0")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
