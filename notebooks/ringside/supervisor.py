"""One process per kernel that starts ranks, watches them, and ends them.

It reads one request per line from its standard input and writes one event per line to
its standard output. When the input closes, for whatever reason, it ends every rank,
removes its folder, and ends itself. torch's own elastic agent does the launching; the
ranks are forked from a server that has already imported torch (warm), or start as
fresh interpreters (plain).
"""

import ctypes
import json
import multiprocessing.forkserver
import os
import queue
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from . import rank

GRACE = 5.0  # seconds between a polite end and SIGKILL


class Loopback(RendezvousHandler):
    """A meeting place for one node, on a port that only this machine can reach."""

    use_agent_store = True

    def __init__(self, params):
        self.run_id = params.run_id

    def next_rendezvous(self):
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo("127.0.0.1", port))

    def get_backend(self):
        return "loopback"

    def get_run_id(self):
        return self.run_id

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def shutdown(self):
        return True


class Stopped(BaseException):
    """The kernel wants the run to end."""


class Watch(threading.Thread):
    """Follows one run: passes on what ranks print, and ends ranks that outstay."""

    def __init__(self, request: dict, keep: set[int], tell):
        super().__init__(daemon=True)
        self.folder, self.keep, self.tell = Path(request["folder"]), keep, tell
        self.deadline = time.monotonic() + request["timeout"]
        self.leave_by = None
        self.over = threading.Event()
        self.passed_on = {}  # bytes of output, by rank
        self.hung = []

    def run(self):
        while not self.over.wait(0.02):
            self.pass_on()
            now = time.monotonic()
            if self.leave_by is None and now > self.deadline:
                self.end_hung()
            if self.leave_by is None and (self.hung or self.trouble()):
                self.leave_by = now + GRACE
            if self.leave_by is not None and now > self.leave_by:
                sweep(self.keep)
        self.pass_on(last=True)

    def logs(self, name: str) -> dict[int, Path]:
        """Return where each rank's stdout or stderr goes."""
        found = self.folder.glob(f"logs/*/attempt_0/*/{name}.log")
        return {int(path.parent.name): path for path in sorted(found)}

    def pass_on(self, last: bool = False):
        """Tell the whole lines that ranks have printed since the last time."""
        for r, path in self.logs("stdout").items():
            with path.open("rb") as file:
                file.seek(self.passed_on.get(r, 0))
                text = file.read()
            if not last:
                text = text[: text.rfind(b"\n") + 1]
            self.passed_on[r] = self.passed_on.get(r, 0) + len(text)
            for line in text.decode(errors="replace").splitlines():
                self.tell(rank=r, line=line)

    def alive(self) -> dict[int, int]:
        """Return the pid of every rank that has begun and not ended."""
        pids = {int(p.stem): int(p.read_text()) for p in self.folder.glob("*.pid")}
        return {r: pid for r, pid in sorted(pids.items()) if runs(pid)}

    def trouble(self) -> bool:
        """Say whether a rank has failed, or has gone without a word."""
        begun, done = self.folder.glob("*.pid"), self.folder.glob("*.done")
        silent = {p.stem for p in begun} - {p.stem for p in done}
        return any(self.folder.glob("*.failed")) or bool(
            silent - {str(r) for r in self.alive()}
        )

    def end_hung(self):
        """End the ranks that still run, each telling first where it stands."""
        hung = self.alive()
        for pid in hung.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
        self.hung = list(hung)


def runs(pid: int) -> bool:
    """Say whether the process is there and not just waiting to be reaped."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def sweep(keep: set[int]) -> None:
    """Kill every process below this one, but for those to keep."""
    for child in psutil.Process().children(recursive=True):
        if child.pid not in keep:
            with suppress(psutil.Error):
                child.kill()


class Supervisor:
    def __init__(self, workdir: str):
        self.requests = queue.SimpleQueue()
        self.busy = threading.Event()
        self.workdir = tempfile.tempdir = workdir
        self.events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        self.orders = os.fdopen(os.dup(0), "rb")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0), os.dup2(nothing, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":  # ranks that lose their parent become ours
            ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        rendezvous_handler_registry.register("loopback", Loopback)
        multiprocessing.set_forkserver_preload(["torch.distributed", rank.__name__])
        multiprocessing.forkserver.ensure_running()

    def tell(self, **event) -> None:
        """Write one event for the kernel; a kernel that is gone hears nothing."""
        with suppress(OSError):
            self.events.write(json.dumps(event) + "\n")

    def listen(self) -> None:
        """Queue requests; stop the run when asked, or when the kernel is gone."""
        for line in self.orders:
            order = json.loads(line)
            if "stop" not in order:
                self.requests.put(order)
            elif self.busy.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
        self.requests.put(None)
        if self.busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE + 1)
        sweep(set())
        shutil.rmtree(self.workdir, ignore_errors=True)
        os._exit(1)

    def serve(self) -> None:
        """Run requests one after another, until the kernel is gone."""
        threading.Thread(target=self.listen, daemon=True).start()
        self.tell(gpus=torch.cuda.device_count())
        while request := self.requests.get():
            self.tell(end=self.launch(request))
        sweep(set())
        shutil.rmtree(self.workdir, ignore_errors=True)

    def launch(self, request: dict) -> dict:
        """Run one request to its end and return what became of it."""
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        multiprocessing.forkserver.ensure_running()
        keep = {child.pid for child in psutil.Process().children(recursive=True)}
        watch = Watch(request, keep, self.tell)
        watch.start()
        end = {"codes": {}, "stopped": False, "error": None}
        try:
            signal.signal(signal.SIGTERM, stop)
            self.busy.set()
            start(request)
            end["codes"] = dict.fromkeys(range(request["ranks"]), 0)
        except ChildFailedError as error:
            end["codes"] = {r: f.exitcode for r, f in error.failures.items()}
        except (SignalException, Stopped):
            end["stopped"] = True
        except Exception as error:
            end["error"] = f"{type(error).__name__}: {error}"
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.busy.clear()
            sweep(keep)
            watch.over.set()
            watch.join()
        paths = watch.folder.glob("*.failed")
        end["failed"] = {int(p.stem): json.loads(p.read_text("utf-8")) for p in paths}
        end["hung"] = watch.hung
        logs = watch.logs("stderr").items()
        end["stderr"] = {r: path.read_text("utf-8", "replace") for r, path in logs}
        return end


def stop(signum, frame):
    raise Stopped


def start(request: dict) -> None:
    """Start the ranks with torch's elastic launcher, and wait for them."""
    folder, script, args = request["folder"], request["script"], request["args"]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=request["ranks"],
        run_id="ringside",
        rdzv_backend="loopback",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(f"{folder}/logs", redirects=Std.ALL),
        local_addr="127.0.0.1",
        shutdown_timeout=int(GRACE),
        signals_to_handle="SIGTERM",
    )
    if request["warm"]:
        order = {"script": script, "args": args, "env": request["env"]}
        elastic_launch(config, rank.run_warm)(order | {"folder": folder})
    else:
        plain = ("-u", rank.__file__, folder, script, *args)
        elastic_launch(config, sys.executable)(*plain)


def main() -> None:
    Supervisor(sys.argv[1]).serve()
