"""Holds scripts/nodes.py, and ringside's two_nodes(), to what they promise."""

import functools
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from ringside import two_nodes
from ringside.standins import commands, nodes

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "scripts" / "nodes.py"
PLACES = [Path(p) for p in ("/run/netns", "/etc/netns", "/sys/class/net")]


def tool(*words: str, **how) -> subprocess.CompletedProcess:
    line = [sys.executable, str(TOOL), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=30, **how)


def lack() -> str:
    """Why there can be no nodes here, tried: a container may forbid them to root."""
    made = tool("up", str(os.getpid()))
    if made.returncode:
        return made.stderr.strip()
    tool("down")
    return ""


@pytest.fixture(scope="module")
def able():
    with nodes.alone():
        why = lack()
        if why:
            pytest.skip(why)
        yield


@pytest.fixture
def traces(able):
    """Whatever a test does, nothing of it is left."""
    tool("down")
    before = left()
    yield
    tool("down")
    assert left() == before


def left() -> list[str]:
    """What nodes leave on a machine that removes them badly."""
    found = [str(p) for place in PLACES if place.exists() for p in place.iterdir()]
    routes = Path("/proc/net/route").read_text()
    hosts, name = Path("/etc/hosts").read_text(), os.uname().nodename
    return [*sorted(found), routes, hosts, name]


def gone(pid: int, seconds: float = 60) -> bool:
    """Whether a process ends in time."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        try:
            if "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_node_has_a_name_and_an_address_and_passes_on_the_exit_code(traces):
    assert tool("up").returncode == 0
    said = tool("on", "node1", "sh", "-c", "hostname; cat /etc/hosts; exit 7")
    assert said.returncode == 7
    assert said.stdout.splitlines()[0] == "node1"
    assert "10.212.86.1 node0" in said.stdout
    again = tool("up")
    assert again.returncode == 1
    assert shlex.split(again.stderr)[-2:] == [str(TOOL), "down"]
    assert tool("slow", "100").returncode == tool("cut", "node1").returncode == 0
    zero, one = tool("status").stdout.splitlines()
    assert "cable in, 100Mbit limit, 0 processes" in zero
    assert "cable out, 100Mbit limit, 0 processes" in one
    tool("mend", "node1"), tool("slow", "off"), tool("hosts", "debian")
    assert "cable in, no limit" in tool("status").stdout.splitlines()[1]
    trap = tool("on", "node1", "cat", "/etc/hosts").stdout
    assert "127.0.1.1 node1" in trap and "10.212.86.1 node0" in trap
    assert tool("down").returncode == tool("down").returncode == 0
    assert "No node is up" in tool("status").stderr


@pytest.mark.parametrize("words", [[], ["slow"], ["slow", "x"], ["on", "node7", "ls"]])
def test_a_wrong_word_is_told_in_one_sentence(able, words):
    done = tool(*(words or ["frob"]))
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who is told more")
@pytest.mark.parametrize("refused", ["netns add", "link add"])
def test_root_whom_a_container_forbids_nodes_gets_a_stand_in(
    refused, tmp_path, monkeypatch, capsys
):
    """One with the usual rights, Docker's default, does; also later than at once."""
    told = "Operation not permitted"
    fake = tmp_path / "ip"
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *"{refused}"*) echo {told} >&2; exit 1;; esac'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with two_nodes() as pair:
        assert not pair.real
    said = capsys.readouterr().out
    assert told in said and nodes.ALONE in said and said.count("\n") == 1


def test_down_ends_what_runs_and_what_refuses_to(traces):
    tool("up")
    stubborn = (
        "import signal, time; signal.signal(15, lambda *_: 0); print(1, flush=True)"
    )
    line = [sys.executable, str(TOOL), "on", "node0", sys.executable, "-c"]
    line.append(stubborn + "\nwhile True: time.sleep(9)")
    child = subprocess.Popen(line, stdout=subprocess.PIPE)
    child.stdout.readline()
    assert "1 processes" in tool("status").stdout
    tool("down")
    assert child.wait(50) == -signal.SIGKILL
    child.stdout.close()


