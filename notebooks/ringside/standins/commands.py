"""Runs the programs of the stand-ins: what each says is kept, and none is left."""

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

ENDING = 20.0  # seconds that a program has to end when it is told to


class Ended(NamedTuple):
    """How a program ended, and the lines that it wrote."""

    code: int
    lines: list[str]
    errors: list[str]

    @property
    def last(self) -> str:
        """The last line that it printed or, if it failed, complained with."""
        return ["", *(self.errors if self.code else self.lines)][-1]


class Command:
    """A program that runs, out of reach of the interrupt key; as a context, it ends."""

    def __init__(self, line: Sequence[str], place: Path, **how):
        self.files = [Path(f"{place}.out"), Path(f"{place}.err")]
        with self.files[0].open("w") as out, self.files[1].open("w") as err:
            how |= {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            self.process = subprocess.Popen(line, start_new_session=True, **how)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.end()

    def said(self) -> list[str]:
        """Return what it has printed so far, and what it has complained of."""
        return [path.read_bytes().decode(errors="replace") for path in self.files]

    def wait(self, last: float) -> bool:
        """Wait for its end; say whether it came before the clock says `last`."""
        try:
            self.process.wait(max(last - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self.end()
            return False
        return True

    def ended(self) -> Ended:
        """Return how it has ended."""
        return Ended(self.process.returncode, *map(str.splitlines, self.said()))

    def end(self) -> None:
        """Tell it to end, if it still runs, and kill it if it does not."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING)
        self.process.kill()
        self.process.wait()
