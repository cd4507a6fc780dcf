"""The launcher, judged by the processes, files and sockets that it leaves."""

import io
import json
import linecache
import math
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from jupyter_client.manager import KernelManager
from light import NO_DYNAMO, NO_TORCH, RANK, SUPERVISOR, before_all
from ports import listening
from ringside.launch import (
    RankFailed,
    RankTimeout,
    agent,
    blame,
    client,
    failure,
    in_rank,
    torchrun,
)
from ringside.launch import run as launch
from ringside.launch.watch import GRACE, Watch
from ringside.recording import WrongRecording

ROOT = Path(__file__).parents[1]
MARK = "RINGSIDE_TEST"  # every process of a test bears it in its environment
STOPPED = ("KeyboardInterrupt", "Interrupted")  # outside of a run, or in it
ANOTHER = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run("unshare -rmnu ip link".split(), capture_output=True).returncode,
    reason="this machine lets no test have a network, host name or mount of its own",
)

BUSY = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

what, folder = sys.argv[1:]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
dist.all_reduce(torch.ones(1))
if what == "stubborn":
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
Path(folder, f"ready-{rank}").touch()
while what == "reduce":
    dist.all_reduce(torch.ones(10000))
while what == "print":
    print("one of very many lines")
    time.sleep(0.0001)
if what == "recv":
    dist.recv(torch.ones(1), (rank + 1) % size)
time.sleep(600)
"""

WRONG = """
import os, signal, sys, time
import torch
import torch.distributed as dist

class Mute(Exception):
    def __str__(self):
        return self.name

def misstep():
    if what == "raise":
        raise ValueError(f"a sum of {rank} is wrong")
    if what == "exit":
        sys.exit(3)
    if what == "minus":
        sys.exit(-1)
    if what == "mute":
        raise Mute
    if what == "words":
        sys.exit("rank, have some manners")
    if what == "torn":
        open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").close()
    if what in ("silent", "torn"):
        os._exit(4)
    print(time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)

what, who = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.all_reduce(torch.ones(10))
if rank == who:
    misstep()
if "stubborn" in sys.argv:
    time.sleep(60)
