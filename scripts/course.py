#!/usr/bin/env python3
"""Start Ringside, the course on data-parallel PyTorch.

    python3 scripts/course.py lab       install what is needed, open JupyterLab
    python3 scripts/course.py test      run every test, every script, every notebook
    python3 scripts/course.py doctor    say what this machine can run
    python3 scripts/course.py pages     make pages that open without installing
    python3 scripts/course.py horovod   compile Horovod, for its page
    python3 scripts/course.py pack DIR  make a folder that installs without a network

`lab` and `test` make the folder .venv once, and start quickly from then on. What
stands behind `lab` is passed on to JupyterLab, what stands behind `test` to pytest,
which counts paths from the folder of the course:

    python3 scripts/course.py lab --no-browser --port 9999
    python3 scripts/course.py test tests/test_course.py -k "half made"

`lab --copy FOLDER` opens a copy of your own, without what the cells have printed. What
you change there is never replaced: a newer version is put beside it.

`test --quick` takes less than a minute: pages as they are written, pictures, checkers,
one lesson and its script. With --stamp, `test` notes in figures/ran.json with what each
lesson ran; `pages` says it on each page.

`pages` writes into the folder .pages, or into another one that you name, and needs
neither torch nor .venv; --serve shows them at an address of this machine.

`pack` copies the course with its packages, for this kind of machine, or for those that
you name: course.py pack DIR linux-x86_64-3.12 macos-arm64-3.13. There, `lab` asks no
network for anything, and `pages` shows what was made when it was packed. Torch comes
as with `lab`: with CUDA if a GPU is here.

`doctor --learners 15` has so many learners run a cell of four ranks at once, and says
how long they wait, and what runs out first.

Add --here to use the Python that runs course.py, with the packages it has, instead
of .venv (JupyterHub, Colab, a cluster's own torch). Then nothing is installed.
"""

import errno
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDS = ROOT / "requirements.txt"
PAGES_NEED = ROOT / "notebooks" / "ringside" / "pages" / "needs.txt"
EXACT = ROOT / "tests" / "constraints.txt"
WHEELS = ROOT / ".wheels"  # of a folder that `pack` has made
BUILDS = {"linux": ("x86_64", "aarch64"), "darwin": ("arm64",)}  # of PyTorch
TOOLS = ("pytest", "pytest-xdist", "ruff", "mypy", "playwright")  # for `test` alone
KINDS = {  # of machines, as uv calls them, and the wheels that each can use
    "linux-x86_64": "x86_64-manylinux_2_28",
    "linux-aarch64": "aarch64-manylinux_2_28",
    "macos-arm64": "aarch64-apple-darwin",
}
PACKED = (".jupyter", ".mypy.ini", ".pytest.ini", ".ruff.toml", "LICENSE", "README.md")
PACKED += ("figures", "notebooks", "requirements.txt", "scripts", "tests")
HOROVOD = "horovod==0.28.1"  # the last one, of 2023
HOROVOD_BUILDS = ("setuptools<81", "wheel", "packaging")  # newer ones cannot build it
HOROVOD_NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging")
WAITING = 3600  # seconds for another course.py to install
OLDEST = (3, 11)
PYTHON = "{}.{}".format(*sys.version_info)
GB = 1e9
NO_VENV = "Python lacks its venv module: install it (on Debian and Ubuntu: sudo apt "
NO_VENV += "install python3-venv) and start again, or use --here."
NO_FOLDER = "there is no folder to install in: name one, which nobody else can write, "
NO_FOLDER += "in XDG_CACHE_HOME."
UNREACHABLE = r"^ *WARNING: Retrying \(Retry\(total=0\b|^ERROR: .*HTTPS?Connection|"
UNREACHABLE += r"^pip\._vendor\.urllib3\S*: |^error: incomplete-download"  # pip's words
CELL = r"^notebooks/(\d\d\w*)\.ipynb::"  # a test that nbval makes of a lesson's cell
LAUNCH = r"^tests/test_scripts\.py::test_(?:every_script_ends_with_ok|"
LAUNCH += r"fresh_ranks_print_the_same_and_end_as_cleanly)\[(\d\d[a-z]*_\w+)"
QUICK = ["tests/test_house.py", "tests/test_recording.py", "tests/test_check.py"]
QUICK += [
    "tests/test_catalogue.py::test_a_message_of_the_catalogue_was_said_by_its_lesson"
]
QUICK += ["tests/test_scripts.py::test_every_script_ends_with_ok[03_ring_all_reduce-4]"]
QUICK += ["notebooks/03_ring_all_reduce.ipynb"]
LESSON = r"(?:/(?:test_)?|\[)(\d\d[a-z]?)(?=_|\.py)"  # whose minutes a test takes


class CourseError(Exception):
    """The reason why course.py can't go on, in one sentence, and the exit code."""

    def __init__(self, reason, code=1):
        super().__init__(reason)
        self.code = code


class UnreachableError(CourseError):
    """As above, before anything was changed."""


