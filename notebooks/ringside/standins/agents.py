"""Runs torchrun's agents beside a cell, which may end one while the others work."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from ..launch.client import environment
from ..launch.own_network import shared
from .commands import Command
from .nodes import TOOL, free_port

SCRIPT, MEETING = "loop.py", "MEETING"  # the port where agents meet, in flags
LINE = [*TOOL, "on", "here", sys.executable, "-m", "torch.distributed.run"]
LAST = 100.0  # seconds for whatever is waited for


class Agent:
    """An agent that runs, or has ended; what it and its workers say is kept."""

    def __init__(self, place: Path, line: list[str], env: dict[str, str]):
        self.command = Command([*line, SCRIPT], place, cwd=place.parent, env=env)
        self.place, self.process, self.code = place, self.command.process, None
        self.read()

    def read(self) -> None:
        """Read what its workers have printed, and its log."""
        self.said, self.log = self.command.said()

    def until(self, text: str) -> None:
        """Wait until its workers have printed some text."""
        last = time.monotonic() + LAST
        while text not in self.said:
            self.read()
            if time.monotonic() > last or self.process.poll() not in (None, 0):
                raise TimeoutError(f"no worker says {text!r}\n{self.log[-2000:]}")
            time.sleep(0.02)

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        try:
            self.code = self.process.wait(LAST)
        finally:
            self.read()
        return self.code

    def lose(self) -> None:
        """Kill the agent and its workers at once, as when a node is lost."""
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(self.process.pid)
            for process in [agent, *agent.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()


@contextmanager
def agents(text: str) -> Iterator[Callable[..., Agent]]:
    """Give a function that starts an agent of a script; at the end none is left.

    It takes torchrun's flags as one text, in which MEETING is a port of loopback, and
    environment variables. All agents and workers run in one folder, which is new, and
    in one network of their own where Linux has such: torch's store asks nobody who
    calls, and listens on all addresses.
    """
    port, begun = f"{free_port()}", []
    with TemporaryDirectory() as folder, shared() as inside:
        Path(folder, SCRIPT).write_text(text, encoding="utf-8")

        def begin(flags: str, **env: str) -> Agent:
            words = shlex.split(flags.replace(MEETING, port))
            words += ["--local-addr", "127.0.0.1"]
            own = environment(TMPDIR=folder, LOGLEVEL="INFO") | env
            line = [*inside, *LINE, *words]
            begun.append(Agent(Path(folder, f"agent{len(begun)}"), line, own))
            return begun[-1]

        try:
            yield begin
        finally:
            for agent in begun:
                agent.lose()


def elastic(text: str, flags: str, **env: str) -> Agent:
    """Run a script by `torchrun --standalone` and these flags, and return its agent."""
    flags = f"--standalone {flags}"
    print(f"$ torchrun {flags} {SCRIPT}", flush=True)
    with agents(text) as begin:
        agent = begin(flags, **env)
        agent.wait()
    print(agent.said, end="", flush=True)
    return agent
