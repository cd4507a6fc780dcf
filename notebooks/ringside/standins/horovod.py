"""Horovod for a notebook: a function run by horovodrun, or as it once ran.

`python3 scripts/course.py horovod` installs Horovod. Where it is not, what
figures/40_horovod_measured.json has of a run stands in for it. With RINGSIDE_KEEP=1 in
the environment, a run here is kept there.
"""

import os
import re
import sys
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ..launch.client import environment
from ..launch.script import collect, literal
from ..recording import ROOT
from .commands import Command
from .kept import keep, kept

KEPT = ROOT / "figures" / "40_horovod_measured.json"
LACK = (
    "Horovod is not installed. `python3 scripts/course.py horovod` compiles it, once, "
    "in 2 to 8 minutes. This cell, and those below, show what was recorded with 0.28.1."
)
CHANGED = "this function was changed, and only Horovod itself can run it now"
SAID = re.compile(r"\[(\d+)\]<(stdout|stderr)>:(.*)")


class Ended(NamedTuple):
    """How a run ended: its exit code, and what its ranks printed and complained."""

    code: int
    lines: list[list[str]]
    warnings: list[str]


def horovodrun(
    function: Callable,
    *args: object,
    ranks: int = 2,
    quiet: bool = False,
    limit: float = 60,
    **env: str,
) -> Ended:
    """Let each rank call function(hvd, ...), and show what they print.

    `env` are variables for the ranks, such as HOROVOD_STALL_CHECK_TIME_SECONDS="1".
    """
    text, name = text_of_script(function, args), function.__name__
    key = " ".join([name, *map(repr, args), f"on {ranks}"])
    seal = sha256(text.encode()).hexdigest()[:16]
    if find_spec("horovod"):
        ended = run(text, f"{name}.py", ranks, limit, env)
        keep(KEPT, {key: row(seal, ended)})
    else:
        say_once(LACK)
        ended = recorded(key, seal)
    print(f"$ horovodrun -np {ranks} python {name}.py")
    for rank, lines in enumerate([] if quiet else ended.lines):
        for line in lines:
            print(f"rank {rank} | {line}")
    return ended


@cache
def say_once(text: str) -> None:
    """Print a text, if it was not printed before."""
    print(text)


def text_of_script(function: Callable, args: tuple) -> str:
    """Return a script that calls the function, with all that it needs from the page."""
    parts, imports = {}, ["import torch"]
    collect(function, function.__name__, parts, imports)
    given = "".join(f", {literal(arg, f'the argument {arg!r}')}" for arg in args)
    head = "\n".join([*dict.fromkeys(imports), "import horovod.torch as hvd"])
    tail = f"hvd.init()\ntorch.set_num_threads(1)\n{function.__name__}(hvd{given})\n"
    return "\n\n\n".join([head, *parts.values(), tail])


def run(text: str, name: str, ranks: int, limit: float, env: dict) -> Ended:
    """Run a script by horovodrun, for some seconds at most."""
    own = environment(PYTHONUNBUFFERED="1", HOROVOD_LOG_LEVEL="warning", **env)
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', '')}"
    tool = Path(sys.executable).with_name("horovodrun")
    line = [str(tool), "-np", str(ranks), "--gloo", sys.executable, name]
    with TemporaryDirectory() as folder:
        Path(folder, name).write_text(text, encoding="utf-8")
        with Command(line, Path(folder, "horovodrun"), cwd=folder, env=own) as command:
            if not command.wait(time.monotonic() + limit):
                raise TimeoutError(f"{name} still ran after {limit:g} s, and was ended")
            told, code = "\n".join(command.said()), command.process.returncode
    lines, warnings = [[] for _ in range(ranks)], []
    for rank, stream, said in SAID.findall(told):
        (lines[int(rank)] if stream == "stdout" else warnings).append(said)
    return Ended(code, lines, [w for w in warnings if telling(w)])


def telling(line: str) -> bool:
    """Say whether a complaint is Horovod's own, or how an exception ends."""
    return bool(re.search(r"[Ss]tall|missing|Missing|^\S*(Error|Warning)\b", line))


def recorded(key: str, seal: str) -> Ended:
    """Return what was kept of a run."""
    found = kept(KEPT, key)
    if found is None or found[0] != seal:
        return Ended(2, [[CHANGED]], [])
    return Ended(*found[1:])


def row(seal: str, ended: Ended) -> list:
    """Return what is kept of a run."""
    warnings = [re.sub(r"^\[[^]]*\] *", "", line) for line in ended.warnings]
    return [seal, ended.code, ended.lines, warnings]
