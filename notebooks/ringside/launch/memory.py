"""How much memory is left for ranks, also where only a part of the machine is ours."""

import re
import subprocess
from contextlib import suppress
from pathlib import Path


def free_megabytes(root: Path = Path("/")) -> int:
    """Return the memory left, on this machine and in each cgroup around."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:  # macOS
        text = subprocess.check_output(["vm_stat"], text=True)
        pages = re.findall(r"Pages (?:free|inactive|speculative): +(\d+)", text)
        [size] = map(int, re.findall(r"page size of (\d+)", text))
        return size * sum(map(int, pages)) // 2**20
    left = [1024 * int(found) for found in re.findall(r"MemAvailable: +(\d+)", text)]
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
