"""Runs scripts in a rank that has imported torch, and nothing else.

    python tests/fresh.py RANK [MODULE ...]

This is one of two ranks. A line of input is a list: a port, a folder, a script, its
words. In the folder the rank leaves what it prints, and at its end the names of its
threads. The line of output has its exit code. A rank of a plain torchrun imports torch
anew, which takes longer than most scripts; else it has no more than this one. Modules
that are named are imported before, once.
"""

import atexit
import gc
import json
import os
import runpy
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun sets it
import torch  # noqa: E402, F401 the ranks have it from here


def threads() -> str:
    """Return the names of the threads of this process."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # a thread that has ended since it was listed
            names.append(path.read_text().strip())
    return str(sorted(names))


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


def main(rank: str, *modules: str) -> None:
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # a rank goes through what it makes itself, not through all of torch
    for line in sys.stdin:
        port, folder, *words = json.loads(line)
        if not (child := os.fork()):
            become(int(rank), port, Path(folder), words)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
