"""Times methods side by side on several ranks; the benchmarks share it.

Methods take turns, in another order each round, and a ratio is one of two times in the
same round. Rounds in which other programs took more than a tenth of the processors are
left out, and counted.
"""

import ast
import importlib.util
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psutil
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
UNTIMED = 3  # rounds in which all gets warm
TICKS = 0.02  # seconds by which the processors' clocks, which are coarse, may be wrong


def taught(stem: str) -> ModuleType:
    """Return the module that a lesson's script is."""
    sys.path.append(str(ROOT / "scripts"))  # where it finds what all scripts share
    spec = importlib.util.spec_from_file_location("taught", ROOT / f"scripts/{stem}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(stem: str) -> dict[str, Callable]:
    """Return the functions that stand in a lesson's notebook."""
    sys.path.append(str(ROOT / "notebooks"))  # their imports begin there
    page = json.loads((ROOT / f"notebooks/{stem}.ipynb").read_text("utf-8"))
    cells = ["".join(c["source"]) for c in page["cells"] if c["cell_type"] == "code"]
    lines = [line for cell in cells for line in ast.parse(cell).body]
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    found = {"torch": torch, "dist": dist}
    body = [line for line in lines if isinstance(line, kinds)]
    exec(compile(ast.Module(body, []), stem, "exec"), found)
    return found


def compare(title: str, methods: dict[str, Callable], rounds: int, check: Callable):
    """Let rank 0 print the median of the first method, and the others' ratios to it.

    check(name, result) is called after each, on what the method has returned. Returns
    the calm rounds: for each, the seconds of every method.
    """
    rounds = rounds // 5 if "--quick" in sys.argv else rounds
    calm, busy = [], 0
    for turn in range(UNTIMED + 4 * rounds):
        took, load = one_round(methods, turn, check)
        if turn < UNTIMED:
            continue
        if load > 0.1:
            busy += 1
        else:
            calm.append(took)
        if len(calm) == rounds:
            break
    if dist.get_rank() == 0:
        print(f"{title:24} {row([*methods], calm, busy)}", flush=True)
    return calm


def one_round(methods: dict[str, Callable], turn: int, check: Callable):
    """Return the seconds that each method took, and what others used meanwhile."""
    took, wall, others = {}, time.perf_counter(), foreign()
    for name in random.Random(turn).sample([*methods], len(methods)):
        dist.barrier()
        begin = time.perf_counter()
        result = methods[name]()
        dist.barrier()
        took[name] = time.perf_counter() - begin
        check(name, result)
    wall = time.perf_counter() - wall
    used = foreign() - others - TICKS
    load = torch.tensor([used / wall / os.cpu_count()])
    dist.broadcast(load, 0)
    return took, load.item()


def foreign() -> float:
    """Return the processor seconds used so far by all but these ranks."""
    times = psutil.cpu_times()
    used = times.user + times.nice + times.system
    ranks = psutil.Process(os.getppid()).children()
    return used - sum(sum(process.cpu_times()[:2]) for process in ranks)


def row(names: list[str], calm: list[dict[str, float]], busy: int) -> str:
    """Return a median, and medians of ratios with the middle half of all rounds."""
    if len(calm) < 4:
        return "the machine is too busy to tell"
    base = names[0]
    said = f"{statistics.median(took[base] for took in calm) * 1e3:7.1f} ms"
    for name in names[1:]:
        ratios = [took[name] / took[base] for took in calm]
        low, middle, high = statistics.quantiles(ratios, n=4)
        said += f"   {name} {middle:.2f} [{low:.2f}-{high:.2f}]"
    return said + (f"   ({busy} busy rounds left out)" if busy else "")


def run(path: str, ranks: int) -> None:
    """Start a benchmark's ranks as from a terminal; each row is shown when done."""
    sys.path.insert(0, str(ROOT / "notebooks"))
    from ringside import torchrun

    print("a row takes a minute or more, and longer while others use the machine")
    torchrun(path, *sys.argv[1:], ranks=ranks, timeout=900, warm=False)
