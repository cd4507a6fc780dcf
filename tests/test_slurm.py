"""Holds scripts/slurm.py, and ringside's slurm(), to what they promise."""

import os
import pwd
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import psutil
import pytest
from ringside import slurm
from ringside.standins import slurm as cluster

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "scripts" / "slurm.py"
INSTALL = "sudo apt-get install -y --no-install-recommends slurm-wlm"
HOME = Path(f"/tmp/rs-{os.getpid()}")  # of these tests' clusters, with a short name
UP = HOME / f"ringside-slurm-{os.getuid()}"
LONG = ["srun", "--nodes=2", "--ntasks-per-node=2", "sleep", "77.7"]


def tool(*words: str, **how) -> subprocess.CompletedProcess:
    line = [sys.executable, str(TOOL), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, **how)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """Keep these clusters apart from those of a lane beside this one."""
    tmp_path_factory.getbasetemp()  # pytest's own folder is not in there
    HOME.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(HOME))
        yield
    HOME.rmdir()  # it is empty


@pytest.fixture(scope="module")
def able(home):
    """Slurm is here, and a cluster can be made."""
    made = tool("run", "true")
    if made.returncode == 2:
        pytest.skip(f"{made.stderr.strip()} ({INSTALL})")
    assert made.returncode == 0, made.stderr  # Slurm is installed: it has to work


@pytest.fixture
def traces(able):
    """Whatever a test does, nothing of it is left."""
    tool("down")
    before = left()
    yield
    assert soon(lambda: left() == before), (before, left())


def left() -> list[str]:
    """What a cluster leaves on a machine that ends it badly."""
    found = [str(path) for path in HOME.iterdir() if "slurm" in path.name]
    for place in ("/etc/slurm", "/run", "/var/log/slurm", "/var/spool"):
        found += [str(path) for path in Path(place).glob("*slurm*")]
    return [*sorted(found), *(p.info["name"] for p in processes())]


def processes() -> list[psutil.Process]:
    """The daemons of these tests' clusters, and all that runs on them."""
    found = psutil.process_iter(["environ", "cmdline", "name"])
    mark = f"{HOME}/"
    return [p for p in found if mark in (p.info["environ"] or {}).get("SLURM_CONF", "")]


def soon(true, seconds: float = 60) -> bool:
    """Whether something becomes true in time."""
    last = time.monotonic() + seconds
    while not true() and time.monotonic() < last:
        time.sleep(0.05)
    return true()


def works() -> bool:
    """Whether the tasks of LONG run."""
    found = [(p.info["name"], "77.7" in (p.info["cmdline"] or ())) for p in processes()]
    return found.count(("sleep", True)) == 4


