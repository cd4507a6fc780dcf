"""The plain command, which starts the ranks where the fast launcher can't start.

Each test takes something away from the supervisor, by a sitecustomize.py on its path.
To import torch is nearly all that such a run costs. So it stays away from ranks of
which only their signals, exit codes and files are asked.
"""

import io
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import psutil
import pytest
import test_launch as t
from light import NO_DYNAMO, NO_TORCH, RANK, SUPERVISOR, before_all
from ringside.launch import RankTimeout, client, plain, torchrun
from ringside.launch import run as launch
from ringside.launch.watch import GRACE
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
)

WHY = "the fast launcher can't start here ("
END = "): ranks start by the plain command, a few seconds slower"

# In whichever process the first word stands in the command line, the text runs first.
TAKEN = {
    "no agent": (
        SUPERVISOR,
        """
        import torch.distributed.elastic.agent.server as server
        del server.SimpleElasticAgent
        """,
        "cannot import name 'SimpleElasticAgent'",
    ),
    # torch leaves one method more open, which nobody knows before the first launch
    "a fifth method": (
        SUPERVISOR,
        """
        import abc
        from torch.distributed.elastic.agent.server import SimpleElasticAgent as agent
        agent._pause_workers = abc.abstractmethod(lambda self: None)
        agent.__abstractmethods__ |= {"_pause_workers"}
        """,
        "TypeError: Can't instantiate abstract class Agent",
    ),
    "no torch": (SUPERVISOR, NO_TORCH, "No module named 'torch"),
    "fork refused": (
        SUPERVISOR,
        """
        import importlib, os
        def refuse():
            raise PermissionError("no more processes")
        os.fork = refuse
        importlib.import_module = str  # before that, torch would be imported
        """,
        "PermissionError: no more processes",
    ),
    "fork server crashes": (
        "",
        """
        import os
        fork = os.fork
        if "multiprocessing.forkserver" in str(sys.orig_argv):  # one that is no copy
            os._exit(7)
        if "ringside.launch.supervisor" in str(sys.orig_argv):
            os.fork = lambda: fork() or os._exit(7)
        """,
        "Error",
    ),
    # as far as that goes: what is imported before is Linux's
    "darwin": (
        "ringside",
        """
        import psutil, multiprocessing.resource_tracker
        if "in_rank" in str(sys.orig_argv) or "launch.plain" in str(sys.orig_argv):
            import torch.distributed.run
        sys.platform = "darwin"
        """,
        "it needs Linux",
    ),
    # the meeting place on loopback cannot be made either: torchrun's own will do
    "no RendezvousInfo": (
        "ringside.launch",
        "import torch.distributed.elastic.rendezvous as r; del r.RendezvousInfo",
        "RendezvousInfo",
    ),
}


def take_away(what: str, folder: Path) -> str:
    """Return the folder that takes something away, for the variable PYTHONPATH."""
    word, text, _ = TAKEN[what]
    light = [(SUPERVISOR, NO_DYNAMO)] if "torch" in text else []
    return before_all(folder, *light, (word, text))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """This process calls torchrun(), whose supervisor finds torch changed."""
    folder = tmp_path_factory.mktemp("place")
    place, said = t.Place(folder), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        if client._server:
            client._server.close()
        patch.setattr(tempfile, "tempdir", str(place.temp))
        patch.setattr(launch, "TOLD", [])
        for name, value in place.own.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", take_away("a fifth method", folder / "path"))
        with redirect_stdout(said):
            place.first = torchrun("03_ring_all_reduce", ranks=2, record=True)
        place.said = said.getvalue().splitlines()
        place.idle = {p.pid for p in place.processes()}
        place.left = place.files()
        patch.setenv("PYTHONPATH", before_all(folder / "light", (RANK, NO_TORCH)))
        yield place
        client._server.close()
        place.until_gone()


