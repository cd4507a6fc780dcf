"""Runs a script on several ranks from a notebook cell, and leaves none behind."""

import difflib
import shlex
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..recording import ROOT, Recording, WrongRecording, read
from .blame import explain
from .client import environment, server
from .failure import Interrupted, NoScript, Refused, keep_log
from .memory import free_megabytes
from .script import file_of, script_of

DAY = 86400
TOLD: list[str] = []  # what has been said once in this kernel


@dataclass(repr=False)
class Run:
    """What became of a run: lines, exit codes and bytes written by rank, recording."""

    command: str
    lines: dict[int, list[str]]
    exit_codes: dict[int, int] = field(default_factory=dict)
    stderr: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    written: dict[int, int] = field(default_factory=dict)
    recording: Recording | None = None

    def __repr__(self) -> str:
        return (
            f"Run: {len(self.lines)} ranks, exit codes {set(self.exit_codes.values())}"
        )


def torchrun(
    script: str | Path | Callable,
    *args: object,
    ranks: int | None = None,
    timeout: float = 60,
    record: bool = False,
    env: dict[str, str] | None = None,
    warm: bool = True,
    quiet: bool = False,
) -> Run:
    """Run scripts/<script>.py on ranks, and raise RankFailed unless all end well.

    A function of the notebook will do for a script: each rank calls it with its rank,
    the world_size and args, and what they print is shown in turns, rank by rank.
    ranks=None means one per GPU if there are several, else 4. The ranks come from a
    process that has imported torch already; with warm=False they are fresh
    interpreters, as with the command shown: there, each rank walks over a set of texts
    in an order of its own, here all in the same. Where no copies can be made, a line
    says so, and all ranks are fresh. timeout is in seconds; fresh ranks have theirs
    from when the last of them begins the script.
    """
    text, words = None, [str(arg) for arg in args]
    if callable(script):
        text, words = script_of(script, *args), []
        path = Path(file_of(script))
    else:
        path = find(script)
    refuse(words, ranks, timeout, env)
    if text and record:
        raise Refused("a script keeps a recording; a notebook's function does not")
    ranks = ranks or as_many_as_there_are_gpus()
    refuse_without_memory(ranks, warm)
    run = Run(command(path, words, ranks, record), {r: [] for r in range(ranks)})
    if not quiet:
        print(f"$ {run.command}", flush=True)

    def show(rank: int, line: str) -> None:
        if not quiet:
            print(f"rank {rank} | {line}", flush=True)

    try:
        with server(quiet) as supervisor:
            if warm and supervisor.slow:
                refuse_without_memory(ranks, warm=False)
                tell_once(supervisor.slow, quiet)
            begin = time.monotonic()
            with scratch(supervisor.folder) as folder:
                if text:
                    path = folder / path
                    path.write_text(text, encoding="utf-8")
                if record:
                    words += ["--record", str(folder / "recording.jsonl")]
                order = {"script": str(path), "args": words, "ranks": ranks}
                order |= {"warm": warm, "timeout": timeout, "folder": str(folder)}
                order["env"] = environment(TMPDIR=str(folder)) | (env or {})
                turns = Turns(show, ranks)
                try:
                    order["cwd"] = str(ROOT)
                    end = follow(supervisor, order, run, turns if text else show, quiet)
                finally:
                    turns.rest()
                error = explain(end, ranks, timeout, path)  # while its text is there
                with suppress(WrongRecording) if error else nullcontext():
                    if record and (folder / "recording.jsonl").exists():
                        run.recording = read(folder / "recording.jsonl")
    except KeyboardInterrupt:
        raise Interrupted("stopped: no rank runs any more") from None
    run.seconds = time.monotonic() - begin
    run.exit_codes, run.stderr = end["codes"], end["stderr"]
    run.written = end["written"]
    if error:
        error.run = run
        error.log = keep_log(path.stem, run)
        raise error
    return run


def as_many_as_there_are_gpus() -> int:
    """Return the number of GPUs if there are several, else 4."""
    import torch  # here: it takes a second, and most runs say how many ranks they want

    gpus = torch.cuda.device_count()
    return gpus if gpus > 1 else 4