def begin(*words: str) -> subprocess.Popen:
    """Start slurm.py, and wait until its four tasks run."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([sys.executable, str(TOOL), *words], **quiet)
    if not soon(works):
        child.terminate()  # else it would stay, and all later tests would find it
        pytest.fail("its tasks do not run")
    return child


def test_a_cluster_that_stays(traces):
    """It comes up, says how to use it, is used, is reached from here alone, goes."""
    made = tool("up")
    assert made.returncode == 0 and made.stdout.count("running") == 3
    line = made.stdout.splitlines()[-1]
    assert line == f"export SLURM_CONF={UP}/slurm.conf"
    assert UP.stat().st_mode & 0o077 == (UP / "key").stat().st_mode & 0o077 == 0
    own = os.environ | {"SLURM_CONF": line.partition("=")[2]}
    say = ["srun", "-N2", "-n2", "--ntasks-per-node=1", "printenv", "SLURMD_NODENAME"]
    done = subprocess.run(say, env=own, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == ["127.0.0.2", "127.0.0.3"]
    doors = [c.laddr.ip for p in processes() for c in p.net_connections("tcp")]
    assert len(doors) >= 3
    if socket.gethostbyname(socket.gethostname()) == "127.0.0.1":
        assert all(door.startswith("127.") for door in doors)
    assert tool("up").stdout.count("running") == 0  # it is up already
    assert tool("status").stdout.count("idle") == 2
    assert tool("run", *say).stdout.split().count("127.0.0.2") == 1
    assert tool("status").returncode == 0, "run leaves it alone"
    for _ in range(2):
        assert tool("down").returncode == 0
    assert tool("status").returncode == 1


@pytest.mark.parametrize("code", [0, 7])
def test_run_passes_on_the_exit_code(traces, code):
    done = tool(
        "run", "srun", "-N2", "--ntasks-per-node=1", "bash", "-c", f"exit {code}"
    )
    assert done.returncode == code


def test_run_waits_for_what_sbatch_hands_in(traces, tmp_path):
    job, out = tmp_path / "job.sh", tmp_path / "out"
    job.write_text("#!/bin/bash\nsleep 0.5\nsrun echo done\n")
    assert tool("run", "sbatch", f"--output={out}", str(job)).returncode == 0
    assert out.read_text() == "done\n"


def test_a_limit_ends_it(traces):
    done = tool("run", "--limit", "1", *LONG)
    assert done.returncode == 124 and "ended after 1 seconds" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_at_once(traces, number):
    child = begin("run", *LONG)
    child.send_signal(number)
    assert child.wait(20) == 128 + number
    assert not processes()


def test_it_ends_with_its_parent(traces):
    line = [sys.executable, str(TOOL), "run", *LONG]
    parent = f"import subprocess; subprocess.run({line})"
    with subprocess.Popen([sys.executable, "-c", parent]) as child:
        assert soon(works)
        child.kill()
    assert soon(lambda: not processes())


def test_what_a_killed_one_leaves_is_cleared_by_the_next(traces):
    child = begin("run", *LONG)
    child.kill()
    child.wait()
    assert processes()
    assert tool("run", "true").returncode == 0
    assert not works()


def test_half_an_up_is_taken_down(traces):
    """Interrupted at any moment, it leaves nothing; after SIGKILL, down does it."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for number, wait in ((2, 0), (2, 0.1), (2, 0.3), (9, 0), (9, 0.2)):
        with subprocess.Popen([sys.executable, str(TOOL), "up"], **quiet) as child:
            assert soon(lambda: UP.exists() or child.poll() is not None)
            time.sleep(wait)
            child.send_signal(number)
        assert child.returncode in (0, 130, -2, -9)  # -2: it had ended its work
        if child.returncode != 130:
            assert tool("down").returncode == 0
        assert not UP.exists() and not processes()


def test_down_ends_a_cluster_whose_folder_is_gone(traces):
    """Some machines clear /tmp."""
    assert tool("up").returncode == 0
    shutil.rmtree(UP)
    assert tool("down").returncode == 0 and not processes()


def test_a_daemon_that_fails_is_told_with_its_last_words(traces, tmp_path):
    fake = tmp_path / "slurmd"
    fake.write_text("#!/bin/sh\necho no cgroup here >&2\nexit 1\n")
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = tool("up", env=os.environ | {"PATH": path})
    assert done.returncode == 1
    assert done.stderr.startswith("slurm.py: slurmd does not run; its last words:")
    assert done.stderr.endswith("no cgroup here\n")


def test_the_folder_of_somebody_else_is_left_alone(traces):
    if os.geteuid():
        pytest.skip("needs root, to give a folder away")
    UP.mkdir()
    os.chown(UP, pwd.getpwnam("nobody").pw_uid, -1)
    try:
        assert tool("down").returncode == 0 and UP.exists()
        done = tool("up")
        assert done.returncode == 1 and "is in the way" in done.stderr
    finally:
        UP.rmdir()


