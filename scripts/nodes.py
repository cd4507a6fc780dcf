#!/usr/bin/env python3
"""Two machines in one: node0 and node1, joined by a network of their own.

    sudo python3 scripts/nodes.py up                start both nodes
    sudo python3 scripts/nodes.py on node0 CMD ...  run CMD as if on node0
    sudo python3 scripts/nodes.py slow 100          100 Mbit/s on the link; or slow off
    sudo python3 scripts/nodes.py cut node1         pull node1's cable
    sudo python3 scripts/nodes.py mend node1        plug it in again
    sudo python3 scripts/nodes.py hosts debian      own name: 127.0.1.1; or hosts plain
    sudo python3 scripts/nodes.py status            say what is there
    sudo python3 scripts/nodes.py down              end all that runs there; remove all

A node is a network namespace of Linux: its own addresses, ports and host names, the
same processors and files. A third namespace holds the switch between them, so this
machine gets no new interface, address or route, and the nodes reach nothing else.
`on here CMD ...` runs CMD on this machine and needs no root; all else needs root, and
`ip` and `tc` (sudo apt-get install -y iproute2). Exit code 2: not on this machine.
"""

import ctypes
import inspect
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

NODES = {"node0": "10.212.86.1", "node1": "10.212.86.2"}
SWITCH = "ringside-switch"  # who makes this namespace makes all, and who removes it
LIVE, HOSTS = Path("/run/netns"), Path("/etc/netns")  # there, node0/hosts is node0's
MARK = "# by nodes.py\n"  # a crash of the machine leaves these files, and no more
NEW_UTS, PARENT_DEATH = 0x04000000, 1  # of unshare(2) and prctl(2)


def main(words: list[str]) -> int:
    """Do what the words ask for; the result is the exit code."""
    does = {f.__name__: f for f in (up, on, slow, cut, mend, hosts, status, down)}
    if not words or words[0] in ("-h", "--help"):
        sys.exit(print(__doc__.strip()))
    command, *rest = words
    try:
        inspect.signature(does[command]).bind(*rest)
    except (KeyError, TypeError):
        sys.exit(f"nodes.py does not take {' '.join(words)!r}: see --help.")
    if words[:2] != ["on", "here"] and (lack := lacking()):
        print(lack, file=sys.stderr)
        return 2
    return does[command](*rest) or 0


def lacking() -> str:
    """Return the sentence that says why no node can be here, or nothing."""
    if sys.platform != "linux":
        return "Nodes need the network namespaces of Linux: use a Linux machine."
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    if not all(shutil.which(tool) for tool in ("ip", "tc")):
        return "Nodes need ip and tc: type sudo apt-get install -y iproute2"
    return "" if os.geteuid() == 0 else f"Nodes need root: type {again(*sys.argv[1:])}"


def again(*words: str) -> str:
    """Return the line to type for a command."""
    return shlex.join(["sudo", sys.executable, sys.argv[0], *words])


def do(line: str, can_fail: bool = False) -> str:
    """Run `ip` or `tc`; return what it printed."""
    done = subprocess.run(line.split(), capture_output=True, text=True)
    if done.returncode and not can_fail:
        sys.exit(f"{line} failed: {done.stderr.strip() or 'no word'}")
    return done.stdout


def up(owner: str = "self") -> int | None:
    """Start both nodes; an owner is a process without which they may be replaced."""
    if (LIVE / SWITCH).exists():
        mark = do(f"ip -n {SWITCH} link", can_fail=True).partition("alias ")[2].split()
        alive = Path("/proc", *mark[:1]).exists()  # "self" always is
        if alive and (owner == "self" or mark[:1] != [owner]):
            sys.exit(f"The nodes are up already; to remove them, type {again('down')}")
    down()
    if any((place / node).exists() for node in NODES for place in (LIVE, HOSTS)):
        sys.exit(f"{' or '.join(NODES)} is here, but nodes.py did not make it.")
    try:
        do(f"ip netns add {SWITCH}")
    except SystemExit as refused:
        return forbidden(refused)
    # What is half made is removed, also when this process is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        do(f"ip -n {SWITCH} link add switch type bridge")
        do(f"ip -n {SWITCH} link set switch up alias {owner}")
        for node, address in NODES.items():
            do(f"ip netns add {node}")
            do(f"ip -n {SWITCH} link add {node} type veth peer name eth0 netns {node}")
            do(f"ip -n {SWITCH} link set {node} master switch up")
            do(f"ip -n {node} addr add {address}/24 dev eth0")
            for link in ("lo", "eth0"):
                do(f"ip -n {node} link set {link} up")
        hosts("plain")
    except SystemExit as refused:
        down()
        return forbidden(refused)
    except BaseException:
        down()
        raise


