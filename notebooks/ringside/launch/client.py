"""The kernel's end of the pipe to its supervisor process."""

import atexit
import json
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil

LONGEST = 58  # bytes of a folder that a socket's path can lie in
ENDING = 8.0  # seconds that a supervisor has to end its ranks, and itself
SLOWER = 60.0  # seconds that ranks of the plain command may take to begin
PATIENCE = 600.0  # seconds for an import of torch, from a disk far away
MISLEADING = re.compile(  # what another launcher, network or kernel left behind
    "(PET|TORCHELASTIC|SLURM|PMI|PMIX|OMPI|GROUP|ROLE|MASTER|GLOO)_.*"
    "|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MPLBACKEND|RINGSIDE_SUPERVISOR"
)

_lock = threading.Lock()
_server = None


class Server:
    """A supervisor process; it ends when this process does."""

    def __init__(self):
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > LONGEST:
            base = "/tmp"
        self.folder = tempfile.mkdtemp(prefix="rs-", dir=base)
        self.pid, self.process = os.getpid(), None
        self.ready = False  # whether it takes orders
        self.slow: str | None = None  # why not the fast way, if that is so
        self.log = Path(self.folder, "supervisor.log")
        self.answers, self.said = queue.SimpleQueue(), ""
        try:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-c"),
                        "from ringside.launch.supervisor import main; main()",
                        self.folder,
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # the interrupt key is for the kernel
                    env=environment(
                        PYTHONPATH=os.pathsep.join(filter(None, paths)),
                        TMPDIR=self.folder,  # a mark on all that it starts
                    ),
                )
            threading.Thread(target=self._listen, daemon=True).start()
            atexit.register(self.close)
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until it takes orders; end it if that is not to be."""
        try:
            self.slow = self._answer(PATIENCE)["slow"]
            self.ready = True
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        with self.process.stdout as events:
            for line in events:
                with suppress(ValueError):  # half a line, its last
                    self.answers.put(json.loads(line))
        if self.process.wait():  # it is gone, perhaps without having tidied up
            end_all_in(self.folder)
        with suppress(OSError):
            self.said = self.log.read_text(errors="replace")[-2000:]
        shutil.rmtree(self.folder, ignore_errors=True)
        self.answers.put(None)

    def _answer(self, seconds: float) -> dict:
        """Return the next event, or end a supervisor that gives none."""
        try:
            event = self.answers.get(timeout=max(seconds, 0))
        except queue.Empty:
            event = None
        if event is None:
            self.answers.put(None)  # nor will there be another one
            self.close(0)
            text = "the process that watches the ranks is gone; run the cell again"
            raise RuntimeError(f"{text}\n{self.said}".strip())
        return event

    def ask(self, order: dict, timeout: float) -> Iterator[dict]:
        """Give each event of a run; stop the run if the caller goes away."""
        last = time.monotonic() + timeout + 2 * ENDING
        last += 0 if order["warm"] else SLOWER
        ended = False
        try:
            self._send(order)
            while not ended:
                event = self._answer(last - time.monotonic())
                if "slow" in event:  # the run begins anew
                    self.slow = event["slow"]
                    last = time.monotonic() + timeout + 2 * ENDING + SLOWER
                ended = "end" in event
                yield event
        finally:
            if not ended:
                self._stop()

    def _send(self, order: dict) -> None:
        with suppress(BrokenPipeError, ValueError):  # the supervisor is gone
            self.process.stdin.write(b"\n" + json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def _stop(self) -> None:
        """End the run under way; end the supervisor too if that takes too long."""
        last = time.monotonic() + ENDING
        try:
            self._send({"stop": True})
            while "stopped" not in self._answer(last - time.monotonic()):
                pass
        except RuntimeError:  # the supervisor is gone, and the run with it
            pass
        except BaseException:
            self.close(0)
            raise

    def close(self, grace: float = ENDING) -> None:
        """End the supervisor, and with it every rank."""
        if os.getpid() != self.pid:
            return
        atexit.unregister(self.close)
        grace = grace if self.ready else 0  # without ranks, there is nothing to end
        if self.process:
            with suppress(OSError):
                self.process.stdin.close()
            try:
                code = self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
                code = self.process.wait()
            if code:
                end_all_in(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


def end_all_in(folder: str) -> None:
    """End all that has its temporary files in a folder, as a supervisor's ranks do.

    When a supervisor is killed, so are its ranks, but not what ranks have started, such
    as a DataLoader's workers. A resource tracker ends by itself, after these.
    """
    for _ in range(5):  # for what has just been started
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has ended, or is another user's
                temp = process.environ().get("TMPDIR", "")
                words = " ".join(process.cmdline())
                tracker = "multiprocessing.resource_tracker" in words
                if f"{temp}/".startswith(f"{folder}/") and not tracker:
                    process.kill()
                    found.append(process)
        if not found:
            return
        psutil.wait_procs(found, 1)


@contextmanager
def server(quiet: bool = True) -> Iterator[Server]:
    """Give the supervisor of this kernel, one caller at a time; start it if need be."""
    global _server
    with _lock:
        if _server is None or _server.process.poll() is not None:
            if _server:
                _server.close(0)
            _server = Server()
        if not _server.ready:
            with nullcontext() if quiet else passing("torch is loaded, this once ..."):
                _server.wait()
        yield _server


def start_early() -> None:
    """Start the supervisor, which takes seconds; whoever wants it first waits less."""
    global _server
    with _lock, suppress(OSError, RuntimeError):  # the first run will say what is wrong
        _server = _server or Server()


@contextmanager
def passing(word: str) -> Iterator[None]:
    """Show a word for as long as something takes; then the next line covers it."""
    print(word, end="\r", flush=True)
    try:
        yield
    finally:
        print(" " * len(word), end="\r", flush=True)


def environment(**more: str) -> dict[str, str]:
    """Return the kernel's variables without what would mislead, loopback only."""
    kept = {k: v for k, v in os.environ.items() if not MISLEADING.fullmatch(k)}
    for name in {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}:
        kept |= {f"{who}_SOCKET_IFNAME": name for who in ("GLOO", "NCCL", "TP")}
    kept["TORCH_DIST_INIT_BARRIER"] = "1"  # or one may end while others still connect
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"} | more
