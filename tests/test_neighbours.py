"""Tests that users of one machine cannot reach into each other's runs."""

import fcntl
import multiprocessing
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import psutil
import pytest
from light import NO_DYNAMO, SUPERVISOR, before_all
from ports import listening
from ringside import Player, Recording, agents, load, torchrun
from ringside.draw import chart
from ringside.draw.player import animate
from ringside.launch import failure, own_network
from ringside.launch import run as launch
from ringside.launch.watch import runs
from ringside.standins import nodes

import course

ROOT = Path(__file__).resolve().parents[1]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
NOBODY = 65534
RUN = """
import sys
from ringside import torchrun
try:
    torchrun(sys.argv[1], *sys.argv[2:], ranks=2, quiet=True)
except BaseException as error:
    print(type(error).__name__, flush=True)
    sys.stdin.read()
"""
WAITS = """
import pathlib, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
pathlib.Path(sys.argv[1], str(dist.get_rank())).touch()
time.sleep(600)
"""


STARTS_OTHERS = """
import pathlib, subprocess, sys, time
import torch.distributed as dist
from torch.utils.data import DataLoader
how = {"num_workers": 2, "multiprocessing_context": "fork"}
samples = iter(DataLoader(range(10**6), **how))
next(samples)  # before there is a group, whose threads can't be forked
dist.init_process_group("gloo")
subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path(sys.argv[1], str(dist.get_rank())).touch()
time.sleep(600)
"""


def refused() -> str:
    """Return why Linux gives a process no network of its own here, or nothing."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    return "" if in_a_copy(own_network.take) else "Linux refuses a network namespace"


def in_a_copy(work, *words, user: int | None = None):
    """Return what a function returns in a copy of this process, as another user."""

    def does(pipe):
        if user is not None:
            os.setgroups([])
            os.setgid(user), os.setuid(user)
            # As with a program that starts anew, /proc/self is that user's again.
            own_network.ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE
        pipe.send(work(*words))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=does, args=(theirs,))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def answers(port: int) -> bool:
    """Say whether somebody answers on a port of loopback."""
    with socket.socket() as door:
        door.settimeout(5)
        return door.connect_ex(("127.0.0.1", port)) == 0


def called_by_a_neighbour(pid: int) -> tuple[set[str], list[int]]:
    """Return where a process and its children listen, and which ports answer others."""
    process = psutil.Process(pid)
    below = [process, *process.children(recursive=True)]
    doors = set.union(*(listening(p.pid) for p in below))
    neighbour = NOBODY if os.geteuid() == 0 else None
    ports = {port for _, port in doors}
    found = [port for port in ports if in_a_copy(answers, port, user=neighbour)]
    return {address for address, _ in doors}, found


def begun(folder: Path, text: str, **env: str) -> subprocess.Popen:
    """Start a kernel's torchrun() on a script; return it when its two ranks wait."""
    script = folder / "waits.py"
    script.write_text(text)
    temp = folder / "temp"
    temp.mkdir()
    env = os.environ | env | {"TMPDIR": str(temp)}
    path = before_all(folder / "path", (SUPERVISOR, NO_DYNAMO))
    env["PYTHONPATH"] = f"{ROOT / 'notebooks'}{os.pathsep}{path}"
    line = [sys.executable, "-c", RUN, str(script), str(folder)]
    how = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    kernel = subprocess.Popen(line, env=env, text=True, **how)
    last = time.monotonic() + 40
    while not all((folder / rank).exists() for rank in "01"):
        assert kernel.poll() is None, kernel.stderr.read()
        assert time.monotonic() < last
        time.sleep(0.05)
    return kernel


def soon(happened, seconds: float = 30) -> bool:
    """Say whether something happens within so many seconds."""
    last = time.monotonic() + seconds
    while not happened() and time.monotonic() < last:
        time.sleep(0.05)
    return happened()


