"""The launcher's promises with their full counts: python tests/soak.py [--quick]

Each trial is a scenario of test_launch.py. The table says how many trials kept the
promise, and how long the slowest took, next to what was promised. It takes half an
hour; --quick makes it a tenth of that. --list shows the promises; --only chooses some,
and --count says how often, as in

    python tests/soak.py --only "interrupt: recv" --only Jupyter --count 3
"""

import functools
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]
sys.path[:0] = [
    str(Path(__file__).parents[1] / room) for room in ("notebooks", "scripts")
]

import asked  # noqa: E402 first: it answers --help
import test_22 as resume  # noqa: E402
import test_34 as crews  # noqa: E402
import test_guard as guard  # noqa: E402
import test_launch as t  # noqa: E402
import test_plain as plain  # noqa: E402
import test_scripts  # noqa: E402
from ringside.launch import RankFailed, RankTimeout, client, torchrun  # noqa: E402

ASKED = asked.WORDS
HANG = """
import sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
what, rank, ones = sys.argv[1], dist.get_rank(), torch.ones(10)
if what == "other call":
    dist.all_reduce(ones) if rank else dist.broadcast(ones, 0)
elif what == "call left out" and rank:
    dist.all_reduce(ones)
elif what == "both receive":
    dist.recv(ones, 1 - rank)
elif what == "call too many":
    for _ in range(5 + rank):
        dist.all_reduce(ones)
elif what == "endless loop":
    while True:
        pass
time.sleep(600)
"""
SERVER = """
import subprocess, sys, time
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="python3", connection_file=sys.argv[2])
manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute(sys.argv[1])
time.sleep(600)
"""
failures, rows = [], []