dist.all_reduce(torch.ones(10))
"""


class Place:
    """A temporary folder and a cache of their own, and a mark on every process."""

    def __init__(self, folder: Path):
        self.mark = uuid.uuid4().hex
        self.temp, self.cache = folder / "temp", folder / "cache"
        self.temp.mkdir()
        self.own = {MARK: self.mark, "TMPDIR": str(self.temp)}
        self.own["XDG_CACHE_HOME"] = str(self.cache)
        self.env = os.environ | self.own
        self.light = {"env": {"PYTHONPATH": before_all(folder / "l", (RANK, NO_TORCH))}}

    def script(self, text: str, name: str = "small.py") -> str:
        """Return the path of a script with this text."""
        path = self.temp.with_name(name)
        path.write_text(text, encoding="utf-8")
        return str(path)

    def processes(self) -> list[psutil.Process]:
        """Return every living process with the mark, and the children of each."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    children = process.children(recursive=True)
                    found |= {p.pid: p for p in (process, *children)}
            except psutil.Error:
                pass
        return list(found.values())

    def listening(self) -> list[str]:
        """Return the address and the port of every socket that waits for callers."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error, OSError):  # it has ended
                found += listening(process.pid)
        return [f"{address}:{port}" for address, port in found]

    def files(self) -> list[str]:
        """Return what is in the temporary folder, without the random names."""
        walk = os.walk(self.temp)
        found = [
            os.path.join(top, name) for top, *both in walk for name in sum(both, [])
        ]
        found = (os.path.relpath(path, self.temp) for path in found)
        return sorted(
            re.sub(r"(rs|run|pymp|listener)-\w+", r"\1", path) for path in found
        )

    def until_gone(self, stays=frozenset(), files=(), begin=None) -> float:
        """Return the seconds it took until only these processes and files were left."""
        begin = begin or time.monotonic()
        while time.monotonic() < begin + 25:
            left = [p for p in self.processes() if p.pid not in stays]
            if not left and self.files() == list(files):
                return time.monotonic() - begin
            time.sleep(0.05)
        raise AssertionError(f"left behind: {left}, {self.files()}")


class Kernel:
    """A real kernel, whose supervisor is warm and idle."""

    def __init__(self, folder: Path):
        self.place = Place(folder)
        self.script = self.place.script(BUSY)
        self.manager, self.looks = None, 0  # how often only loopback listened
        self.slow = False  # whether the plain command starts its ranks
        self.lesson = "03_ring_all_reduce"  # that shows whether all is well

    def start(self) -> None:
        """Start a kernel and its supervisor, unless they are there."""
        if self.manager and self.manager.has_kernel:
            return
        self.manager = KernelManager(kernel_name="python3")
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        how |= {"env": self.place.env, "cwd": str(ROOT / "notebooks")}
        self.manager.start_kernel(**how)
        try:
            self.connect()
        except RuntimeError:  # a port was taken meanwhile: see notebooks/conftest.py
            self.manager.shutdown_kernel(now=True)
            self.manager.start_kernel(**how)
            self.connect()

    def connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.works()

    def works(self) -> None:
        """Run a lesson to its end, and note the processes and files that stay."""
        run = f"assert torchrun({self.lesson!r}, ranks=2).exit_codes[0] == 0\n"
        run += f"assert bool(client._server.slow) is {self.slow}, client._server.slow"
        self.send(f"from ringside.launch import client, torchrun\n{run}")
        answer = self.reply()
        assert answer["status"] == "ok", answer
        self.idle = {p.pid for p in self.place.processes()}
        self.files = self.place.files()
        kernel = psutil.Process(self.manager.provisioner.pid)
        (self.supervisor,) = kernel.children()
        below = [self.supervisor, *self.supervisor.children()]
        assert not [port for p in below for port in listening(p.pid)]

    def send(self, code: str) -> None:
        with suppress(queue.Empty):  # a full queue would lose what is still to come
            while True:
                self.client.get_iopub_msg(timeout=0)
        # Or what follows at once on a cell that fails is dropped, once in a hundred.
        self.message = self.client.execute(code, stop_on_error=False)

    def reply(self) -> dict:
        """Return what became of the cell that was sent last."""
        while True:
            answer = self.client.get_shell_msg(timeout=60)
            if answer["parent_header"].get("msg_id") == self.message:
                return answer["content"]

    def said(self, text: str) -> None:
        """Wait until the cell that was sent last has printed this."""
        while True:
            heard = self.client.get_iopub_msg(timeout=60)
            ours = heard["parent_header"].get("msg_id") == self.message
            if ours and text in heard["content"].get("text", ""):
                return

    def busy(self, what: str, warm: bool = True) -> None:
        """Start a cell whose two ranks are in the middle of something."""
        self.start()
        with tempfile.TemporaryDirectory() as folder:
            words = f"{self.script!r}, {what!r}, {folder!r}"
            self.send(f"torchrun({words}, ranks=2, warm={warm})")
            begin = time.monotonic()
            while len(os.listdir(folder)) < 2:
                assert time.monotonic() < begin + 60
                time.sleep(0.02)
            time.sleep(0.2)
        found = self.place.listening()
        assert found and all(address.startswith("127.0.0.1:") for address in found)
        self.looks += 1

    def close(self) -> None:
        if self.manager and self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.place.until_gone()


def interrupt(kernel: Kernel, what: str, warm: bool = True) -> float:
    """Return the seconds from the interrupt of a cell until its ranks are gone."""
    kernel.busy(what, warm)
    begin = time.monotonic()
    kernel.manager.interrupt_kernel()
    seconds = kernel.place.until_gone(kernel.idle, kernel.files, begin)
    assert kernel.reply()["ename"] in STOPPED
    kernel.works()
    return seconds


def end_kernel(kernel: Kernel, how: str) -> float:
    """Return the seconds from the end of a kernel until all it started is gone."""
    kernel.busy("recv")
    begin = time.monotonic()
    if how == "restart":
        kernel.manager.restart_kernel(now=True)
        new = kernel.manager.provisioner.pid
        seconds = kernel.place.until_gone({new}, begin=begin)
        kernel.client.stop_channels()
        kernel.connect()
        return seconds
    if how.startswith("shut down"):
        kernel.manager.shutdown_kernel(now=how.endswith("now"))
    else:
        os.kill(kernel.manager.provisioner.pid, signal.Signals[how])
    seconds = kernel.place.until_gone(begin=begin)
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)
    return seconds


def end_early(kernel: Kernel, how: str, moment: float) -> float:
    """Return the seconds to clean up after a kernel that ends soon after an import."""
    kernel.start()
    kernel.manager.restart_kernel(now=True)
    kernel.client.stop_channels()
    kernel.client = kernel.manager.blocking_client()
    kernel.client.start_channels()
    kernel.client.wait_for_ready(timeout=60)
    kernel.send("from ringside import torchrun")
    assert kernel.reply()["status"] == "ok"
    pid = kernel.manager.provisioner.pid
    assert len(psutil.Process(pid).children()) == 1, "the import starts a supervisor"
    time.sleep(moment)
    begin = time.monotonic()
    if how == "SIGKILL":
        os.kill(pid, signal.SIGKILL)
    else:
        kernel.manager.shutdown_kernel(now=how.endswith("now"))
    seconds = kernel.place.until_gone(begin=begin)
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)
    return seconds


def interrupt_at(kernel: Kernel, moment: float, idle: bool = True) -> float:
    """Return the seconds to clean up after an interrupt so long after a cell began."""
    kernel.start()
    if not idle:
        kernel.supervisor.kill()
        kernel.idle, kernel.files = {kernel.manager.provisioner.pid}, []
        kernel.place.until_gone(kernel.idle)
    kernel.send(
        f"print('begun', flush=True); torchrun({kernel.lesson!r}, ranks=2)\n"
        "import time; time.sleep(60)"
    )
    kernel.said("begun")  # an interrupt before that is none: no cell runs yet
    time.sleep(moment)
    begin = time.monotonic()
    kernel.manager.interrupt_kernel()
    assert kernel.reply()["ename"] in STOPPED
    seconds = kernel.place.until_gone(kernel.idle, kernel.files, begin)
    kernel.works()
    return seconds


def lose_supervisor(kernel: Kernel, how: str, grace: float = client.ENDING) -> float:
    """Return the seconds until all is gone from a supervisor that was lost."""
    kernel.start()
    kernel.send(f"import ringside.launch.client as c; c.ENDING = {grace}")
    kernel.reply()
    kernel.busy("recv")
    begin = time.monotonic()
    kernel.supervisor.send_signal(signal.Signals[how])
    if how == "SIGSTOP":
        kernel.manager.interrupt_kernel()
    error = "Interrupted" if how == "SIGSTOP" else "RuntimeError"
    stays = {kernel.manager.provisioner.pid}
    seconds = kernel.place.until_gone(stays, begin=begin)
    assert kernel.reply()["ename"] == error
    kernel.works()
    return seconds


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    kernel = Kernel(folder := tmp_path_factory.mktemp("kernel"))
    path = before_all(folder / "path", (SUPERVISOR, NO_DYNAMO))
    kernel.place.env["PYTHONPATH"] = path
    yield kernel
    kernel.close()


MODES = [("sleep", True), ("recv", False), ("reduce", True), ("recv", True)]
MODES += [("print", True), ("stubborn", True)]


@pytest.mark.parametrize("what, warm", MODES)
def test_interrupt_leaves_nothing(kernel, what, warm):
    assert interrupt(kernel, what, warm) < (10 if what == "stubborn" else 5)


def test_interrupt_while_a_supervisor_starts(kernel):
    assert interrupt_at(kernel, 0.7, idle=False) < 5


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_lost_supervisor_leaves_nothing(kernel, how):
    assert lose_supervisor(kernel, how, grace=1) < (10 if how == "SIGSTOP" else 5)


@pytest.mark.parametrize("how", ["restart", "shut down now", "SIGKILL"])
def test_the_end_of_a_kernel_leaves_nothing(kernel, how):
    assert end_kernel(kernel, how) < GRACE  # when it would turn impolite


@pytest.mark.parametrize("how", ["SIGKILL", "shut down"])
def test_a_kernel_that_ends_while_its_supervisor_starts_leaves_nothing(kernel, how):
    assert end_early(kernel, how, 0.3) < GRACE


def test_an_import_starts_nothing_where_no_page_runs():
    code = "import IPython, psutil, ringside.launch\n"
    code += "assert not psutil.Process().children()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "notebooks", check=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """This process calls torchrun(), in a place of its own."""
    place = Place(tmp_path_factory.mktemp("place"))
    with pytest.MonkeyPatch.context() as patch:
        if client._server:
            client._server.close()
        patch.setattr(tempfile, "tempdir", str(place.temp))
        for name, value in place.own.items():
            patch.setenv(name, value)
        torchrun("03_ring_all_reduce", quiet=True)
        place.idle = {p.pid for p in place.processes()}
        place.left = place.files()
        yield place
        client._server.close()
        place.until_gone()


@pytest.fixture(params=[True, False], ids=["warm", "plain"])
def warm(request):
    return request.param


def fails(place, script, *args, error=RankFailed, **how) -> RankFailed:
    """Return the error of a run that must fail, and leave nothing but its log."""
    with pytest.raises(error) as caught:
        torchrun(script, *args, **{"quiet": True, "ranks": 4} | how)
    assert place.until_gone(place.idle, place.left) < 5
    return caught.value


def shown(error: RankFailed) -> str:
    """Return what a notebook shows of an error."""
    return "\n".join(error._render_traceback_())


@pytest.mark.parametrize("rank", range(4))
def test_the_rank_that_raised_is_named(place, rank):
    error = fails(place, place.script(WRONG), "raise", rank)
    assert str(error) == f"rank {rank} raised ValueError: a sum of {rank} is wrong"
    assert shown(error).count("Traceback") == 1
    assert shown(error).count("raise ValueError(f") == 1
    assert "in misstep" in shown(error) and "by peer" not in shown(error)
    assert "runpy" not in shown(error)  # nor what else lies below the script


def test_a_rank_that_leaves_the_group_before_it_raises_is_named(place):
    text = "import time, torch, torch.distributed as dist\n"
    text += "dist.init_process_group('gloo')\nif dist.get_rank() == 1:\n"
    text += "    dist.destroy_process_group()\n    time.sleep(0.2)\n"
    text += "    raise ValueError('mine')\ndist.all_reduce(torch.ones(10))\n"
    error = fails(place, place.script(text))
    assert str(error) == "rank 1 raised ValueError: mine"


def test_a_wrong_recording_does_not_hide_why_a_rank_failed(place):
    """And if no rank failed, it is the failure."""
    text = "import sys\nopen(sys.argv[2], 'w').write('no recording')\n"
    with pytest.raises(WrongRecording, match="a line that is not JSON"):
        torchrun(place.script(text), ranks=1, record=True, quiet=True)
    text += "raise ValueError('mine')\n"
    error = fails(place, place.script(text), ranks=1, record=True)
    assert str(error) == "rank 0 raised ValueError: mine"


def test_what_the_others_said_is_in_the_log(place):
    error = fails(place, place.script(WRONG), "raise", 1, ranks=2)
    path = Path(shown(error).rpartition("All that the ranks said is in ")[2])
    for said in ("--- rank 0\n", "--- rank 1\n", "ValueError"):
        assert said in path.read_text()
    assert path == max(path.parent.iterdir())
    for _ in range(failure.KEPT):
        new = failure.keep_log("small", error.run)
    assert len(list(path.parent.glob("*.log"))) == failure.KEPT
    assert new.exists() and not path.exists()


def test_a_log_that_another_kernel_has_just_removed_is_not_minded(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = launch.Run("torchrun small.py", {0: ["a line"]})
    gone = failure.keep_log("small", run).with_name("gone.log")
    gone.symlink_to("nowhere")
    assert failure.keep_log("small", run).read_text().endswith("a line\n")


@pytest.mark.parametrize(
    "said",
    [
        "Connection closed by peer [127.0.0.1]:1",
        "Read error: Connection reset by peer",
        "Gloo connectFullMesh failed with no reason",
        "write: Broken pipe",
        "connect: Connection refused",
        "NCCL error: remote process exited or there was a network error",
        "Timed out waiting 1000ms for recv operation to complete",
    ],
)
def test_what_a_rank_says_that_has_lost_another_makes_it_a_victim(said):
    assert any(sign in said for sign in in_rank.PEER_LOST)


def test_a_launcher_that_never_looks_is_not_waited_for_either(tmp_path):
    """torch's waits half a minute for stubborn ranks if one died before its look."""
    request = {"folder": tmp_path, "timeout": 60, "ranks": 2}
    watch = Watch(request, set(), print)
    (tmp_path / "0.pid").write_text("10")
    assert watch.last_time() == math.inf
    (tmp_path / "1.pid").write_text("11")
    assert watch.last_time() == watch.last_time() < math.inf


