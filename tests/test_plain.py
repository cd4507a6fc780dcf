"""The plain command, which starts the ranks where the fast launcher can't start.

Each test takes something away from the supervisor, by a sitecustomize.py on its path.
"""

import io
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import redirect_stdout
from pathlib import Path

import psutil
import pytest
import test_launch as t
from ringside.launch import RankTimeout, client, torchrun
from ringside.launch import run as launch
from ringside.launch.watch import GRACE

WHY = "the fast launcher can't start here ("
END = "): ranks start by the plain command, a few seconds slower"

# In whichever process the first word stands in the command line, the text runs first.
TAKEN = {
    "no _is_done": (
        "ringside.launch.supervisor",
        """
        from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
        del MultiprocessContext._is_done
        """,
        " has no MultiprocessContext._is_done",
    ),
    # torch has it under another name, which nobody knows before the first launch
    "no _pc": (
        "ringside.launch.supervisor",
        """
        from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
        def get(self):
            if sys._getframe(1).f_globals["__name__"].startswith("ringside"):
                raise AttributeError("_pc is gone")
            return self.kept
        def put(self, value):
            self.kept = value
        MultiprocessContext._pc = property(get, put)
        """,
        "AttributeError: _pc is gone",
    ),
    "no torch._dynamo": (
        "ringside.launch.supervisor",
        "sys.modules['torch._dynamo'] = None",
        "torch._dynamo",
    ),
    "fork refused": (
        "ringside.launch.supervisor",
        """
        import os
        def refuse():
            raise PermissionError("no more processes")
        os.fork = refuse
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
        import psutil, multiprocessing.resource_tracker, torch.distributed.run
        sys.platform = "darwin"
        """,
        "it needs Linux",
    ),
    # the meeting place on loopback cannot be made either: torchrun's own will do
    "no RendezvousInfo": (
        "ringside",
        "import torch.distributed.elastic.rendezvous as r; del r.RendezvousInfo",
        "RendezvousInfo",
    ),
}


def take_away(what: str, folder: Path) -> str:
    """Return the folder that takes something away, for the variable PYTHONPATH."""
    word, text, _ = TAKEN[what]
    head = f"import sys\nif any({word!r} in told for told in sys.orig_argv):\n"
    text = textwrap.indent(textwrap.dedent(text).strip(), "    ")
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"{head}{text}\n")
    return str(folder)


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
        patch.setenv("PYTHONPATH", take_away("no _pc", folder / "path"))
        with redirect_stdout(said):
            place.first = torchrun("00_four_ranks_tonight", ranks=2)
        place.said = said.getvalue().splitlines()
        place.idle = {p.pid for p in place.processes()}
        place.left = place.files()
        yield place
        client._server.close()
        place.until_gone()


def test_a_lesson_runs_and_a_line_says_why_it_takes_longer(place):
    """The launcher broke at its first launch; the run began anew, and has its lines."""
    assert place.first.exit_codes == {0: 0, 1: 0}
    assert place.said[0].startswith("$ torchrun --standalone")
    assert place.said.count(f"{WHY}AttributeError: _pc is gone{END}") == 1
    lines = [line for line in place.said if line.startswith("rank ")]
    assert lines and len(lines) == sum(map(len, place.first.lines.values()))


def test_the_next_run_keeps_its_recording_and_is_silent_about_the_way(place, capsys):
    run = torchrun("03_ring_all_reduce", ranks=2, record=True)
    assert run.recording and run.lines[0][-1].startswith("ok: 2 ranks")
    assert WHY not in capsys.readouterr().out
    assert place.until_gone(place.idle, place.left) < 5


def test_a_function_of_a_notebook_runs(place):
    def double(rank, world_size, number):
        print(rank, "of", world_size, "has", number * 2)

    run = torchrun(double, 21, ranks=2, quiet=True)
    assert run.lines == {rank: [f"{rank} of 2 has 42"] for rank in (0, 1)}
    assert place.until_gone(place.idle, place.left) < 5


def test_a_line_is_shown_while_its_rank_still_runs(place, monkeypatch):
    t.test_a_line_is_shown_while_its_rank_still_runs(place, monkeypatch)


def test_the_rank_that_raised_is_named_with_its_traceback(place):
    error = t.fails(place, place.script(t.WRONG), "raise", 1, ranks=2)
    assert str(error) == "rank 1 raised ValueError: a sum of 1 is wrong"
    assert t.shown(error).count("Traceback") == 1 and "in misstep" in t.shown(error)
    assert error.run.exit_codes == {0: -signal.SIGTERM, 1: 1}


TOLD = {
    "kill": ("", -signal.SIGKILL, "rank 1 was killed (SIGKILL), usually out of memory"),
    "silent": ("stubborn", 4, "rank 1 ended with exit code 4"),
}


@pytest.mark.parametrize("way", TOLD)
def test_a_rank_that_goes_without_a_word_is_named(place, way):
    """Also if another rank does not hear that it must end."""
    more, code, told = TOLD[way]
    leave = "os._exit(4)"
    script = place.script(
        t.WRONG.replace(leave, f"print(time.monotonic(), flush=True) or {leave}")
    )
    error = t.fails(place, script, way, 1, more, ranks=2)
    gone = time.monotonic()
    assert str(error).startswith(told)
    assert error.run.exit_codes[1] == code
    assert gone - float(error.run.lines[1][0]) < 28  # torch waits for 30


def test_a_hang_is_told_with_its_line_and_the_time_begins_with_the_script(place):
    """Ranks take longer than this to start, but that is not their time."""
    text = "import time\ntime.sleep(600)\n"
    how = {"ranks": 2, "timeout": 1, "error": RankTimeout}
    error = t.fails(place, place.script(text), **how)
    assert str(error) == "2 of 2 ranks still ran after 1 s, and were ended"
    assert "ranks 0 and 1 stood at line 2 of small.py" in t.shown(error)
    assert error.run.exit_codes == dict.fromkeys(range(2), -signal.SIGABRT)


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


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    kernel = t.Kernel(folder)
    kernel.slow = True
    kernel.place.env["PYTHONPATH"] = take_away("no _is_done", folder / "path")
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
    "what", ["no torch._dynamo", "fork refused", "fork server crashes"]
)
def test_whatever_a_fast_start_lacks_there_is_a_plain_one(tmp_path, monkeypatch, what):
    place = t.Place(tmp_path)
    path = take_away(what, tmp_path / "path")
    for name, value in (place.own | {"PYTHONPATH": path}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(place.temp))
    server = client.Server()
    assert TAKEN[what][2] in server.slow
    assert "\n" not in server.slow
    server.close()
    assert place.until_gone() < 5


LEARNER = """
import sys
from ringside.launch import torchrun
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
