"""The promises of scripts/course.py, each with a machine that breaks it."""

import ast
import errno
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import venv
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from ringside.launch import memory
from ringside.launch.memory import free_megabytes

ROOT = Path(__file__).resolve().parent.parent


class Handed(BaseException):
    """Stands for the process that course.py becomes."""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """course.py in a checkout of its own, with an odd path, that installs nothing."""
    root = tmp_path / "a course 课程"
    for name in ("scripts/course.py", "tests/constraints.txt", "requirements.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    spec = importlib.util.spec_from_file_location("course", root / "scripts/course.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.steps, module.fails = [], {}

    def run(*command, **how):
        """Note a step instead of doing it; a word in `fails` makes it fail."""
        module.steps.append(" ".join(map(str, command[1:])))
        for word, text in module.fails.items():
            if word in module.steps[-1]:
                raise text if isinstance(text, BaseException) else module.why(text)
        if "venv" in command:
            if "--clear" in command:
                venv.EnvBuilder().clear_directory(command[-1])
            pretend(module, Path(command[-1]))
        return json.dumps(
            {"install": [{"metadata": {"name": n}} for n in module.brings]}
        )

    def execv(program, line):
        raise Handed(line)

    module.brings, module.real_run = ["torch", "numpy"], module.run
    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(module, "nvidia", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    for name in ("JUPYTER_CONFIG_PATH", "SSH_CONNECTION", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return module


def pretend(course, venv, *without):
    """Lay out an environment whose Python is this one and whose packages are names."""
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    python = venv / "bin/python"
    python.exists() or python.symlink_to(sys.executable)
    for name in {"torch", "jupyterlab", "ipywidgets", "matplotlib", "nbval"} | set(
        course.TOOLS
    ):
        if name not in without:
            site = venv / f"lib/python{course.PYTHON}/site-packages"
            info = site / f"{name.replace('-', '_')}-99.dist-info"
            info.mkdir(parents=True, exist_ok=True)
            (info / "METADATA").write_text(f"Name: {name}\nVersion: 99\n")


def start(course, *words):
    """The command line that course.py becomes, or its exit code."""
    try:
        return course.main(list(words))
    except Handed as handed:
        return handed.args[0]


def command(*words, python=sys.executable, **variables):
    line = [python, str(ROOT / "scripts/course.py"), *words]
    env = {**os.environ, **variables}
    return subprocess.run(line, env=env, capture_output=True, text=True, cwd="/")


def only_sentence(capsys):
    """What stands on stderr: one line, no traceback."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("course.py: ")
    return lines[0]


# ---- The command line ------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["-h"], ["lab", "-h"], ["test", "--help"]])
def test_help_names_the_three_commands_and_installs_nothing(course, capsys, words):
    assert start(course, *words) == 0
    shown = capsys.readouterr().out
    assert all(f"course.py {name}" in shown for name in ("lab", "test", "doctor"))
    assert course.steps == []


def test_an_unknown_command_is_named(course, capsys):
    assert start(course, "lap") == 2
    assert "'lap'" in only_sentence(capsys)


def test_an_old_python_is_told_which_one_is_needed(tmp_path):
    """The file runs up to the check in Python 3.6, and in the grammar of 3.7."""
    source = (ROOT / "scripts/course.py").read_text()
    ast.parse(source, feature_version=(3, 7))  # the oldest that ast knows
    (tmp_path / "sitecustomize.py").write_text(
        "import io, platform, sys\n"
        "class Old(tuple):\n"
        "    major, minor, micro, releaselevel, serial = 3, 6, 15, 'final', 0\n"
        "sys.version_info = Old((3, 6, 15, 'final', 0))\n"
        "platform.python_version = lambda: '3.6.15'\n"
        "sys.modules['importlib.metadata'] = None\n"
        "sys.stdout = io.StringIO()  # which can't reconfigure\n"
    )
    for words in (["lab"], ["test"], ["doctor"], ["lab", "--here"]):
        done = command(*words, PYTHONPATH=str(tmp_path))
        assert done.returncode == 1
        assert "Python 3.11 or newer is needed; this is 3.6.15" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_native_windows_is_sent_to_wsl2(course, capsys, monkeypatch):
    with monkeypatch.context() as windows:
        windows.setattr(course, "os", SimpleNamespace(name="nt"))
        code = start(course, "lab")
    assert code == 2
    assert "WSL2" in only_sentence(capsys)


@pytest.mark.parametrize(
    ("command", "program"), [("lab", "jupyterlab"), ("test", "pytest")]
)
def test_help_behind_a_command_is_of_its_program(course, capsys, command, program):
    (course.ROOT / "requirements.txt").write_text("")
    start(course, command)
    assert start(course, command, "--help")[2:] == [command, "--here", "--help"]
    line = start(course, command, "--here", "--help")
    assert line == [sys.executable, "-m", program, "--help"]
    assert start(course, "doctor", "--here", "--help") == 0
    assert "course.py doctor" in capsys.readouterr().out


# ---- The environment -------------------------------------------------------------


def test_first_start_makes_and_second_start_does_nothing(course):
    line = start(course, "lab", "--port", "9 9")
    venv = course.ROOT / ".venv"
    assert line[0] == str(venv / "bin/python")
    assert line[2:] == ["lab", "--here", "--port", "9 9"]
    assert any("-r" in step and "constraints.txt" in step for step in course.steps)
    assert not any("ruff" in step for step in course.steps)
    course.steps.clear()
    assert start(course, "lab") == [*line[:2], "lab", "--here"]
    assert course.steps == []


def test_a_file_in_the_current_folder_hides_nothing(course, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    start(course, "lab")
    course.real_run(sys.executable, "-m", "json.tool", "--help")


def test_what_tests_need_is_added_to_the_same_environment(course, monkeypatch):
    start(course, "lab")
    site = next(course.ROOT.glob(".venv/lib/*/site-packages"))
    shutil.rmtree(site / "ruff-99.dist-info")
    course.steps.clear()
    start(course, "lab")
    assert course.steps == []
    start(course, "test")
    assert course.steps[-2].endswith("pytest pytest-xdist ruff mypy playwright")
    assert not any("venv" in step.split() for step in course.steps)


@pytest.mark.parametrize("name", ["requirements.txt", "tests/constraints.txt"])
def test_a_changed_file_installs_again_in_place(course, name):
    start(course, "lab")
    course.steps.clear()
    with (course.ROOT / name).open("a") as file:
        file.write("# changed\n")
    start(course, "lab")
    assert any("-r" in step for step in course.steps)
    assert not any("venv" in step.split() for step in course.steps)


def test_another_python_version_uses_it_and_mends_it_in_place(course):
    line = start(course, "lab")
    course.steps.clear()
    course.PYTHON = "3.99"
    assert start(course, "lab") == line
    assert course.steps == []
    with (course.ROOT / "requirements.txt").open("a") as file:
        file.write("# changed\n")
    for _ in range(2):
        assert start(course, "lab") == line
    assert sum(" -r " in step for step in course.steps) == 1
    assert not any("venv" in step.split() for step in course.steps)


def test_an_environment_whose_python_was_replaced_is_not_complete(course):
    """As when the system's Python goes from 3.11 to 3.12: its packages are gone."""
    start(course, "lab")
    course.PYTHON = "3.99"
    note = course.ROOT / ".venv/ringside"
    note.write_text(course.stamp("3.98"))
    course.steps.clear()
    start(course, "lab")
    assert any("-r" in step for step in course.steps)


def test_an_environment_of_a_python_that_is_too_old_is_made_anew(course):
    start(course, "lab")
    (course.ROOT / ".venv/ringside").unlink()
    course.OLDEST = (3, 99)
    course.PYTHON = "3.99"
    venv = course.ROOT / ".venv"
    course.make(venv, str(venv / "bin/python"), ())
    assert any("venv" in step.split() for step in course.steps[1:])
    assert course.complete(venv, ())


@pytest.mark.parametrize("hurt", ["python gone", "python dead", "package gone"])
def test_a_damaged_environment_is_mended(course, hurt):
    start(course, "lab")
    venv = course.ROOT / ".venv"
    if hurt == "package gone":
        site = next(venv.glob("lib/*/site-packages"))
        shutil.rmtree(site / "torch-99.dist-info")
    else:
        (venv / "bin/python").unlink()
        target = "/nowhere/python" if hurt == "python gone" else "/dev/null"
        (venv / "bin/python").symlink_to(target)
    if hurt == "python dead":
        (venv / "ringside").unlink()
    course.steps.clear()
    assert start(course, "lab")[0] == str(venv / "bin/python")
    assert any("-r" in step for step in course.steps)
    rebuilt = any("venv" in step.split() for step in course.steps)
    assert rebuilt == (hurt != "package gone")


def test_half_made_environment_is_made_anew_by_the_next_run(course, capsys):
    course.fails = {"-r ": KeyboardInterrupt()}
    assert start(course, "lab") == 130
    assert "next time" in only_sentence(capsys)
    left = course.ROOT / ".venv/lib/half a package"
    left.touch()
    course.fails = {}
    assert start(course, "lab")[2] == "lab"
    assert not left.exists()


@pytest.mark.parametrize("step", ["ensurepip", "-r ", "import torch"])
def test_an_interrupt_while_it_is_mended_makes_it_anew_next_time(course, step):
    """Even when the packages look complete, for half of one may be an older one's."""
    start(course, "lab")
    site = next(course.ROOT.glob(".venv/lib/*/site-packages"))
    shutil.rmtree(site / "torch-99.dist-info")
    course.fails = {step: KeyboardInterrupt()}
    assert start(course, "lab") == 130
    pretend(course, course.ROOT / ".venv")
    course.fails = {}
    course.steps.clear()
    (site / "half a package").touch()
    assert start(course, "lab")[2] == "lab"
    assert any("venv" in step.split() for step in course.steps)
    assert not (site / "half a package").exists()


def test_a_package_that_does_not_load_is_found_out(course, capsys):
    pretend(course, course.ROOT / ".venv")
    course.fails = {"import torch": "OSError: libtorch.so: file too short"}
    assert start(course, "lab") == 1
    assert "file too short" in only_sentence(capsys)
    assert not any("venv" in step.split() for step in course.steps)
    course.fails = {}
    assert start(course, "lab")[2] == "lab"
    assert any("venv" in step.split() for step in course.steps)


def test_an_environment_made_by_hand_is_completed_and_kept(course):
    pretend(course, course.ROOT / ".venv")
    mine = course.ROOT / ".venv/mine"
    mine.touch()
    start(course, "lab")
    assert mine.exists()


NO_TORCH = "ERROR: No matching distribution found for torch==2.13.0"
NO_NAME = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None)) after connection "
    "broken by 'NameResolutionError(\"HTTPSConnection(host='nothing.invalid', "
    f"port=443)\")': /simple/torch/\n{NO_TORCH}"
)
NO_END = "  WARNING: Connection interrupted while downloading.\n"
NO_END += "error: incomplete-download\n\n× Download failed after 6 attempts"
NO_WORD = "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host="
NO_FILE = (
    "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host="
)
NO_CODE = "WARNING: Retrying (Retry(total=4)) after connection broken by 'timed out'\n"
NO_CODE += "ERROR: Failed to build 'torch'"
NO_SPACE = (
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NO_NAME, "check the network"),
        (NO_END, "check the network"),
        (NO_WORD, "check the network"),
        (NO_FILE, "check the network"),
        (NO_CODE, "Failed to build"),
        ("ImportError: libtorch.so: lost connection", "lost connection"),
        ("RuntimeError: the import timed out", "the import timed out"),
        (NO_TORCH, "macOS 14"),
        (NO_SPACE, "disk is full"),
    ],
)
def test_each_fault_of_pip_is_one_sentence_and_the_next_run_recovers(
    course, capsys, text, words
):
    course.fails = {"-r ": text}
    assert start(course, "test") == 1
    assert words in only_sentence(capsys)
    course.fails = {}
    assert start(course, "test")[2] == "test"