def sleeps(pid: int) -> None:
    """Wait until a process has become `sleep`, or has started it."""
    for _ in range(1200):
        process = psutil.Process(pid)
        if "sleep" in {p.name() for p in [process, *process.children(True)]}:
            return
        time.sleep(0.05)
    pytest.fail("it does not sleep")


def test_a_program_ends_with_its_parent_and_takes_the_interrupt_key(traces):
    tool("up")
    sleep = [sys.executable, str(TOOL), "on", "node0", "sleep", "60"]
    child = subprocess.Popen(sleep)
    sleeps(child.pid)
    child.send_signal(signal.SIGINT)
    assert child.wait(50) == -signal.SIGINT
    text = (
        f"import subprocess; print(subprocess.Popen({sleep}).pid, flush=True); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    inner = int(parent.stdout.readline())
    sleeps(inner)
    parent.kill()
    parent.wait()
    parent.stdin.close(), parent.stdout.close()
    assert gone(inner)


def test_a_half_made_up_takes_itself_down_and_is_taken_down(traces):
    """Once by an error in the middle, once with the process killed there."""
    fake = "import nodes, os\nnodes.hosts = lambda kind: {}\nnodes.main(['up'])"
    how = {"cwd": TOOL.parent, "env": os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}}
    before = left()
    line = [sys.executable, "-c", fake.format("1 / 0")]
    assert subprocess.run(line, capture_output=True, **how).returncode == 1
    assert left() == before
    line[-1] = fake.format("os.kill(os.getpid(), 9)")
    assert subprocess.run(line, capture_output=True, **how).returncode == -9
    assert left() != before
    assert tool("down").returncode == 0 and left() == before


def test_foreign_names_are_left_alone(traces):
    subprocess.run(["ip", "netns", "add", "node1"], check=True)
    try:
        done = tool("up")
        assert done.returncode == 1 and "did not make it" in done.stderr
        tool("down")
        assert Path("/run/netns/node1").exists()
    finally:
        subprocess.run(["ip", "netns", "del", "node1"], check=True)


def test_files_that_a_crash_of_the_machine_left_are_replaced(traces):
    """Those of nodes.py alone: a namespace's own files of the same name stay."""
    file = Path("/etc/netns/node1/hosts")
    tool("up")
    kept = file.read_text()
    tool("down")
    try:
        for text, code in ((kept, 0), ("10.0.0.1 mine\n", 1)):
            file.parent.mkdir(parents=True)
            file.write_text(text)
            assert tool("up").returncode == code
            tool("down")
            assert file.exists() == (code == 1)
    finally:
        shutil.rmtree(file.parent, ignore_errors=True)
        with suppress(OSError):
            file.parent.parent.rmdir()


def test_a_notebook_loses_its_nodes_come_what_may(traces):
    before = left()
    with pytest.raises(ZeroDivisionError), two_nodes():
        raise ZeroDivisionError
    assert left() == before
    with two_nodes() as pair:
        ended = pair.run({n: ["hostname"] for n in nodes.NAMES})
        assert [end.lines for end in ended.values()] == [["node0"], ["node1"]]
        with pytest.raises(nodes.NodeFailed, match="node0 still ran after 1 s"):
            pair.run({"node0": ["sleep", "30"]}, timeout=1)
    assert left() == before


def test_a_program_that_minds_no_signal_has_a_limit_too(monkeypatch):
    monkeypatch.setattr(commands, "ENDING", 0.5)
    line = ["sh", "-c", "echo begun; trap '' TERM; exec sleep 20"]
    with pytest.raises(nodes.NodeFailed) as caught:
        nodes.Nodes(real=False).run({"node0": line, "node1": ["true"]}, timeout=3)
    assert str(caught.value) == "node0 still ran after 3 s, and was ended\nbegun"


