"""How much faster a warm launch is than the command: python tests/bench_launch.py

Both run lesson 04 on four ranks, in turns, so that a busy minute is one for both.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "notebooks"))

from ringside.launch import torchrun  # noqa: E402
from ringside.launch.client import environment  # noqa: E402

LESSON, RANKS, ROUNDS = "04_ring_all_reduce", 4, 7
SCRIPT = str(ROOT / "scripts" / f"{LESSON}.py")
COMMAND = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
COMMAND += ["--nproc-per-node", str(RANKS), SCRIPT]


def plain() -> float:
    """Return the seconds of the command that a cell shows."""
    begin = time.monotonic()
    how = {"capture_output": True, "check": True, "env": environment()}
    assert b"\nok: 4 ranks" in subprocess.run(COMMAND, **how).stdout
    return time.monotonic() - begin


def warm() -> float:
    """Return the seconds of the same from a cell."""
    begin = time.monotonic()
    run = torchrun(LESSON, ranks=RANKS, quiet=True)
    assert run.lines[0][-1].startswith("ok: 4 ranks")
    return time.monotonic() - begin


def row(name: str, seconds: list[float]) -> None:
    middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
    print(f"{name:24} {middle:7.2f} s   {low:.2f} to {high:.2f} s")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    row("first warm launch", [warm()])
    plain()  # reads torch from disk once, so that no round has to
    pairs = [(plain(), warm()) for _ in range(rounds)]
    slow, fast = (list(column) for column in zip(*pairs, strict=True))
    row("torchrun --standalone", slow)
    row("torchrun() in a notebook", fast)
    ratios = sorted(a / b for a, b in pairs)
    middle = statistics.median(slow) / statistics.median(fast)
    print(f"{middle:.1f} times faster; by round {ratios[0]:.1f} to {ratios[-1]:.1f}")


if __name__ == "__main__":
    main()
