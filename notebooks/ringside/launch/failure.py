"""The errors of runs, and the logs of those that failed."""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from .in_rank import write

KEPT = 20  # logs of failed runs, the newest of all kernels


class Brief:
    """An error that a notebook shows without the helper's own lines."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Refused(Brief, ValueError):
    """A run that can't be started as asked."""


class NoScript(Brief, FileNotFoundError):
    """A script that is not there."""


class Interrupted(Brief, KeyboardInterrupt):
    """A run that the learner has stopped."""


class RankFailed(RuntimeError):
    """A run that did not end well; the message names the rank whose fault it was."""

    details: str = ""
    log: Path | None = None
    run: object = None  # what became of each rank

    def _render_traceback_(self) -> list[str]:
        """Show the rank's own traceback in place of the kernel's."""
        end = [f"All that the ranks said is in {self.log}"] if self.log else []
        return [str(self), *self.details.splitlines(), *end]


class RankTimeout(RankFailed):
    """A run with ranks that still ran when the time was up."""


def keep_log(stem: str, run) -> Path | None:
    """Write down all that the ranks said, and return where, if that was possible."""
    text = f"$ {run.command}\n"
    for rank, lines in run.lines.items():
        printed = "".join(f"{line}\n" for line in lines)
        text += f"\n--- rank {rank}\n{printed}{run.stderr.get(rank, '')}"
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache, "ringside")
        if not folder.is_absolute():
            return None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():  # somebody else's, or a way there
            return None
        folder.chmod(0o700)  # it is nobody else's business what ranks said
        path = folder / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{os.getpid()}-{stem}.log"
        write(path, text)
        for log in sorted(folder.glob("*.log"))[:-KEPT]:
            with suppress(OSError):  # another kernel may have removed it
                log.unlink()
    except (OSError, RuntimeError):  # no room, or no home
        return None
    return path


def name(ranks: list[int]) -> str:
    """Return "rank 3", or "ranks 0, 1 and 2"."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
