"""What surrounds a script in a rank: it dies with its parent and says why it failed.

The script runs as if typed after `python`. Standard library only, and torch: a rank
that starts from a fresh interpreter must not pay for anything else.
"""

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
import weakref
from contextlib import suppress
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path

PRELOAD = ["torch.distributed", "torch.distributed.elastic.multiprocessing.errors"]
PRELOAD += ["torch._dynamo"]  # or each rank imports it with its first optimizer or DDP
BIRTHPLACE = 0  # the process that ranks are copied from
PEER_LOST = ["closed by peer", "reset by peer", "connectFullMesh", "Broken pipe"]
PEER_LOST += ["Connection refused", "remote process exited", "Timed out waiting"]
PEER_LOST += ["NCCL", "DistNetworkError", "DistStoreError"]


def run_warm(order: dict, env: dict[str, str]) -> None:
    """Run the script in a process forked from one that has imported torch."""
    os.environ.clear()
    os.environ.update(env)
    import torch.distributed

    torch.distributed.set_debug_level_from_env()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tracker = resource_tracker._resource_tracker
    tracker._fd = None  # type: ignore[attr-defined]  # its semaphores go when it goes
    torch.default_generator.seed()  # or every rank draws the same numbers
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    run(order["script"], order["args"], order["folder"], BIRTHPLACE)
    # End as a script does, but without taking torch apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # to return would be to wait for the other ranks


def run(script: str, args: list[str], folder: str, parent: int) -> None:
    """Run the script; leave its pid, and on failure the reason, in the folder."""
    die_with(parent)
    place = Path(folder, os.environ["RANK"])
    for stream in (sys.stdout, sys.stderr):
        path = place.with_suffix(f".{stream.name[1:-1]}")
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, stream.fileno())
        os.close(output)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    if "torch" not in sys.modules:  # or the time of the run would begin without it
        with suppress(ImportError):  # the script will say so
            import_all("torch.distributed")
    write(place.with_suffix(".pid"), str(os.getpid()))
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        fail(error, script, place)
    sys.stdout.flush()
    sys.stderr.flush()
    write(place.with_suffix(".done"), written())


def fail(error: BaseException, script: str, place: Path) -> None:
    """Write down the reason, print it, and end this process, unless it left with 0."""
    told = traceback.TracebackException.from_exception(error)
    own = [i for i, frame in enumerate(told.stack) if frame.filename == script]
    told.stack = traceback.StackSummary.from_list(
        frame
        for frame in told.stack[own[0] if own else len(told.stack) :]
        if "distributed/elastic/" not in frame.filename
    )
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
        code &= 0xFF  # as the operating system hears it
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
    text, message = "".join(told.format()), "<exception str() failed>"
    with suppress(Exception):
        message = str(error)
    victim = any(sign in f"{type(error).__name__}: {message}" for sign in PEER_LOST)
    if code:
        reason = {"type": type(error).__name__, "message": message, "code": code}
        reason |= {"traceback": text, "victim": victim, "time": time.time_ns()}
        write(place.with_suffix(".failed"), json.dumps(reason))
        if not isinstance(error, SystemExit):
            sys.stderr.write(text)
    sys.stdout.flush()
    sys.stderr.flush()
    if victim:  # let the agent meet the rank that failed first
        time.sleep(1)
    if code:
        os._exit(code)


def written() -> str:
    """Return how many bytes this process has written, to files and to other ranks."""
    try:
        with open("/proc/self/io") as counts:
            return next(line.split()[1] for line in counts if line[:6] == "wchar:")
    except OSError:  # not on macOS
        return ""


def write(path: Path, text: str) -> None:
    """Put the whole text at path, or nothing."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends; end it if that has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    else:
        threading.Thread(target=outlive, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def outlive(parent: int) -> None:
    """Wait until the parent has ended, by half a second at most; end this process."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def import_all(*modules: str) -> None:
    """Import modules that stay: no garbage is looked for in them, now or later.

    An import of torch takes a fifth less time so, and a collection in a rank, too.
    """
    gc.disable()
    try:
        for module in modules:
            import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def preload() -> None:
    """Import what all ranks need, in the process from which they are copied."""
    import_all(*PRELOAD)
    # Nor may the end of a rank take it apart.
    for ending in weakref.finalize._registry:  # type: ignore[attr-defined]
        ending.atexit = False


def settle() -> None:
    """Remember which process ranks are copied from."""
    global BIRTHPLACE
    BIRTHPLACE = os.getpid()
    tempfile.tempdir = None  # a rank looks for its own


settle()
if __name__ == "__main__":
    run(sys.argv[3], sys.argv[4:], sys.argv[2], int(sys.argv[1]))