def test_it_needs_no_root(traces, tmp_path):
    python = shutil.which("python3", path="/usr/bin")
    if os.geteuid() or not python or not shutil.which("runuser"):
        pytest.skip("needs root, to be somebody else, and /usr/bin/python3")
    version = subprocess.run([python, "-c", "match 1:\n case 1: pass"])
    if version.returncode:
        pytest.skip("/usr/bin/python3 is too old: 3.10 is needed")
    copy = Path("/tmp", f"ringside-test-{os.getpid()}.py")
    shutil.copy(TOOL, copy)
    try:
        line = ["runuser", "-u", "nobody", "--", python, str(copy), "run", "srun"]
        line += ["-N2", "--ntasks-per-node=1", "id", "-un"]
        own = os.environ | {"TMPDIR": "/tmp"}
        how = {"capture_output": True, "text": True, "cwd": "/"}
        done = subprocess.run(line, env=own, **how)
    finally:
        copy.unlink()
    assert done.stdout.split() == ["nobody"] * 2, done.stderr


@pytest.mark.parametrize(
    ("system", "says"),
    [
        ("linux", f"Slurm is not installed here; type: {INSTALL}"),
        ("darwin", "Linux only"),
    ],
)
def test_without_slurm_a_line_says_what_to_type(system, says, monkeypatch, capsys):
    main = runpy.run_path(str(TOOL))["main"]
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    kept = {number: signal.getsignal(number) for number in (1, 2, 15)}
    with pytest.raises(SystemExit) as end:
        main(["up"])
    for number, handler in kept.items():
        signal.signal(number, handler)
    assert end.value.code == 2 and says in capsys.readouterr().err
    assert not UP.exists()


@pytest.mark.parametrize(
    "words", [["run"], ["run", "--limit", "3"], ["upp"], ["up", "x"]]
)
def test_a_wrong_word_is_answered_with_the_commands(words):
    done = tool(*words)
    assert done.returncode == 2 and "slurm.py run CMD..." in done.stdout


def test_a_limit_that_is_no_number_is_named():
    done = tool("run", "--limit", "abc", "true")
    told = "slurm.py: --limit takes seconds, not 'abc'\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_it_needs_no_path_of_programs():
    bare = {name: text for name, text in os.environ.items() if name != "PATH"}
    assert tool("status", env=bare).stderr == "slurm.py: no cluster is up.\n"


def test_an_interrupt_in_a_notebook_ends_all(traces, capsys):
    """The interrupt key sends the kernel this signal."""

    def press():
        assert soon(works)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        slurm(LONG)
    assert not processes()


def test_commands_run_side_by_side_and_their_lines_by_task(traces, capsys):
    say = ["srun", "-N2", "--ntasks-per-node=2", "--label", "bash", "-c"]
    slow = "sleep 0.$((4 - $SLURM_PROCID)); cat word; exit $SLURM_PROCID"
    both = slurm([*say, slow], [*say, "hostname"], files={"word": "here\n"})
    assert both[0].lines[:4] == [f"{n}: here" for n in range(4)]
    assert both[0].code == 3 and both[1].code == 0
    assert capsys.readouterr().out.count("\nexit code") == 2


def test_what_was_recorded_stands_in(monkeypatch, capsys, tmp_path):
    """Also for a command that nobody has recorded, of which it says so."""
    kept = tmp_path / "kept.json"
    monkeypatch.setattr(cluster, "KEPT", kept)
    monkeypatch.setenv("RINGSIDE_KEEP", "1")
    row = cluster.row(cluster.Done(3, ["node17"]))
    cluster.keep(kept, {"srun hostname": row})
    fake = tmp_path / "slurm.py"
    fake.write_text("import sys\nsys.exit('slurm.py: Slurm is not here.')\n")
    line = [sys.executable, str(fake), "run", "--limit"]
    monkeypatch.setattr(cluster, "TOOL", line)
    [done] = slurm(["srun", "hostname"])
    assert done == (3, ["node17"], None)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"Slurm is not here. {cluster.STANDS_IN}"
    assert said[1:] == ["$ srun hostname", "node17", "exit code 3"]
    [other] = slurm(["srun", "date"])
    assert "never recorded" in other.lines[0]