def main(argv):
    """Do what the command line asks; the result is the exit code."""
    words = [word for word in argv if word != "--here"]
    helped = {"-h", "--help"}.intersection(words)
    if not words or words[0] in helped:
        print(__doc__.strip())
        return 0
    command, extra, here = words[0], words[1:], "--here" in argv
    try:
        if sys.version_info[:2] < OLDEST:
            this = f"{platform.python_version()} ({sys.executable})"
            raise CourseError(
                f"Python 3.11 or newer is needed; this is {this}: start a newer one, "
                "as in python3.12 scripts/course.py lab."
            )
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # for any path in any locale
        if os.name == "nt":
            raise CourseError("the course does not run on native Windows: use WSL2.", 2)
        if command not in ("lab", "test", "doctor", "pages", "horovod", "pack"):
            commands = "lab, test, doctor, pages, horovod or pack"
            raise CourseError(f"{command!r} is no command: type {commands}.", 2)
        # What follows may change the folder that we are in.
        place = extra.index("--copy") + 1 if "--copy" in extra else 0
        if extra[place:] and (place or command == "pack" and not helped):
            extra[place] = os.path.abspath(extra[place])
        if command == "pages":
            if helped:
                print(__doc__.strip())
                return 0
            return pages(extra, here)
        tools = {"test": TOOLS, "pack": ("uv",)}.get(command, ())
        installed = here or any(complete(venv, tools) for venv in places())
        if helped and (command in ("doctor", "horovod", "pack") or not installed):
            print(__doc__.strip())
            return 0
        if not here and (installed or command != "doctor"):
            inside(tools, command, extra)
        if command == "doctor":
            number = learners(extra, installed)
            code = doctor(installed)
            return code or number and try_learners(number)
        lacking = missing(tools)
        if lacking:
            add = shlex.join([sys.executable, "-m", "pip", "install", *lacking])
            raise CourseError(
                f"this Python lacks {', '.join(lacking)}; to add it: {add}"
            )
        if helped:  # of the program that the words are passed on to
            program = "jupyterlab" if command == "lab" else "pytest"
            os.execv(sys.executable, [sys.executable, "-m", program, *extra])
        does = {"lab": lab, "test": test, "horovod": horovod, "pack": pack}
        return does[command](extra)
    except CourseError as stop:
        reason, code = stop, stop.code
    except OSError as error:
        reason, code = full_disk() if error.errno == errno.ENOSPC else error, 1
    except KeyboardInterrupt:
        reason, code = "stopped; an unfinished installation begins anew next time.", 130
    print(f"course.py: {reason}", file=sys.stderr)
    return code


def say(line):
    print(line, flush=True)


# ---- The environment -------------------------------------------------------------


def inside(tools, command, extra):
    """Become the same command, run by the Python of a complete environment."""
    whole = [venv for venv in places() if complete(venv, tools)]
    venv = whole[0] if whole else writable()
    python = str(venv / "bin" / "python")
    os.chdir(ROOT)  # away from files that hide a module of Python's own
    for name in ("PYTHONHOME", "PYTHONPATH"):
        os.environ.pop(name, None)
    path = f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.environ.update(VIRTUAL_ENV=str(venv), PATH=path, PYTHONUTF8="1", PIP_USER="0")
    os.environ.update(UV_HTTP_TIMEOUT="20", UV_HTTP_RETRIES="1")
    if not whole:
        make(venv, python, tools)
    again = [str(ROOT / "scripts" / "course.py"), command, "--here", *extra]
    os.execv(python, [python, *again])


def places(kind=""):
    """Where the environment may be: in the checkout, or in the user's cache folder."""
    name = "venv-" + hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:8]
    return [ROOT / f".venv{kind}", *(cache / f"{name}{kind}" for cache in caches())]