def test_a_rank_that_was_ended_did_not_fail_by_itself(tmp_path):
    """A launcher that stalls sees both ends as failures, and one was ours."""
    watch = Watch({"folder": tmp_path, "ranks": 2, "timeout": 9}, set(), None)
    for rank in (0, 1):
        (tmp_path / f"{rank}.pid").write_text(f"{10 + rank}")
    watch.swept = [10]
    found = blame.outcome(watch, {0: -signal.SIGKILL, 1: -signal.SIGSEGV})
    assert found["silent"] == [1]
    assert found["codes"] == {0: -signal.SIGKILL, 1: -signal.SIGSEGV}


@pytest.mark.parametrize("stubborn", ["", "stubborn"])
def test_a_killed_rank_is_told_in_words(place, stubborn):
    error = fails(place, place.script(WRONG), "kill", 2, stubborn)
    gone = time.monotonic()
    assert str(error).startswith("rank 2 was killed (SIGKILL), usually out of memory")
    assert gone - float(error.run.lines[2][0]) < 10  # torch waits for 30


STALL = """
import os, signal, subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 2:
    subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getppid()}"])
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(1))
"""


def test_a_killed_rank_is_named_even_if_others_are_seen_to_end_first(place):
    """As on a machine too busy to hear of rank 2 before the others have given up."""
    error = fails(place, place.script(STALL))
    assert str(error).startswith("rank 2 was killed (SIGKILL)")