def test_without_network_a_working_environment_stays(course, capsys):
    start(course, "lab")
    mine = course.ROOT / ".venv/mine"
    mine.touch()
    with (course.ROOT / "requirements.txt").open("a") as file:
        file.write("# changed\n")
    course.fails = {"torch": NO_NAME}
    assert start(course, "lab") == 1
    course.fails = {}
    start(course, "lab")
    assert mine.exists()


def test_a_disk_that_is_full_for_course_py_itself(course, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    assert start(course, "lab") == 1
    assert "disk is full" in only_sentence(capsys)


def test_python_without_venv_is_told_what_to_install(course, capsys, monkeypatch):
    find = importlib.util.find_spec
    hide = lambda name, *more: None if name == "ensurepip" else find(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hide)
    assert start(course, "lab") == 1
    assert "python3-venv" in only_sentence(capsys)
    assert course.steps == []


def test_a_read_only_checkout_uses_the_cache_folder(course, capsys, monkeypatch):
    mkdir, access = Path.mkdir, os.access

    def read_only(self, *words, **how):
        if self == course.ROOT / ".venv":
            raise OSError(errno.EROFS, "Read-only file system")
        return mkdir(self, *words, **how)

    monkeypatch.setattr(Path, "mkdir", read_only)
    monkeypatch.setattr(
        os, "access", lambda p, how: Path(p).exists() and access(p, how)
    )
    line = start(course, "lab")
    assert "/cache/ringside/venv-" in line[0]
    assert f"{course.ROOT / '.venv'} can't be written" in capsys.readouterr().out
    course.steps.clear()
    assert start(course, "lab") == line
    assert course.steps == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    shutil.rmtree(Path(line[0]).parents[1])
    assert start(course, "lab") == 1
    assert "XDG_CACHE_HOME" in only_sentence(capsys)


def test_the_second_of_two_starts_waits_for_the_first(course, monkeypatch, capsys):
    venv = course.ROOT / ".venv"
    flock = fcntl.flock

    def other_finishes(lock, how):
        if not course.complete(venv, ()):
            pretend(course, venv)
            (venv / "ringside").write_text(course.stamp(course.PYTHON))
            raise BlockingIOError
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", other_finishes)
    assert start(course, "lab")[2] == "lab"
    assert "waiting" in capsys.readouterr().out
    assert course.steps == []


def test_the_lock_is_held_until_the_installer_ends(course, tmp_path):
    """Even when course.py itself has gone: its installer has the lock as well."""
    line = [sys.executable, "-c", "input()"]
    with course.alone_in(tmp_path):
        child = subprocess.Popen(line, stdin=subprocess.PIPE, close_fds=False)
    second = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child.communicate(b"\n")
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(second)


def test_an_interrupt_ends_the_installer_and_its_children(
    course, tmp_path, monkeypatch
):
    """The step starts a child that ignores the interrupt; neither is left."""
    note = tmp_path / "pids"
    child = (
        "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        f"open({str(note)!r}, 'w').write(f'{{os.getppid()}} {{os.getpid()}}');"
        "time.sleep(60)"
    )
    step = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {child!r}]);"
        "time.sleep(60)"
    )
    real = subprocess.Popen.communicate

    def interrupted(self, *words, timeout=None):
        if timeout is None:
            while not (note.exists() and len(note.read_text().split()) == 2):
                time.sleep(0.01)
            raise KeyboardInterrupt
        return real(self, *words, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        course.real_run(sys.executable, "-c", step, stdout=subprocess.DEVNULL)
    step, child = (Path("/proc") / pid for pid in note.read_text().split())
    assert not step.exists()
    with suppress(OSError):  # an orphan is collected by whoever took it over
        for _ in range(500):
            if "\nState:\tZ" in (child / "status").read_text():
                break
            time.sleep(0.01)
        else:
            pytest.fail("the child is still running")


# ---- torch without CUDA ----------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "brings", "uv", "size", "asked"),
    [
        (False, ["torch", "numpy"], None, "0.3 GB", ["--dry-run"]),
        (False, ["torch", "nvidia-cublas"], None, "0.3 GB", ["--dry-run", "uv pip"]),
        (False, ["torch", "triton"], "dns error", "3 GB", ["--dry-run", "uv pip"]),
        (True, ["torch", "nvidia-cublas"], None, "3 GB", []),
    ],
)
def test_cuda_is_downloaded_only_for_a_gpu_or_for_want_of_another(
    course, capsys, monkeypatch, gpu, brings, uv, size, asked
):
    monkeypatch.setattr(course, "nvidia", lambda: gpu)
    course.brings = brings
    course.fails = {"uv pip": uv} if uv else {}
    start(course, "lab")
    for word in ("--dry-run", "uv pip"):
        assert any(word in step for step in course.steps) == (word in asked)
    assert f": {size} to download" in capsys.readouterr().out
    assert any("-r" in step for step in course.steps)