def caches():
    """The course's folder in the user's cache; none if others could put files there."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base, "ringside")
    return [folder] if folder.is_absolute() and ours_alone(folder) else []


def ours_alone(folder):
    """Whether nobody else but root can write in a folder, or put another in its way."""
    whole = folder.resolve()
    for path in {folder, *folder.parents, whole, *whole.parents}:
        with suppress(FileNotFoundError):  # then it will be made by us
            found = path.lstat()
            link, sticky = stat.S_ISLNK(found.st_mode), found.st_mode & stat.S_ISVTX
            others = found.st_mode & stat.S_IWOTH
            if found.st_gid != os.getgid():  # which is often a group of one
                others |= found.st_mode & stat.S_IWGRP
            if link or sticky and path != whole:  # as /tmp: they may add, not replace
                others = 0
            if others or found.st_uid not in (0, os.getuid()):
                return False
    return True


def writable(kind=""):
    """The first place where an environment can be made."""
    for venv in places(kind):
        try:
            venv.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
        if os.access(venv, os.W_OK):
            return venv
        say(f"{venv} can't be written")
    raise CourseError(NO_FOLDER)


def stamp(version):
    """What a complete environment has written in its file `ringside`."""
    files = NEEDS.read_bytes() + EXACT.read_bytes()
    return f"Python {version} {hashlib.sha256(files).hexdigest()}"


def complete(venv, tools):
    """Whether an environment has all that the files of the course now ask."""
    python = venv / "bin" / "python"
    try:
        told = (venv / "ringside").read_text()
    except OSError:
        return False
    version = "".join(told.split()[1:2])  # it need not be that of this Python
    site = venv / "lib" / f"python{version}" / "site-packages"
    runs = python.exists() and (version == PYTHON or version == version_of(python))
    whole = runs and not (venv / "unfinished").exists()
    return told == stamp(version) and whole and not missing(tools, [str(site)])


def make(venv, python, tools):
    """Make the environment complete, or mend it."""
    if lacks_venv():
        raise CourseError(NO_VENV)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # end pip, then this process
    unfinished = venv / "unfinished"
    with alone_in(venv):
        if complete(venv, tools):
            return  # another course.py made it while this one waited
        say(f"Making the environment {venv}")
        version = version_of(python)
        anew = unfinished.exists() or numbers(version) < [*OLDEST]
        if anew:
            Path(python).unlink(missing_ok=True)  # with no Python, it is not complete
            base = getattr(sys, "_base_executable", sys.executable)
            run(base, "-m", "venv", "--clear", "--without-pip", str(venv))
            version = PYTHON
        unfinished.touch()  # whatever stops this run, the next one makes it anew
        try:
            run(python, "-m", "ensurepip", "--default-pip")
            install(python, tools)
            run(python, "-c", "import " + ", ".join(name for name, _ in floors()))
        except UnreachableError:
            if not anew:
                unfinished.unlink()
            raise
        (venv / "ringside").write_text(stamp(version))
        unfinished.unlink()


def lacks_venv():
    return not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))


def version_of(python):
    """The version of an environment's Python, as 3.11; 0 if it does not run."""
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    line = [str(python), "-I", "-c", ask]  # -I: whatever PYTHONHOME says
    try:
        return subprocess.check_output(line, stderr=subprocess.DEVNULL).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return "0"


@contextmanager
def alone_in(folder):
    """Hold a lock, which ends with this process and the installers that it started."""
    import fcntl

    lock = os.open(folder, os.O_RDONLY)
    os.set_inheritable(lock, True)
    last = None
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last is None:
                    say("Another course.py is installing here: waiting for it")
                    last = time.monotonic() + WAITING
            if time.monotonic() > last:  # whoever can read a folder can lock it
                held = f"somebody has locked {folder} for {WAITING / 60:g} minutes"
                line = shlex.join(["fuser", "-v", str(folder)])
                raise CourseError(f"{held}: {line} tells who.")
            time.sleep(0.1)
        yield
    finally:
        os.close(lock)


def install(python, tools):
    """Install the packages, with pip's own progress on the screen."""
    pip = (python, "-m", "pip", "install", "-c", str(EXACT))
    if WHEELS.is_dir():
        install_packed(python)
        if tools:
            run(*pip, *tools, stdout=None)
        return
    size = "0.3 GB to download, 1.3 GB on disk"
    if sys.platform == "linux" and not cpu_torch(python, *pip):
        size = "3 GB to download, 7 GB on disk, as torch comes with CUDA"
    say(f"Installing the packages of the course: {size}")
    run(*pip, "-r", str(NEEDS), *tools, stdout=None)


def cpu_torch(python, *pip):
    """Have torch come without CUDA where no GPU is; the result says whether it does."""
    if nvidia():
        return False
    say("Asking pip what comes with torch")
    report = json.loads(run(*pip, "--quiet", "--dry-run", "--report", "-", "torch"))
    names = [package["metadata"]["name"].lower() for package in report["install"]]
    if not any(name.startswith(("nvidia-", "cuda-", "triton")) for name in names):
        return True
    say("No NVIDIA GPU is here: trying for torch without CUDA, 0.2 GB")
    uv = (python, "-m", "uv", "pip", "install", "--python", python, "-c", str(EXACT))
    try:
        run(*pip, "--quiet", "uv")
        run(*uv, "--no-deps", "--torch-backend", "cpu", "torch", stderr=None)
    except CourseError:
        say("Only torch with CUDA can be reached from here")
        return False
    return True


def this_kind():
    """The kind of machine that this is, and its Python, as `pack` calls both."""
    system = {"darwin": "macos"}.get(sys.platform, sys.platform)
    return f"{system}-{platform.machine()}-{PYTHON}"


def install_packed(python):
    """Install what `pack` has put beside the course; nothing else is asked."""
    lock = WHEELS / f"{this_kind()}.txt"
    if not lock.exists():
        packed = ", ".join(sorted(path.stem for path in WHEELS.glob("*-*.txt")))
        raise CourseError(
            f"this folder was packed for {packed or 'nothing yet'}, and this is "
            f"{this_kind()}: pack it for that, too.",
            2,
        )
    say("Installing the packages that lie beside the course: 1.3 GB on disk, or more")
    pip = (python, "-m", "pip", "install", "--no-index", "--find-links", str(WHEELS))
    run(*pip, "--require-hashes", "-r", str(lock), stdout=None)


