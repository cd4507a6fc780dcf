"""torch's elastic launcher, with what this course needs to be otherwise.

The ranks meet on loopback, whatever this machine is called, and end by themselves; the
exit code of each is kept.
"""

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
)
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from . import in_rank
from .watch import GRACE, Watch

ROOM = 2**16  # bytes of the temporary folder that a start needs


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


def torchs(kind: type, name: str) -> Callable:
    """Return a function of torch's that we replace, and that must be there."""
    if name not in vars(kind):
        raise ImportError(
            f"torch {torch.__version__} has no {kind.__name__}.{name}, which cells need"
            " to start ranks: use torch 2.13, or type the command in a terminal"
        )
    return getattr(kind, name)


torchs(MultiprocessContext, "_is_done")
close_ranks = torchs(MultiprocessContext, "_close")
read_note = torchs(ProcessFailure, "__post_init__")


def all_ended(ranks: MultiprocessContext) -> bool:
    """Say whether every rank has ended by itself, as ours do; torch's own wait."""
    ended = all(process.exitcode is not None for process in ranks._pc.processes)
    if ended:
        ranks._return_values = dict.fromkeys(range(ranks.nprocs))
    return ended


def close(ranks: MultiprocessContext, *how, **more):
    """End the ranks as torch does, and keep each rank's exit code; torch keeps one."""
    close_ranks(ranks, *how, **more)
    if ranks._pc:
        codes = [process.exitcode for process in ranks._pc.processes]
        Loopback.watch.exits = dict(enumerate(codes))


def forgive(failure: ProcessFailure) -> None:
    """Read torch's own note of a failure, unless its rank ended while writing it."""
    try:
        read_note(failure)
    except ValueError:
        Path(failure.error_file).unlink()
        read_note(failure)


rendezvous_handler_registry.register("loopback", Loopback)
MultiprocessContext._is_done = all_ended
MultiprocessContext._close = close
ProcessFailure.__post_init__ = forgive


def start(request: dict, watch: Watch) -> tuple[dict[int, int], str | None]:
    """Run the ranks to their end; return exit codes that are not 0, or what failed."""
    Loopback.watch = watch
    try:
        launch(request)
    except ChildFailedError as error:
        return {r: failure.exitcode for r, failure in error.failures.items()}, None
    except Exception as error:
        base = Path(request["folder"]).parents[1]
        if shutil.disk_usage(base).free < ROOM:  # whatever the error is then
            return {}, f"the disk is full; make room in {base}"
        return {}, f"{type(error).__name__}: {error}"
    return {}, None


def launch(request: dict) -> None:
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
        elastic_launch(config, in_rank.run_warm)(order | {"folder": folder})
    else:
        words = ["-u", in_rank.__file__, str(os.getpid()), folder, script, *args]
        words = [word.replace("$", "$$") for word in words]  # torch fills in templates
        elastic_launch(config, sys.executable)(*words)