def test_of_ranks_that_went_without_a_word_the_root_cause_is_first():
    """In torch's own report, which tells it last."""
    ends = {1: -9, 3: -11, 0: -15}
    failures = {r: ProcessFailure(r, 100 + r, code, "") for r, code in ends.items()}
    for number, failure in enumerate(failures.values()):
        failure.timestamp = number
    report = str(ChildFailedError("train.py", failures))
    assert [*plain.exit_codes(report)][0] == 1
    assert plain.exit_codes(report) == ends


def test_a_lesson_runs_and_a_line_says_why_it_takes_longer(place):
    """The launcher broke at its first launch; the run began anew, and has its lines."""
    assert place.first.exit_codes == {0: 0, 1: 0} and place.first.recording
    assert place.first.lines[0][-1].startswith("ok: 2 ranks")
    assert place.said[0].startswith("$ torchrun --standalone")
    [line] = [line for line in place.said if line.startswith(WHY)]
    assert TAKEN["a fifth method"][2] in line and line.endswith(END)
    lines = [line for line in place.said if line.startswith("rank ")]
    assert lines and len(lines) == sum(map(len, place.first.lines.values()))


def test_a_function_of_a_notebook_runs_and_no_line_says_why_again(place, capsys):
    def double(rank, world_size, number):
        print(rank, "of", world_size, "has", number * 2)

    run = torchrun(double, 21, ranks=2, env={"PYTHONPATH": ""})  # it has a group
    assert run.lines == {rank: [f"{rank} of 2 has 42"] for rank in (0, 1)}
    assert WHY not in capsys.readouterr().out
    assert place.until_gone(place.idle, place.left) < 5


def test_a_line_is_shown_while_its_rank_still_runs(place, monkeypatch):
    t.test_a_line_is_shown_while_its_rank_still_runs(place, monkeypatch)


WRONG = """
import os, signal, sys, time
from pathlib import Path
rank, folder = os.environ["RANK"], Path(os.environ["TMPDIR"])
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / f"there-{rank}").touch()
while len(list(folder.glob("there-*"))) < 2:
    time.sleep(0.01)
if rank == "0":
    time.sleep(60)
print(time.monotonic(), flush=True)
if "silent" in sys.argv:
    os._exit(4)
os.kill(os.getpid(), signal.SIGKILL)
"""
TOLD = {
    "kill": ("", -signal.SIGKILL, "rank 1 was killed (SIGKILL), usually out of memory"),
    "silent": ("stubborn", 4, "rank 1 ended with exit code 4"),
}


@pytest.mark.parametrize("way", TOLD)
def test_a_rank_that_goes_without_a_word_is_named(place, way):
    """Also if another rank does not hear that it must end."""
    more, code, told = TOLD[way]
    error = t.fails(place, place.script(WRONG), way, more, ranks=2)
    gone = time.monotonic()
    assert str(error).startswith(told)
    assert error.run.exit_codes[1] == code
    assert gone - float(error.run.lines[1][0]) < 28  # torch waits for 30


def test_a_hang_is_told_with_its_line_and_the_time_begins_with_the_script(place):
    """Ranks take longer than this to start, but that is not their time."""
    text = "import os, time\nif int(os.environ['RANK']) % 2:\n    time.sleep(600)\n"
    how = {"ranks": 4, "timeout": 1, "error": RankTimeout}
    error = t.fails(place, place.script(text), **how)
    assert str(error) == "2 of 4 ranks still ran after 1 s, and were ended"
    assert "ranks 1 and 3 stood at line 3 of small.py" in t.shown(error)
    assert "time.sleep(600)" in t.shown(error)
    assert error.run.exit_codes == {0: 0, 1: -signal.SIGABRT, 2: 0, 3: -signal.SIGABRT}


