"""Two nodes for a notebook, and torchrun on both. scripts/nodes.py makes them."""

import fcntl
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ..launch.client import environment
from ..launch.failure import Refused
from ..launch.own_network import shared
from ..launch.run import find
from ..launch.script import file_of, script_of
from ..recording import ROOT, Recording, read
from .commands import Command, Ended

NAMES = ("node0", "node1")
HELD = "RINGSIDE_NODES"  # this variable is set while they are
TOOL = [sys.executable, str(ROOT / "scripts" / "nodes.py")]
WAITING = 300.0  # seconds for another notebook to give them back
ALONE = "two torchrun agents on this machine stand in for two nodes, over loopback."


class Meeting(NamedTuple):
    """What two agents did together: lines by node, and the recording."""

    lines: dict[str, list[str]]
    recording: Recording | None


class NodeFailed(RuntimeError):
    """A program on a node that did not end well."""


class Nodes:
    """Two nodes; where `real` is false, this machine plays both."""

    def __init__(self, real: bool, inside: list[str] | None = None):
        self.inside = inside or []  # the words that lead into the network of both
        self.real, self.port = real, 29500 if real else free_port()
        self.host = NAMES[0] if real else "127.0.0.1"

    def do(self, *words: str) -> str:
        """Give scripts/nodes.py a command: "slow", "100". No stand-in has a link."""
        return tool(*words).stdout if self.real else ""

    def run(
        self, lines: dict[str, list[str]], timeout: float = 60, **env: str
    ) -> dict[str, Ended]:
        """Run a program on each node that is named, at the same time, to its end.

        One that still runs after `timeout` seconds is ended, and NodeFailed is raised.
        """
        own = environment(**env)
        if self.real:  # no node is told which way to take
            own = {
                k: v for k, v in own.items() if "_SOCKET_IFNAME" not in k or k in env
            }
        last, running, late = time.monotonic() + timeout, {}, []
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            own["TMPDIR"] = env.get("TMPDIR", str(folder))  # an agent leaves files
            for node, words in lines.items():
                where = [*self.inside, *TOOL, "on", node if self.real else "here"]
                command = Command([*where, *words], folder / node, cwd=ROOT, env=own)
                running[node] = stack.enter_context(command)
            for node, command in running.items():
                if not command.wait(last):
                    late.append(node)
            ended = {node: command.ended() for node, command in running.items()}
        for node in late:
            said = [f"{node} still ran after {timeout:g} s, and was ended"]
            said += [*ended[node].lines, *ended[node].errors][-30:]
            raise NodeFailed("\n".join(said))
        return ended

    def python(
        self, text: str, words: dict[str, list[str]], **env: str
    ) -> dict[str, Ended]:
        """Run a program on each node with words of its own."""
        line = [sys.executable, "-c", text]
        return self.run({node: [*line, *own] for node, own in words.items()}, **env)

    def torchrun(
        self,
        script: str | Path | Callable,
        *args: object,
        ranks: int = 2,
        first: str = "",
        record: bool = False,
        timeout: float = 60,
        quiet: bool = False,
        **env: str,
    ) -> Meeting:
        """Run scripts/<script>.py on so many ranks of each node.

        The nodes meet by c10d. With first="node1", they meet by the static way, and
        node1 has the group rank 0. For a script, a function will do, as with
        ringside.torchrun, and so will the text of a script.
        """
        with TemporaryDirectory() as folder:
            path, kept = Path(folder, "script.py"), Path(folder, "recording.jsonl")
            words = [] if callable(script) else [str(arg) for arg in args]
            if callable(script):
                path = path.with_name(file_of(script))
                path.write_text(script_of(script, *args), encoding="utf-8")
            elif "\n" in str(script):
                path.write_text(script, encoding="utf-8")
            else:
                path = find(script)
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
            hidden = ["--record", str(kept)] if record else []
            told = [str(shown), *words, *(["--record", kept.name] if record else [])]
            if not self.real:
                self.port = free_port()
            lines = {node: self.meet(node, ranks, first) for node in NAMES}
            for node in () if quiet else NAMES if first else ["both nodes"]:
                line = ["torchrun", *lines.get(node, lines[NAMES[0]]), *told]
                print(f"{node} $ {shlex.join(line)}", flush=True)
            agent = [sys.executable, "-m", "torch.distributed.run"]
            words = [str(path), *words, *hidden]
            lines = {node: [*agent, *line, *words] for node, line in lines.items()}
            ended = self.run(lines, timeout, **env)
            recording = read(kept) if kept.exists() else None
        for node, (code, said, errors) in ended.items():
            for line in said if not quiet else ():
                print(f"{node} | {line}", flush=True)
            if code:
                text = "\n".join(errors[-30:])
                raise NodeFailed(f"{node} ended with exit code {code}\n{text}")
        return Meeting({node: end.lines for node, end in ended.items()}, recording)

    def meet(self, node: str, ranks: int, first: str) -> list[str]:
        """Return what torchrun must be told so that the two agents meet."""
        words = ["--nnodes", "2", "--nproc-per-node", str(ranks)]
        if first:
            number = str(int(node != first))
            host, port = first if self.real else self.host, str(self.port)
            words += ["--node-rank", number, "--master-addr", host]
            words += ["--master-port", port]
        else:
            words += ["--rdzv-backend", "c10d"]
            words += ["--rdzv-endpoint", f"{self.host}:{self.port}"]
        return words if self.real else [*words, "--local-addr", self.host]


def wait_for(lock: int, place: Path, seconds: float) -> None:
    """Take a lock, or refuse if it stays taken: who can read a folder can lock it."""
    last = None
    while last is None or time.monotonic() < last:
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if last is None:
            print("Another notebook has the nodes: waiting for it", flush=True)
            last = time.monotonic() + seconds
        time.sleep(0.1)
    tells = shlex.join(["fuser", "-v", str(place)])
    raise Refused(f"somebody keeps the nodes for {seconds:g} s; {tells} says who")


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process of this course has the nodes; then have them."""
    if HELD in os.environ:  # by this process, or by the one that started it
        yield
        return
    lock = os.open(ROOT / "scripts", os.O_RDONLY)  # a folder: NFS asks more of a file
    try:
        wait_for(lock, ROOT / "scripts", WAITING)
        os.environ[HELD] = "yes"
        yield
    finally:
        os.environ.pop(HELD, None)
        os.close(lock)


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Give two nodes and remove them after, come what may; or a stand-in for them."""
    made = None
    with alone():
        try:
            made = tool("up", str(os.getpid()))
            if made.returncode == 1:
                raise Refused(made.stderr.strip())
            if made.returncode:
                lack = made.stderr.strip()
                if os.geteuid():
                    course = [sys.executable, str(ROOT / "scripts" / "course.py")]
                    line = shlex.join(["sudo", *course, "--here", "lab"])
                    lack = f"Nodes need root: type {line}"
                print(f"{lack} (here, {ALONE})", flush=True)
            with shared() if made.returncode else nullcontext() as inside:
                yield Nodes(made.returncode == 0, inside)
        finally:
            if made is None or made.returncode == 0:
                tool("down")


def free_port() -> int:
    """Return a port of loopback that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def tool(*words: str) -> subprocess.CompletedProcess:
    """Run scripts/nodes.py, out of reach of the interrupt key."""
    how = {"capture_output": True, "text": True, "start_new_session": True}
    return subprocess.run([*TOOL, *words], **how)