def pack(extra):
    """Copy the course with the packages of some kinds of machines; the result is 0."""
    if not extra:
        raise CourseError("pack needs a folder.", 2)
    to, kinds = Path(extra[0]), extra[1:] or [this_kind()]
    for kind in kinds:
        name, _, python = kind.rpartition("-")
        if name not in KINDS or not re.fullmatch(r"3\.\d+", python):
            names = ", ".join(f"{name}-{PYTHON}" for name in KINDS)
            raise CourseError(f"{kind!r} is no kind of machine; such are {names}.", 2)
    if ROOT in (to, *to.parents):
        raise CourseError(f"{to} lies in the course itself: name another folder.", 2)
    wheels = to / WHEELS.name
    if to.exists() and not wheels.exists() and (not to.is_dir() or any(to.iterdir())):
        raise CourseError(f"{to} holds other things: name another folder.", 2)
    size = "3 GB, as torch comes with CUDA" if nvidia() else "0.2 to 0.3 GB"
    say(f"For each of {len(kinds)} kinds of machines, {size}")
    wheels.mkdir(parents=True, exist_ok=True)
    aside = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in PACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=aside, dirs_exist_ok=True)
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, to / name)
    for kind in kinds:
        pack_wheels(kind, wheels)
    pages([str(to / ".pages")], here=False)
    say(f"Packed: {to}. There, python3 scripts/course.py lab needs no network.")
    return 0


def pack_wheels(kind, wheels):
    """Download the wheels for a kind of machine; write down their hashes at the end."""
    name, _, python = kind.rpartition("-")
    arch = name.partition("-")[2]
    tags = [f"manylinux_2_{minor}_{arch}" for minor in range(28, 4, -1)]
    tags += [f"manylinux{year}_{arch}" for year in (2014, 2010, 1)]
    if name.startswith("macos"):
        tags = [f"macosx_14_0_{arch}"]
    get = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    get += ["--only-binary=:all:", "--python-version", python, "-d", str(wheels)]
    get += [word for tag in tags for word in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as folder:
        lock, part = Path(folder, "lock.txt"), Path(folder, "part.txt")
        exact_packages(KINDS[name], python, lock)
        places = {}  # torch without CUDA has an index of its own
        for package in re.findall(r"^\S.*(?:\n .*)*", lock.read_text(), re.M):
            index = re.search("# from (.+)", package)[1]
            places.setdefault(index, []).append(package)
        for index, packages in places.items():
            part.write_text("\n".join(packages))
            most = len(packages) == max(map(len, places.values()))
            at = [] if most else ["--index-url", index]
            run(*get, *at, "-r", str(part), stdout=None)
        shutil.copy(lock, wheels / f"{kind}.txt")


def exact_packages(kind, python, lock):
    """Write which packages a kind of machine needs, with hash and index of each."""
    os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "14.0")  # of torch's builds
    ask = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes"]
    ask += ["--no-header", "--no-annotate", "--emit-index-annotation"]
    ask += ["--python-version", python, "--python-platform", kind]
    ask += ["-c", str(EXACT), str(NEEDS), "-o", str(lock)]
    say(f"Asking which packages {kind} needs with Python {python}")
    if nvidia():
        run(*ask)
        return
    try:
        run(*ask, "--torch-backend", "cpu")
    except CourseError:
        say("Torch without CUDA can't be reached from here: for Linux, this takes 3 GB")
        run(*ask)


def nvidia():
    return os.path.exists("/proc/driver/nvidia") or bool(shutil.which("nvidia-smi"))


