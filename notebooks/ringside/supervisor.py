"""One process per kernel that starts ranks, watches them, and ends them.

It reads one request per line from its standard input and writes one event per line to
its standard output. When the input closes, for whatever reason, it ends every rank,
removes its folder, and ends itself. torch's own elastic agent does the launching; the
ranks are forked from a server that has already imported torch (warm), or start as
fresh interpreters (plain).
"""

import ctypes
import gc
import json
import logging
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

import psutil
import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import (
    MultiprocessContext,
    SignalException,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from . import rank
from .watch import GRACE, Watch, runs, sweep

PRELOAD = ["torch.distributed", "torch.distributed.elastic.multiprocessing.api"]
PRELOAD += ["torch._dynamo"]  # or each rank imports it with its first optimizer or DDP


class Loopback(RendezvousHandler):
    """A meeting place for one node, on a port that only this machine can reach."""

    use_agent_store = True
    watch = None

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
        """Answer the launcher, which asks each time it has found the ranks well."""
        self.watch.looked()
        return 0

    def shutdown(self):
        return True


def all_ended(ranks: MultiprocessContext) -> bool:
    """Say whether every rank has ended by itself, as ours do; torch's own wait."""
    ended = all(process.exitcode is not None for process in ranks._pc.processes)
    if ended:
        ranks._return_values = dict.fromkeys(range(ranks.nprocs))
    return ended


def close(ranks: MultiprocessContext, *how, torchs=MultiprocessContext._close, **more):
    """End the ranks as torch does, and keep each rank's exit code; torch keeps one."""
    torchs(ranks, *how, **more)
    if ranks._pc:
        codes = [process.exitcode for process in ranks._pc.processes]
        Loopback.watch.exits = dict(enumerate(codes))


class Stopped(BaseException):
    """The kernel wants the run to end."""


class Supervisor:
    def __init__(self, workdir: str):
        self.requests = queue.SimpleQueue()
        self.busy, self.unwanted = threading.Event(), threading.Event()
        self.workdir = tempfile.tempdir = workdir
        self.events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        self.orders = os.fdopen(os.dup(0), "rb")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0), os.dup2(nothing, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":  # ranks that lose their parent become ours
            ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        MultiprocessContext._is_done = all_ended
        MultiprocessContext._close = close
        logging.disable()  # nobody reads it, and torch imports much to write it
        rendezvous_handler_registry.register("loopback", Loopback)
        multiprocessing.set_forkserver_preload([*PRELOAD, rank.__name__])
        self.born = os.environ | {"RINGSIDE_SUPERVISOR": str(os.getpid())}
        self.born["TMPDIR"] = workdir  # torch._dynamo leaves a folder there
        self.start_fork_server()

    def start_fork_server(self) -> None:
        """Start the process that ranks are forked from, unless it is there."""
        os.environ.clear()
        os.environ.update(self.born)
        multiprocessing.forkserver.ensure_running()

    def tell(self, **event) -> None:
        """Write one event for the kernel; a kernel that is gone hears nothing."""
        with suppress(OSError):
            self.events.write(json.dumps(event) + "\n")

    def listen(self) -> None:
        """Queue requests; stop the run when asked, or when the kernel is gone."""
        for line in self.orders:
            with suppress(ValueError):  # half a line, of a kernel that was interrupted
                order = json.loads(line)
                if "stop" in order:
                    self.end_run()
                else:
                    self.unwanted.clear()
                self.requests.put(order)
        self.requests.put(None)
        self.end_run()
        time.sleep(GRACE + 1)
        sweep(set())
        shutil.rmtree(self.workdir, ignore_errors=True)
        os._exit(1)

    def end_run(self) -> None:
        """Stop the run under way, or the one that is about to start."""
        self.unwanted.set()
        if self.busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def serve(self) -> None:
        """Run requests one after another, until the kernel is gone."""
        threading.Thread(target=self.listen, daemon=True).start()
        first = multiprocessing.get_context("forkserver").Process(target=int)
        first.start()
        first.join()  # now all is imported, and no rank's time is spent on it
        gc.freeze()  # what was imported is never looked through again
        self.tell(gpus=torch.cuda.device_count())
        while request := self.requests.get():
            if "stop" in request:
                self.tell(stopped=True)
                continue
            outcome = self.launch(request)
            gc.collect()  # a run that was stopped may have left its store, and a port
            self.tell(end=outcome)
        sweep(set())
        shutil.rmtree(self.workdir, ignore_errors=True)

    def launch(self, request: dict) -> dict:
        """Run one request to its end and return what became of it."""
        self.start_fork_server()
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        tempfile.tempdir = request["folder"]  # for what torch leaves if it is stopped
        below = psutil.Process().children(recursive=True)
        keep = {child.pid for child in below if runs(child.pid)}
        Loopback.watch = watch = Watch(request, keep, self.tell)
        watch.start()
        codes, error = {}, None
        with suppress(SignalException, Stopped):  # nobody waits for what comes of it
            codes, error = self.attempt(request)
        signal.signal(signal.SIGTERM, ignore)
        self.busy.clear()
        while psutil.wait_procs(sweep(keep), 1)[0]:
            pass  # until there is none left to wait for
        watch.over.set()
        watch.join()
        return {"error": error} | watch.outcome(codes, request["ranks"])

    def attempt(self, request: dict) -> tuple[dict[int, int], str | None]:
        """Return the exit codes of ranks that failed, or why there were no ranks."""
        try:
            signal.signal(signal.SIGTERM, stop)
            self.busy.set()
            if self.unwanted.is_set():
                raise Stopped
            start(request)
        except ChildFailedError as error:
            return {r: failure.exitcode for r, failure in error.failures.items()}, None
        except Exception as error:
            return {}, f"{type(error).__name__}: {error}"
        finally:
            signal.signal(signal.SIGTERM, ignore)
            self.busy.clear()
        return {}, None


def stop(signum, frame):
    raise Stopped


def ignore(signum, frame):
    """Do nothing; unlike SIG_IGN, no process that is started meanwhile inherits it."""


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
        monitor_interval=0.02,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(f"{folder}/logs", redirects=Std.ALL),
        local_addr="127.0.0.1",
        signals_to_handle="SIGTERM",
    )
    if hasattr(config, "shutdown_timeout"):  # torch 2.11 has none
        config.shutdown_timeout = int(GRACE)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    if request["warm"]:
        order = {"script": script, "args": args, "env": dict(os.environ)}
        elastic_launch(config, rank.run_warm)(order | {"folder": folder})
    else:
        words = ["-u", rank.__file__, str(os.getpid()), folder, script, *args]
        words = [word.replace("$", "$$") for word in words]  # torch fills in templates
        elastic_launch(config, sys.executable)(*words)


def main() -> None:
    Supervisor(sys.argv[1]).serve()