def test_on_a_mac_pip_is_not_asked(course, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    start(course, "lab")
    assert not any("--dry-run" in step for step in course.steps)


# ---- --here, lab, test -----------------------------------------------------------


def test_here_names_what_is_missing_and_installs_nothing(course, capsys):
    (course.ROOT / "requirements.txt").write_text("nbval>=999\nno_such_thing>=1 # x\n")
    assert start(course, "lab", "--here") == 1
    said = only_sentence(capsys)
    assert "lacks nbval>=999, no_such_thing>=1;" in said
    add = (
        f"{shlex.quote(sys.executable)} -m pip install 'nbval>=999' 'no_such_thing>=1'"
    )
    assert said.endswith(add)
    assert course.steps == []
    assert not (course.ROOT / ".venv").exists()


@pytest.mark.parametrize(
    ("have", "floor", "enough"),
    [
        ("2.13.0+cpu", "2.11", True),
        ("2.11.0a0+41361538.nv25.06", "2.11", True),
        ("2.9.1", "2.11", False),
        ("10.0", "9.5", True),
    ],
)
def test_versions_compare_as_numbers(course, monkeypatch, have, floor, enough):
    (course.ROOT / "requirements.txt").write_text(f"torch>={floor}\n")
    found = [SimpleNamespace(version=have)]
    monkeypatch.setattr(metadata, "distributions", lambda **_: found)
    assert course.missing() == ([] if enough else [f"torch>={floor}"])


def lab(course, *words):
    """The line that lab becomes with what this Python has, where port 8888 is free."""
    (course.ROOT / "requirements.txt").write_text("")
    course.loopback = lambda port: port
    return start(course, "lab", "--here", *words)


def test_lab_opens_the_first_lesson_in_the_course_folder(course, capsys, monkeypatch):
    for name in ("10_later", "04_first", "a_note"):
        (course.ROOT / f"notebooks/{name}.ipynb").parent.mkdir(exist_ok=True)
        (course.ROOT / f"notebooks/{name}.ipynb").touch()
    monkeypatch.setattr("zmq.has", lambda what: True)
    line = lab(course, "--collaborative")
    assert line == [
        *(sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={course.ROOT}"),
        "--LabApp.default_url=/lab/tree/notebooks/04_first.ipynb",
        "--MappingKernelManager.transport_encryption=auto",
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=8888", "--collaborative"),
    ]
    assert capsys.readouterr().out == ""


def test_lab_has_settings_of_its_own_behind_those_that_are_asked_for(course):
    lab(course)
    assert os.environ["JUPYTER_CONFIG_PATH"] == str(course.ROOT / ".jupyter")
    lab(course)
    assert os.environ["JUPYTER_CONFIG_PATH"].count(os.pathsep) == 1


@pytest.mark.parametrize("able", [True, False])
def test_lab_asks_for_secret_talk_only_where_it_is_possible(course, monkeypatch, able):
    import zmq

    monkeypatch.setattr(zmq, "has", lambda what: able and what == "curve")
    assert ("transport_encryption=auto" in " ".join(lab(course))) == able


@pytest.mark.parametrize("word", ["--ip", "--ip=::1", "--ServerApp.ip=::1", "--sock=x"])
def test_lab_listens_elsewhere_if_asked(course, monkeypatch, word):
    """JupyterLab refuses to be told twice; and decides itself what root may do."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    line = lab(course, word)
    told = [other for other in line if re.match(r"--(ServerApp\.)?(ip|sock)\b", other)]
    assert told == [word]
    assert "--allow-root" not in line


def test_lab_runs_as_root_behind_its_token(course, capsys, monkeypatch):
    assert "--allow-root" not in lab(course)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    line = lab(course, "--no-browser")
    assert {"--allow-root", "--ServerApp.ip=127.0.0.1"} < set(line)
    assert not any("token" in word for word in line), "others see it"
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "You are root: JupyterLab listens on 127.0.0.1 only, and wants its token."
    ]


def test_a_second_lab_is_told_where_the_first_is(course, capsys, tmp_path):
    """A server may have ended without a word, show something else, or just begin."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name, process, folder in (
        ("one", os.getpid(), course.ROOT),
        ("ended", ended.pid, course.ROOT),
        ("other", os.getpid(), tmp_path),
    ):
        note = {"pid": process, "root_dir": str(folder), "token": name}
        note["url"] = "http://127.0.0.1:8888/"
        (tmp_path / f"jpserver-{name}.json").write_text(json.dumps(note))
    (tmp_path / "jpserver-new.json").write_text("{")
    assert lab(course)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].endswith("the first is open at http://127.0.0.1:8888/lab?token=one")