def run(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    """What a step printed; if it fails, an error that says why."""
    how = {"close_fds": False, "start_new_session": True, "errors": "replace"}
    child = subprocess.Popen(command, stdout=stdout, stderr=stderr, **how)
    try:
        out, err = child.communicate()
    except BaseException:
        for number in (signal.SIGINT, signal.SIGKILL):  # pip tidies up, all others end
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.communicate(timeout=5)
        raise
    if child.returncode:
        raise why((out or "") + (err or ""))
    return out


def why(text):
    """An error with the reason why a step failed, found in what the step wrote."""
    machine = f"Python {PYTHON} on {platform.system()} {platform.machine()}"
    if re.search("No space left|Errno 28|ENOSPC", text):
        return CourseError(full_disk())
    if re.search(UNREACHABLE, text, re.MULTILINE):
        return UnreachableError("pip can't reach its package index: check the network.")
    if re.search("No matching distribution|conflicting dependencies", text):
        return UnreachableError(
            f"pip finds no packages for {machine}: the course needs Linux or macOS 14 "
            "on Apple silicon, and an index that pip can see (pip config list)."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no word"]
    told = next(
        (line for line in lines if re.match(r"\w*E(rror|RROR):", line)), lines[-1]
    )
    return CourseError(f"could not install for {machine}: {told}")


def full_disk():
    folders = [p for p in (*places(), ROOT, Path(tempfile.gettempdir())) if p.exists()]
    free, folder = min((shutil.disk_usage(path).free, path) for path in folders)
    return f"the disk is full ({free / GB:.1f} GB left in {folder}): make room."


def floors():
    """The names and least versions in requirements.txt."""
    return re.findall(r"^([\w-]+)>=([\d.]+)", NEEDS.read_text(), flags=re.M)


def missing(tools=(), path=None):
    """What is asked for and not in this Python, or in the folders of a path."""
    from importlib import metadata  # here, for an old Python has none

    lacking, where = [], {"path": path} if path else {}
    for name, floor in [*floors(), *((tool, "0") for tool in tools)]:
        have = next(iter(metadata.distributions(name=name, **where)), None)
        if not have or numbers(have.version) < numbers(floor):
            lacking.append(name if floor == "0" else f"{name}>={floor}")
    return lacking


def numbers(version):
    return [int(n) for n in re.match(r"\d+(\.\d+)*", version)[0].split(".")]


# ---- lab and test ----------------------------------------------------------------


def lab(extra):
    """Become JupyterLab at the first lesson, with the settings in .jupyter."""
    root = ROOT
    if "--copy" in extra:
        place = extra.index("--copy")
        if len(extra) == place + 1:
            raise CourseError("--copy needs a folder.", 2)
        root = own_copy(Path(extra[place + 1]))
        extra = extra[:place] + extra[place + 2 :]
    lessons = sorted(root.glob("notebooks/[0-9][0-9]*_*.ipynb"))
    first = f"notebooks/{lessons[0].name}" if lessons else "README.md"
    os.chdir(root)
    settings = [os.environ.get("JUPYTER_CONFIG_PATH"), str(root / ".jupyter")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, settings))
    start = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}"]
    start.append(f"--LabApp.default_url=/lab/tree/{first}")
    start += encrypted()
    if not any(re.match(r"--(ServerApp\.)?(ip|sock)\b", word) for word in extra):
        start += on_loopback(" ".join(extra))
    os.execv(start[0], [*start, *extra])


def encrypted():
    """The option by which kernels talk in secret, where this Python's ZeroMQ can.

    Else each kernel warns that it does not; and where it can't, the option is an error.
    """
    with suppress(ImportError):
        import zmq

        if zmq.has("curve"):
            return ["--MappingKernelManager.transport_encryption=auto"]
    return []


def own_copy(to):
    """Bring a folder up to this version of the course; the result is the folder.

    A file that its owner has changed stays. If this version has another one, that is
    put beside it, under a name that is free.
    """
    if ROOT in (to, *to.parents):
        raise CourseError(f"{to} lies in the course itself: name another folder.", 2)
    book = to / ".ringside.json"  # what was put there, by its hash
    known = json.loads(book.read_text("utf-8")) if book.exists() else {}
    if not known and to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise CourseError(f"{to} holds other things: name another folder.", 2)
    for path in to_copy():
        name = path.relative_to(ROOT).as_posix()
        new = blank(path) if path.suffix == ".ipynb" else path.read_bytes()
        digest, mine = hashlib.sha256(new).hexdigest(), to / name
        if mine.exists():
            there = hashlib.sha256(mine.read_bytes()).hexdigest()
            if there not in (digest, known.get(name)):
                if known.get(name) == digest:
                    continue
                mine = beside(mine)
                say(f"You have changed {name}: its newer version is {mine.name}.")
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_bytes(new)
        known[name] = digest
        book.write_text(json.dumps(known, indent=1), "utf-8")
    return to


def to_copy():
    """The files of a learner's own copy: all but tests and what belongs to git."""
    for room in ("notebooks", "scripts", "figures", ".jupyter"):
        for path in sorted((ROOT / room).rglob("*")):
            odd = {"__pycache__", ".ipynb_checkpoints"}.intersection(path.parts)
            if path.is_file() and not odd and path.name != "conftest.py":
                yield path
    for name in ("README.md", "requirements.txt", "tests/constraints.txt"):
        yield ROOT / name


