"""Keeps what a run said, in a file of figures/, for machines that cannot run it."""

import json
import os
from pathlib import Path


def kept(path: Path, run: str) -> list | None:
    """Return what was kept of a run."""
    return json.loads(path.read_text(encoding="utf-8")).get(run)


def keep(path: Path, runs: dict[str, list]) -> None:
    """Keep what runs said, if RINGSIDE_KEEP=1 is in the environment."""
    if not os.environ.get("RINGSIDE_KEEP"):
        return
    all_runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    text = json.dumps(all_runs | runs, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