WAYS = {
    "exit": "rank 1 left with exit code 3",
    "words": "rank 1 left with exit code 1: rank, have some manners",
    "silent": "rank 1 ended with exit code 4",
    "torn": "rank 1 ended with exit code 4",  # as it wrote its error down, for torch
    "minus": "rank 1 left with exit code 255",
    "mute": "rank 1 raised Mute: <exception str() failed>",
}
CODES = {"exit": 3, "words": 1, "minus": 255, "mute": 1}


@pytest.mark.parametrize("way, warm", [*((w, True) for w in WAYS), ("silent", False)])
def test_an_exit_code_is_told(place, warm, way):
    error = fails(place, place.script(WRONG), way, 1, ranks=2, warm=warm)
    assert str(error) == WAYS[way]
    assert error.run.exit_codes[1] == CODES.get(way, 4)


def test_an_exit_code_that_python_makes_0_is_no_failure(place):
    script = place.script("import sys\nsys.exit(256)\n")
    assert torchrun(script, ranks=1, quiet=True).exit_codes == {0: 0}


def test_a_signal_without_a_name_is_told_by_its_number():
    told = str(blame.gone(1, -40))
    assert told == "rank 1 was killed (signal 40), by another process"


def test_a_rank_that_leaves_early_is_named(place):
    text = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    text += "if dist.get_rank() != 1:\n    dist.all_reduce(torch.ones(10))\n"
    error = fails(place, place.script(text))
    assert str(error).startswith("rank 1 ended while rank")
    assert shown(error).count("Traceback") == 1


def test_a_rank_that_hangs_is_named_with_its_line(place):
    """Where ranks are plain, test_plain.py sees to it."""
    linecache.getlines(place.script("a script\nbefore the learner\nchanged it\n"))
    text = "import os, time\nif int(os.environ['RANK']) % 2:\n    time.sleep(600)\n"
    there = "ranks 1 and 3 stood at line 3 of small.py"
    for timeout in (1, 10, 30):  # until all have come so far, or ended
        error = fails(place, place.script(text), timeout=timeout, error=RankTimeout)
        if there in shown(error) and str(error).startswith("2 of 4"):
            break
    assert there in shown(error)
    assert str(error).startswith("2 of 4 ranks still ran after")
    assert "time.sleep(600)" in shown(error)


STALLED = """
import os, signal, subprocess, time
if os.environ["RANK"] == "3":
    subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""


def test_a_rank_that_hangs_tells_where_even_if_others_end_first(place, warm):
    """As on a machine too busy for rank 3 to hear that it must end."""
    how = {"timeout": 3} if warm else {"timeout": 1, "warm": False} | place.light
    how["error"] = RankTimeout
    error = fails(place, place.script(STALLED), **how)
    assert "rank 3 stood at line 5 of small.py" in shown(error)


def test_the_launcher_asks_torch_for_nothing_that_2_11_lacks(monkeypatch, tmp_path):
    """requirements.txt allows torch 2.11, whose WorkerSpec has only these fields."""
    known = """role local_world_size rdzv_handler fn entrypoint args max_restarts
    monitor_interval master_port master_addr local_addr event_log_handler numa_options
    duplicate_stdout_filters duplicate_stderr_filters virtual_local_rank""".split()
    asked = []

    class Launched(BaseException):
        pass

    def old(**settings):
        asked.extend(settings)
        raise Launched

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(agent, "WorkerSpec", old)
    with pytest.raises(Launched):
        agent.start({"script": "s", "ranks": 1, "folder": f"{tmp_path}/a/b"}, None)
    assert "local_world_size" in asked and {*asked} <= {*known}


def test_the_agent_replaces_nothing_of_torch():
    """All that it has of its own are the methods that torch leaves open."""
    [torchs] = agent.Agent.__bases__
    own = {name for name in vars(agent.Agent) if name in dir(torchs)}
    own = {name for name in own if not name.startswith("__")} - {"_abc_impl"}
    assert own == torchs.__abstractmethods__


def test_the_first_launch_speaks_at_once(monkeypatch, capsys):
    """Before anything is started the command is there, and then why it takes time."""
    said = []

    def start():
        said.append(capsys.readouterr().out)
        raise RuntimeError

    monkeypatch.setattr(client, "_server", None)
    began = SimpleNamespace(ready=False, wait=start)
    monkeypatch.setattr(client, "Server", lambda: began)
    with pytest.raises(RuntimeError):
        torchrun("03_ring_all_reduce", ranks=2)
    command, word = said[0].split("\n")
    assert command.startswith("$ torchrun --standalone --nproc-per-node 2 ")
    assert word == "torch is loaded, this once ...\r"
    assert capsys.readouterr().out.isspace()


def test_a_thread_that_outlives_the_script_is_told(place):
    """And a file of the script's own is not taken for one of the launcher's."""
    text = "import os, threading, time\n"
    text += "open(os.environ['TMPDIR'] + '/model.done', 'w').close()\n"
    text += "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    error = fails(place, place.script(text), timeout=4, error=RankTimeout, ranks=2)
    assert "ranks 0 and 1 stood after the last line of the script" in shown(error)


def test_ranks_that_never_began_are_ended_when_the_time_is_up(tmp_path):
    watch = Watch({"folder": tmp_path, "ranks": 2, "timeout": 0}, set(), None)
    watch.tick()
    assert watch.hung == [0, 1] and watch.last_words < math.inf


def test_a_rank_that_has_told_why_it_ends_did_not_hang(tmp_path):
    watch = Watch({"folder": tmp_path, "ranks": 1, "timeout": 0}, set(), None)
    with subprocess.Popen(["sleep", "60"]) as rank:
        (tmp_path / "0.pid").write_text(f"{rank.pid}")
        (tmp_path / "0.failed").write_text("{}")
        watch.tick()
        assert watch.hung == [] and rank.poll() is None
        asked = watch.last_words
        watch.tick()  # if it does not end all the same, its time is still over
        assert watch.last_words == asked < math.inf
        rank.kill()


SLOW = """
import os, signal, sys, time
signal.signal(signal.SIGABRT, lambda *_: (time.sleep(0.5), sys.exit()))
with open(sys.argv[1] + ".part", "w") as note:
    note.write(str(os.getpid()))
