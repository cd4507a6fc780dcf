"""Says in words why a run failed: the rank that failed first, then where to read on."""

import linecache
import os
import re
import signal
import time
from collections import defaultdict
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from .in_rank import write

KEPT = 5  # logs of failed runs, for each kernel
OLD = 86400  # seconds after which the logs of any kernel go
HINTS = {
    "SIGKILL": "usually out of memory: try fewer ranks or a smaller batch",
    "SIGBUS": "usually out of shared memory: try num_workers=0",
    "SIGABRT": "by a crash below Python or a process group that was never destroyed",
    "SIGSEGV": "by a crash below Python",
}


class Brief:
    """An error that a notebook shows without the helper's own lines."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Refused(Brief, ValueError):
    """A run that can't be started as asked."""


class NoScript(Brief, FileNotFoundError):
    """A script that is not there."""


class Interrupted(Brief, KeyboardInterrupt):
    """A run that the learner has stopped."""


class RankFailed(RuntimeError):
    """A run that did not end well; the message names the rank that failed first."""

    details: str = ""
    log: Path | None = None
    run: object = None  # what became of each rank

    def _render_traceback_(self) -> list[str]:
        """Show the rank's own traceback in place of the kernel's."""
        end = [f"All that the ranks said is in {self.log}"] if self.log else []
        return [str(self), *self.details.splitlines(), *end]


class RankTimeout(RankFailed):
    """A run with ranks that still ran when the time was up."""


def explain(end: dict, ranks: int, timeout: float, script: Path) -> RankFailed | None:
    """Return the error that this end of a run deserves; None for a good end."""
    if end["error"]:
        return RankFailed(f"the ranks could not start: {end['error']}")
    failed, codes = end["failed"], end["codes"]
    if end["hung"] and all(reason["victim"] for reason in failed.values()):
        return hung(end, ranks, timeout, script)
    order = sorted(failed, key=lambda rank: place(failed[rank]))
    if end["lost"] and all(reason["victim"] for reason in failed.values()):
        return gone(end["lost"][0], codes[end["lost"][0]])
    if not order:
        return None
    first, reason = order[0], failed[order[0]]
    error = raised(first, reason, end["stderr"].get(first, ""))
    if reason["victim"] and end["done"]:
        early = f"{name(end['done'])} ended while rank {first} still waited"
        error.args = (f"{early}: {headline(reason)}",)
    return error


def place(reason: dict) -> tuple[bool, bool, float]:
    """Return what sorts failures, the first cause first, then who waited in vain.

    A rank whose call timed out closes its connections: whoever loses them comes later.
    """
    return reason["victim"], "by peer" in reason["message"], reason["time"]


def gone(rank: int, code: int) -> RankFailed:
    """Return the error for a rank that went without a word."""
    if code > 0:
        return RankFailed(f"rank {rank} ended with exit code {code}")
    try:
        sign = signal.Signals(-code).name
    except ValueError:  # most real-time signals have none
        sign = f"signal {-code}"
    hint = HINTS.get(sign, "by another process")
    return RankFailed(f"rank {rank} was killed ({sign}), {hint}")


def raised(rank: int, reason: dict, stderr: str) -> RankFailed:
    """Return the error for a rank that raised, or left with an exit code."""
    if reason["type"] == "SystemExit":
        said = stderr.strip().rpartition("\n")[2]
        left = f"rank {rank} left with exit code {reason['code']}"
        return RankFailed(f"{left}: {said}" if said else left)
    error = RankFailed(f"rank {rank} raised {headline(reason)}")
    error.details = reason["traceback"].rstrip()
    return error


def headline(reason: dict) -> str:
    """Return the last line of a traceback, cut after the first line of the message."""
    return f"{reason['type']}: {reason['message']}".partition("\n")[0]


def hung(end: dict, ranks: int, timeout: float, script: Path) -> RankTimeout:
    """Return the error for ranks that outstayed, with the lines where they stood."""
    places = defaultdict(list)
    for rank in end["hung"]:
        place = "after the last line of the script, which has left something running"
        if rank not in end["done"]:
            place = standing(end["stderr"].get(rank, ""), str(script))
        places[place].append(rank)
    count = f"{len(end['hung'])} of {ranks} ranks"
    error = RankTimeout(f"{count} still ran after {timeout:g} s, and were ended")
    error.details = "\n".join(f"{name(g)} stood {place}" for place, g in places.items())
    return error


def keep_log(stem: str, run) -> Path | None:
    """Write down all that the ranks said, and return where, if that was possible."""
    text = f"$ {run.command}\n"
    for rank, lines in run.lines.items():
        printed = "".join(f"{line}\n" for line in lines)
        text += f"\n--- rank {rank}\n{printed}{run.stderr.get(rank, '')}"
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache, "ringside")
        if not folder.is_absolute():
            return None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():  # somebody else's, or a way there
            return None
        folder.chmod(0o700)  # it is nobody else's business what ranks said
        path = folder / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{os.getpid()}-{stem}.log"
        write(path, text)
        own = sorted(folder.glob(f"*-{os.getpid()}-*.log"))[:-KEPT]
        last = time.time() - OLD
        for log in folder.glob("*.log"):
            with suppress(OSError):  # another kernel may have removed it
                if log in own or log.stat().st_mtime < last:
                    log.unlink()
    except (OSError, RuntimeError):  # no room, or no home
        return None
    return path


def name(ranks: list[int]) -> str:
    """Return "rank 3", or "ranks 0, 1 and 2"."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def standing(dump: str, script: str) -> str:
    """Return the line of the script that a rank was at, read from its last words."""
    linecache.checkcache(script)
    told = script if len(script) <= 500 else f"{script[:500]}..."  # by faulthandler
    told = told.encode("ascii", "backslashreplace").decode()
    for thread in reversed(dump.split("hread 0x")):  # the main thread comes last
        frames = re.findall(r'File "(.*)", line (\d+) in (\S+)', thread)
        for path, line, function in frames:  # the innermost comes first
            if path == told:
                code = linecache.getline(script, int(line)).strip()
                at = f"at line {line} of {Path(script).name}, "
                if Path(script).parent.name.startswith("run-"):  # made from a function
                    at = ""
                return f"{at}in {function}: {code}"
    return "before the first line of the script"
