"""What a forgotten set_epoch costs the training of the first station. Run by hand:

    python tests/bench_sampler.py [PATH]

Eight seeds, each with the call and without it, all else equal: how many of 1,600 new
sums the network answers right after each epoch. One rank plays all: batch k of one
process is batch k of four. With 64 bits, numbers are the same on each processor. PATH,
a JSON file, then has them; figures/02_sampler_and_set_epoch_measured.json is one.
"""

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import asked
import lesson

sys.path.append(str(lesson.NOTEBOOKS))
torchrun = import_module("ringside").torchrun  # now that it is found

STEM, SEEDS = "00_four_ranks_tonight", 8
SEED = "torch.manual_seed(0)"
CALL = "sampler.set_epoch(epoch)"
EPOCHS = "in range(args.epochs)"
CPU = {"CUDA_VISIBLE_DEVICES": ""}


def right(seed: int, called: bool, ranks: int = 1, last: int = 8) -> list[int]:
    """Return how many new sums are right after each epoch of the station's script."""
    changes = [(SEED, f"torch.manual_seed({seed})")]
    changes.append((EPOCHS, f"in range({last})"))  # of eight, as the learning rate goes
    if not called:
        changes.append((CALL, "pass"))
    with TemporaryDirectory() as folder:
        path = lesson.changed(STEM, Path(folder), *changes)
        run = torchrun(path, ranks=ranks, env=CPU, quiet=True, timeout=600)
    told = (re.search(r"(\d+) of 1600 right", line) for line in run.lines[0])
    return [int(found[1]) for found in told if found]


def main(path: Path | None) -> None:
    found = {"called": [], "forgotten": []}
    for seed in range(SEEDS):
        for how, numbers in found.items():
            numbers.append(right(seed, how == "called"))
            print(f"seed {seed}, {how}: {numbers[-1]}", flush=True)
    if path:
        rows = ",\n".join(f'"{how}": {json.dumps(found[how])}' for how in found)
        path.write_text("{" + rows + "}\n", "utf-8")


if __name__ == "__main__":
    main(asked.WORDS.path)