os.rename(note.name, sys.argv[1])
time.sleep(60)
"""


def test_the_launcher_waits_until_a_rank_has_told_where_it_stands(tmp_path):
    watch = Watch({"folder": tmp_path, "ranks": 1, "timeout": 0}, set(), None)
    note = tmp_path / "0.pid"
    with subprocess.Popen([sys.executable, "-c", SLOW, note]) as rank:
        while not note.exists():
            time.sleep(0.01)
        watch.tick()
        assert watch.hung == [0] and rank.poll() == 0


def test_a_supervisor_that_stood_still_ends_no_rank(tmp_path):
    """As in a machine that was paused: the ranks are well, only nobody looked."""
    keep = {child.pid for child in psutil.Process().children(recursive=True)}
    watch = Watch({"folder": tmp_path, "ranks": 1, "timeout": 60}, keep, None)
    watch.last_look = time.monotonic() - 60
    looks = iter([None, watch.tick, watch.over.set])  # the launcher comes second
    watch.pass_on = lambda last=False: (next(looks, None) or bool)()
    with subprocess.Popen(["sleep", "60"]) as rank:
        watch.start()
        watch.join()
        assert watch.swept == [] and rank.poll() is None
        rank.kill()


def test_a_launcher_that_asks_seldom_loses_no_rank(tmp_path, monkeypatch):
    """Healthy ranks run on to their time, and are then ended even if nobody asks."""
    monkeypatch.setattr("ringside.launch.watch.GRACE", 0.1)
    keep = {child.pid for child in psutil.Process().children(recursive=True)}
    watch = Watch({"folder": tmp_path, "ranks": 1, "timeout": 3}, keep, None)
    with subprocess.Popen(["sleep", "60"]) as rank:
        (tmp_path / "0.pid").write_text(f"{rank.pid}")
        watch.tick()
        watch.start()
        assert watch.over.wait(2) is False  # many times what ends ranks that outstay
        assert watch.swept == [] and rank.poll() is None
        rank.wait(30)
        watch.over.set()
        watch.join()
        assert watch.hung == [0]


@pytest.mark.parametrize("note", ["failed", "gone"])
def test_ranks_that_outstay_one_that_failed_are_ended(tmp_path, monkeypatch, note):
    monkeypatch.setattr("ringside.launch.watch.GRACE", 0.1)
    keep = {child.pid for child in psutil.Process().children(recursive=True)}
    watch = Watch({"folder": tmp_path, "ranks": 2, "timeout": 60}, keep, None)
    with subprocess.Popen(["sleep", "60"]) as rank:
        (tmp_path / "0.pid").write_text(f"{rank.pid}")
        (tmp_path / ("1.failed" if note == "failed" else "1.pid")).write_text("0")
        watch.tick()
        watch.start()
        assert rank.wait(30) == -signal.SIGKILL
        watch.over.set()
        watch.join()
        assert rank.pid in watch.swept


def test_a_process_that_is_no_rank_is_not_ended(tmp_path):
    """It got the number of a rank that has ended."""
    watch = Watch({"folder": tmp_path, "ranks": 1, "timeout": 0}, set(), None)
    (tmp_path / "0.pid").write_text(f"{os.getppid()}")
    watch.tick()
    assert watch.hung == []


def test_a_rank_that_raised_is_told_before_ranks_that_hang():
    reason = {"type": "ValueError", "message": "mine", "code": 1, "time": 0}
    failed = {1: reason | {"traceback": "", "victim": False}}
    end = {"error": None, "hung": [0], "failed": failed, "done": [], "stderr": {}}
    end |= {"codes": {0: -signal.SIGABRT, 1: 1}, "silent": []}
    error = blame.explain(end, 2, 3.0, Path("x.py"))
    assert str(error) == "rank 1 raised ValueError: mine"


def test_a_time_out_comes_before_the_lost_peers_that_it_makes():
    """It closes connections, and another rank may be quicker to write that down."""
    words = {0: "Timed out waiting 4000ms", 1: "Connection closed by peer [::1]:7"}
    failed = {
        rank: {"type": "RuntimeError", "message": text, "code": 1, "traceback": ""}
        | {"victim": True, "time": 9 - rank}
        for rank, text in words.items()
    }
    end = {"error": None, "failed": failed, "codes": {0: 1, 1: 1}, "hung": []}
    end |= {"silent": [], "done": [], "stderr": {}}
    error = blame.explain(end, 3, 3.0, Path("x.py"))
    assert f"{error}" == "rank 0 raised RuntimeError: Timed out waiting 4000ms"


def test_ranks_that_never_came_to_the_script_are_told():
    end = {"hung": [0, 1], "stderr": {}, "done": []}
    error = blame.hung(end, 4, 3.0, Path("x.py"))
    assert error.details == "ranks 0 and 1 stood before the first line of the script"
    assert str(error) == "2 of 4 ranks still ran after 3 s, and were ended"


ORPHAN = """
import os, sys, time
from pathlib import Path
from ringside.launch.in_rank import run
sys.platform, os.environ["RANK"], parent = "darwin", "0", os.getpid()
if os.fork():
    while not Path(sys.argv[2], "0.pid").exists():
        time.sleep(0.01)
else:
    run(sys.argv[1], [], sys.argv[2], parent)
"""


def test_a_rank_ends_with_its_parent_where_the_system_does_not_see_to_it(tmp_path):
    (script := tmp_path / "small.py").write_text("import time\ntime.sleep(40)\n")
    env = os.environ | {"PYTHONPATH": str(ROOT / "notebooks")}
    line = [sys.executable, "-c", ORPHAN, script, tmp_path]
    subprocess.run(line, env=env, check=True)
    with suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(int((tmp_path / "0.pid").read_text())).wait(20)


ABORTS = """
import os, threading, time

def waits():
    ready.set()
    time.sleep(60)