def test_a_killed_kernel_leaves_nothing_that_the_next_one_minds(traces):
    text = """from ringside import two_nodes
with two_nodes() as pair:
    print("up", flush=True)
    pair.run({"node1": ["sleep", "50.125"]})
"""
    env = os.environ | {"PYTHONPATH": str(ROOT / "notebooks")}
    how = {"stdout": subprocess.PIPE, "text": True, "env": env}
    kernel = subprocess.Popen([sys.executable, "-c", text], **how)
    assert kernel.stdout.readline() == "up\n"
    time.sleep(1)
    told = subprocess.run(["ip", "netns", "pids", "node1"], capture_output=True)
    [sleeper] = map(int, told.stdout.split())
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    assert gone(sleeper)
    assert tool("status").returncode == 0  # until somebody wants nodes again
    with two_nodes() as pair:
        assert pair.real


def test_one_process_has_the_nodes_and_its_children_with_it(able):
    text = "from ringside.standins.nodes import alone\nwith alone(): print('has them')"
    env = os.environ | {"PYTHONPATH": str(ROOT / "notebooks")}
    line, how = [sys.executable, "-c", text], {"stdout": subprocess.PIPE, "text": True}
    assert subprocess.check_output(line, env=env, text=True) == "has them\n"
    del env[nodes.HELD]
    with subprocess.Popen(line, env=env, **how) as other:
        assert other.stdout.readline().endswith(" has the nodes: waiting for it\n")
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
        other.kill()


def test_without_root_a_line_says_what_to_type():
    """Whoever runs the tests: root becomes nobody for this one."""
    how = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}
    python = shutil.which("python3", path="/usr/bin:/bin")
    if not python:
        pytest.skip("no python3 that every user can run: apt-get install -y python3")
    with TemporaryDirectory() as folder:  # pytest's own are for root alone
        Path(folder).chmod(0o755)
        copy = shutil.copy(TOOL, folder)
        run = functools.partial(subprocess.run, cwd="/", capture_output=True, **how)
        done = run([python, copy, "up"], text=True)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert "type sudo " in done.stderr
        assert run([python, copy, "on", "here", "sh", "-c", "exit 3"]).returncode == 3


@pytest.mark.parametrize("system", ["darwin", "linux"])
def test_where_no_node_can_be_the_reason_is_told(monkeypatch, capsys, system):
    main = runpy.run_path(str(TOOL))["main"]
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which it makes longer
    assert main(["up"]) == 2
    said = capsys.readouterr().err
    assert ("iproute2" in said) == (system == "linux") and len(said.splitlines()) == 1


def test_the_line_to_type_is_right_in_a_folder_with_spaces(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/my course/nodes.py", "on"])
    line = runpy.run_path(str(TOOL))["again"]("up")
    assert shlex.split(line) == ["sudo", sys.executable, "/my course/nodes.py", "up"]


REFUSAL = subprocess.CompletedProcess([], 2, "", "Nodes need root.")


def test_the_line_for_root_has_this_python_and_this_checkout(monkeypatch, capsys):
    """sudo looks for python3 in folders of its own."""
    monkeypatch.setattr(nodes, "tool", lambda *words: REFUSAL)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "executable", "/a path/python")
    with two_nodes():
        script = shlex.quote(str(ROOT / "scripts" / "course.py"))
        line = f"type sudo '/a path/python' {script} --here lab (here, "
        assert line in capsys.readouterr().out


def test_the_stand_in_runs_the_same_programs_over_loopback(monkeypatch, capsys):
    monkeypatch.setattr(nodes, "tool", lambda *words: REFUSAL)
    with two_nodes() as pair:
        assert not pair.real and pair.do("slow", "100") == ""
        ended = pair.run({name: ["sh", "-c", "echo here"] for name in nodes.NAMES})
        assert [end.lines for end in ended.values()] == [["here"], ["here"]]
        assert pair.meet("node1", 2, "")[-2:] == ["--local-addr", "127.0.0.1"]
    assert "stand in for two nodes" in capsys.readouterr().out
