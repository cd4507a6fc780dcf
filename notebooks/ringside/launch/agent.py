"""torch's elastic agent, whose ranks are copies of a process that has imported torch.

An agent starts the ranks of a node, watches them, and ends all when one has failed. How
it does that, torch leaves to the four methods of a subclass of SimpleElasticAgent.
"""

import os
import shutil
import time
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed.elastic.agent.server import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from . import in_rank
from .loopback import Loopback
from .watch import FULL, GRACE, Watch

ROOM = 2**16  # bytes of the temporary folder that a start needs


def start(request: dict, watch: Watch) -> tuple[dict[int, int], str | None]:
    """Run the ranks to their end; return exit codes that are not 0, or what failed."""
    base = Path(request["folder"]).parents[1]
    if shutil.disk_usage(base).free < ROOM:  # a rank could not even say so
        return {}, f"{FULL}; make room in {base}"
    try:
        agent = Agent(request, watch)
        agent.run()
    except Exception as error:
        return {}, f"{type(error).__name__}: {error}"
    return agent.codes, None


class Agent(SimpleElasticAgent):
    """Runs the ranks of one request, each a copy of the fork server."""

    def __init__(self, request: dict, watch: Watch):
        spec = WorkerSpec(
            role="default",  # as the plain command calls it
            local_world_size=request["ranks"],
            rdzv_handler=Loopback(SimpleNamespace(run_id="ringside")),
            entrypoint=request["script"],
            max_restarts=0,
            monitor_interval=0.02,
            local_addr="127.0.0.1",
        )
        super().__init__(spec)
        self.request, self.watch = request, watch
        self.ranks: dict[int, Any] = {}  # the process of each
        self.codes: dict[int, int] = {}  # not 0, by rank; those seen first are first

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        """Start a copy of the fork server for each rank; return their process ids."""
        order = {name: self.request[name] for name in ("script", "args", "folder")}
        copy = get_context("forkserver").Process
        for worker in worker_group.workers:
            env = dict(os.environ) | self.variables(worker_group, worker)
            rank = copy(target=in_rank.run_warm, args=(order, env))
            rank.start()
            self.ranks[worker.local_rank] = rank
        return {rank: process.pid for rank, process in self.ranks.items()}

    def variables(self, group: WorkerGroup, worker: Worker) -> dict[str, str]:
        """Return the variables that torchrun gives a rank."""
        spec, rank = group.spec, worker.local_rank
        asynchronous = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        return {
            "RANK": f"{worker.global_rank}",
            "LOCAL_RANK": f"{rank}",
            "GROUP_RANK": f"{group.group_rank}",
            "ROLE_RANK": f"{worker.role_rank}",
            "ROLE_NAME": spec.role,
            "WORLD_SIZE": f"{worker.world_size}",
            "LOCAL_WORLD_SIZE": f"{spec.local_world_size}",
            "GROUP_WORLD_SIZE": f"{group.group_world_size}",
            "ROLE_WORLD_SIZE": f"{worker.role_world_size}",
            "MASTER_ADDR": f"{group.master_addr}",
            "MASTER_PORT": f"{group.master_port}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": f"{spec.rdzv_handler.use_agent_store}",
            "TORCHELASTIC_ERROR_FILE": f"{self.request['folder']}/{rank}.error",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": asynchronous,
        }

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Say whether all ranks have ended well, some have failed, or all is well."""
        codes = {rank: process.exitcode for rank, process in self.ranks.items()}
        self.codes = {rank: code for rank, code in codes.items() if code}
        if self.codes:
            pids = {rank: self.ranks[rank].pid for rank in self.codes}
            failures = {
                rank: ProcessFailure(rank, pids[rank], code, error_file="")
                for rank, code in self.codes.items()
            }
            return RunResult(WorkerState.FAILED, failures=failures)
        if None not in codes.values():
            return RunResult(WorkerState.SUCCEEDED, return_values=codes)
        self.watch.tick()
        return RunResult(WorkerState.HEALTHY)

    def _stop_workers(self, worker_group: WorkerGroup, *how, **more) -> None:
        """End the ranks, of which one has failed."""
        self._shutdown()

    def _shutdown(self, *how, **more) -> None:
        """End the ranks that still run, first politely, and learn every exit code."""
        running = [rank for rank in self.ranks.values() if rank.exitcode is None]
        for rank in running:
            rank.terminate()
        last = time.monotonic() + GRACE
        for rank in running:
            rank.join(max(0, last - time.monotonic()))
        for rank in running:
            rank.kill()  # if it has not ended
            rank.join()
        for number, rank in self.ranks.items():
            if rank.exitcode:
                self.codes.setdefault(number, rank.exitcode)
