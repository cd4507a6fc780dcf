"""Follows a run from beside it: passes on its output, and ends what outstays."""

import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

FULL = "the disk is full"  # how a run that can't start says so
GRACE = 5.0  # seconds between a polite end and SIGKILL
LOOKS = 25  # looks of ours that an agent which itself stood still has to go on
# torch asks a name server for the name of loopback, and complains where none is.
NAMELESS = re.compile(r"(?m)^\[W.*hostname of the client socket cannot be.*\n?")


class Watch(threading.Thread):
    """Follows one run: passes on what ranks print, and ends ranks that outstay."""

    def __init__(self, request: dict, keep: set[int], tell):
        super().__init__(daemon=True)
        self.folder, self.keep, self.tell = Path(request["folder"]), keep, tell
        self.last_look = math.inf  # when the agent last found the ranks well
        self.ranks, self.all_there = request["ranks"], math.inf
        self.deadline = time.monotonic() + request["timeout"]
        self.over = threading.Event()
        self.passed_on: dict[int, int] = {}  # bytes of output, by rank
        self.swept: list[int] = []  # processes
        self.hung: list[int] = []  # ranks
        self.last_words, self.ending = math.inf, threading.Lock()

    def run(self):
        late = 0
        while not self.over.wait(0.02):
            self.pass_on()
            late = late + 1 if self.outstays() else 0
            if late > LOOKS:
                self.swept += (process.pid for process in sweep(self.keep))
        self.pass_on(last=True)

    def outstays(self) -> bool:
        """Say whether something has to be ended that should have ended by itself."""
        now = time.monotonic()
        if now - min(self.last_words, self.last_time()) <= GRACE:
            return False
        # the agent has been silent; perhaps it asks seldom, and all is well
        if self.last_words == math.inf and now > self.deadline + GRACE:
            self.end_hung()
        return self.last_words < math.inf or not self.well()

    def well(self) -> bool:
        """Say whether no rank has failed: each that began still runs, or is done."""
        pids, done = self.notes("pid"), self.notes("done")
        ended = [r for r, pid in pids.items() if r not in done and not runs(int(pid))]
        return not ended and not self.notes("failed")

    def last_time(self) -> float:
        """Return when all was well: before the first look when all ranks were there."""
        if self.last_look < math.inf:
            return self.last_look
        if self.all_there == math.inf and len(self.notes("pid")) == self.ranks:
            self.all_there = time.monotonic()
        return self.all_there

    def files(self, kind: str) -> dict[int, Path]:
        """Return the files of one kind that ranks write, none of a script's own."""
        found = sorted(self.folder.glob(f"[0-9]*.{kind}"))
        return {int(path.stem): path for path in found if path.stem.isdecimal()}

    def pass_on(self, last: bool = False):
        """Tell the whole lines that ranks have printed since the last time."""
        for r, path in self.files("stdout").items():
            with path.open("rb") as file:
                file.seek(self.passed_on.get(r, 0))
                text = file.read()
            if not last:
                text = text[: text.rfind(b"\n") + 1]
            self.passed_on[r] = self.passed_on.get(r, 0) + len(text)
            for line in text.splitlines():
                self.tell(rank=r, line=line.decode(errors="replace"))

    def notes(self, kind: str) -> dict[int, str]:
        """Return the files of one kind that ranks have left in the folder."""
        return {r: path.read_text("utf-8") for r, path in self.files(kind).items()}

    def tick(self):
        """Note that all ranks are well; if their time is up, end them, and return."""
        self.last_look = time.monotonic()
        if self.last_words == math.inf and self.last_look > self.deadline:
            self.end_hung()

    def end_hung(self):
        """End the ranks that still run, each telling first where it stands.

        All have ended on return, as the agent would end the others of one that has.
        """
        with self.ending:
            if self.last_words == math.inf:
                self.end_together()

    def end_together(self):
        """Ask all ranks that still run for their last words, and wait for their end."""
        began = {r: int(text) for r, text in self.notes("pid").items()}
        below = {process.pid for process in psutil.Process().children(recursive=True)}
        alive = {r: pid for r, pid in began.items() if pid in below and runs(pid)}
        for r in self.notes("failed"):  # it ends by itself, and has told why
            alive.pop(r, None)
        self.hung = [r for r in range(self.ranks) if r in alive or r not in began]
        self.last_words = time.monotonic()
        try:
            send(signal.SIGSTOP, alive.values())  # then all are asked at once
            send(signal.SIGABRT, alive.values())
        finally:
            send(signal.SIGCONT, alive.values())
        last = self.last_words + 2 * GRACE  # those that do not end are swept by then
        while any(map(runs, alive.values())) and time.monotonic() < last:
            time.sleep(0.01)


def send(sign: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to those of the processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sign)


def runs(pid: int) -> bool:
    """Say whether the process is there and not just waiting to be reaped."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def sweep(keep: set[int]) -> list[psutil.Process]:
    """Kill every process below this one, but for those to keep; return what must end.

    A resource tracker ends by itself, when it has removed the semaphores of the others.
    """
    below = psutil.Process().children(recursive=True)
    found = [process for process in below if process.pid not in keep]
    for process in found:
        with suppress(psutil.Error):
            if "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                process.kill()
    return found