def test_a_port_that_is_taken(course, capsys, monkeypatch):
    """Another is found, unless it was asked for."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        taken = door.getsockname()[1]
        monkeypatch.setenv("JUPYTER_PORT", str(taken))
        line = start(course, "lab", "--here")
        port = re.search(r"--ServerApp.port=(\d+)", " ".join(line))[1]
        assert port != str(taken)
        said = capsys.readouterr().out.splitlines()
        assert said == [f"Port {taken} is taken: this lab has port {port}."]
        assert start(course, "lab", "--here", f"--port={taken}") == 1
        assert "name another, or none" in only_sentence(capsys)
    line = start(course, "lab", "--here", "--port", str(taken))
    assert line[-2:] == ["--port", str(taken)]
    assert not any("ServerApp.port" in word for word in line)


def test_a_port_that_is_not_allowed_is_not_called_taken(course, capsys, monkeypatch):
    monkeypatch.setenv("JUPYTER_PORT", "80")

    def loopback(port=9999):
        if port == 80:
            raise PermissionError(errno.EACCES, "Permission denied")
        return port

    monkeypatch.setattr(course, "loopback", loopback)
    fault = "ort 80 can't be used ([Errno 13] Permission denied): "
    start(course, "lab", "--here")
    assert capsys.readouterr().out == f"P{fault}this lab has port 9999.\n"
    assert start(course, "lab", "--here", "--port=80") == 1
    assert only_sentence(capsys) == f"course.py: p{fault}name another, or none."


@pytest.mark.parametrize("port", ["99999", "abc", "-1"])
def test_what_is_no_port_is_named(course, capsys, monkeypatch, port):
    monkeypatch.setenv("JUPYTER_PORT", port)
    assert start(course, "lab", "--here") == 1
    assert f"a port is a number up to 65535, not '{port}'" in only_sentence(capsys)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {"SSH_CONNECTION": "10.0.0.9 50123 10.0.0.5 2222", "USER": "ada"},
            "\n    ssh -N -L 8888:127.0.0.1:8888 -p 2222 ada@10.0.0.5\n",
        ),
        ({"WSL_DISTRO_NAME": "Debian"}, "in a browser of Windows."),
        ({"DISPLAY": None}, "in one that reaches port 8888."),
    ],
    ids=["ssh", "wsl", "no screen"],
)
def test_where_no_browser_opens_lab_says_what_to_do(
    course, capsys, monkeypatch, variables, words
):
    assert "--no-browser" not in lab(course)
    for name, value in variables.items():
        monkeypatch.setenv(name, value or "")
        value or monkeypatch.delenv(name)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert lab(course)[-1] == "--no-browser"
    assert words in capsys.readouterr().out


def test_test_passes_its_words_on_and_counts_what_ran(course, tmp_path):
    """A real pytest, in a process of its own, with one green and one red notebook."""
    (course.ROOT / "requirements.txt").write_text("nbval>=0.1\n")
    shutil.copytree(ROOT / "notebooks/ringside", course.ROOT / "notebooks/ringside")
    (course.ROOT / "conftest.py").write_text(
        "import pytest\n"
        "class Book(pytest.File):\n"
        "    def collect(self):\n"
        "        for n in range(3):\n"
        "            yield Cell.from_parent(self, name=f'Cell {n}')\n"
        "class Cell(pytest.Item):\n"
        "    def runtest(self):\n"
        "        assert '05' not in self.nodeid or self.name != 'Cell 2'\n"
        "def pytest_collect_file(parent, file_path):\n"
        "    if file_path.suffix == '.ipynb':\n"
        "        return Book.from_parent(parent, path=file_path)\n"
    )
    for name in ("04_ring", "05_red"):
        (course.ROOT / f"notebooks/{name}.ipynb").touch()
    (course.ROOT / "tests/test_scripts.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('ranks', [1, 4])\n"
        "@pytest.mark.parametrize('name', ['04_ring', '05_red'])\n"
        "def test_every_script_ends_with_ok(name, ranks):\n"
        "    assert name == '04_ring' or ranks == 1\n"
        "@pytest.mark.parametrize('name', ['06_help'])\n"
        "def test_help_is_no_error(name): 'runs no rank of a script'\n"
        "def test_help_words(pytestconfig):\n"
        "    assert pytestconfig.getoption('keyword') == 'ok or Cell or help'\n"
    )
    (course.ROOT / "tests/test_twins.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('name', ['07_script', 'notebooks/07.ipynb::x'])\n"
        "def test_ok(name): 'reads a script, runs none'\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    words = ["test", "--here", "-q", "-n0", "-k", "ok or Cell or help"]
    line = [sys.executable, str(course.ROOT / "scripts/course.py"), *words]
    done = subprocess.run(line, capture_output=True, text=True, cwd="/", env=env)
    passed, minutes, *slowest = done.stdout.partition("Ran and ")[2].splitlines()
    assert re.match(r"passed: lessons 1, scripts 1, cells 5; it took \d+ min", passed)
    lessons = ("04", "05", "06", "07", "the rest")
    told = ", ".join(rf"{name} \d+\.\d" for name in lessons)
    assert re.fullmatch(f"Minutes of each lesson: {told}", minutes)
    assert len(slowest) == 10
    assert all(re.fullmatch(r" +\d+\.\d s  (notebooks|tests)/.+", s) for s in slowest)
    assert done.returncode == 1
    assert "2 failed, 12 passed" in done.stdout


def test_the_minutes_of_a_lesson_are_those_of_all_its_tests(course, capsys):
    count = course.Count()
    count.seconds |= {
        "notebooks/03_ring.ipynb::Cell 0": 30,
        "tests/test_03.py::test_a": 60,
        "tests/test_scripts.py::test_b[03_ring-1]": 30,
        "tests/test_11.py::test_c": 6,
        "tests/test_02.py::test_d[10.0]": 12,
        "tests/test_launch.py::test_e[10.0]": 90,
    }
    count.say_minutes()
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "Minutes of each lesson: 02 0.2, 03 2.0, 11 0.1, the rest 1.5"
    assert second == "  90.0 s  tests/test_launch.py::test_e[10.0]"


@pytest.mark.parametrize(
    ("words", "cores", "free", "expected"),
    [
        ([], 2, 20000, 3),
        ([], 4, 8000, 3),
        ([], 8, 20000, 4),
        (["-k", "08"], 8, 2000, 2),
        ([], 1, 8000, 0),
        (["-n0"], 8, 8000, 0),
        (["-n", "4"], 8, 8000, 0),
        (["--pdb"], 8, 8000, 0),
        (["-x", "-s"], 8, 8000, 0),
    ],
)
def test_lanes_where_there_are_cores_and_memory_for_them(
    course, monkeypatch, words, cores, free, expected
):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(course, "free_megabytes", lambda: free)
    assert course.lanes(words)[1:2] == [f"{expected}"] * bool(expected)


def test_the_tests_that_count_as_launches_are_there(course):
    source = (ROOT / "tests/test_scripts.py").read_text()
    for name in re.search(r"test_\(\?:(.*?)\)", course.LAUNCH)[1].split("|"):
        assert f"\ndef test_{name}(script" in source


def test_a_quick_test_asks_house_pictures_checkers_a_lesson_and_a_script(course):
    asked = {re.split(r"[/.:]", name)[1] for name in course.QUICK}
    wanted = "test_house test_recording test_check test_scripts 03_ring_all_reduce"
    assert asked >= {*wanted.split()}


def test_a_quick_test_names_tests_that_are_there(course):
    for name in course.QUICK:
        path, _, test = name.partition("::")
        assert f"\ndef {test.partition('[')[0]}" in (ROOT / path).read_text() + "\ndef "


# ---- a copy of one's own ---------------------------------------------------------


def write_page(path, word):
    cell = {"cell_type": "code", "metadata": {}, "source": [word]}
    cell |= {"execution_count": 1, "outputs": [{"text": ["the answer"]}]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": [cell], "nbformat": 4}))


@pytest.fixture
def copied(course, monkeypatch):
    """A copy of a course of two pages, and what `lab --copy` becomes."""
    for number in "01":
        write_page(course.ROOT / f"notebooks/0{number}_page.ipynb", "first")
    (course.ROOT / "README.md").write_text("read")
    (course.ROOT / "notebooks/conftest.py").touch()
    monkeypatch.chdir(course.ROOT.parent)
    line = start(course, "lab", "--here", "--copy", "mine", "--no-browser")
    return course.ROOT.parent / "mine", line


def test_a_copy_has_no_printed_answers_and_opens(copied):
    mine, line = copied
    assert f"--ServerApp.root_dir={mine}" in line and "--no-browser" in line
    assert "--copy" not in line and Path.cwd() == mine
    page = json.loads((mine / "notebooks/00_page.ipynb").read_text())
    assert page["cells"][0]["outputs"] == [] and page["cells"][0]["source"] == ["first"]
    assert (mine / "scripts/course.py").exists() and (mine / "README.md").exists()
    assert not (mine / "notebooks/conftest.py").exists()


def test_what_its_owner_has_changed_stays_and_the_newer_page_is_beside_it(
    copied, course, capsys
):
    mine, _ = copied
    changed, same = (mine / f"notebooks/0{n}_page.ipynb" for n in "01")
    changed.write_text("my own")
    start(course, "lab", "--here", "--copy", str(mine))
    assert changed.read_text() == "my own" and len([*changed.parent.iterdir()]) == 2
    for word, number in (("second", 1), ("third", 2)):
        for page in (changed, same):
            write_page(course.ROOT / "notebooks" / page.name, word)
        capsys.readouterr()
        for _ in range(2):  # the second time, nothing is new
            start(course, "lab", "--here", "--copy", str(mine))
        told = [o for o in capsys.readouterr().out.splitlines() if "changed" in o]
        assert len(told) == 1 and f"00_page.new{number}.ipynb" in told[0]
        assert changed.read_text() == "my own"
        assert word in changed.with_name(f"00_page.new{number}.ipynb").read_text()
        assert word in same.read_text()


def test_a_copy_takes_no_other_thing_s_place(course, capsys, tmp_path):
    (tmp_path / "a letter").touch()
    for folder, says in (
        (tmp_path, "holds other things"),
        (course.ROOT / "mine", "lies in the course itself"),
    ):
        assert start(course, "lab", "--here", "--copy", str(folder)) == 2
        assert says in only_sentence(capsys)
    assert start(course, "lab", "--here", "--copy") == 2
    assert "--copy needs a folder" in only_sentence(capsys)


# ---- pages -----------------------------------------------------------------------


@pytest.fixture
def packing(course, monkeypatch):
    """A course whose uv knows two packages, each at an index of its own."""

    def run(*command, **how):
        line = " ".join(map(str, command[1:]))
        course.steps.append(line)
        for word, text in course.fails.items():
            if word in line:
                raise course.why(text)
        if "uv" in command:
            small = "+cpu" if "--torch-backend" in command else ""
            at = "https://small" if small else "https://main"
            Path(command[command.index("-o") + 1]).write_text(
                "numpy==2 \\\n    --hash=sha256:aa\n    # from https://main\n"
                "sympy==1 \\\n    --hash=sha256:bb\n    # from https://main\n"
                f"torch==2{small} \\\n    --hash=sha256:cc\n    # from {at}\n"
            )
        if "download" in command:
            text = Path(command[-1]).read_text()
            course.asked.append(re.findall(r"^\w+", text, re.M))

    course.asked = []
    monkeypatch.setattr(course, "missing", lambda *_: [])
    monkeypatch.setattr(course, "run", run)
    monkeypatch.setattr(course, "pages_venv", lambda: Path(sys.prefix))
    monkeypatch.setattr(course, "make_pages", lambda to, *_: to.mkdir())
    for name in course.PACKED:
        if not (course.ROOT / name).exists():
            (course.ROOT / name).mkdir()
    (course.ROOT / "notebooks" / "00_a.ipynb").write_text("{}")
    (course.ROOT / "notebooks" / "__pycache__").mkdir()
    return course


def test_a_pack_has_each_part_of_the_course(course):
    parts = "README.md LICENSE figures notebooks requirements.txt scripts tests "
    parts += ".jupyter .mypy.ini .pytest.ini .ruff.toml"
    assert {*parts.split()} <= {*course.PACKED}


def test_a_pack_is_the_course_with_what_each_kind_of_machine_needs(
    packing, tmp_path, capsys
):
    kinds = ["linux-x86_64-3.12", "macos-arm64-3.13"]
    assert start(packing, "pack", "--here", "for class", *kinds) == 0
    made = tmp_path / "for class"
    assert (made / "notebooks" / "00_a.ipynb").exists()
    assert not (made / "notebooks" / "__pycache__").exists()
    assert (made / ".pages").is_dir()
    locks = sorted(path.name for path in (made / ".wheels").glob("*.txt"))
    assert locks == [f"{kind}.txt" for kind in kinds]
    assert "torch==2+cpu" in (made / ".wheels" / locks[0]).read_text()
    assert packing.asked == [["numpy", "sympy"], ["torch"]] * 2
    get = [step for step in packing.steps if "pip download" in step]
    assert "--index-url" not in get[0] and "--index-url https://small" in get[1]
    assert "--platform manylinux_2_28_x86_64" in get[0]
    assert (
        "--platform macosx_14_0_arm64" in get[2] and "--python-version 3.13" in get[2]
    )
    assert all("--require-hashes --only-binary=:all:" in step for step in get)
    assert "0.2 to 0.3 GB" in capsys.readouterr().out.splitlines()[0]


def test_a_pack_without_the_small_torch_has_the_large_one(packing, capsys):
    packing.fails["--torch-backend"] = "error: dns"
    assert start(packing, "pack", "--here", "all") == 0
    assert packing.asked == [["numpy", "sympy", "torch"]]
    assert "3 GB" in capsys.readouterr().out


def test_a_pack_that_stops_half_way_is_not_taken_for_whole(packing, tmp_path, capsys):
    packing.fails["--index-url https://small"] = "ERROR: HTTPSConnection"
    assert start(packing, "pack", "--here", "all") == 1
    assert "network" in only_sentence(capsys)
    assert not list((tmp_path / "all" / ".wheels").glob("*.txt"))
    packing.fails.clear()
    assert start(packing, "pack", "--here", "all") == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "needs a folder"),
        ("new amiga-68000-3.12", "linux-x86_64-"),
        ("new linux-x86_64", "linux-x86_64-"),
        ("full", "holds other things"),
    ],
)
def test_what_pack_cannot_do_it_says(packing, capsys, tmp_path, words, says):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    assert start(packing, "pack", "--here", *words.split()) == 2
    assert says in only_sentence(capsys)
    assert start(packing, "pack", "--here", str(packing.ROOT / "in")) == 2


def test_in_a_pack_lab_installs_what_lies_there_and_asks_no_network(course, capsys):
    wheels = course.ROOT / ".wheels"
    wheels.mkdir()
    assert start(course, "lab") == 2
    assert f"this is {course.this_kind()}: pack it" in only_sentence(capsys)
    lock = wheels / f"{course.this_kind()}.txt"
    lock.touch()
    assert start(course, "lab")[-2:] == ["lab", "--here"]
    [step] = [step for step in course.steps if "pip install" in step]
    assert f"--no-index --find-links {wheels} --require-hashes -r {lock}" in step


@pytest.fixture
def pages(course, monkeypatch):
    """course.py, whose makers of pages write one file, or fail if that is asked."""
    needs = course.PAGES_NEED
    needs.parent.mkdir(parents=True)
    shutil.copy(ROOT / needs.relative_to(course.ROOT), needs)
    course.made = []

    def make(line, cwd, env):
        assert cwd == course.ROOT / "notebooks" and "PYTHONPATH" not in env
        course.made.append(Path(line[0]))
        folder = Path(line[-1], "_static")
        folder.mkdir(parents=True)
        (folder / "pages.js").touch()
        (folder.parent / f"{len(course.made)}.html").touch()
        return SimpleNamespace(returncode=course.fails.get("making", 0))

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setattr(course, "subprocess", SimpleNamespace(run=make))
    return course


def test_pages_have_an_environment_of_their_own_which_is_made_once(pages, capsys):
    assert start(pages, "pages") == 0
    folder = pages.ROOT / ".pages"
    assert (folder / "index.html").as_uri() in capsys.readouterr().out
    assert pages.made == [pages.ROOT / ".venv-pages/bin/python"]
    assert any(f"install -r {pages.PAGES_NEED}" in step for step in pages.steps)
    assert not any("torch" in step for step in pages.steps)
    steps = [*pages.steps]
    assert start(pages, "pages") == 0 and pages.steps == steps
    assert [path.name for path in folder.glob("*.html")] == ["2.html"]
    assert not [*pages.ROOT.glob(".pages-*")]
    with pages.PAGES_NEED.open("a") as needs:
        needs.write("# changed\n")
    assert start(pages, "pages") == 0 and len(pages.steps) == 2 * len(steps)


def test_pages_go_where_one_says_and_take_no_other_thing_s_place(pages, capsys):
    mine = pages.ROOT / "mine"
    mine.mkdir()
    (mine / "a letter").touch()
    assert start(pages, "pages", str(mine)) == 2
    assert f"{mine} holds other things" in only_sentence(capsys)
    for words in (["a", "b"], ["--port"]):
        assert start(pages, "pages", *words) == 2
        assert "pages takes one folder" in only_sentence(capsys)
    assert pages.made == [] and (mine / "a letter").exists()
    assert start(pages, "pages", str(mine / "new")) == 0
    assert (mine / "new/1.html").exists()


def test_pages_that_cannot_be_made_leave_the_old_ones(pages, capsys):
    assert start(pages, "pages") == 0
    pages.fails = {"making": 1}
    assert start(pages, "pages", "--here") == 1
    told = only_sentence(capsys)
    needs = shlex.quote(str(pages.PAGES_NEED))
    assert "could not be made" in told and f"install -r {needs}" in told
    assert pages.made[-1] == Path(sys.executable)
    assert (pages.ROOT / ".pages/1.html").exists()
    pages.fails = {"install": NO_NAME}
    with pages.PAGES_NEED.open("a") as needs:
        needs.write("# changed\n")
    assert start(pages, "pages") == 1
    assert "check the network" in only_sentence(capsys)
    assert (pages.ROOT / ".pages/1.html").exists()


def test_packed_pages_are_shown_as_they_are(pages, monkeypatch):
    (pages.ROOT / ".wheels").mkdir()
    (pages.ROOT / ".pages" / "_static").mkdir(parents=True)
    (pages.ROOT / ".pages" / "_static" / "pages.js").touch()
    monkeypatch.setattr(pages, "make_pages", lambda *_: pytest.fail("made again"))
    assert "http.server" in start(pages, "pages", "--serve")


def test_pages_are_served_to_this_machine_only(pages, capsys):
    line = start(pages, "pages", "--serve")
    assert line[1:3] == ["-m", "http.server"] and "127.0.0.1" in line
    assert f"http://127.0.0.1:{line[3]}" in capsys.readouterr().out


# ---- doctor ----------------------------------------------------------------------


def test_doctor_says_in_one_screen_that_all_is_well():
    done = command("doctor", "--here", LC_ALL="POSIX", MASTER_ADDR="nowhere.invalid")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[-1] == "Every lesson can run here."
    assert "two ranks found 1 + 2 = 3" in done.stdout
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 88


def test_doctor_works_before_anything_is_installed(course, capsys):
    """Its exit code says whether this machine can run the course, and so it can."""
    assert start(course, "doctor") == 0
    shown = capsys.readouterr().out
    assert "\nEvery lesson can run here.\nThe course is not installed yet" in shown
    assert shown.endswith(" lab\n")
    assert len(shown.splitlines()) <= 24
    assert course.steps == []
    assert not (course.ROOT / ".venv").exists()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lacks_venv", lambda: True, "apt install python3-venv"),
        ("BUILDS", {}, "PyTorch has no builds for this machine"),
        ("nvidia", lambda: True, "make room until 10 GB are free"),
    ],
)
def test_doctor_says_before_what_will_stop_the_installation(
    course, capsys, monkeypatch, name, value, words
):
    used = shutil.disk_usage("/")._replace(free=5e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: used)
    assert start(course, "doctor") == 0
    monkeypatch.setattr(course, name, value)
    assert start(course, "doctor") == 1
    assert words in " ".join(capsys.readouterr().out.split())


def test_doctor_says_what_each_fault_needs(course, capsys, monkeypatch):
    def no_loopback():
        raise OSError("Network is unreachable")

    (course.ROOT / "requirements.txt").write_text("nbval>=999\n")
    monkeypatch.setattr(course, "loopback", no_loopback)
    monkeypatch.setattr(course, "free_megabytes", lambda: 1000)
    monkeypatch.setattr(course, "nvidia", lambda: True)
    assert start(course, "doctor", "--here") == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "what torch can use is known when all is installed" in shown
    assert "Memory is short: close programs" in shown
    assert "pip install 'nbval>=999'" in shown
    assert "(Network is unreachable): bring the loopback interface up" in shown
    assert "Every lesson" not in shown


def test_doctor_tries_the_two_ranks(course, capsys, monkeypatch):
    def reset(backend):
        raise RuntimeError(f"{backend}: connection reset")

    (course.ROOT / "requirements.txt").write_text("")
    monkeypatch.setattr(course, "all_reduce", reset)
    assert start(course, "doctor", "--here") == 1
    assert "(gloo: connection reset): bring" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    "words", ["--learners", "--learners 0", "--learners 1000", "--lerners 5", "15"]
)
def test_doctor_takes_a_number_of_learners(course, capsys, words):
    assert start(course, "doctor", "--here", *words.split()) == 2
    assert "doctor --learners 15" in only_sentence(capsys)


def test_learners_are_tried_by_the_python_of_the_course(course, monkeypatch):
    assert start(course, "doctor", "--learners", "3") == 2  # nothing is installed
    lines = []

    def run(line, **how):
        lines.append((line, how["cwd"]))
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(course, "doctor", lambda installed: 0)
    monkeypatch.setattr(subprocess, "run", run)
    assert start(course, "doctor", "--here", "--learners", "3") == 1
    line = [sys.executable, "-m", "ringside.learners", "3"]
    assert lines == [(line, course.ROOT / "notebooks")]


@pytest.mark.parametrize(
    ("gpus", "backend", "ranks"), [(0, "gloo", 4), (1, "gloo", 4), (8, "nccl", 8)]
)
def test_backend_and_ranks(course, gpus, backend, ranks):
    assert course.plan(gpus)[:2] == (backend, ranks)


MB = 2**20
NEW = ("sys/fs/cgroup/{}/memory.", "max", "current", "inactive_file")
OLD = ("sys/fs/cgroup/memory/{}/memory.", "limit_in_bytes", "usage_in_bytes")
OLD += ("inactive_file 1\ntotal_inactive_file",)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """What writes files below a folder that stands for the root of a machine."""
    free = SimpleNamespace(available=8000 * MB)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: free)

    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")

    return write


@pytest.mark.parametrize(
    ("groups", "files"),
    [("0::/job/step", NEW), ("9:pids:/no\n4:memory:/job/step\n0::/", OLD)],
    ids=["cgroup v2", "cgroup v1"],
)
def test_memory_respects_the_limits_of_every_cgroup_around(
    tmp_path, machine, groups, files
):
    """What files keep in memory is given back; a group may not tell how much it is."""
    folder, limit, used, cache = files
    assert free_megabytes(tmp_path) == 8000
    machine("proc/self/cgroup", groups)
    assert free_megabytes(tmp_path) == 8000
    for group, most, kept in (
        ("job/step", "max" if limit == "max" else 2**63 - 4096, 0),
        ("job", 5000 * MB, 700 * MB),
        ("", 4000 * MB, None),
    ):
        machine(folder.format(group) + limit, most)
        machine(folder.format(group) + used, 1000 * MB)
        stat = "anon 9" if kept is None else f"anon 9\n{cache} {kept}\nx 1"
        machine(folder.format(group) + "stat", stat)
    assert free_megabytes(tmp_path) == 3000
    machine(folder.format("") + limit, 6000 * MB)
    assert free_megabytes(tmp_path) == 4700


# ---- The two files of requirements -----------------------------------------------


def test_the_five_packages_have_a_floor_and_a_reason():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    names = [line.split(">=")[0] for line in lines]
    assert names == ["torch", "jupyterlab", "ipywidgets", "matplotlib", "nbval"]
    assert all(len(line.partition("#")[2].split()) >= 3 for line in lines)
    assert lines[0].split()[0] == "torch>=2.11"  # what a run on GPUs has had
    assert "2.11" in (ROOT / "README.md").read_text()


def test_the_exact_set_is_exact_and_holds_for_every_platform(course):
    text = (ROOT / "tests/constraints.txt").read_text()
    pins = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and not set(line) & set("+/@ ") for line in pins)
    exact = dict(line.lower().split("==") for line in pins)
    assert exact["torch"] == "2.13.0"
    assert not any(name.startswith(("nvidia", "cuda", "triton")) for name in exact)
    assert set(course.TOOLS) | {"uv", "psutil"} <= set(exact)
    for name, floor in course.floors():
        assert course.numbers(exact[name]) >= course.numbers(floor)


@pytest.fixture
def horovod(course, monkeypatch):
    """course.horovod, with compilers, and with a pip that leaves a wheel."""
    found = {"cmake", "g++"}
    noting = course.run

    def run(*command, **how):
        noting(*command, **how)
        if "-w" in command:
            folder = Path(command[command.index("-w") + 1])
            folder.mkdir()
            (folder / "horovod.whl").touch()

    monkeypatch.setattr(course, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in found else None)
    course.found = found
    return course


def kept(course) -> list[str]:
    """What course.py keeps in the user's cache."""
    folder = course.places()[1].parent
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