ready = threading.Event()
threading.Thread(target=waits, daemon=True).start()
ready.wait()
os.abort()
"""


@pytest.mark.parametrize("folder", ["plain", "café 你", "deep" + "/of it" * 90])
def test_the_line_of_the_main_thread_is_told_wherever_the_script_is(tmp_path, folder):
    """faulthandler writes threads newest first, and names short and in ASCII."""
    (script := tmp_path / folder / "small.py").parent.mkdir(parents=True)
    script.write_text(ABORTS)
    line = [sys.executable, "-X", "faulthandler", script]
    dump = subprocess.run(line, stderr=subprocess.PIPE, text=True, cwd="/").stderr
    there = "at line 11 of small.py, in <module>: os.abort()"
    assert blame.standing(dump, str(script)) == there


ENDLESS = float("inf")
REFUSED = [
    (("no_such_lesson",), {}),
    (("03_ring",), {}),
    (("",), {}),
    ((None,), {}),
    ((str(ROOT),), {}),
    (("03_ring_all_reduce\0",), {}),
    (("03_ring_all_reduce", "a\0b"), {}),
    (("03_ring_all_reduce",), {"ranks": 0}),
    (("03_ring_all_reduce",), {"ranks": -1}),
    (("03_ring_all_reduce",), {"ranks": 2.0}),
    (("03_ring_all_reduce",), {"ranks": "4"}),
    (("03_ring_all_reduce",), {"ranks": True}),
    (("03_ring_all_reduce",), {"ranks": 10**6}),
    (("03_ring_all_reduce",), {"timeout": 0}),
    (("03_ring_all_reduce",), {"timeout": -1}),
    (("03_ring_all_reduce",), {"timeout": ENDLESS}),
    (("03_ring_all_reduce",), {"timeout": ENDLESS - ENDLESS}),
    (("03_ring_all_reduce",), {"timeout": "60"}),
    (("03_ring_all_reduce",), {"timeout": None}),
    (("03_ring_all_reduce",), {"env": {"A": 1}}),
    (("03_ring_all_reduce",), {"env": {"A=": "1"}}),
    (("03_ring_all_reduce",), {"env": "A=1"}),
]


@pytest.mark.parametrize("args, how", REFUSED)
def test_a_bad_request_starts_nothing(monkeypatch, args, how):
    monkeypatch.setattr(launch, "server", lambda quiet: pytest.fail("a start"))
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        torchrun(*args, **how)
    assert len(str(caught.value).split()) > 5
    assert shown(caught.value) == str(caught.value)
    if isinstance(caught.value, FileNotFoundError):
        assert "03_ring_all_reduce" in str(caught.value)


@pytest.mark.parametrize(("gpus", "ranks"), [(1, 4), (8, 8)])
def test_as_many_ranks_as_will_start_must_fit(monkeypatch, gpus, ranks):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(launch, "server", lambda quiet: pytest.fail("a start"))
    monkeypatch.setattr(launch, "free_megabytes", lambda: 100 * ranks - 1)
    with pytest.raises(ValueError, match=f"^{ranks} ranks .* for {ranks - 1} or fewer"):
        torchrun("03_ring_all_reduce")


def test_more_ranks_than_gpus_meet_on_the_cpu(place):
    count = max(4, 1 + torch.cuda.device_count())
    run = torchrun("03_ring_all_reduce", ranks=count, quiet=True)
    assert run.lines[0][-1].startswith(f"ok: {count} ranks")
    assert run.exit_codes == dict.fromkeys(range(count), 0)


TELL = """
import atexit, json, os, signal, sys, threading
import torch.distributed
about = {"argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__}
about |= {"cwd": os.getcwd(), "out": sys.stdout.encoding, "in": sys.stdin.read()}
about |= {"errors": sys.stdout.errors, "threads": torch.get_num_threads()}
about |= {"debug": str(torch.distributed.get_debug_level())}
about |= {"signals": str([signal.getsignal(n) for n in (2, 15)])}
for name in sorted(os.environ):
    print(name, os.environ[name])
print(json.dumps(about))
atexit.register(print, "the end")
threading.Timer(0.1, print, ["a thread's end"]).start()
"""
FRESH = "TMPDIR|MASTER_PORT|TORCHELASTIC_ERROR_FILE"  # new in each run
WORDS = ["two words", ";", "$(x)", "${local_rank}", "$$", "*", "'", "--ranks", "", "é"]


def test_a_rank_cannot_tell_warm_from_plain(place):
    script = place.script(TELL, "a script; with $(words) ${local_rank}.py")
    env = {"LESSON": "four", "OMP_NUM_THREADS": "2", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    how = {"ranks": 2, "quiet": True, "env": env}
    runs = [torchrun(script, *WORDS, warm=warm, **how) for warm in (True, False)]
    for rank in range(2):
        warm, plain = (
            [re.sub(f"^({FRESH}) .*", r"\1", line) for line in run.lines[rank]]
            for run in runs
        )
        assert warm == plain
        assert {"LESSON four", f"RANK {rank}", "MASTER_ADDR 127.0.0.1"} < set(warm)
        *_, about, thread, end = warm
        assert (thread, end) == ("a thread's end", "the end")
        assert "INFO" in about and '"threads": 2' in about
        assert json.loads(about)["argv"] == [script, *WORDS]
        assert json.loads(about)["path"][0] == str(Path(script).parent)


LEFT = """
import logging, sys, tempfile
print(logging.root.manager.disable, tempfile.tempdir)
print("ringside.launch.agent" in sys.modules)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there it is a copy")
def test_ranks_inherit_nothing_of_the_supervisor_that_is_copied(place):
    run = torchrun(place.script(LEFT), ranks=1, quiet=True)
    assert run.lines[0] == ["0 None", "False"]
    supervisor = psutil.Process(client._server.process.pid)
    words = [process.cmdline() for process in supervisor.children()]
    assert supervisor.cmdline() in words, "torch was imported a second time"


def test_ranks_of_a_new_fork_server_can_be_ended(place):
    """It starts when the old one was killed, as by a machine out of memory.

    Its ranks have the temporary folder of the run, not that of the supervisor.
    """
    for process in psutil.Process(client._server.process.pid).children():
        if "resource_tracker" not in " ".join(process.cmdline()):  # the fork server
            process.kill()
            while process.status() != psutil.STATUS_ZOMBIE:  # until the next run
                time.sleep(0.01)
    text = "import os, signal, tempfile\nprint(signal.getsignal(signal.SIGTERM).name)\n"
    text += "print(tempfile.gettempdir() == os.environ['TMPDIR'])\n"
    run = torchrun(place.script(text), ranks=2, quiet=True)
    assert run.lines == dict.fromkeys(range(2), ["SIG_DFL", "True"])
    place.idle = {p.pid for p in place.processes()}
    place.left = place.files()


def test_an_interrupt_as_a_run_ends_keeps_the_supervisor(place, monkeypatch):
    """Python may raise it when the last word is out of the queue, and lost."""
    server = client._server

    def answer(seconds, heard=server._answer):
        event = heard(seconds)
        if "end" in event:
            raise KeyboardInterrupt
        return event

    monkeypatch.setattr(server, "_answer", answer)
    with pytest.raises(KeyboardInterrupt):
        torchrun("03_ring_all_reduce", quiet=True)
    assert server.process.poll() is None
    monkeypatch.undo()
    torchrun("03_ring_all_reduce", quiet=True)


def test_half_a_line_from_a_kernel_is_passed_over(place):
    """A kernel may be interrupted, or end, in the middle of an order."""
    server = client._server
    server.process.stdin.write(b'{"script": "04_ri')
    torchrun("03_ring_all_reduce", quiet=True)
    assert client._server is server
    server.process.stdin.write(b'{"script": "04_ri')
    server.close()
    assert server.process.returncode == 0
    torchrun("03_ring_all_reduce", quiet=True)
    place.idle = {p.pid for p in place.processes()}
    place.left = place.files()


def test_half_a_line_from_a_supervisor_is_its_end(tmp_path):
    server = object.__new__(client.Server)
    server.folder, server.log = tmp_path / "rs", tmp_path / "log"
    server.answers = queue.SimpleQueue()
    said = io.BytesIO(b'{"ready": true}\n{"rank": 0, "li')
    server.process = SimpleNamespace(stdout=said, wait=lambda: 0)
    server._listen()
    assert [server.answers.get() for _ in "ab"] == [{"ready": True}, None]


def test_what_ended_after_its_run_is_gone_after_the_next(place):
    """A tracker of semaphores ends by itself; on a busy machine that takes a while."""
    text = "import subprocess, sys\n"
    text += (
        "words = ['import time; time.sleep(5)', 'multiprocessing.resource_tracker']\n"
    )
    text += "subprocess.Popen([sys.executable, '-c', *words])\n"
    torchrun(place.script(text), ranks=1, quiet=True)
    (late,) = [p for p in place.processes() if p.pid not in place.idle]
    while late.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)
    torchrun("03_ring_all_reduce", quiet=True)
    assert place.until_gone(place.idle, place.left) < 5


