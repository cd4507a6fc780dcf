"""Runs ranks by the plain command, `python -m torch.distributed.run`.

Its two halves live in two processes: start(), in the supervisor, starts the command and
follows it; be_torchrun() is the command. They rest on what a terminal would show of it:
its exit code, its report of failed ranks, and the notes of in_rank.py.
"""

import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from . import in_rank
from .client import SLOWER
from .watch import GRACE, Watch, sweep

HOME = str(Path(__file__).parents[2])  # where this helper is found
COMMAND = "import sys; sys.path[0] = sys.argv.pop(1); "
COMMAND += "from ringside.launch.plain import be_torchrun; be_torchrun(*sys.argv[1:])"
FAILURE = re.compile(r"rank\s*: (\d+) .*\n\s*exitcode\s*: (-?\d+)")  # in its report


def start(request: dict, watch: Watch) -> tuple[dict[int, int], str | None]:
    """Run the ranks to their end; return exit codes that are not 0, or what failed."""
    ranks, log = request["ranks"], Path(request["folder"], "torchrun.log")
    line = [sys.executable, "-c", COMMAND, HOME, f"{os.getpid()}", request["folder"]]
    line += [f"{ranks}", request["script"], *request["args"]]
    with log.open("wb") as said:
        nothing = subprocess.DEVNULL
        agent = subprocess.Popen(line, stdin=nothing, stdout=said, stderr=said)
    try:
        follow(agent, request, watch)
    finally:  # also if the run is stopped: all at once, before any is an orphan
        sweep(watch.keep - {agent.pid})
        agent.kill()
        agent.wait()
    code, told = agent.returncode, log.read_text("utf-8", "replace")
    if not code or watch.hung:
        return {}, None
    if not watch.notes("pid"):
        last = told.strip().rpartition("\n")[2]
        return {}, f"torchrun ended with exit code {code}: {last}"
    codes = exit_codes(told)
    if not codes:  # it was killed, and its ranks with it
        codes = dict.fromkeys(set(range(ranks)) - set(watch.notes("done")), code)
    return codes, None


def exit_codes(report: str) -> dict[int, int]:
    """Return exit codes of ranks that failed; the root cause, told last, is first."""
    return {int(rank): int(code) for rank, code in reversed(FAILURE.findall(report))}


def follow(agent: subprocess.Popen, request: dict, watch: Watch) -> None:
    """Wait for the end of the command, or for the end of the time."""
    # ends what outstays, but the command, which still has to tell who failed
    watch.keep = watch.keep | {agent.pid}
    # the time of a run begins when the last rank comes to its script
    watch.deadline += SLOWER
    begun = False
    while agent.poll() is None:
        if not begun and len(watch.notes("pid")) == request["ranks"]:
            begun, watch.deadline = True, time.monotonic() + request["timeout"]
        late = time.monotonic() - watch.deadline
        if late > 2 * GRACE:  # a command that does not end by itself
            return
        if watch.well():
            if late > 0:  # it would end the others of one that has ended
                agent.send_signal(signal.SIGSTOP)
            watch.tick()
            if watch.hung:
                return
        time.sleep(0.05)


def be_torchrun(parent: str, folder: str, ranks: str, script: str, *args: str) -> None:
    """Be the plain command, for as long as the supervisor lives."""
    in_rank.die_with(int(parent))
    sys.path[0] = ""  # as after python -m
    in_rank.import_all("torch.distributed.launcher.api")
    words = [in_rank.__file__, f"{os.getpid()}", folder, script, *args]
    words = [word.replace("$", "$$") for word in words]  # torch fills in templates
    sys.argv = ["torchrun", *meeting(), "--nproc-per-node", ranks, *words]
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


def meeting() -> list[str]:
    """Return the flags of a meeting place: on loopback, else torchrun's own."""
    try:
        from .loopback import Loopback

        Loopback(SimpleNamespace(run_id="")).next_rendezvous()
        return ["--rdzv-backend", "loopback", "--rdzv-id", "ringside"]
    except Exception as error:  # it was renamed; torchrun's own place has no such risk
        print(f"not on loopback: {type(error).__name__}: {error}", file=sys.stderr)
        return ["--standalone", "--local-addr", "127.0.0.1"]