def forbidden(refused: SystemExit) -> int:
    """Say what failed, as it does in a container that lets root do little; return 2."""
    if not isinstance(refused.code, str):  # somebody has ended this process
        raise refused
    print(f"Nodes can't be here: {refused.code}", file=sys.stderr)
    return 2


def need(node: str) -> str:
    """Return the name of a node that is up."""
    if node not in NODES or not (LIVE / node).exists():
        sys.exit(f"{node} is not up: type {again('up')} for {' and '.join(NODES)}.")
    return node


def on(node: str, program: str, *words: str) -> None:
    """Become a program on a node; it gets SIGTERM when the parent of this one ends."""
    libc, parent, line = ctypes.CDLL(None), os.getppid(), [program, *words]
    if sys.platform == "linux":
        libc.prctl(PARENT_DEATH, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended already
            sys.exit(143)
    if node != "here":
        line = ["ip", "netns", "exec", need(node), *line]
        # torch looks up the machine's own name, so each node needs another one.
        if libc.unshare(NEW_UTS):
            sys.exit(f"{node} can't have a host name of its own here.")
        socket.sethostname(node)
    try:
        os.execvp(line[0], line)
    except OSError as error:
        sys.exit(f"{line[0]}: {error.strerror}")


def slow(rate: str) -> None:
    """Limit what each node sends to so many million bits a second, or lift that."""
    if rate != "off" and not rate.isdigit():
        sys.exit(f"slow takes a number of Mbit/s, or off, not {rate!r}.")
    for node in NODES:
        do(f"tc -n {need(node)} qdisc del dev eth0 root", can_fail=True)
        if rate != "off":
            limit = f"tbf rate {rate}mbit burst 64kb latency 50ms"
            do(f"tc -n {node} qdisc add dev eth0 root {limit}")


def cut(node: str) -> None:
    """Pull a node's cable out of the switch."""
    do(f"ip -n {SWITCH} link set {need(node)} down")


def mend(node: str) -> None:
    """Plug a node's cable in again."""
    do(f"ip -n {SWITCH} link set {need(node)} up")


def hosts(kind: str) -> None:
    """Write each node's /etc/hosts: the own name is eth0's address, or 127.0.1.1."""
    if kind not in ("plain", "debian"):
        sys.exit(f"hosts takes plain or debian, not {kind!r}.")
    for own in NODES:
        file = HOSTS / need(own) / "hosts"
        file.parent.mkdir(parents=True, exist_ok=True)
        known = NODES | ({own: "127.0.1.1"} if kind == "debian" else {})
        lines = (f"{address} {name}\n" for name, address in known.items())
        file.write_text("".join([MARK, "127.0.0.1 localhost\n", *lines]))


def status() -> None:
    """Print a line for each node; the exit code is 1 if none is up."""
    live = [node for node in NODES if (LIVE / node).exists()]
    for node in live or sys.exit("No node is up."):
        cable = "in" if "state UP" in do(f"ip -n {node} link") else "out"
        rate = do(f"tc -n {node} qdisc").partition(" rate ")[2].split(" ")[0] or "no"
        told = f"cable {cable}, {rate} limit, {len(inside([node]))} processes"
        print(f"{node} {NODES[node]}, {told}")


def inside(nodes: list[str]) -> list[int]:
    """Return the processes on some nodes."""
    told = [do(f"ip netns pids {node}", can_fail=True).split() for node in nodes]
    return [int(pid) for pids in told for pid in pids if int(pid) != os.getpid()]


def down() -> None:
    """End all processes on the nodes, and remove what `up` made, or half made."""
    made = (LIVE / SWITCH).exists()
    names = [node for node in NODES if made and (LIVE / node).exists()]
    # They are asked to end; who is still there after three seconds is killed.
    last = time.monotonic() + 3
    while pids := inside(names):
        how = signal.SIGTERM if time.monotonic() < last else signal.SIGKILL
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        time.sleep(0.1)
    for file in [HOSTS / node / "hosts" for node in NODES]:
        if made or file.exists() and file.read_text().startswith(MARK):
            shutil.rmtree(file.parent, ignore_errors=True)
    for name in [*names, *[SWITCH] * made]:
        do(f"ip netns del {name}", can_fail=True)
    with suppress(OSError):  # others have files there
        HOSTS.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
