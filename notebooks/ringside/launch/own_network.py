"""Takes a network for this process alone, so that no other user can call its ranks.

What ranks open on 127.0.0.1 asks nobody who calls, and reads pickles. On a machine that
many share, whoever finds such a port could run code as the learner.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # of unshare(2)
SET_FLAGS, IS_UP = 0x8914, 1  # SIOCSIFFLAGS and IFF_UP of Linux, see netdevice(7)


def take() -> bool:
    """Leave the machine's network for an empty one with a loopback, if Linux lets us.

    It must come while the process has one thread. All that it starts is in there, too.
    """
    if sys.platform != "linux":
        return False
    # There is no way back from half of it, as on systems that let anybody leave and
    # nobody bring a loopback up: so a copy of this process tries first.
    try:
        child = os.fork()
    except OSError:  # no more processes: the plain command needs one less
        return False
    if not child:
        try:
            leave()
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        return False
    leave()
    return True


def leave() -> None:
    """Enter a new network, and bring its loopback up; raise OSError where refused."""
    uid, gid, libc = os.getuid(), os.getgid(), ctypes.CDLL(None, use_errno=True)
    # Only root may take a network; who is root among users of his own may do so, too.
    if libc.unshare(NEW_NET | (NEW_USER if uid else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid:  # and stays who he was: the files that ranks write are his
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"{uid} {uid} 1")
        (own / "gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        fcntl.ioctl(door, SET_FLAGS, struct.pack("16sh14x", b"lo", IS_UP))


@contextmanager
def shared() -> Iterator[list[str]]:
    """Give the words before a command that let it, and others, run in a network.

    There are none where Linux refuses.
    """
    line = [sys.executable, "-P", __file__]
    pipe = subprocess.PIPE
    if sys.platform != "linux" or not os.path.exists(sys.executable):
        yield []
        return
    with subprocess.Popen(  # it ends with its input; the interrupt key is not for it
        [*line, "hold"], stdin=pipe, stdout=pipe, start_new_session=True
    ) as holder:
        assert holder.stdout
        taken = holder.stdout.readline() == b"True\n"
        yield [*line, "enter", str(holder.pid)] if taken else []


def enter(pid: str) -> None:
    """Enter the network of another process, and its users where they are its own."""
    for kind in ("user", "net") if os.getuid() else ("net",):
        with open(f"/proc/{pid}/ns/{kind}") as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns to {kind}")


if __name__ == "__main__":
    does, *words = sys.argv[1:]
    if does == "hold":
        print(take(), flush=True)
        sys.stdin.read()
    else:
        enter(words[0])
        os.execvp(words[1], words[1:])
