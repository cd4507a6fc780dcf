"""Runs the script of four ranks tonight without each of its changes, one at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from .launch import RankFailed, torchrun

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SCRIPT = SCRIPTS / "00_four_ranks_tonight.py"
TELL_TALES = SCRIPTS / "tell_tales.py"
START, END = "    # 4. In each", '    if rank == 0:\n        print(f"ok'
# What each copy has: fewer sums, so that it ends in a moment, and the tell-tales.
WATCHED = [
    ("sums[:8400], sums[8400:]", "sums[:960], sums[960:1200]"),
    ("import gc\n", "import gc\nfrom tell_tales import Watched, tell_tales\n"),
    (START, f"    watched = Watched(loader)\n{START}"),
    (END, f"    tell_tales(watched, model)\n{END}"),
]
WRAPPED = "DistributedDataParallel(Adder(args.width).to(device))"
# What a change has put into the script, and what stood there before.
CHANGES = {
    "nothing": ("", ""),
    "1. init_process_group": ("    dist.init_process_group()\n", ""),
    "2. // world_size": ("BATCH // world_size", "BATCH"),
    "3. DistributedSampler": ("sampler=sampler)", "shuffle=True)"),
    "4. DistributedDataParallel": (WRAPPED, "Adder(args.width).to(device)"),
    "5. set_epoch": ("        sampler.set_epoch(epoch)  # 5. Shuffle anew.\n", ""),
    "6. if rank == 0": ("        if rank == 0:  # 6.", "        if True:  # 6."),
    "7. destroy_process_group": ("    dist.destroy_process_group()\n", ""),
}
HEADS = "steps", "samples", "several", "never", "new", "equal", "say it"


def swap(text: str, old: str, new: str) -> str:
    """Return a text in which a piece that stands there once is another."""
    assert not old or text.count(old) == 1, old
    return text.replace(old, new) if old else text


def without_each(**how) -> Iterator[str]:
    """Launch a copy with all changes, then seven without one: yield a line for each."""
    watched = SCRIPT.read_text("utf-8")
    for old, new in WATCHED:
        watched = swap(watched, old, new)
    yield f"{'taken out':27}" + "".join(f"{head:>8}" for head in HEADS)
    with TemporaryDirectory() as folder:
        copy = Path(folder, SCRIPT.name)
        Path(folder, TELL_TALES.name).write_bytes(TELL_TALES.read_bytes())
        for name, change in CHANGES.items():
            copy.write_text(swap(watched, *change), "utf-8")
            try:
                run = torchrun(copy, "--epochs", 2, quiet=True, **how)
            except RankFailed as failed:
                yield f"{name:27}{str(failed).partition(' raised ')[2][:58]}"
                continue
            every = [line for lines in run.lines.values() for line in lines]
            said = sum(line.startswith("epoch 1:") for line in every)
            told = [*json.loads(run.lines[0][-2]).values(), said]
            yield f"{name:27}" + "".join(f"{what!s:>8}" for what in told)