def test_an_error_is_the_same_warm_and_plain(place):
    warm, plain = (
        fails(place, place.script(WRONG), "raise", 1, ranks=2, warm=warm)
        for warm in (True, False)
    )
    assert str(warm) == str(plain) == "rank 1 raised ValueError: a sum of 1 is wrong"
    assert shown(plain).count("Traceback") == 1 and "in misstep" in shown(plain)
    for error in (warm, plain):
        assert error.run.exit_codes == {0: -signal.SIGTERM, 1: 1}
    assert shown(warm).splitlines()[:-1] == shown(plain).splitlines()[:-1]
    assert warm.run.lines == plain.run.lines


PRINTS = """
import os, sys, time
rank = os.environ["RANK"]
for i in range(200):
    print("line", i, "of", rank, "·" * 50)
sys.stdout.buffer.write(b"not \\xff text\\n")
print("l" + "o" * 300_000 + "ng")
print("form\\x0cfeed\\u2028and so on")
print("half", end="", flush=True)
time.sleep(0.1)
print(" a line")
sys.stdout.write("the end")
"""


def test_every_line_is_whole_and_labelled(place, warm, capsys):
    run = torchrun(place.script(PRINTS), ranks=4, warm=warm, **place.light)
    told = capsys.readouterr().out.split("\n")[1:]
    for rank in range(4):
        lines = [f"line {i} of {rank} {'·' * 50}" for i in range(200)]
        lines += ["not \ufffd text", f"l{'o' * 300_000}ng"]
        lines += ["form\x0cfeed\u2028and so on", "half a line", "the end"]
        assert run.lines[rank] == lines
        label = f"rank {rank} | "
        assert [s.removeprefix(label) for s in told if s.startswith(label)] == lines
    assert len(told) == 4 * 205 + 1


def test_a_line_is_shown_while_its_rank_still_runs(place, monkeypatch):
    """The rank goes on only when its line is on the screen."""
    seen = place.temp.with_name("seen")

    class Screen(io.StringIO):
        def flush(self):
            if "rank 0 | look\n" in self.getvalue():
                seen.touch()

    text = "import os, sys, time\nprint('look')\n"
    text += "while not os.path.exists(sys.argv[1]):\n    time.sleep(0.02)\n"
    monkeypatch.setattr(sys, "stdout", Screen())
    torchrun(place.script(text), seen, ranks=1, timeout=10)


DRAWS = """
import random

import numpy
import torch
import torch.distributed as dist

print(random.random(), numpy.random.rand(), torch.rand(()).item())
dist.init_process_group("gloo")
million = torch.zeros(10**6, dtype=torch.uint8)
dist.send(million, 1) if dist.get_rank() == 0 else dist.recv(million, 0)
"""


def test_each_rank_draws_other_numbers_and_is_said_to_write_what_it_sends(place, warm):
    """Two fresh interpreters owe nothing to each other, nor do two warm runs."""
    script, how = place.script(DRAWS), {"ranks": 2, "warm": warm, "quiet": True}
    runs = [torchrun(script, **how) for _ in range(1 + warm)]
    drawn = [run.lines[rank][0].split() for run in runs for rank in (0, 1)]
    assert all(len({*drew}) == len(drawn) for drew in zip(*drawn, strict=True))
    if sys.platform == "linux":  # only there it is counted
        for run in runs:
            assert 10**6 < run.written[0] < 1.1 * 10**6
            assert run.written[1] < 10**5


LATE = """
import os
import random
import subprocess
import torch.distributed as dist

if os.environ["RANK"] == "0":
    line = "sleep {0:.4f}; kill -STOP {1}; sleep 0.4; kill -CONT {1}"
    subprocess.Popen(["sh", "-c", line.format(random.random() * 0.03, os.getpid())])
dist.init_process_group("gloo")
dist.destroy_process_group()
"""