@pytest.fixture
def short():
    """Give a folder with a short name, as a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


def test_no_neighbour_can_call_the_ranks_of_a_cell(short):
    """Nor does a variable of ours, if it is in the environment, end a kernel."""
    kernel = begun(short, WAITS, RINGSIDE_SUPERVISOR="1")
    try:
        assert kernel.poll() is None
        if lack := refused():
            pytest.skip(lack)
        addresses, found = called_by_a_neighbour(kernel.pid)
        assert addresses == {"127.0.0.1"}  # of the store, and of each rank
        assert not found
    finally:
        kernel.terminate()
        kernel.communicate()


def serves(folder: str, others: int) -> dict:
    """Take a network; tell what can be reached in it, and what becomes of a file."""
    who = os.getuid(), os.getgid()
    taken = own_network.take()
    with socket.create_server(("127.0.0.1", 0)) as door:
        own = answers(door.getsockname()[1])
    file = Path(folder, "file")
    file.touch()
    return {
        "taken": taken,
        "own": own,
        "others": answers(others),
        "who": (os.getuid(), os.getgid()) == who,
        "file": (file.stat().st_uid, file.stat().st_gid) == who,
    }


@LINUX
@pytest.mark.parametrize("user", [None, NOBODY], ids=["same", "nobody"])
def test_a_user_has_a_loopback_alone_and_stays_who_he_is(short, user):
    if user and os.geteuid():
        pytest.skip("only root can become somebody else")
    if not in_a_copy(own_network.take, user=user):
        pytest.skip("Linux refuses this user a network namespace")
    short.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as door:
        told = in_a_copy(serves, str(short), door.getsockname()[1], user=user)
        owner = (short / "file").stat().st_uid
    assert told == dict.fromkeys(told, True) | {"others": False}
    assert owner == (os.getuid() if user is None else user)


@LINUX
def test_where_linux_refuses_all_stays_as_it_was(monkeypatch):
    def no(*_):  # as a system says that lets anybody leave, and nobody go on
        raise PermissionError

    def try_it():
        before = os.readlink("/proc/self/ns/net")
        return own_network.take(), before == os.readlink("/proc/self/ns/net")

    monkeypatch.setattr(own_network.fcntl, "ioctl", no)
    assert in_a_copy(try_it) == (False, True)


@pytest.mark.parametrize("gap", [None, 0.003, 0.01], ids=["kill", "3 ms", "10 ms"])
def test_what_ranks_have_started_goes_with_a_killed_supervisor(short, gap):
    """It is killed by somebody, or by the second of two quick interrupts."""
    kernel = begun(short, STARTS_OTHERS)
    try:
        [supervisor] = psutil.Process(kernel.pid).children()
        below = supervisor.children(recursive=True)
        # A tracker ends by itself, when it has removed the semaphores of the others.
        names = {p: " ".join(p.cmdline()) for p in below}
        trackers = [p for p in below if "resource_tracker" in names[p]]
        below = [p for p in below if p not in trackers]
        assert len(below) >= 8  # two ranks; each has two workers, and one that sleeps
        if gap is None:
            supervisor.kill()
        else:
            for _ in range(2):
                kernel.send_signal(signal.SIGINT)
                time.sleep(gap)
        said = "RuntimeError" if gap is None else "Interrupted"
        assert kernel.stdout.readline().strip() == said
        if runs(supervisor.pid):  # the two were one: it has ended the run, and lives
            assert gap
            forks = supervisor.children()
            ranks = [p for p in below if p not in forks]
            assert soon(lambda: not [p for p in ranks if runs(p.pid)])
            kernel.kill()
        assert soon(lambda: not [p for p in below + trackers if runs(p.pid)])
        assert soon(lambda: not list((short / "temp").iterdir()))
    finally:
        kernel.kill()
        kernel.communicate()


FULL = """
import os, sys
from ringside import torchrun
from ringside.launch import RankFailed
torchrun("03_ring_all_reduce", ranks=2, quiet=True)
try:
    with open(os.environ["TMPDIR"] + "/fill", "wb", 0) as file:
        while True:
            file.write(b"0" * 4096)
except OSError:
    pass
try:
    torchrun("03_ring_all_reduce", ranks=2, quiet=True)
except RankFailed as error:
    print(error)
