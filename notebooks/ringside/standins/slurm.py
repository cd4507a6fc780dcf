"""Slurm for a notebook: commands run on a cluster of their own, or as once recorded.

scripts/slurm.py makes the cluster, and takes it down however a command ends. Where
there is no Slurm, what figures/32_slurm_measured.json has of a command stands in for
it. With RINGSIDE_KEEP=1 in the environment, a run here is kept there.
"""

import os
import re
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ..launch.client import environment
from ..recording import ROOT, Recording, checked, read
from .commands import Command
from .kept import keep, kept

TOOL = [sys.executable, str(ROOT / "scripts" / "slurm.py"), "run", "--limit"]
KEPT = ROOT / "figures" / "32_slurm_measured.json"
STANDS_IN = "Below stands what was recorded with Slurm 22.05."
CHATTER = re.compile(
    "srun: (job .* (queued|has been alloc)|Step created)|srun: .*retrying"
)


class Done(NamedTuple):
    """How a command ended: its exit code, its lines by task, and its recording."""

    code: int
    lines: list[str]
    recording: Recording | None = None


class Job(Command):
    """One command on a cluster of its own, in a folder of its own."""

    def __init__(self, words, files, record, limit, env):
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name)
        for name, text in files.items():
            (self.path / name).write_text(text, encoding="utf-8")
        if words[0] == "sbatch":
            words = [words[0], f"--output={self.path / 'batch'}", *words[1:]]
        if record:
            words = [*words, "--record", str(self.path / "recording.jsonl")]
        line = [*TOOL, str(limit), *words]
        where = self.path if files else ROOT
        super().__init__(line, self.path / "said", cwd=where, env=env)

    def done(self) -> tuple[str, Done]:
        """Wait for the end; return why there is no Slurm, or else nothing, and it."""
        code = self.process.wait()
        said, err = self.said()
        batch, path = self.path / "batch", self.path / "recording.jsonl"
        said += batch.read_text() if batch.exists() else ""
        lack = re.search("^slurm.py: (?!ended)(.*)", err, re.MULTILINE)
        if lack:
            return lack[1], Done(code, [])
        told = re.findall(r"(?m)^srun: .*|^(?:\d+: )?\w+Error: .*", err)
        lines = sorted(said.splitlines(), key=task_of)
        lines += [line for line in told if not CHATTER.match(line)]
        return "", Done(code, lines, read(path) if path.exists() else None)

    def end(self) -> None:
        """End it, if it runs; its cluster goes with it, and its folder."""
        super().end()
        self.folder.cleanup()


def task_of(line: str) -> int:
    """Return the task that says a line, as srun --label writes it in front."""
    label = re.match(r" *(\d+): ", line)
    return int(label[1]) if label else -1


def slurm(
    *commands: list[str],
    files: dict[str, str] | None = None,
    record: bool = False,
    limit: float = 60,
    **env: str,
) -> list[Done]:
    """Run commands such as ["srun", "--nodes=2", "hostname"], all at the same time.

    Each has two nodes for itself, and `limit` seconds. The files, by name, lie where
    it runs; without any, it runs at the top of the course. What it says is shown.
    """
    own = environment(PYTHONUNBUFFERED="", **env)  # else a line is written in parts
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', '')}"
    with ExitStack() as stack:
        running = []
        for words in commands:
            job = Job(words, files or {}, record, limit, own)
            running.append(stack.enter_context(job))
            time.sleep(0.1)  # so that two do not find the same free port
        found = [job.done() for job in running]
    shown = [shlex.join(words) for words in commands]
    lacks = [lack for lack, _ in found if lack]
    if lacks:
        print(f"{lacks[0]} {STANDS_IN}", flush=True)
        ends = [recorded(line) for line in shown]
    else:
        ends = [end for _, end in found]
        keep(KEPT, {line: row(end) for line, end in zip(shown, ends)})
    for line, end in zip(shown, ends):
        print(f"$ {line}", *end.lines, f"exit code {end.code}", sep="\n", flush=True)
    return ends


def row(end: Done) -> list:
    """Return what is kept of a command."""
    code, lines, events = end
    return [code, lines, None if events is None else [events.header, *events]]


def recorded(line: str) -> Done:
    """Return what was kept of a command."""
    found = kept(KEPT, line)
    if found is None:
        return Done(2, ["this command was never recorded: it needs Slurm"])
    code, lines, rows = found
    return Done(code, lines, rows and checked(Recording(rows[1:], **rows[0])))
