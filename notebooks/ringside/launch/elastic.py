"""torch's elastic launcher, with what this course needs to be otherwise.

The ranks meet on loopback, whatever this machine is called, and end by themselves; the
exit code of each is kept.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from . import in_rank
from .loopback import Loopback
from .watch import FULL, GRACE, Watch

ROOM = 2**16  # bytes of the temporary folder that a start needs


def torchs(kind: type, name: str) -> Callable:
    """Return a function of torch's that we replace, and that must be there."""
    if name not in vars(kind):
        raise ImportError(f"torch {torch.__version__} has no {kind.__name__}.{name}")
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
            return {}, f"{FULL}; make room in {base}"
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
        role="default",  # as the plain command calls it
        rdzv_backend="loopback",
        max_restarts=0,
        monitor_interval=0.02,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(f"{folder}/logs"),
        local_addr="127.0.0.1",
        signals_to_handle="SIGTERM",
    )
    if hasattr(config, "shutdown_timeout"):  # torch 2.11 has none
        config.shutdown_timeout = int(GRACE)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    order = {"script": script, "args": args, "env": dict(os.environ)}
    elastic_launch(config, in_rank.run_warm)(order | {"folder": folder})
