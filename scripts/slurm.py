#!/usr/bin/env python3
"""A Slurm cluster of two nodes on this machine, for as long as you want it.

    python3 scripts/slurm.py run CMD...   run one command on a cluster of its own
    python3 scripts/slurm.py up           bring up a cluster that stays
    python3 scripts/slurm.py status       say what that cluster does
    python3 scripts/slurm.py down         take it down: its jobs, daemons and files

`run` brings a cluster up, runs the command, and takes the cluster down, however the
command ends; if `up` has brought one up, `run` uses that one and leaves it alone.
If slurm.py itself is killed, the next `up`, `run` or `down` takes its cluster down.
It waits for jobs that the command hands in by sbatch. `run --limit 60 CMD...` ends a
command after 60 seconds, with exit code 124. Try

    python3 scripts/slurm.py run srun -N 2 --ntasks-per-node 2 printenv SLURM_PROCID

It needs Linux and the programs of Slurm (Debian, Ubuntu: sudo apt install slurm-wlm),
but not root. All that it writes is one folder in /tmp, which only you can read.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

INSTALL = "sudo apt-get install -y --no-install-recommends slurm-wlm"
DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd")
PROGRAMS = (*DAEMONS, "srun", "sbatch", "salloc")
NODES = ("127.0.0.2", "127.0.0.3")  # names that a Linux machine can look up: itself
UP = Path(tempfile.gettempdir()) / f"ringside-slurm-{os.getuid()}"
PATIENCE = 30.0  # seconds, for what takes half a second on a quiet machine
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONFIG = """\
ClusterName=ringside
SlurmctldHost=localhost({home})
SlurmctldPort={ports[0]}
CommunicationParameters={bind}
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
ProctrackType=proctrack/linuxproc
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SchedulerParameters=bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
FirstJobId={first}
KillWait=2
NodeName={nodes[0]} NodeAddr={home} Port={ports[1]} CPUs=8
NodeName={nodes[1]} NodeAddr={home} Port={ports[2]} CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=30
"""


def main(argv):
    """Do what the command line asks; the result is the exit code."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{path}:/usr/sbin"  # where daemons are
    match argv:
        case ["run", "--limit", seconds, *words] if words:
            try:
                limit = float(seconds)
            except ValueError:
                give_up(f"--limit takes seconds, not {seconds!r}", 2)
            return run(words, limit)
        case ["run", *words] if words and words[0] != "--limit":
            return run(words, 600.0)
        case ["up"]:
            is_up(UP) or bring_up(UP, print)
            print(f"{' and '.join(NODES)} are up; so that srun and sbatch find them:")
            print(f"export SLURM_CONF={UP}/slurm.conf")
        case ["status"]:
            is_up(UP) or give_up("no cluster is up.")
            for line in (["sinfo", "--Node"], ["squeue"]):
                subprocess.run(line, env=environment(UP))
        case ["down"]:
            for folder in (UP, *forgotten()):
                take_down(folder)
        case _:
            print(__doc__.strip())
            return 0 if argv in ([], ["-h"], ["--help"]) else 2
    return 0


def give_up(reason, code=1):
    """End with the reason and an exit code."""
    print(f"slurm.py: {reason}", file=sys.stderr)
    raise SystemExit(code)


def run(words, limit):
    """Run a command on a cluster; the result is the command's exit code."""
    stays = is_up(UP)
    folder = UP if stays else Path(f"{UP}-{os.getpid()}")
    try:
        stays or bring_up(folder)
        return ends(words, limit, folder)
    finally:
        stays or take_down(folder)


def ends(words, limit, folder):
    """Wait for a command and its jobs, as long as its time and its parent last."""
    how = {"env": environment(folder), "start_new_session": True}
    parent, stop_at = os.getppid(), time.monotonic() + limit
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, **how)
    try:
        while process.poll() is None or folder != UP and busy(folder):
            if time.monotonic() > stop_at:
                give_up(f"ended after {limit:g} seconds", 124)
            if os.getppid() != parent:
                return 1
            time.sleep(0.02)
        return process.returncode
    finally:
        # Asked to end, srun takes its job along. A command that stays is killed.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(3)


def busy(folder):
    """Say whether a job runs or waits, as one does that sbatch has handed in."""
    how = {"env": environment(folder), "capture_output": True}
    return subprocess.run(
        ["squeue", "--noheader", "--states=PENDING,RUNNING"], **how
    ).stdout