"""


def test_a_full_disk_is_told_as_such(short):
    with_disk = 'mount -t tmpfs -o size=1m full "$TMPDIR" && exec "$@"'
    line = ["unshare", "-rm", "sh", "-c", with_disk, "sh", sys.executable, "-c"]
    env = os.environ | {"TMPDIR": str(short), "PYTHONPATH": str(ROOT / "notebooks")}
    if shutil.which("unshare") is None or subprocess.call([*line, ""], env=env):
        pytest.skip("nobody may mount a folder here")
    done = subprocess.run([*line, FULL], env=env, capture_output=True, text=True)
    said = f"the ranks could not start: the disk is full; make room in {short}\n"
    assert (done.stdout, done.returncode) == (said, 0), done.stderr


def test_logs_of_failed_runs_are_for_their_owner(short, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(short / "cache"))
    run = launch.Run("torchrun", {0: ["a secret"]})
    (short / "cache/ringside").mkdir(parents=True)
    (short / "cache/ringside").chmod(0o755)  # as it was made by older versions
    log = failure.keep_log("script", run)
    assert "a secret" in log.read_text()
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.chdir(short)
    assert failure.keep_log("script", run) is None  # it would lie in any folder
    if os.geteuid() == 0:
        monkeypatch.setenv("XDG_CACHE_HOME", str(short / "cache"))
        os.chown(log.parent, NOBODY, NOBODY)
        assert failure.keep_log("script", run) is None


def test_no_environment_is_taken_from_where_others_can_put_one(short, monkeypatch):
    def places(cache: str) -> int:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        return len(course.places())

    cache = short / "cache"
    assert places(str(cache)) == 2  # a folder that is still to be made
    cache.mkdir()
    cache.chmod(0o777)
    assert places(str(cache)) == 1
    assert places("cache") == places("~/.cache") == 1  # the latter: without a home
    cache.chmod(0o1777)  # as /tmp is: others cannot remove what we make there
    (cache / "ringside").mkdir()
    assert places(str(cache)) == 2
    (cache / "ringside").chmod(0o1777)
    assert places(str(cache)) == 1
    (cache / "ringside").chmod(0o755)
    (short / "way").symlink_to(cache)
    assert places(str(short / "way")) == 2
    if os.geteuid() == 0:
        os.chown(cache / "ringside", NOBODY, NOBODY)
        assert places(str(cache)) == 1


EVIL = "<script>alert(1)</script><!--<script>"


def evil(value):
    """Return a value in which the first word or number is evil, and each name."""
    if isinstance(value, dict):
        return {EVIL: evil([*value.values()][-1])} if value else value
    if isinstance(value, list):
        return [evil(value[0]), *value[1:]] if value else [EVIL]
    return EVIL


@pytest.mark.parametrize("name", [p.stem for p in ROOT.glob("figures/*.jsonl")])
def test_no_value_of_a_recording_becomes_a_part_of_a_picture(name):
    events = load(name)
    for field in {field for event in events for field in event}:
        hurt = [e | {field: evil(e[field])} if field in e else e for e in events]
        try:
            svg = animate(Recording(hurt, **events.header))
        except Exception:  # most such values cannot be drawn
            continue
        assert "<script" not in svg and "<!--" not in svg, field
        ElementTree.fromstring(svg)


def test_no_label_or_title_becomes_a_part_of_the_page():
    held = [{"step": 0, "rank": 0, "phase": EVIL, "holds": {EVIL: [[EVIL, 0]]}}]
    recording = Recording(held, picture="flow")
    page = Player({EVIL: recording, "b": recording})._repr_html_()
    assert "<!--" not in page and page.count("</script") == 1
    [svg] = chart.bars({EVIL: {"a": 1.0}}, EVIL, EVIL).svgs
    assert "<script" not in svg
    ElementTree.fromstring(svg)


HERE = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"


def test_no_neighbour_can_call_the_agents_of_a_cell():
    if lack := refused():
        pytest.skip(lack)
    with agents(HERE) as begin:
        agent = begin("--standalone --nproc-per-node 1")
        agent.until("here")
        addresses, found = called_by_a_neighbour(agent.process.pid)
    assert addresses - {"127.0.0.1"}  # torch's own store listens everywhere
    assert not found


def test_what_stands_in_for_two_nodes_is_in_one_network_that_is_no_others():
    if lack := refused():
        pytest.skip(lack)
    tell = [sys.executable, "-c", "import os; print(os.readlink('/proc/self/ns/net'))"]
    with own_network.shared() as inside:
        ended = nodes.Nodes(False, inside).run({"node0": tell, "node1": tell})
    first, second = (end.last for end in ended.values())
    assert first == second != os.readlink("/proc/self/ns/net")


def fenced(stem: str, text: str) -> str:
    """Return the lines to type that have some text in them, as a page shows them."""
    cells = nbformat.read(ROOT / f"notebooks/{stem}.ipynb", 4).cells
    prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    pieces = re.findall(r"(?ms)^ *```\w*\n(.*?)^ *```$", prose)
    [found] = [piece for piece in pieces if text in piece]
    return found


def typed(lines: str, folder: Path) -> subprocess.Popen:
    """Start what a person types, with the course's environment active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    how = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    how |= {"cwd": folder, "env": os.environ | {"PATH": path}, "text": True}
    return subprocess.Popen(["bash", "-c", lines], start_new_session=True, **how)