def test_horovod_is_compiled_once(horovod, capsys):
    """For this torch, with a compiler that speaks C++17; then it is only installed."""
    assert horovod.main(["horovod", "--here"]) == 0
    build = next(step for step in horovod.steps if " -w " in step)
    assert "HOROVOD_WITH_GLOO=1" in build and build.endswith("horovod==0.28.1")
    assert "2 to 8 minutes" in capsys.readouterr().out
    folder, wheel = sorted(kept(horovod))
    torch = importlib.metadata.version("torch")
    assert f"torch{torch}" in folder and wheel == f"{folder}/horovod.whl"
    horovod.steps.clear()
    assert horovod.main(["horovod", "--here"]) == 0
    first, second = horovod.steps
    assert "horovod.whl" in first and second == "-c import horovod.torch"
    assert horovod.main(["horovod", "--here", "now"]) == 2


def test_the_compiler_of_horovod_gets_the_newer_language_last(horovod, tmp_path):
    seen = []
    horovod.run, noting = (
        (
            lambda *words, **how: (
                seen.extend(
                    Path(word[4:]).read_text()
                    for word in words
                    if word.startswith("CXX=")
                )
                or noting(*words, **how)
            )
        ),
        horovod.run,
    )
    assert horovod.main(["horovod", "--here"]) == 0
    assert seen == ['#!/bin/sh\nexec g++ "$@" -std=c++17\n']


