"""How much memory is left for ranks, also where only a part of the machine is ours."""

import re
from contextlib import suppress
from pathlib import Path

import psutil


def free_megabytes(root: Path = Path("/")) -> int:
    """Return the memory left, on this machine and in each cgroup around."""
    left = [psutil.virtual_memory().available]
    groups = root / "proc/self/cgroup"
    text = groups.read_text() if groups.exists() else ""
    for kind, inside in re.findall(r"(?m)^\d+:(memory|):/(.*)", text):
        names = ("limit_in_bytes", "usage_in_bytes") if kind else ("max", "current")
        for path in (Path(inside), *Path(inside).parents):
            group = root / "sys/fs/cgroup" / kind / path
            with suppress(OSError, ValueError):  # no limit, or no such files
                most, used = (int((group / f"memory.{n}").read_text()) for n in names)
                stat = (group / "memory.stat").read_text()
                cache = re.findall(r"(?m)^(?:total_)?inactive_file (\d+)", stat)
                left.append(most - used + max(map(int, cache), default=0))
    return min(left) // 2**20