def test_no_rank_ends_while_another_still_connects(place):
    """Rank 0 stands still for a moment, as on a busy machine; no rank says a word.

    Without the barrier that torch can be asked for, three runs of four fail.
    """
    for _ in range(4):
        run = torchrun(place.script(LATE), ranks=8, quiet=True)
        assert run.exit_codes == dict.fromkeys(range(8), 0)


PARENT = """
import multiprocessing, os, signal, subprocess, sys, time
if __name__ == "__main__":
    way = multiprocessing.get_context("spawn")
    lock = way.Lock()
    print(lock._semlock.name)
    way.Process(target=time.sleep, args=(99,)).start()
    subprocess.Popen(["sleep", "99"], start_new_session=True)
    os.mkdir(os.path.join(sys.argv[1], os.environ["RANK"]))
    while len(os.listdir(sys.argv[1])) < 2:  # nobody else may be killed in Lock():
        time.sleep(0.01)  # Python notes a semaphore only after it has made it
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_script_started_ends_with_it(place, warm, tmp_path):
    """Its processes, and the files in memory that their locks are."""
    how = {"ranks": 2, "warm": warm} | place.light
    error = fails(place, place.script(PARENT), tmp_path, **how)
    locks = [lock for [lock] in error.run.lines.values()]
    assert len(locks) == 2
    assert not any(Path(f"/dev/shm/sem.{lock[1:]}").exists() for lock in locks)


@pytest.fixture
def short(tmp_path_factory, monkeypatch):
    """A new folder with a short path, as that of a socket must be."""
    folder = tmp_path_factory.mktemp("t")
    path = before_all(folder / "path", (SUPERVISOR, NO_DYNAMO))
    monkeypatch.setenv("PYTHONPATH", path)  # of each learner
    return folder


LEARNER = """
import os
from ringside.launch import torchrun
run = torchrun("03_ring_all_reduce", ranks=2, record=True)
assert run.recording and run.lines[0][-1][:3] == "ok:"
run = torchrun({script!r}, ranks=2)
said = "na\\u00efve \\u73af %d " + os.environ["RINGSIDE_TEST"]
assert run.lines == {{r: [said % r] for r in (0, 1)}}, run.lines
"""
SPEAK = "import os\nassert not {'PET_NNODES', 'SLURM_PROCID'} & set(os.environ)\n"
SPEAK += "print('naïve 环', os.environ['RANK'], os.environ['RINGSIDE_TEST'])\n"


def learn(place, root=ROOT, before=(), text=LEARNER, **env) -> subprocess.Popen:
    """Start one more learner, in a process and a place of their own."""
    return subprocess.Popen(
        [*before, sys.executable, "-c", text.format(script=place.script(SPEAK))],
        cwd=root / "notebooks",
        env=place.env | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def learned(place, learner) -> None:
    """See a learner end well, and leave nothing."""
    said = learner.communicate(timeout=60)[0]
    assert learner.returncode == 0, said
    assert place.until_gone() < 10
    assert not list(place.cache.rglob("*"))


def learn_at_once(places, shared) -> None:
    """See learners, who share a folder for temporary files, leave nothing in it."""
    learners = [
        learn(place, TMPDIR=str(shared), HOME=str(place.cache)) for place in places
    ]
    for place, learner in zip(places, learners, strict=True):
        learned(place, learner)
    assert not list(shared.iterdir())


def test_two_learners_at_once(short):
    for name in ("one", "two", "shared"):
        (short / name).mkdir()
    learn_at_once([Place(short / "one"), Place(short / "two")], short / "shared")


LEFT_OVER = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "7",
    "PET_RDZV_ENDPOINT": "elsewhere:29400",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "RANK": "5",
    "LOCAL_RANK": "5",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "elsewhere",
    "MASTER_PORT": "29500",
    "GLOO_SOCKET_IFNAME": "eth9",
    "TORCHELASTIC_RUN_ID": "old",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "OMP_NUM_THREADS": "64",
    "LC_ALL": "POSIX",
}


def test_what_others_left_in_the_environment(short):
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            busy.bind(("127.0.0.1", 29500))
            busy.listen()
        except OSError:
            pass  # somebody else has it, which is as good
        place = Place(short)
        far = short / ("far" * 20)
        far.mkdir()
        learned(place, learn(place, **LEFT_OVER, TMPDIR=str(far)))
        assert not list(far.iterdir())


RENAME = 'echo no-such-host.invalid > /proc/sys/kernel/hostname && exec "$@"'
OFFLINE = 'ip link set lo up && exec "$@"'


@ANOTHER
@pytest.mark.parametrize(
    ("own", "way"), [("-ru", RENAME), ("-rn", OFFLINE)], ids=["name", "network"]
)
def test_a_host_name_that_does_not_resolve_or_no_network(short, own, way):
    place = Place(short)
    learned(place, learn(place, before=["unshare", own, "sh", "-c", way, "sh"]))


@ANOTHER
def test_a_read_only_checkout_with_an_awkward_name(short, text=LEARNER, more="", **env):
    """And with whatever else soak.py makes hard."""
    root = short / "my course 课程 $HOME"
    for folder in ("notebooks/ringside", "scripts"):
        away = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, root / folder, ignore=away)
    lock = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && '
    lock += 'cd "$0/notebooks" && ! touch x 2>/dev/null && ' + more + 'exec "$@"'
    before, place = ["unshare", "-rm", "sh", "-c", lock, str(root)], Place(short)
    learned(place, learn(place, root, before, text, **env))
    assert not list(root.rglob("__pycache__"))


def test_what_a_cell_starts_prints_no_colours():
    """As a kernel asks for colours, Python 3.13 and newer would print some."""
    fails = "import subprocess as s, sys; s.run([sys.executable, '-c', '1 / 0'])"
    env = os.environ | {"FORCE_COLOR": "1", "PYTHONPATH": str(ROOT / "notebooks")}
    env.pop("PYTHON_COLORS", None)
    line = [sys.executable, "-c", f"import ringside; {fails}"]
    said = subprocess.run(line, env=env, capture_output=True, text=True, check=True)
    assert said.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