def follow(supervisor, order: dict, run: Run, show, quiet: bool) -> dict:
    """Show and keep what the ranks print; return the end of the run."""
    with closing(supervisor.ask(order, order["timeout"])) as events:
        for event in events:
            if "end" in event:
                return by_rank(event["end"])
            if "slow" in event:  # the run begins, or begins anew
                tell_once(event["slow"], quiet)
                run.lines.update({rank: [] for rank in run.lines})
                continue
            run.lines[event["rank"]].append(event["line"])
            show(event["rank"], event["line"])
    raise AssertionError("a run has an end, or ask() raises an error")


def tell_once(reason: str, quiet: bool) -> None:
    """Say why runs take longer, in the first cell of a kernel that shows its lines."""
    if not quiet and not TOLD:
        TOLD.append(reason)
        print(
            f"the fast launcher can't start here ({reason}): ranks start by the plain"
            " command, a few seconds slower",
            flush=True,
        )


class Turns:
    """Shows the first line of every rank, by rank, then the second, and so on."""

    def __init__(self, show, ranks: int):
        self.show, self.turn = show, 0
        self.waiting: list[deque[str]] = [deque() for _ in range(ranks)]

    def __call__(self, rank: int, line: str) -> None:
        self.waiting[rank].append(line)
        while self.waiting[self.turn]:
            self.next()

    def next(self) -> None:
        """Show a line of the rank whose turn it is, if it has one."""
        if self.waiting[self.turn]:
            self.show(self.turn, self.waiting[self.turn].popleft())
        self.turn = (self.turn + 1) % len(self.waiting)

    def rest(self) -> None:
        """Show what is left when the run has ended, also for ranks without more."""
        while any(self.waiting):
            self.next()


@contextmanager
def scratch(parent: str) -> Iterator[Path]:
    """Give a new folder, and remove it, even if an interrupt arrives meanwhile."""
    folder = Path(parent, f"run-{uuid.uuid4().hex[:8]}")
    try:
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:  # once more: an interrupt may have cut the first short
        shutil.rmtree(folder, ignore_errors=True)


def by_rank(end: dict) -> dict:
    """Return the end of a run with ranks as numbers, which JSON makes texts."""
    keyed = {k: v for k, v in end.items() if isinstance(v, dict)}
    return end | {k: {int(r): x for r, x in v.items()} for k, v in keyed.items()}


def find(script: str | Path) -> Path:
    """Return the path of a script, given by its stem or by its path."""
    if not isinstance(script, str | Path):
        raise Refused(f"name a script, such as '03_ring_all_reduce', not {script!r}")
    for path in (ROOT / "scripts" / f"{script}.py", Path(script).absolute()):
        if path.is_file():
            return path
    stems = [p.stem for p in sorted((ROOT / "scripts").glob("[0-9]*.py"))]
    near = difflib.get_close_matches(str(script), stems, n=1, cutoff=0.5)
    instead = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(stems)}"
    raise NoScript(f"there is no script {script!r}; {instead}")


def refuse(words: list[str], ranks, timeout, env) -> None:
    """Raise Refused, in words, for what no run can be started with."""
    if ranks is not None and (type(ranks) is not int or ranks < 1):
        raise Refused(f"ranks is a whole number, 1 or more, not {ranks!r}")
    if type(timeout) not in (int, float) or not 0 < timeout <= DAY:
        raise Refused(
            f"timeout is in seconds, above 0 and up to a day, not {timeout!r}"
        )
    if any("\0" in word for word in words):
        raise Refused("an argument of a script can't have a zero byte in it")
    pairs = env.items() if isinstance(env, dict) else [(env, "")] * (env is not None)
    for key, value in pairs:
        strings = isinstance(key, str) and isinstance(value, str)
        if not strings or not key or "=" in key or "\0" in key + value:
            raise Refused(
                f"env is like {{'NAME': 'text'}}, and can't have {key!r} in it"
            )


def refuse_without_memory(ranks: int, warm: bool) -> None:
    """Raise Refused for more ranks than the memory that is free can hold."""
    each, free = (100 if warm else 350), free_megabytes()
    if ranks * each > free:
        raise Refused(
            f"{ranks} ranks need more than the {free} MB of memory that are free, at"
            f" about {each} MB each: ask for {max(1, free // each)} or fewer"
        )


def command(path: Path, words: list[str], ranks: int, record: bool) -> str:
    """Return what a person would type at the top of the course."""
    script = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    shown = [*words, "--record", "recording.jsonl"] if record else words
    line = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
    return shlex.join([*line, str(script), *shown])
