"""Waits for a lock of the nodes, but not for ever."""

import fcntl
import shlex
import time
from contextlib import suppress
from pathlib import Path

from .launch.failure import Refused


def wait_for(lock: int, place: Path, seconds: float) -> None:
    """Take a lock, or refuse if it stays taken: who can read a folder can lock it."""
    last = None
    while last is None or time.monotonic() < last:
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if last is None:
            print("Another notebook has the nodes: waiting for it", flush=True)
            last = time.monotonic() + seconds
        time.sleep(0.1)
    tells = shlex.join(["fuser", "-v", str(place)])
    raise Refused(f"somebody keeps the nodes for {seconds:g} s; {tells} says who")
