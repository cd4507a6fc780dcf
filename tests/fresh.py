"""Runs scripts in ranks that have imported torch, and nothing else.

A line of input is a list: a folder, a script, its words. Two ranks run it, and in the
folder they leave what they print, and at their end the names of their threads. The
line of output has their exit codes. A rank of a plain torchrun imports torch anew,
which takes longer than most scripts; else it has no more than these.
"""

import atexit
import gc
import json
import os
import runpy
import socket
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun sets it
import torch  # noqa: E402, F401 the ranks have it from here


def threads() -> str:
    """Return the names of the threads of this process."""
    tasks = Path("/proc/self/task").glob("*/comm")
    return str(sorted(path.read_text().strip() for path in tasks))


def become(rank: int, port: int, folder: Path, words: list[str]) -> None:
    """Be a rank that runs a script, from here to the end of the process."""
    for stream in (sys.stdout, sys.stderr):
        output = os.open(
            folder / f"{stream.name[1:-1]}{rank}", os.O_WRONLY | os.O_CREAT
        )
        os.dup2(output, stream.fileno())
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    place |= {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    atexit.register(lambda: (folder / f"rank{rank}").write_text(threads()))
    sys.argv = words
    sys.path[0] = os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")
    sys.exit()  # as an interpreter ends, and not earlier


def main() -> None:
    gc.collect()
    gc.freeze()  # a rank goes through what it makes itself, not through all of torch
    for line in sys.stdin:
        folder, *words = json.loads(line)
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
        ranks = []
        for rank in range(2):
            ranks.append(os.fork())
            if not ranks[-1]:
                become(rank, port, Path(folder), words)
        codes = [os.waitpid(rank, 0)[1] for rank in ranks]
        print(
            json.dumps([os.waitstatus_to_exitcode(code) for code in codes]), flush=True
        )


if __name__ == "__main__":
    main()