def test_what_lesson_12_says_to_type_keeps_neighbours_out(short):
    line = fenced("30_launchers", "unshare")
    tools = shutil.which("unshare") and shutil.which("ip")
    if not tools or subprocess.call(["unshare", "-rn", "true"]):
        pytest.skip("there is no unshare or ip, or Linux refuses a network namespace")
    waits = WAITS.replace("sys.argv[1]", "'.'").replace("time.sleep(600)", "input()")
    ends = 'while not pathlib.Path("enough").exists():\n    time.sleep(0.05)\n'
    (short / "job.py").write_text(waits.replace("input()\n", ends))
    terminal = typed(line, short)
    try:
        last = time.monotonic() + 60
        while not all((short / rank).exists() for rank in "01"):
            assert terminal.poll() is None and time.monotonic() < last
            time.sleep(0.05)
        addresses, found = called_by_a_neighbour(terminal.pid)
        assert addresses and not found
        assert (short / "0").stat().st_uid == os.getuid()
        (short / "enough").touch()
        said = terminal.communicate(timeout=60)
        assert terminal.returncode == 0, said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(terminal.pid, signal.SIGKILL)


HOSTILE = """
import os, pathlib, subprocess
from ringside import check
for name in ("startup", ".ipython/profile_default/startup"):
    place = pathlib.Path.home() / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "00.py").write_text("print('right: planted')")
for file in pathlib.Path(check.__file__).parent.glob("*.py"):
    file.write_text(file.read_text() + "\\nprint('right: changed')\\n")
subprocess.Popen(["sleep", "MARK"], start_new_session=True)
print('right: the one exercise of this page')
"""


def test_a_page_that_is_marked_leaves_nothing_for_the_next(short):
    lines = fenced("teaching", "grep -c")
    sandbox = ["unshare", "--map-current-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.call([*sandbox, "true"]):
        pytest.skip("there is no unshare, or Linux refuses a process namespace")
    mark = f"{600 + os.getpid() / 10**7:.7f}"  # seconds that nobody else sleeps
    sources = {"a": HOSTILE.replace("MARK", mark), "b": "from ringside import check"}
    for name, source in sources.items():
        page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        page.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        (short / "handed_in" / name).mkdir(parents=True)
        nbformat.write(page, short / "handed_in" / name / "21_evaluation.ipynb")
    (short / "temp").mkdir()
    for name in ("figures", "notebooks", "requirements.txt", "scripts"):
        (short / name).symlink_to(ROOT / name)
    lines = lines.replace("cp -r ", "cp -rL ")  # here, the course is not copied first
    terminal = typed(f"export TMPDIR={short}/temp\n{lines}", short)
    out, err = terminal.communicate(timeout=240)
    page = "handed_in/{}/21_evaluation.ipynb {}"
    assert out.splitlines() == [page.format("a", 1), page.format("b", 0)], err
    assert not list((short / "temp").iterdir())
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in str(p.info)]


def locks(folder: str, told) -> None:
    """Lock a folder, say so, and keep it until somebody answers."""
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    told.send(os.geteuid())
    told.recv()


def test_who_locks_a_folder_that_he_can_read_is_waited_for_only_so_long(
    short, monkeypatch
):
    """As root, the test has another user do it."""
    for place in (nodes, course):
        monkeypatch.setattr(place, "ROOT", short)
        monkeypatch.setattr(place, "WAITING", 0.3)
    monkeypatch.delenv(nodes.HELD, raising=False)
    scripts = short / "scripts"
    scripts.mkdir()
    short.chmod(0o755)
    neighbour = NOBODY if os.geteuid() == 0 else None
    ours, theirs = multiprocessing.Pipe()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(in_a_copy, locks, str(scripts), theirs, user=neighbour)
        try:
            assert ours.recv() == (os.geteuid() if neighbour is None else NOBODY)
            with pytest.raises(failure.Refused, match="fuser -v"), nodes.alone():
                pass
            installer = course.alone_in(scripts)
            with pytest.raises(course.CourseError, match="fuser -v"), installer:
                pass
        finally:
            ours.send("let go")
        other.result()
    with nodes.alone(), course.alone_in(short):
        pass


def test_two_agents_leave_no_folder(short, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    monkeypatch.setenv("TMPDIR", str(short))
    nodes.Nodes(False).torchrun("print('ok')\n", ranks=1, quiet=True)
    assert not list(short.iterdir())


def test_ranks_may_open_many_files():
    def tell(rank, world_size):
        import resource

        print(*resource.getrlimit(resource.RLIMIT_NOFILE))

    soft, hard = map(int, torchrun(tell, ranks=1, quiet=True).lines[0][0].split())
    assert soft >= min(hard, 65536)
