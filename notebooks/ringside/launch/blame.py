"""Says whose fault a failure was: the first rank that failed, and not its victims.

A rank that raises leaves a note (fail(), in in_rank.py), in which it calls itself a
victim if its error has one of the words of PEER_LOST, there: it only lost another rank.
outcome() puts these notes together with the exit codes that the agent saw, while the
run's folder is there. Ranks that failed without a note are "silent"; the first of them
is the one whose end agent.py, or plain.py, saw first. watch.py says which ranks hung.
explain() makes of all that the error that a cell shows.
"""

import json
import linecache
import re
import signal
from collections import defaultdict
from pathlib import Path

from .failure import RankFailed, RankTimeout, name
from .watch import NAMELESS, Watch

HINTS = {
    "SIGKILL": "usually out of memory: try fewer ranks or a smaller batch",
    "SIGBUS": "usually out of shared memory: try num_workers=0",
    "SIGABRT": "by a crash below Python or a process group that was never destroyed",
    "SIGSEGV": "by a crash below Python",
}


def outcome(watch: Watch, failures: dict[int, int]) -> dict:
    """Return what became of each rank, given the exit codes that are not 0."""
    failed = {r: json.loads(text) for r, text in watch.notes("failed").items()}
    done = watch.notes("done")
    swept = [r for r, pid in watch.notes("pid").items() if int(pid) in watch.swept]
    own = {r: c for r, c in failures.items() if c != -signal.SIGTERM and r not in swept}
    silent = [r for r in own or failures if r not in failed]
    victims = [r for r, reason in failed.items() if reason["victim"]]
    caused = silent or len(victims) < len(failed)  # whatever it was that ended them

    def code(r: int) -> int:
        if r in watch.hung:
            return -signal.SIGABRT
        if r in failed:
            return -signal.SIGTERM if caused and r in victims else failed[r]["code"]
        if r in own:
            return own[r]
        if r in done:
            return 0
        if r in swept:
            return -signal.SIGKILL
        return -signal.SIGTERM if failures else 0

    logs = watch.files("stderr").items()
    return {
        "failed": failed,
        "hung": watch.hung,
        "done": list(done),
        "written": {r: int(n) for r, n in done.items() if n},
        "codes": {r: code(r) for r in range(watch.ranks)},
        "silent": silent,
        "stderr": {
            r: NAMELESS.sub("", path.read_text("utf-8", "replace")) for r, path in logs
        },
    }


def explain(end: dict, ranks: int, timeout: float, script: Path) -> RankFailed | None:
    """Return the error that this end of a run deserves; None for a good end.

    Whoever left a note without being a victim is to blame, the earliest of them, even
    if another rank went without a word before: who can be quoted is asked first. If all
    notes are those of victims, it is the ranks that hung, or else the first silent one,
    or else the earliest victim.
    """
    if end["error"]:
        return RankFailed(f"the ranks could not start: {end['error']}")
    failed, codes = end["failed"], end["codes"]
    if end["hung"] and all(reason["victim"] for reason in failed.values()):
        return hung(end, ranks, timeout, script)
    order = sorted(failed, key=lambda rank: urgency(failed[rank]))
    if end["silent"] and all(reason["victim"] for reason in failed.values()):
        return gone(end["silent"][0], codes[end["silent"][0]])
    if not order:
        return None
    first, reason = order[0], failed[order[0]]
    error = raised(first, reason, end["stderr"].get(first, ""))
    if reason["victim"] and end["done"]:
        early = f"{name(end['done'])} ended while rank {first} still waited"
        error.args = (f"{early}: {headline(reason)}",)
    return error


def urgency(reason: dict) -> tuple[bool, bool, float]:
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