def count(promise: str, times: int, most: float, trial, mend=lambda: None) -> None:
    """Run a trial so many times, and note how many kept within so many seconds."""
    if ASKED.only and not any(part in promise for part in ASKED.only):
        return
    times = ASKED.count or (max(1, times // 10) if ASKED.quick else times)
    if ASKED.list:
        rows.append(f"{promise:44} {times:4}")
        print(rows[-1])
        return
    taken, kept = [], 0
    for number in range(times):
        try:
            taken.append(trial(number))
            assert taken[-1] <= most, f"it took {taken[-1]:.2f} s, not {most} s at most"
            kept += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            said = "".join(traceback.format_exception(error))[-2000:]
            failures.append(f"{promise}, trial {number}: {said}")
            print(failures[-1], flush=True)
            with suppress(Exception):
                mend()
    worst = f"{max(taken):.2f}" if taken else "-"
    rows.append(f"{promise:44} {kept:4} of {number + 1:<4} {worst:>6} s  {most:3} s")
    print(rows[-1], flush=True)


def place() -> t.Place:
    """Return a new place, in a folder with a short path."""
    return t.Place(Path(tempfile.mkdtemp(prefix="soak-", dir=scratch)))


def kernels() -> None:
    kernel = t.Kernel(Path(tempfile.mkdtemp(dir=scratch)))
    tell = functools.partial(count, mend=kernel.close)
    kinds = [("sleep", True, 20), ("reduce", True, 20), ("recv", True, 20)]
    kinds += [("print", True, 20), ("sleep", False, 20), ("recv", False, 20)]
    for what, warm, times in kinds:
        name = f"1 interrupt: {what}{'' if warm else ', plain'}"
        tell(name, times, 5, lambda _, w=what, x=warm: t.interrupt(kernel, w, x))
    name = "1 interrupt: ranks that ignore SIGTERM"
    tell(name, 20, 10, lambda _: t.interrupt(kernel, "stubborn"))
    name = "1 interrupt: at any moment"
    tell(name, 40, 5, lambda _: t.interrupt_at(kernel, random.uniform(0, 0.5)))
    name = "1 interrupt: while a supervisor starts"
    tell(name, 10, 5, lambda _: t.interrupt_at(kernel, random.uniform(0, 1), False))
    for how in ("restart", "shut down", "shut down now"):
        tell(f"2 kernel: {how}", 10, 5, lambda _, h=how: t.end_kernel(kernel, h))
    for how in ("SIGKILL", "SIGTERM"):
        tell(f"3 kernel: {how}", 10, 5, lambda _, h=how: t.end_kernel(kernel, h))
    for how in ("SIGKILL", "shut down", "shut down now"):
        name = f"3 kernel, while a supervisor starts: {how}"
        tell(name, 10, 5, lambda _, h=how: t.end_early(kernel, h, random.random() * 3))
    tell("3 Jupyter server: SIGKILL", 10, 5, lose_server)
    for how, most in (("SIGKILL", 5), ("SIGSTOP", 10)):
        name = f"4 supervisor: {how}"
        tell(name, 10, most, lambda _, h=how: t.lose_supervisor(kernel, h))
    kernel.close()
    if kernel.looks:
        print(f"17 looked {kernel.looks} times while ranks ran: only loopback listened")


def plain_kernels() -> None:
    """Repeat the worst, where the plain command starts the ranks."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    kernel = t.Kernel(folder)
    kernel.slow = True
    kernel.place.env["PYTHONPATH"] = plain.take_away("no agent", folder / "path")
    tell = functools.partial(count, mend=kernel.close)
    name = "18 no fast launcher, interrupt: recv"
    tell(name, 5, 5, lambda _: t.interrupt(kernel, "recv"))
    name = "18 no fast launcher, interrupt: at any moment"
    tell(name, 10, 5, lambda _: t.interrupt_at(kernel, random.uniform(0, 5)))
    name = "18 no fast launcher, kernel: SIGKILL"
    tell(name, 5, 5, lambda _: t.end_kernel(kernel, "SIGKILL"))
    name = "18 no fast launcher, supervisor: SIGKILL"
    tell(name, 5, 5, lambda _: t.lose_supervisor(kernel, "SIGKILL"))
    kernel.close()


def lose_server(_) -> float:
    """Return the seconds until all is gone that a killed Jupyter server had started."""
    here = place()
    cell = "from ringside.launch import torchrun; "
    cell += f"torchrun({here.script(t.BUSY)!r}, 'recv', {str(here.temp)!r}, ranks=2)"
    note = str(here.temp.with_name("kernel.json"))
    how = {"env": here.env, "cwd": t.ROOT / "notebooks"}
    with subprocess.Popen([sys.executable, "-c", SERVER, cell, note], **how) as server:
        begin = time.monotonic()
        while len(list(here.temp.glob("ready-*"))) < 2:
            assert time.monotonic() < begin + 60
            time.sleep(0.05)
        for path in here.temp.glob("ready-*"):
            path.unlink()
        begin = time.monotonic()
        server.kill()
    return here.until_gone(begin=begin)


def wrong(here: t.Place, script: str, *args, **how) -> tuple[RankFailed, float]:
    """Return the error of a run, and the seconds until it came and all was gone."""
    begin = time.monotonic()
    error = t.fails(here, script, *args, **how)
    return error, time.monotonic() - begin


def raises(here: t.Place):
    def trial(number: int, ranks: int, warm: bool = True) -> float:
        rank = number % ranks
        script = here.script(t.WRONG)
        error, seconds = wrong(here, script, "raise", rank, ranks=ranks, warm=warm)
        assert str(error) == f"rank {rank} raised ValueError: a sum of {rank} is wrong"
        assert t.shown(error).count("Traceback") == 1
        return seconds

    count("7, 8 the right rank is named: 2 ranks", 50, 10, lambda n: trial(n, 2))
    count("7, 8 the right rank is named: 4 ranks", 50, 10, lambda n: trial(n, 4))
    name = "7, 8 the right rank is named: 4, plain"
    count(name, 20, 10, lambda n: trial(n, 4, warm=False))

    def killed(number: int, *more: str, warm: bool = True) -> float:
        rank = number % 4
        how = {"warm": warm}
        error, seconds = wrong(here, here.script(t.WRONG), "kill", rank, *more, **how)
        assert str(error).startswith(f"rank {rank} was killed (SIGKILL), usually out")
        return seconds

    count("7, 8 the killed rank is named", 50, 10, killed)
    name = "7, 8 the same, others ignore SIGTERM"
    count(name, 10, 10, lambda n: killed(n, "stubborn"))
    name = "7, 8 the killed rank is named: plain"
    count(name, 10, 20, lambda n: killed(n, warm=False))


def hangs(here: t.Place) -> None:
    kinds = ["other call", "call left out", "both receive", "call too many"]
    kinds += ["endless loop", "sleep"]

    def trial(number: int, warm: bool = True) -> float:
        how = {"ranks": 2, "timeout": 3, "error": RankTimeout, "warm": warm}
        kind = kinds[number % len(kinds)]
        error, seconds = wrong(here, here.script(HANG), kind, **how)
        assert "stood at line" in t.shown(error)
        assert "before the first line" not in t.shown(error)
        return seconds - 3

    count("9 a hang ends, by so much after its time", 18, 10, trial)
    name = "9 the same, and so long to start: plain"
    count(name, 6, 20, lambda n: trial(n, warm=False))


FAULTS = {
    "raise": "'{wrong}', 'raise', 2, ranks=4",
    "raise, plain": "'{wrong}', 'raise', 0, ranks=2, warm=False",
    "exit": "'{wrong}', 'exit', 1, ranks=4",
    "words": "'{wrong}', 'words', 3, ranks=4",
    "silent": "'{wrong}', 'silent', 0, ranks=4",
    "kill": "'{wrong}', 'kill', 1, ranks=4",
    "stubborn": "'{wrong}', 'kill', 1, 'stubborn', ranks=2",
    "other call": "'{hang}', 'other call', ranks=2, timeout=2",
    "call left out": "'{hang}', 'call left out', ranks=2, timeout=2",
    "both receive": "'{hang}', 'both receive', ranks=2, timeout=2",
    "endless loop": "'{hang}', 'endless loop', ranks=2, timeout=2",
    "no script": "'no_such_script', ranks=2",
    "no ranks": "'03_ring_all_reduce', ranks=0",
    "bad argument": "'03_ring_all_reduce', '--numel', 'many', ranks=2",
    "no folder": "'03_ring_all_reduce', '--record', 'no/such/x', ranks=4",
}


def red() -> None:
    folder = Path(tempfile.mkdtemp(dir=scratch))
    paths = {"wrong": folder / "wrong.py", "hang": folder / "hang.py"}
    paths["wrong"].write_text(t.WRONG), paths["hang"].write_text(HANG)

    def stuck(number: int) -> float:
        place = folder / f"stuck {number}"
        place.mkdir()
        (place / "stuck.py").write_text(guard.HANGS.replace("here ", f"{place}/here "))
        said = guard.judged(place, {"n": [guard.ran(guard.STUCK, 1)]}, 12)
        begin = time.monotonic()
        assert said["n.ipynb Cell 0"].startswith("failure")
        while guard.left(place):
            time.sleep(0.02)
        return time.monotonic() - begin

    count("5 a cell that nbval ends leaves nothing", 5, 10, stuck)
    names = list(FAULTS)

    def fault(number: int) -> float:
        name = names[number % len(names)]
        place = folder / f"{name} {number}"
        place.mkdir()
        source = guard.LAUNCH.partition("torchrun(")[0]
        source += f"torchrun({FAULTS[name].format(**paths)}, quiet=True)"
        said = guard.judged(place, {"n": [guard.ran(source, 1)]}, seconds=60)
        begin = time.monotonic()
        assert said["n.ipynb Cell 0"].startswith("failure"), said
        while guard.left(place):
            time.sleep(0.02)
        return time.monotonic() - begin

    count("6 a run that fails turns its cell red", len(FAULTS), 10, fault)


def learners() -> None:
    def crowd(_) -> float:
        begin, shared = time.monotonic(), Path(tempfile.mkdtemp(dir=scratch))
        t.learn_at_once([place() for _ in range(8)], shared)
        return time.monotonic() - begin

    count("12 eight learners at once", 5, 60, crowd)
    small = "mount -t tmpfs -o size=1m tmpfs /dev/shm && "
    ways = {
        "13 the variables that others leave": ([], t.LEFT_OVER),
        "13 a host name that does not resolve": (["unshare", "-ru", t.RENAME], {}),
        "13 offline": (["unshare", "-rn", t.OFFLINE], {}),
        "14 shared memory of 1 MiB": (["unshare", "-rm", f'{small}exec "$@"'], {}),
        "14 at most 64 open files": (["env", 'ulimit -n 64; exec "$@"'], {}),
        "14 a POSIX locale": ([], {"LC_ALL": "POSIX"}),
    }

    def alone(before, env) -> float:
        begin, here = time.monotonic(), place()
        if before:
            before = [*before[:-1], "sh", "-c", before[-1], "sh"]
        t.learned(here, t.learn(here, before=before, **env))
        return time.monotonic() - begin

    with socket.socket() as busy:
        with suppress(OSError):
            busy.bind(("127.0.0.1", 29500))
            busy.listen()
        for name, way in ways.items():
            count(name, 5, 15, lambda _, w=way: alone(*w))

    def read_only(_, *more, **env) -> float:
        begin = time.monotonic()
        folder = Path(tempfile.mkdtemp(dir=scratch))
        t.test_a_read_only_checkout_with_an_awkward_name(folder, *more, **env)
        return time.monotonic() - begin

    count("14 a read-only checkout, an awkward name", 5, 15, read_only)

    def every(number: int) -> float:
        script = test_scripts.SCRIPTS[number % len(test_scripts.SCRIPTS)]
        words = [script, *test_scripts.SHORT.get(script, [])]
        text = "from ringside.launch import torchrun\n"
        text += f"run = torchrun(*{words}, ranks=2)\n"
        text += "assert run.lines[0][-1].startswith('ok')"
        # RPC opens more than 200 files in each of two ranks, whatever a script does
        files = 256 if script == "41_parameter_server" else 64
        more = f"{small}ulimit -n {files} && "
        return read_only(number, text, more, LC_ALL="POSIX")

    name = "14 every script, all of these at once"
    count(name, len(test_scripts.SCRIPTS), 60, every)


def refusals() -> None:
    def trial(number: int) -> float:
        args, how = t.REFUSED[number % len(t.REFUSED)]
        begin, before = time.monotonic(), client._server
        with t.pytest.raises((ValueError, FileNotFoundError)):
            torchrun(*args, **how)
        assert client._server is before
        return time.monotonic() - begin

    count("15 a bad request is refused", len(t.REFUSED), 1, trial)


def nothing_left(here: t.Place) -> None:
    def trial(_) -> float:
        torchrun("03_ring_all_reduce", ranks=4, record=True, quiet=True)
        return here.until_gone(here.idle, here.left)

    count("16 a good run leaves no file", 50, 5, trial)
    if logs := list(here.cache.rglob("*")):
        print(f"16 logs kept after all these failures: {len(logs) - 1}")


def exits() -> None:
    def trial(_, script: str) -> float:
        begin = time.monotonic()
        short = test_scripts.SHORT.get(script, [])
        torchrun(script, *short, ranks=4, warm=False, quiet=True, timeout=180)
        return time.monotonic() - begin

    for path in sorted((t.ROOT / "scripts").glob("[0-9]*.py")):
        name = f"no abort at the exit: {path.stem}"
        count(name, 20, 180, lambda n, s=path.stem: trial(n, s))


def killed_runs() -> None:
    """Kill trainings at random steps, and saves at random moments."""

    def trial(number: int, kill) -> float:
        dice = random.Random(number)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            kill(Path(folder), dice)
        return time.monotonic() - begin

    kills = {
        "resumed, 2 ranks": lambda f, d: resume.kill_and_resume(f, 2, d.randint(1, 11)),
        "resumed, 4 ranks": lambda f, d: resume.kill_and_resume(f, 4, d.randint(1, 11)),
        "resumed, workers, 2 ranks": lambda f, d: resume.kill_with_workers(
            f, 2, d.randint(1, 11)
        ),
        "resumed, workers, 4 ranks": lambda f, d: resume.kill_with_workers(
            f, 4, d.randint(1, 11)
        ),
        "killed while it saves": lambda f, d: resume.kill_while_saving(
            f, resume.SAVES, d.uniform(0, 0.3)
        ),
    }
    for promise, kill in kills.items():
        count(promise, 50, 120, lambda number, kill=kill: trial(number, kill))
    promise = "elastic: a worker killed at any step"
    count(promise, 20, 120, lambda n: trial(n, lambda _, d: crews.kill_somewhere(d)))


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kernels()
    plain_kernels()
    red()
    refusals()
    here = place()
    os.environ |= here.own
    tempfile.tempdir = str(here.temp)
    if not ASKED.list:
        torchrun("03_ring_all_reduce", quiet=True)
    here.idle, here.left = {p.pid for p in here.processes()}, here.files()
    raises(here)
    hangs(here)
    nothing_left(here)
    exits()
    if not ASKED.list:
        begin = time.monotonic()
        client._server.close()
        seconds = here.until_gone(begin=begin)
        print(f"the last supervisor left nothing after {seconds:.2f} s")
    killed_runs()
    learners()
    if not rows:
        sys.exit(f"no promise has {' or '.join(ASKED.only)} in its name: see --list")
    if not ASKED.list:
        print(f"{len(failures)} trials failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        main()
