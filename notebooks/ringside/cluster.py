"""Slurm for a notebook: commands run on a cluster of their own, or as once recorded.

scripts/slurm.py makes the cluster, and takes it down however a command ends. Where
there is no Slurm, what figures/32_slurm_measured.json has of a command stands in for
it. With RINGSIDE_KEEP=1 in the environment, a run here is kept there.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from .launch.client import environment
from .recording import ROOT, Recording, read, whole

TOOL = [sys.executable, str(ROOT / "scripts" / "slurm.py"), "run", "--limit"]
KEPT = ROOT / "figures" / "32_slurm_measured.json"
STANDS_IN = "Below stands what was recorded with Slurm 22.05."
DULL = re.compile(
    "srun: (job .* (queued|has been alloc)|Step created)|srun: .*retrying"
)


class Done(NamedTuple):
    """How a command ended: its exit code, its lines by task, and its recording."""

    code: int
    lines: list[str]
    recording: Recording | None = None


class Command:
    """One command on a cluster of its own, in a folder of its own."""

    def __init__(self, words, files, record, limit, env):
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name)
        for name, text in files.items():
            (self.path / name).write_text(text, encoding="utf-8")
        if words[0] == "sbatch":
            words = [words[0], f"--output={self.path / 'out'}", *words[1:]]
        if record:
            words = [*words, "--record", str(self.path / "recording.jsonl")]
        how = {"cwd": self.path if files else ROOT, "env": env}
        how |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
        with (
            (self.path / "said").open("w") as out,
            (self.path / "err").open("w") as err,
        ):
            line = [*TOOL, str(limit), *words]
            self.process = subprocess.Popen(line, stdout=out, stderr=err, **how)

    def done(self) -> tuple[str, Done]:
        """Wait for the end; return why there is no Slurm, or else nothing, and it."""
        code = self.process.wait()
        texts = [self.path / name for name in ("said", "out", "err")]
        said, out, err = (p.read_text() if p.exists() else "" for p in texts)
        lack = re.search("^slurm.py: (?!ended)(.*)", err, re.MULTILINE)
        if lack:
            return lack[1], Done(code, [])
        told = re.findall(r"(?m)^srun: .*|^(?:\d+: )?\w+Error: .*", err)
        lines = sorted((said + out).splitlines(), key=teller)
        lines += [line for line in told if not DULL.match(line)]
        path = self.path / "recording.jsonl"
        return "", Done(code, lines, read(path) if path.exists() else None)

    def end(self) -> None:
        """End it, if it runs; its cluster goes with it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait(20)
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def teller(line: str) -> int:
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
            running.append(Command(words, files or {}, record, limit, own))
            stack.callback(running[-1].end)
            time.sleep(0.1)  # so that two do not find the same free port
        found = [command.done() for command in running]
    shown = [shlex.join(words) for words in commands]
    lacks = [lack for lack, _ in found if lack]
    if lacks:
        print(f"{lacks[0]} {STANDS_IN}", flush=True)
        ends = [recorded(line) for line in shown]
    else:
        ends = [end for _, end in found]
        if os.environ.get("RINGSIDE_KEEP"):
            keep(dict(zip(shown, ends)))
    for line, end in zip(shown, ends):
        print(f"$ {line}", *end.lines, f"exit code {end.code}", sep="\n", flush=True)
    return ends


def recorded(line: str) -> Done:
    """Return what was kept of a command."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")).get(line)
    if kept is None:
        return Done(2, ["this command was never recorded: it needs Slurm"])
    code, lines, rows = kept
    return Done(code, lines, rows and whole(Recording(rows[1:], **rows[0])))


def keep(ends: dict[str, Done]) -> None:
    """Keep what commands said, for machines without Slurm."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for line, (code, lines, events) in ends.items():
        rows = None if events is None else [events.header, *events]
        kept[line] = [code, lines, rows]
    text = json.dumps(kept, indent=1, sort_keys=True)
    KEPT.write_text(text + "\n", encoding="utf-8")