def test_the_file_of_monday_runs_and_its_ranks_count_as_it_says(able):
    """Without GPUs, and with numbers that fit the cluster; the rest as it stands."""
    cells = nbformat.read(ROOT / "notebooks" / "32_slurm.ipynb", 4).cells
    [cell] = [c.source for c in cells if c.source.startswith("MONDAY = ")]
    exec(cell.rpartition("\ncheck.")[0], names := {})
    file = names["MONDAY"].replace("#SBATCH --gpus-per-node=4\n", "")
    file = file.replace("-task=32", "-task=8").replace("-node=4", "-node=2")
    file = file.replace("first=", "export TMPDIR=$PWD  # for torchrun's logs\nfirst=")
    with socket.create_server(("127.0.0.2", 0)) as door:
        file = file.replace(":29500", f":{door.getsockname()[1]}")
    files = {"train.py": (ROOT / "scripts" / "01_split_the_batch.py").read_text()}
    files["shared.py"] = (ROOT / "scripts" / "shared.py").read_text()
    [done] = slurm(["sbatch", "job.sh"], files=files | {"job.sh": file})
    said = done.lines
    assert (
        done.code == 0
        and "ok: by count, 4 ranks find the gradient of one process" in said
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processors to bind")
def test_srun_asks_for_one_processor_unless_it_is_told_again(able):
    """What side road 3 of Slurm says, on a cluster that binds tasks to cores."""
    text = TOOL.read_text().replace("CPUs=8", "CPUs=2")
    text = text.replace("\nSelectType=", "\nTaskPlugin=task/affinity\nSelectType=")
    text = text.replace("\nSelectType=", "\nTaskPluginParam=cores\nSelectType=")
    srun = "srun {} bash -c 'echo $SLURM_CPUS_PER_TASK, and there are $(nproc)'\n"
    file = "#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=2\n"
    file += srun.format("") + srun.format('--cpus-per-task="$SLURM_CPUS_PER_TASK"')
    file += "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n" + srun.format("")
    with TemporaryDirectory(dir=HOME) as folder:
        (place := Path(folder)).joinpath("slurm.py").write_text(text)
        (place / "job.sh").write_text(file)
        line = [sys.executable, "slurm.py", "run", "sbatch", "--output=out", "job.sh"]
        env = os.environ | {"OMP_NUM_THREADS": ""}  # nproc heeds it
        how = {"cwd": place, "env": env, "timeout": 60, "capture_output": True}
        subprocess.run(line, check=True, **how)
        said = (place / "out").read_text().splitlines()
    # A step may have to wait until Slurm has cleared up the one before, and says so.
    said = [line for line in said if not line.startswith("srun: ")]
    assert said == [f"2, and there are {number}" for number in (1, 2, 2)]


def test_rank_0_of_a_step_on_the_second_node_is_there(able):
    """What a fold of Slurm says: only SLURM_STEP_NODELIST says where rank 0 is."""
    first = "first() { scontrol show hostnames $1 | head -n 1; }\n"
    tell = 'echo "$(first $SLURM_STEP_NODELIST) $(first $SLURM_JOB_NODELIST)"'
    step = "srun --nodes=1 --ntasks=1 -w $(scontrol show hostnames | tail -n 1)"
    file = f"#!/bin/bash\n#SBATCH --nodes=2\n{first}export -f first\n"
    file += f"{step} bash -c '{tell}; printenv SLURM_PROCID SLURMD_NODENAME'\n"
    [done] = slurm(["sbatch", "job.sh"], files={"job.sh": file})
    (of_step, of_job), rank, node = done.lines[-3].split(), *done.lines[-2:]
    assert rank == "0"
    assert of_step == node != of_job
