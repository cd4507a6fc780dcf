"""How long a launch takes, from the key to the last line: python tests/bench_launch.py

Each round types the command that a cell shows, then opens a new kernel, and makes the
same launch there twice, of the ring on four ranks. A clock starts where a learner
presses the key. The kernel has imported torch by then, as lessons do in their first
cell, but nothing else has.
"""

import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import asked
from jupyter_client.manager import run_kernel

ROOT = Path(__file__).parents[1]
LESSON, RANKS, ROUNDS = "03_ring_all_reduce", 4, 7
OK = f"ok: {RANKS} ranks"
COMMAND = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
COMMAND += ["--nproc-per-node", f"{RANKS}", f"scripts/{LESSON}.py"]
CELL = f'torchrun("{LESSON}", ranks={RANKS})'


@contextmanager
def clock(taken: list[float]):
    """Add the seconds of what happens inside."""
    begin = time.monotonic()
    yield
    taken.append(time.monotonic() - begin)


def run_cell(kernel, code: str) -> str:
    """Return what a cell has printed when it has ended."""
    said = []
    hook = {"output_hook": lambda message: said.append(message["content"])}
    answer = kernel.execute_interactive(code, timeout=120, **hook)
    assert answer["content"]["status"] == "ok", said
    return "".join(content.get("text", "") for content in said)


def row(name: str, seconds: list[float], plain: list[float]) -> None:
    """Print a median with its range, and how many times faster than the command."""
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    times = statistics.median(a / b for a, b in zip(plain, seconds, strict=True))
    print(f"{name:30} {middle:6.2f} s  {low:5.2f} to {high:5.2f} s  {times:5.1f} times")


def main() -> None:
    plain, first, later = [], [], []
    how = {"capture_output": True, "text": True, "check": True, "cwd": ROOT}
    subprocess.run(COMMAND, **how)  # reads torch from disk, so that no round has to
    for _ in range(asked.WORDS.rounds or ROUNDS):
        with clock(plain):
            assert OK in subprocess.run(COMMAND, **how).stdout
        with run_kernel(kernel_name="python3", cwd=ROOT / "notebooks") as kernel:
            run_cell(kernel, "import torch\nfrom ringside import torchrun")
            for taken in (first, later):
                with clock(taken):
                    assert OK in run_cell(kernel, CELL)
    print("median, range, and how many times faster than the command by round")
    row("the command in a terminal", plain, plain)
    row("a kernel's first launch", first, plain)
    row("each later launch", later, plain)


if __name__ == "__main__":
    main()
