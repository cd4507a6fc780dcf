"""Makes the recordings and pictures again: `python -m ringside`, in notebooks/.

With names, only those: `python -m ringside 04_ring_all_reduce`.
"""

import sys
from pathlib import Path

from .launch import ROOT, torchrun
from .motion import animate
from .recording import read, verify


def main(names: list[str], folder: Path = ROOT / "figures") -> None:
    """Run each script on four ranks, keep what it recorded, and draw that."""
    for name in names or sorted(path.stem for path in folder.glob("*.jsonl")):
        path = folder / f"{name}.jsonl"
        torchrun(name, "--record", path, ranks=4, quiet=True)
        picture = animate(verify(read(path)))
        path.with_suffix(".svg").write_text(picture, encoding="utf-8")
        print(f"{name}: recorded and drawn")


if __name__ == "__main__":
    main(sys.argv[1:])
