"""How much faster two ranks train than one process, at two widths. Run by hand:

    python tests/bench_alone.py [--quick]

The training of the first station, alone, on two ranks, and alone with two threads, in
turns: seconds of a second epoch, without the test at its end, which each rank makes
whole. A ratio is one of two times of the same turn. With --quick, one turn for each
width. At the end, how many sums are right of those whose mirror was not trained on
either (5 + 27, 27 + 5). On a machine with a GPU, how long a step takes there, by width.
"""

import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import asked
import lesson
import torch

sys.path.append(str(lesson.NOTEBOOKS))
torchrun = import_module("ringside").torchrun  # now that it is found

RANKS = {"train_alone": 1, "00_four_ranks_tonight": 2}
UNTESTED = "sums[8400:]", "sums[8400:8401]"
CPU = {"CUDA_VISIBLE_DEVICES": ""}
STEPS = 8400 // 240  # of an epoch
END = '    print(f"ok'
MIRRORS = """
    seen = {tuple(row) for row in training[:, :6].tolist()}
    mirrors = new[:, [3, 4, 2, 0, 1, 5]].tolist()
    lone = torch.tensor([tuple(row) not in seen for row in mirrors])
    print(lone.sum().item(), (lone & (off == 0)).sum().item())
"""


def seconds(path: Path, ranks: int, width: int, env: dict = CPU) -> float:
    """Return how long an epoch takes: a run of two less a run of one."""
    ends = []
    for epochs in (0, 1, 2):
        if epochs:
            words = "--width", width, "--epochs", epochs
            torchrun(path, *words, ranks=ranks, env=env, quiet=True, timeout=600)
        ends.append(time.perf_counter())
    return ends[2] - ends[1] - (ends[1] - ends[0])


def main(quick: bool) -> None:
    with TemporaryDirectory() as folder:
        scripts = {
            lesson.changed(stem, Path(folder), UNTESTED): ranks
            for stem, ranks in RANKS.items()
        }
        (Path(folder) / "threads").mkdir()
        more = UNTESTED, ("set_num_threads(1)", "set_num_threads(2)")
        threads = lesson.changed("train_alone", Path(folder) / "threads", *more)
        for path, ranks in scripts.items():
            seconds(path, ranks, 32)  # the first launch takes longer
        for width in (32, 128):
            gains, by_threads = [], []
            for _turn in range(1 if quick else 5):
                alone, two = (seconds(*job, width) for job in scripts.items())
                gains.append(alone / two)
                by_threads.append(alone / seconds(threads, 1, width))
            low, high = min(gains), max(gains)
            middle = statistics.median(gains)
            print(f"width {width}: two ranks train {middle:.2f} times as fast", end="")
            print(f" ({low:.2f} to {high:.2f})", end="")
            middle = statistics.median(by_threads)
            print(f", two threads of one process {middle:.2f} times", flush=True)
        path = lesson.changed("train_alone", Path(folder), (END, f"{MIRRORS}\n{END}"))
        how = {"ranks": 1, "env": CPU, "quiet": True, "timeout": 600}
        lone, right = torchrun(path, **how).lines[0][-2].split()
        print(f"of {lone} new sums whose mirror is new as well, {right} are right")
        for width in (32, 128, 512, 1024, 2048) if torch.cuda.is_available() else ():
            step = seconds(next(iter(scripts)), 1, width, env={}) / STEPS
            print(f"width {width} on a GPU: a step takes {1000 * step:.1f} ms")


if __name__ == "__main__":
    main(asked.WORDS.quick)