def blank(path):
    """A notebook without what its cells have printed."""
    page = json.loads(path.read_text("utf-8"))
    for cell in page["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    return (json.dumps(page, indent=1, ensure_ascii=False) + "\n").encode()


def beside(path):
    """A name beside a file that nothing has yet."""
    number = 1
    while True:
        new = path.with_name(f"{path.stem}.new{number}{path.suffix}")
        if not new.exists():
            return new
        number += 1


def on_loopback(extra):
    """The options for a JupyterLab on 127.0.0.1; a line is said on what is odd here."""
    options = ["--ServerApp.ip=127.0.0.1"]  # whatever a file of settings says
    if os.geteuid() == 0:
        options.append("--allow-root")
        say("You are root: JupyterLab listens on 127.0.0.1 only, and wants its token.")
    for address in others():
        say(f"This is a second lab; the first is open at {address}")
    asked = re.search(r"--(?:ServerApp\.)?port[= ](\d+)", extra)
    port = asked[1] if asked else os.environ.get("JUPYTER_PORT", "8888")
    if not port.isdecimal() or int(port) > 65535:
        raise CourseError(f"a port is a number up to 65535, not {port!r}.")
    port = int(port)
    try:
        loopback(port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        fault = f"{port} is taken" if taken else f"{port} can't be used ({error})"
        if asked:
            raise CourseError(f"port {fault}: name another, or none.") from None
        port = loopback()
        say(f"Port {fault}: this lab has port {port}.")
    if not asked:
        options.append(f"--ServerApp.port={port}")
    here = os.environ
    ssh = here.get("SSH_CONNECTION", "").split()
    if len(ssh) == 4:
        say("Type this on your own computer, and open the address below there:")
        line = f"ssh -N -L {port}:127.0.0.1:{port} -p {ssh[3]}"
        say(f"    {line} {here.get('USER', 'you')}@{ssh[2]}")
    elif "WSL_DISTRO_NAME" in here:
        say("This is WSL2: open the address below in a browser of Windows.")
    elif sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & set(here):
        return options
    else:
        say(f"No browser is here: open the address in one that reaches port {port}.")
    return [*options, "--no-browser"]


def others():
    """The addresses of JupyterLabs of the same user that show the same course."""
    from jupyter_core.paths import jupyter_runtime_dir

    for note in Path(jupyter_runtime_dir()).glob("jpserver-*.json"):
        with suppress(OSError, ValueError, KeyError):  # it has ended, or just begins
            server = json.loads(note.read_text())
            os.kill(server["pid"], 0)
            if server["root_dir"] == str(ROOT):
                yield f"{server['url']}lab?token={server['token']}"


def pages(extra, here):
    """Make the pages, and show them if that is asked; the result is the exit code."""
    folders = [word for word in extra if word != "--serve"]
    if len(folders) > 1 or folders and folders[0].startswith("-"):
        raise CourseError(f"pages takes one folder, not {shlex.join(folders)}.", 2)
    to = Path(*folders or [ROOT / ".pages"]).absolute()
    ours = (to / "_static" / "pages.js").exists()
    if to.exists() and not ours and (not to.is_dir() or any(to.iterdir())):
        raise CourseError(f"{to} holds other things: name another folder.", 2)
    python = sys.executable
    if not (WHEELS.is_dir() and ours):  # else they were packed, with the course
        python = python if here else str(pages_venv() / "bin" / "python")
        make_pages(to, python, here)
    say(f"The pages are here: {(to / 'index.html').as_uri()}")
    if "--serve" in extra:
        serve = ["-m", "http.server", str(loopback()), "--bind", "127.0.0.1"]
        say(f"Open http://127.0.0.1:{serve[2]}; Ctrl+C ends it.")
        os.execv(python, [python, *serve, "--directory", str(to)])
    return 0


def make_pages(to, python, here):
    """Make the pages, and put them in the place of older ones when they are whole."""
    say("Making the pages: a quarter of a minute or so")
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".pages-") as room:
        make = [python, "-m", "ringside.pages", str(Path(room, "new"))]
        done = subprocess.run(make, cwd=ROOT / "notebooks", env=clean())
        if done.returncode:
            line = shlex.join([python, "-m", "pip", "install", "-r", str(PAGES_NEED)])
            lacks = f" Perhaps this Python lacks tools: {line}" if here else ""
            raise CourseError(f"the pages could not be made.{lacks}")
        with suppress(FileNotFoundError):
            to.rename(Path(room, "old"))
        Path(room, "new").rename(to)


def clean():
    """The environment variables without those that move Python's packages."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def pages_venv():
    """The environment with the tools that make pages, complete."""
    if lacks_venv():
        raise CourseError(NO_VENV)
    venv = writable("-pages")
    python, told = str(venv / "bin" / "python"), venv / "ringside"
    whole = f"Python {PYTHON} {hashlib.sha256(PAGES_NEED.read_bytes()).hexdigest()}"
    with alone_in(venv):
        if told.exists() and told.read_text() == whole and os.path.exists(python):
            return venv
        told.unlink(missing_ok=True)
        say(f"Making the environment {venv}: 60 MB to download, 260 MB on disk")
        base = getattr(sys, "_base_executable", sys.executable)
        run(base, "-m", "venv", "--clear", "--without-pip", str(venv))
        run(python, "-m", "ensurepip", "--default-pip")
        pip = (python, "-m", "pip", "install", "-r", str(PAGES_NEED))
        run(*pip, stdout=None)
        told.write_text(whole)
    return venv


def horovod(extra):
    """Compile Horovod for this torch, once, and install it; the result is 0."""
    from importlib import metadata

    if extra:
        raise CourseError(f"horovod takes no {extra[0]!r}.", 2)
    pip = (sys.executable, "-m", "pip")
    if not caches():
        raise CourseError(NO_FOLDER)
    cache = caches()[0] / f"horovod-torch{metadata.version('torch')}-{PYTHON}"
    if not any(cache.glob("*.whl")):
        compile_horovod(pip, cache)
    [wheel] = cache.glob("*.whl")
    run(*pip, "install", "--quiet", str(wheel), *HOROVOD_NEEDS)
    try:
        run(sys.executable, "-c", "import horovod.torch")
    except BaseException:
        shutil.rmtree(cache)  # it may be of another compiler's making
        run(*pip, "uninstall", "--quiet", "--yes", "horovod")
        raise
    say("Horovod is installed. To undo that: python -m pip uninstall horovod")
    return 0


def compile_horovod(pip, cache):
    """Put a wheel of Horovod into a folder of the user's cache."""
    lacking = [name for name in ("cmake", "g++") if not shutil.which(name)]
    if lacking:
        raise CourseError(
            f"{' and '.join(lacking)} must compile Horovod, and is not here (on Debian "
            "and Ubuntu: sudo apt-get install -y build-essential cmake).",
            2,
        )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        compiler = Path(folder, "compiler")  # Horovod asks for C++14, torch for 17
        compiler.write_text('#!/bin/sh\nexec g++ "$@" -std=c++17\n')
        compiler.chmod(0o755)
        own, wheels = f"{folder}/own", Path(folder, "wheels")
        env = [f"HOROVOD_WITH_{name}=1" for name in ("PYTORCH", "GLOO")]
        env += [f"HOROVOD_WITHOUT_{name}=1" for name in ("TENSORFLOW", "MXNET", "MPI")]
        env += [f"CXX={compiler}", f"PYTHONPATH={own}", f"TMPDIR={folder}"]
        env += ["CMAKE_POLICY_VERSION_MINIMUM=3.5"]
        env += [f"MAKEFLAGS=-j{min(8, os.cpu_count() or 1)}"]  # a server has many
        run(*pip, "install", "--quiet", "--target", own, *HOROVOD_BUILDS)
        line = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels)]
        with patience("Compiling Horovod, which takes 2 to 8 minutes"):
            run("env", *env, *line, HOROVOD)
        wheels.replace(cache)