def bring_up(folder, say=lambda line: None):
    """Start a controller and two nodes, and wait until both nodes are idle."""
    if sys.platform != "linux":
        give_up("Slurm runs on Linux only.", 2)
    if not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "srun"))):
        give_up(f"Slurm is not installed here; type: {INSTALL}", 2)
    for old in (folder, *forgotten()):
        take_down(old)
    if folder.exists():
        give_up(f"{folder} is in the way, and not yours.")
    try:
        folder.mkdir(mode=0o700)
        home, port = write(folder)
        files = ["--key-file=key", "--pid-file=pid", "--seed-file=seed"]
        files += ["--log-file=log", "--socket=munge.socket"]
        munged = start(folder, "munged", "--foreground", "--force", *files)
        until((folder / "munge.socket").exists, folder, [munged], say)
        controller = start(folder, "slurmctld", "-D")
        listens = socket.socket().connect_ex
        until(lambda: not listens((home, port)), folder, [controller], say)
        nodes = [start(folder, "slurmd", "-D", "-N", node) for node in NODES]
        until(lambda: is_up(folder), folder, nodes, say)
    except BaseException:
        take_down(folder)
        raise


def write(folder):
    """Write a cluster's configuration and key; return where its controller listens."""
    # Slurm 22.05 listens on all addresses, or on the one of the machine's own name.
    # All of it listens on 127.0.0.1 alone where that is the one. On 127.0.1.1 (Debian
    # has it) srun could not be answered, so only the controller does; in Docker, none.
    # munge turns away whoever finds an open port and has not read the key below.
    home, bind = "127.0.0.1", "DisableHTTP"
    with suppress(OSError):
        own = socket.gethostbyname(socket.gethostname())
        if own.startswith("127."):
            bind = "NoCtldInAddrAny" + ",NoInAddrAny" * (own == home)
            home = own
    # All three are open at the same time, so that they are three different ports.
    doors = [socket.create_server((home, 0)) for _ in range(3)]
    ports = [door.getsockname()[1] for door in doors]
    for door in doors:
        door.close()
    values = {"folder": folder, "home": home, "bind": bind, "ports": ports}
    values |= {"user": os.getuid(), "nodes": NODES, "first": random.randint(1, 9999)}
    (folder / "slurm.conf").write_text(CONFIG.format(**values))
    # Nobody else may read the file, also not in the moment when the key is written.
    (folder / "key").touch(mode=0o600)
    (folder / "key").write_bytes(os.urandom(128))
    return home, ports[0]


def start(folder, name, *words):
    """Start one daemon, with a log of its own, and return its process."""
    with open(folder / f"{name}.log", "ab") as log:
        how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": folder}
        how |= {"env": environment(folder), "start_new_session": True}
        return subprocess.Popen([name, *words], **how)


def until(true, folder, daemons, say):
    """Wait for daemons; if one ends or is late, give up with the end of its log."""
    stop_at, name = time.monotonic() + PATIENCE, daemons[0].args[0]
    while not true():
        if time.monotonic() > stop_at or any(d.poll() is not None for d in daemons):
            log = (folder / f"{name}.log").read_text(errors="replace").splitlines()
            give_up("\n  ".join([f"{name} does not run; its last words:", *log[-6:]]))
        time.sleep(0.02)
    say(f"{name}: running")


def is_up(folder):
    """Ask a cluster whether both of its nodes are there."""
    if not mine(folder):
        return False
    line = ["sinfo", "--noheader", "--Node", "--format=%T"]
    how = {"env": environment(folder), "capture_output": True, "text": True}
    states = subprocess.run(line, **how).stdout.split()
    return len(states) == 2 and {*states} <= {"idle", "mixed", "allocated"}


def mine(folder):
    """Say whether a folder is there, and yours."""
    return folder.exists() and folder.lstat().st_uid == os.getuid()


def environment(folder):
    """Return the variables of a process that uses a cluster."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    return kept | {"SLURM_CONF": f"{folder}/slurm.conf"}


def belonging(folder):
    """Return the processes of a cluster: its daemons, and what runs in its jobs.

    A process that just starts shows no variables yet: our own children count as well.
    """
    mark, found = f"\0SLURM_CONF={folder}/".encode(), {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            words = b"\0" + path.read_bytes()
            name = (path.parent / "comm").read_text().strip()
            stat = (path.parent / "stat").read_text().rpartition(") ")[2].split()
            task = name in PROGRAMS or b"\0SLURMD_NODENAME=" in words
            ours = mark in words and task or int(stat[1]) == os.getpid()
            if ours and stat[0] != "Z" and path.stat().st_uid == os.getuid():
                found[int(path.parent.name)] = name
    return found


def take_down(folder):
    """End all processes of a cluster and remove its folder; no signal stops this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for pause in (0.1, 0):  # a second look, for what has just started
        while left := belonging(folder):  # even if somebody has removed the folder
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        time.sleep(pause)
    if mine(folder):
        shutil.rmtree(folder, ignore_errors=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def forgotten():
    """Return the folders of those clusters whose slurm.py was killed."""
    folders = [(f, f.name.rpartition("-")[2]) for f in UP.parent.glob(f"{UP.name}-*")]
    return [f for f, pid in folders if not Path("/proc", pid).exists()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