AGENT = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getppid(), signal.{})
time.sleep(600)
"""


@pytest.mark.parametrize("sign", ["SIGKILL", "SIGSTOP"])
def test_a_command_that_is_gone_leaves_no_rank(place, sign):
    """Or stands still: then nobody but the supervisor can end its ranks."""
    script = place.script(AGENT.format(sign))
    how = {"error": RankTimeout} if sign == "SIGSTOP" else {}
    error = t.fails(place, script, ranks=2, timeout=1 if how else 60, **how)
    told = "2 of 2 ranks still ran" if how else "rank 0 was killed (SIGKILL)"
    assert str(error).startswith(told)


WAITS = """
import os, sys, time
for folder in sys.argv[2:]:
    open(os.path.join(folder, os.environ["RANK"]), "w").close()
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    kernel = t.Kernel(folder)
    kernel.slow = True
    kernel.lesson = kernel.script = kernel.place.script(WAITS)
    path = before_all(folder / "path", (SUPERVISOR, NO_TORCH), (RANK, NO_TORCH))
    kernel.place.env["PYTHONPATH"] = path
    yield kernel
    kernel.close()


def test_an_interrupt_leaves_nothing(kernel):
    kernel.busy("recv")
    begin = time.monotonic()
    kernel.manager.interrupt_kernel()
    assert kernel.place.until_gone(kernel.idle, kernel.files, begin) < 5
    assert kernel.reply()["ename"] == "Interrupted"


def test_the_end_of_a_supervisor_leaves_nothing(kernel):
    """Neither does the end of a kernel, after that of a supervisor."""
    assert t.lose_supervisor(kernel, "SIGKILL") < 5
    assert t.end_kernel(kernel, "SIGKILL") < GRACE


@pytest.mark.parametrize(
    "what", ["no torch", "no agent", "fork refused", "fork server crashes"]
)
def test_whatever_a_fast_start_lacks_there_is_a_plain_one(tmp_path, monkeypatch, what):
    place = t.Place(tmp_path)
    path = take_away(what, tmp_path / "path")
    for name, value in (place.own | {"PYTHONPATH": path}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(place.temp))
    server = client.Server()
    server.wait()
    assert TAKEN[what][2] in server.slow
    assert "\n" not in server.slow
    server.close()
    assert place.until_gone() < 5


MORE_WORDS = """
import multiprocessing.forkserver as forks
from types import ModuleType
class Util(ModuleType):
    def __getattr__(self, name):
        return getattr(real, name)
    def spawnv_passfds(self, python, words, kept):
        return real.spawnv_passfds(python, [*words, "a word"], kept)
real, forks.util = forks.util, Util("util")
"""


def test_words_behind_the_code_of_a_fork_server_leave_the_fast_start(
    tmp_path, monkeypatch
):
    """As Python has them from 3.14.4 on, where they are those of the supervisor."""
    place = t.Place(tmp_path)
    path = before_all(tmp_path / "path", (SUPERVISOR, MORE_WORDS))
    for name, value in (place.own | {"PYTHONPATH": path}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(place.temp))
    server = client.Server()
    server.wait()
    supervisor = psutil.Process(server.process.pid)
    copies = [p for p in supervisor.children() if p.cmdline() == supervisor.cmdline()]
    assert len(copies) == 1 and server.slow is None, "torch was imported a second time"
    server.close()
    assert place.until_gone() < 5


LEARNER = """
import sys
from ringside import torchrun
torchrun(*sys.argv[1:], ranks=2)
"""


@pytest.mark.parametrize("what", ["darwin", "no RendezvousInfo"])
def test_ranks_meet_and_end_with_their_supervisor(tmp_path, what):
    """Also where no system call sees to it, and where loopback can't be had."""
    place = t.Place(tmp_path)
    env = place.env | {"PYTHONPATH": take_away(what, tmp_path / "path")}
    line = [sys.executable, "-c", LEARNER, place.script(t.BUSY), "recv", tmp_path]
    how = {"cwd": t.ROOT / "notebooks", "env": env, "text": True}
    how |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(line, **how) as learner:
        begin = time.monotonic()
        while len(list(tmp_path.glob("ready-*"))) < 2:
            assert time.monotonic() < begin + 100 and learner.poll() is None
            time.sleep(0.05)
        (supervisor,) = psutil.Process(learner.pid).children()
        begin = time.monotonic()
        supervisor.kill()
        assert place.until_gone(begin=begin) < 5
        said = learner.communicate()[0]
    assert WHY in said and TAKEN[what][2] in said
    assert "the process that watches the ranks is gone" in said