@contextmanager
def patience(doing):
    """Say what is being done, and every 20 seconds for how long."""
    begin, done = time.monotonic(), threading.Event()

    def tell():
        while not done.wait(20):
            say(f"  {round(time.monotonic() - begin)} seconds so far")

    say(doing)
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def test(extra):
    """Run pytest; the result is its exit code."""
    import pytest

    os.chdir(ROOT)
    sys.path[0] = str(ROOT)  # as with python -m pytest
    start, count = time.monotonic(), Count()
    words = [word for word in extra if word not in ("--stamp", "--quick")]
    words += QUICK if "--quick" in extra else []
    code = int(pytest.main([*lanes(words), *words], plugins=[count]))
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    say(f"Ran and passed: {count}; it took {minutes} min {seconds} s")
    count.say_minutes()
    if "--stamp" in extra:
        write_stamp(count.whole(CELL))
    return code


def write_stamp(lessons):
    """Note with what these lessons ran and printed what is committed; pages say it."""
    from importlib import metadata

    path = ROOT / "figures" / "ran.json"
    ran = json.loads(path.read_text()) if path.exists() else {}
    now = {"torch": metadata.version("torch").partition("+")[0]}
    now |= {"python": PYTHON, "processor": processor(), "date": time.strftime("%F")}
    ran |= dict.fromkeys(lessons, now)
    path.write_text(json.dumps(ran, indent=1, sort_keys=True) + "\n")


def processor():
    """The name of this machine's processor."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(r"^model name\s*: (.+)$", text, re.M)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def lanes(extra):
    """Lanes of test files, side by side: one more than cores, for some of them wait."""
    alone = any(re.match("-n|--dist|--pdb|-s$|--capture=no|-p$", w) for w in extra)
    cores = os.cpu_count() or 1
    if alone or cores < 2:
        return []
    number = min(max(free_megabytes() // 2500, 2), cores + 1, 4)
    return ["-n", str(number), "--dist", "loadfile", "--no-loadscope-reorder"]


class Count:
    """A pytest plugin that counts what ran and passed, and for how long."""

    def __init__(self):
        self.passed, self.failed, self.seconds = set(), set(), Counter()

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if report.failed or (report.passed and report.when == "call"):
            (self.failed if report.failed else self.passed).add(report.nodeid)

    def whole(self, pattern):
        """The lessons that a pattern finds in what passed, and not in what failed."""
        both = ("\n".join(tests) for tests in (self.passed, self.failed))
        green, red = (set(re.findall(pattern, text, re.M)) for text in both)
        return green - red

    def say_minutes(self):
        """Say how long each lesson's tests took, and which took longest."""
        taken = Counter()
        for test, seconds in self.seconds.items():
            lesson = re.search(LESSON, test)
            taken[lesson[1] if lesson else "the rest"] += seconds / 60
        told = ", ".join(f"{name} {spent:.1f}" for name, spent in sorted(taken.items()))
        say(textwrap.fill(f"Minutes of each lesson: {told}", 88))
        for test, seconds in self.seconds.most_common(10):
            say(f"{seconds:6.1f} s  {test}")

    def __str__(self):
        lessons, scripts = self.whole(CELL), self.whole(LAUNCH)
        cells = sum(bool(re.match(CELL, test)) for test in self.passed)
        return f"lessons {len(lessons)}, scripts {len(scripts)}, cells {cells}"


# ---- doctor ----------------------------------------------------------------------