@pytest.mark.parametrize(
    ("word", "problem", "code", "says"),
    [
        (" -w ", "x\nerror: no member named foo\n", 1, "could not install"),
        (" -w ", KeyboardInterrupt(), 130, "stopped"),
        ("--target", "ERROR: HTTPSConnectionPool: no", 1, "check the network"),
        ("horovod.torch", "ImportError: undefined symbol", 1, "undefined symbol"),
    ],
)
def test_of_a_horovod_that_failed_nothing_is_left(
    horovod, capsys, word, problem, code, says
):
    horovod.fails[word] = problem
    assert horovod.main(["horovod", "--here"]) == code
    assert says in capsys.readouterr().err
    assert kept(horovod) == []
    removed = any("uninstall" in step for step in horovod.steps)
    assert removed == (word == "horovod.torch")


def test_without_network_a_compiled_horovod_stays(horovod, capsys):
    assert horovod.main(["horovod", "--here"]) == 0
    horovod.fails["horovod.whl"] = NO_NAME
    assert horovod.main(["horovod", "--here"]) == 1
    assert "check the network" in only_sentence(capsys)
    assert len(kept(horovod)) == 2


@pytest.mark.parametrize("lacks", ["cmake", "g++"])
def test_without_a_compiler_it_says_what_to_type(horovod, capsys, lacks):
    horovod.found.remove(lacks)
    assert horovod.main(["horovod", "--here"]) == 2
    said = capsys.readouterr().err
    assert f"{lacks} must compile" in said and "apt-get install" in said


def test_a_long_step_says_that_it_goes_on(course, monkeypatch, capsys):
    waits = threading.Event.wait

    def hurry(event, seconds=None):
        return waits(event, 0.01 if seconds == 20 else seconds)

    monkeypatch.setattr(threading.Event, "wait", hurry)
    with course.patience("Baking"):
        time.sleep(0.5)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "Baking" and second == "  0 seconds so far"
