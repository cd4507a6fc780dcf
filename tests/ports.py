"""Finds the doors where a process waits for callers, also in a network of its own."""

import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from socket import AF_INET, AF_INET6, inet_ntop

import psutil


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the address and port of each socket that listens, in its own network.

    psutil would look into the network of the process that asks.
    """
    if sys.platform != "linux":
        found = psutil.Process(pid).net_connections("inet")
        return {tuple(c.laddr) for c in found if c.status == "LISTEN"}
    holds, found = set(), set()
    with suppress(FileNotFoundError):  # the process has ended
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                holds.add(os.readlink(path))
    for kind, family in (("tcp", AF_INET), ("tcp6", AF_INET6)):
        table = ""
        with suppress(OSError):
            table = Path(f"/proc/{pid}/net/{kind}").read_text()
        for line in table.splitlines()[1:]:
            _, place, _, state, *words = line.split()
            if state == "0A" and f"socket:[{words[5]}]" in holds:
                address, port = place.split(":")
                parts = [address[i : i + 8] for i in range(0, len(address), 8)]
                raw = b"".join(struct.pack("=I", int(part, 16)) for part in parts)
                found.add((inet_ntop(family, raw), int(port, 16)))
    return found