def doctor(installed):
    """Print what this machine can run; the result is 0 if it can run every lesson."""
    from importlib import metadata

    lacking = missing() if installed else [name for name, _ in floors()]
    rows, faults, gpus, torch = {}, [], 0, None
    free, disk = free_megabytes() * 2**20, shutil.disk_usage(ROOT).free
    rows["machine"] = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{free / GB:.1f} GB of memory free, {disk / GB:.1f} GB of disk free"
    )
    prefix = Path(sys.prefix)
    prefix = prefix.relative_to(ROOT) if ROOT in prefix.parents else prefix
    rows["Python"] = f"{platform.python_version()} in {prefix}"
    end, room = ["Every lesson can run here."], 10 if nvidia() else 2
    if not installed:
        line = shlex.join(["python3", sys.argv[0], "lab"])
        end.append(f"The course is not installed yet, or not whole: run {line}")
        if platform.machine() not in BUILDS.get(sys.platform, ()):
            faults.append("PyTorch has no builds for this machine.")
        if lacks_venv():
            faults.append(NO_VENV)
        if disk < room * GB:
            faults.append(f"The disk is too full: make room until {room} GB are free.")
    elif lacking:
        line = shlex.join([sys.executable, "-m", "pip", "install", *lacking])
        faults.append(f"Packages are missing: run {line}")
    else:
        have = [f"{name} {metadata.version(name)}" for name, _ in floors()]
        rows["packages"] = ", ".join(have)
        try:
            import torch

            gpus = torch.cuda.device_count()
        except Exception as error:
            faults.append(f"torch does not load ({error}): remove .venv and run lab.")
    if gpus:
        rows["GPUs"] = f"{gpus}, {torch.cuda.get_device_name(0)}"
    elif nvidia():
        rows["GPUs"] = "none that torch can use: it has no CUDA, or the driver is old"
        if lacking:
            rows["GPUs"] = "NVIDIA's; what torch can use is known when all is installed"
    else:
        rows["GPUs"] = "none, and none is needed"
    backend, ranks, where = plan(gpus)
    rows["each lesson"] = f"{ranks} ranks on {where}, with {backend}"
    if free < 1.5 * GB:
        faults.append("Memory is short: close programs until 1.5 GB are free.")
    try:
        rows["loopback"] = f"127.0.0.1 answers, port {loopback()} is free"
        if torch:
            seconds = all_reduce(backend)
            rows["all-reduce"] = f"two ranks found 1 + 2 = 3 in {seconds:.1f} s"
    except Exception as error:
        told = (str(error).strip() or repr(error)).splitlines()[-1]
        faults.append(
            f"Two processes can't talk over 127.0.0.1 ({told}): bring the loopback "
            "interface up, or let this sandbox use it."
        )
    for name, text in rows.items():
        say(textwrap.fill(f"{name:13}{text}", 88, subsequent_indent=" " * 13))
    for line in faults or end:
        say(textwrap.fill(line, 88, break_long_words=False, break_on_hyphens=False))
    return 1 if faults else 0


def learners(extra, installed):
    """How many learners are to be tried at once; 0 if none are."""
    if not extra:
        return 0
    if extra[0] != "--learners" or not re.fullmatch("[1-9][0-9]{0,2}", extra[-1]):
        line = "course.py doctor --learners 15"
        raise CourseError(f"doctor takes a number of learners, as in {line}.", 2)
    if not installed or missing():
        raise CourseError("the course is not installed yet: run lab first.", 2)
    return int(extra[-1])


def try_learners(number):
    """Have so many kernels run a cell at once; the result is 0 if all could."""
    say(f"\n{number} learners at once, each with a kernel: a minute or so")
    line = [sys.executable, "-m", "ringside.learners", str(number)]
    return subprocess.run(line, cwd=ROOT / "notebooks", env=clean()).returncode


def plan(gpus):
    """The backend, the number of ranks, and what they run on, as torchrun() has it."""
    return ("nccl", gpus, "a GPU each") if gpus >= 2 else ("gloo", 4, "the CPU")


def free_megabytes():
    """The memory that is left, found as by a cell before it starts ranks."""
    sys.path.append(str(ROOT / "notebooks"))
    from ringside.launch.run import free_megabytes

    return free_megabytes()


def loopback(port=0):
    """A port that is free on 127.0.0.1, tried."""
    with socket.create_server(("127.0.0.1", port)) as door:
        socket.create_connection(door.getsockname(), timeout=5).close()
        return door.getsockname()[1]


def all_reduce(backend):
    """The seconds after which two new processes agree that 1 + 2 = 3."""
    from torch import multiprocessing

    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(one_rank, (backend, f"{folder}/store"), nprocs=2)
    return time.monotonic() - start


def one_rank(rank, backend, path):
    import torch
    import torch.distributed as dist

    how = {"rank": rank, "world_size": 2, "timeout": timedelta(seconds=30)}
    dist.init_process_group(backend, store=dist.FileStore(path, 2), **how)
    where = f"cuda:{rank}" if backend == "nccl" else "cpu"
    number = torch.tensor(rank + 1, device=where)
    dist.all_reduce(number)
    assert number.item() == 3, f"1 + 2 became {number.item()}"
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
