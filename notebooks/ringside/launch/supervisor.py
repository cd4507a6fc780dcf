"""One process per kernel that starts ranks, watches them, and ends them.

It reads one request per line from its standard input and writes one event per line to
its standard output. When the input closes, for whatever reason, it ends every rank,
removes its folder, and ends itself. torch's own elastic agent does the launching; the
ranks are forked from a server that has already imported torch (warm). Where that can't
be, or isn't wanted, they start as fresh interpreters (plain).
"""

import ctypes
import gc
import json
import logging
import multiprocessing.forkserver
import multiprocessing.util
import os
import queue
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

from . import in_rank, own_network, plain
from .blame import outcome
from .watch import FULL, GRACE, Watch, runs, sweep

FILES = 65536  # that a rank may open; some programs walk through all that they may


class Stopped(BaseException):
    """The kernel wants the run to end."""


class Supervisor:
    def __init__(self, workdir: str):
        self.requests: queue.SimpleQueue[dict | None] = queue.SimpleQueue()
        self.busy, self.unwanted = threading.Event(), threading.Event()
        self.ready = threading.Event()
        self.workdir = tempfile.tempdir = workdir
        self.slow: str | None = None  # why ranks can't be copies, if they can't
        self.events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        self.orders = os.fdopen(os.dup(0), "rb")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0), os.dup2(nothing, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        some = most if 0 < most < FILES else FILES  # RPC opens many, and 1024 are usual
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (some, most))
        if sys.platform == "linux":  # ranks that lose their parent become ours
            ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        logging.disable()  # nobody reads it, and torch imports much to write it
        multiprocessing.set_forkserver_preload([f"{__package__}.fork_server"])
        # Its TMPDIR is this folder, where torch._dynamo leaves one of its own.
        self.born = os.environ | {"RINGSIDE_SUPERVISOR": str(os.getpid())}

    def start_fork_server(self) -> None:
        """Start the process that ranks are forked from, unless it is there."""
        os.environ.clear()
        os.environ.update(self.born)
        multiprocessing.forkserver.ensure_running()

    def copy_fork_server(self) -> None:
        """Start it as a copy of this process, so that torch is imported only once."""
        forks, util = multiprocessing.forkserver, multiprocessing.util
        resource_tracker.ensure_running()  # or it would be the first to be copied
        supervisor, start_python = os.getpid(), util.spawnv_passfds

        def copy(python, words, kept):
            util.spawnv_passfds = start_python  # for the copy, too
            if pid := os.fork():
                return pid
            try:
                in_rank.die_with(supervisor)
                for fd in map(int, os.listdir("/proc/self/fd")):
                    if fd > 2 and fd not in kept:  # those of the pipes, above all
                        with suppress(OSError):
                            os.close(fd)
                forks._forkserver.__init__()  # as if newly imported
                resource_tracker._resource_tracker.__init__()
                logging.disable(logging.NOTSET)
                os.environ.pop("RINGSIDE_SUPERVISOR")
                in_rank.settle()
                code = words.index("-c") + 1  # from 3.14.4 on, arguments follow
                sys.argv[1:] = words[code + 1 :]
                exec(words[code])  # what Python would have been told to do
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(1)

        util.spawnv_passfds = copy
        self.start_fork_server()

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
        if self.ready.is_set():  # until then there are no ranks that take their time
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
        try:
            self.warm_up()
        except Exception as error:  # whatever it is, there is another way
            self.slow = in_words(error)
            sweep(set())
        self.ready.set()
        self.tell(ready=True, slow=self.slow)
        while request := self.requests.get():
            if "stop" in request:
                self.tell(stopped=True)
                continue
            became = self.launch(request)
            gc.collect()  # a run that was stopped may have left its store, and a port
            self.tell(end=became)
        sweep(set())
        shutil.rmtree(self.workdir, ignore_errors=True)

    def warm_up(self) -> None:
        """Make all that a warm launch needs; raise an error if that is impossible."""
        if sys.platform != "linux":
            raise ImportError("it needs Linux")
        in_rank.preload()
        self.copy_fork_server()
        from .agent import start  # last, for no rank needs it

        self.start_ranks = start
        first = multiprocessing.get_context("forkserver").Process(target=int)
        first.start()
        first.join()  # now all is imported, and no rank's time is spent on it
        if first.exitcode:
            raise OSError(f"a copied process ended with exit code {first.exitcode}")
        gc.freeze()  # what was imported is never looked through again

    def launch(self, request: dict) -> dict:
        """Run one request to its end, the plain way if need be; return what became."""
        if request["warm"] and not self.slow:
            end = self.launch_warm(request)
            if not end["error"] or self.unwanted.is_set():  # whatever comes of that
                return end
            if end["error"].startswith(FULL):  # the plain way has no more room
                return end
            self.slow = end["error"]
            if len(end["done"]) == request["ranks"]:  # it failed when all was over
                return end | {"error": None}
            for path in Path(request["folder"]).iterdir():  # the next way begins anew
                if path != Path(request["script"]):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        if request["warm"]:
            self.tell(slow=self.slow)
        return self.see_through(request, plain.start)

    def launch_warm(self, request: dict) -> dict:
        """Run one request as copies of the fork server, which must be there."""
        try:
            self.start_fork_server()
        except Exception as error:
            return {"error": in_words(error), "done": []}
        return self.see_through(request, self.start_ranks)

    def see_through(self, request: dict, start) -> dict:
        """Run one request to its end in one of the two ways."""
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        tempfile.tempdir = request["folder"]  # for what torch leaves if it is stopped
        below = psutil.Process().children(recursive=True)
        keep = {child.pid for child in below if runs(child.pid)}
        watch = Watch(request, keep, self.tell)
        watch.start()
        codes: dict[int, int] = {}
        error = None
        with suppress(Stopped):  # nobody waits for what comes of it
            codes, error = self.attempt(request, watch, start)
        signal.signal(signal.SIGTERM, ignore)
        self.busy.clear()
        while psutil.wait_procs(sweep(keep), 1)[0]:
            pass  # until there is none left to wait for
        watch.over.set()
        watch.join()
        return {"error": error} | outcome(watch, codes)

    def attempt(self, request: dict, watch: Watch, start) -> tuple[dict, str | None]:
        """Return the exit codes of ranks that failed, or why there were no ranks."""
        try:
            signal.signal(signal.SIGTERM, stop)
            self.busy.set()
            if self.unwanted.is_set():
                raise Stopped
            return start(request, watch)
        finally:
            signal.signal(signal.SIGTERM, ignore)
            self.busy.clear()


def in_words(error: Exception) -> str:
    """Return an error in one line; an ImportError says enough without its kind."""
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return f"{kind}{error}".partition("\n")[0]


def stop(signum, frame):
    raise Stopped


def ignore(signum, frame):
    """Do nothing; unlike SIG_IGN, no process that is started meanwhile inherits it."""


def main() -> None:
    own_network.take()  # first, while there is one thread
    Supervisor(sys.argv[1]).serve()
