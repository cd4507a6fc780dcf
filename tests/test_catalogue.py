"""Tests the page of messages: each was said by a run of its lesson, or is said here."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch.distributed as dist
from ringside import torchrun

ROOT = Path(__file__).resolve().parents[1]
CELLS = [c.source for c in nbformat.read(ROOT / "notebooks/catalogue.ipynb", 4).cells]
CPU = {"CUDA_VISIBLE_DEVICES": ""}
LESSON = r"\[.+\]\((.+)\) \|$"
ROW = r"(?m)^\| ([^|]+) \| `([^`]+)` \| ([^|]+)\. \| (.+)\. \| " + LESSON
SOURCED = (
    r"(?m)^\| ([^|]+) \| \[`([^`]+)`\]\((.+?)\) \| ([^|]+)\. \| (.+)\. \| " + LESSON
)


def rows(cell: int, form: str = ROW) -> list[tuple[str, ...]]:
    """Return a table's rows: symptom, message, cause, cure, lesson."""
    found = re.findall(form, CELLS[cell])
    assert len(found) == CELLS[cell].count("\n| ") - 1, "a row has another form"
    return found


def said(path: Path) -> str:
    """Return all text that the cells of a notebook have printed."""
    found = ""
    for cell in nbformat.read(path, 4).cells:
        for output in cell.get("outputs", []):
            found += "".join(output.get("text", ""))
    return found


@pytest.mark.parametrize("row", rows(0), ids=lambda row: row[1][:40])
def test_a_message_of_the_catalogue_was_said_by_its_lesson(row):
    """Word for word: the text stands in what a cell of that lesson has printed."""
    _, message, *_, name = row
    assert message in said(ROOT / "notebooks" / name)


ERROR = re.compile(
    r"\w(Error|Exception|Warning)\b|\berror: |\braised\b|\b(was|were) (killed|ended)\b"
    r"|[Ff]ailed|FAILED|[Tt]imed? ?out|[Cc]an't|doesn't|not been|not compiled|mismatch"
    r"|by peer|refused|[Dd]eprecat|[Uu]nable|Invalid|Terminated|Too many|No space"
)
OWN = {  # what a line has that is no message of torch, Python or a launcher, and why
    "FileNotFoundError: part-": "hangs lets a rank raise it, and says so",
    "timeout=timedelta(minutes=1)": "launchers prints a script",
    "one rank was refused: True": "two nodes has its message a cell before",
    "ranks meet, ": "Slurm counts, and prints the message itself before",
    "a worker failed, restarts left": "the twin script's words for torchrun's",
    "horovodrun failed: True": "Horovod's message stands two lines before",
}


def test_an_error_that_a_lesson_prints_has_a_row():
    """A line that reads like an error has a piece that stands in one of the tables.

    Pieces are the messages, and what the first column quotes beside them.
    """
    first_two = re.findall(r"(?m)^(\| [^|]+ \| [^|]+) \|", "\n".join(CELLS))
    quoted = re.findall("`([^`]+)`", "\n".join(first_two))
    pieces = [piece for piece in quoted if len(piece) >= 8]
    unknown, own = [], set()
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        for line in filter(ERROR.search, said(path).splitlines()):
            excused = {words for words in OWN if words in line}
            own |= excused
            if not excused and not any(piece in line for piece in pieces):
                unknown.append(f"{path.stem}: {line}")
    assert unknown == [] and own == {*OWN}


@pytest.mark.parametrize("cell", [0, 1, 2])
def test_a_table_is_sorted_and_its_lessons_are_there(cell):
    table = rows(cell, SOURCED if cell == 2 else ROW)
    messages = [row[1].lower() for row in table]
    assert messages == sorted(messages) and len({*messages}) == len(messages) > 5
    for *_, name in table:
        assert (ROOT / "notebooks" / name).exists()


def test_the_catalogue_is_one_click_away():
    page = nbformat.read(ROOT / "notebooks/33_when_it_breaks.ipynb", 4)
    assert "](catalogue.ipynb)" in page.cells[0].source


def says(rank, world_size, code):
    """Do what somebody did who then saw a message; print the message if it raises."""
    import os
    import signal
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Deadly(Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, i):
            os.kill(os.getpid(), signal.SIGKILL)

    class Stream(IterableDataset):
        def __len__(self):
            return 2

        def __iter__(self):
            return iter(range(4))

    names = {"torch": torch, "dist": dist, "nn": nn, "DDP": DistributedDataParallel}
    names |= {"DataLoader": DataLoader, "Deadly": Deadly, "Stream": Stream}
    names |= {"one": torch.ones(1, 1), "timedelta": timedelta, "rank": rank}
    try:
        exec(code, names)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "))


CODE = {
    "an autograd kernel was not registered": """
loss = nn.Linear(1, 1)(one).sum()
dist.all_reduce(loss)
loss.backward()""",
    "but did not find any unused parameters": """
model = DDP(nn.Linear(1, 1), find_unused_parameters=True)
model(one).sum().backward()""",
    "client socket has timed out after": """
dist.TCPStore("127.0.0.1", 1, 2, False, timeout=timedelta(seconds=1))""",
    "DataLoader worker (pid": """
list(DataLoader(Deadly(), num_workers=1, multiprocessing_context="fork"))""",
    "device_ids and output_device arguments only work with": """
DDP(nn.Linear(1, 1), device_ids=[0])""",
    "Distributed package doesn't have NCCL built in": """
dist.new_group(backend="nccl")""",
    "Grad strides do not match bucket view strides": """
images = torch.ones(2, 3, 4, 4)
model = DDP(nn.Conv2d(3, 8, 3)).to(memory_format=torch.channels_last)
model(images).sum().backward()""",
    "is not needed when a module doesn't have any parameter": """
DDP(nn.Linear(1, 1).requires_grad_(False))""",
    "Length of IterableDataset": """
loader = DataLoader(Stream(), batch_size=None, num_workers=0)
len(loader), list(loader)""",
    "No backend type associated with device type cpu": """
dist.all_reduce(one, group=dist.new_group(backend="cuda:gloo"))""",
    "DistributedDataParallel' object has no attribute": """
model = nn.Linear(1, 1)
model.classes = ["cat", "dog"]
DDP(model).classes""",
    "trying to initialize the default process group twice!": """
dist.init_process_group("gloo")""",
    "'pin_memory' argument is set as true but no accelerator is found": """
list(DataLoader([1.0], pin_memory=True))""",
    "appears not to match sizes of the same param": """
DDP(nn.Linear(1, 1 + rank))""",
    "Attempting to deserialize object on a CUDA device": """
import io
file = io.BytesIO()
torch.serialization.location_tag = lambda storage: "cuda:0"
torch.save(one, file)
file.seek(0)
torch.load(file, weights_only=True)""",
    "CheckpointException ranks": """
import tempfile
import torch.distributed.checkpoint as dcp
with tempfile.TemporaryDirectory() as folder:
    dcp.save({"weight": one}, checkpoint_id=folder)
    try:
        dcp.load({"other": one}, checkpoint_id=folder)
    except BaseException as error:
        print(error)
        assert not isinstance(error, Exception)""",
    "DDP expects same model across all ranks": """
DDP(nn.Linear(1, 1, bias=rank == 0))""",
    "does not support sparse gradients": """
table = nn.Embedding(3, 1, sparse=True)
table(torch.tensor([1])).sum().backward()
torch.optim.AdamW(table.parameters()).step()""",
    "Expected more than 1 value per channel when training": """
nn.BatchNorm1d(1)(one)""",
    "has been modified by an inplace operation": """
model = DDP(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
optimizer = torch.optim.SGD(model.parameters())
first, second = model(one).sum(), model(one).sum()
first.backward()
optimizer.step()
second.backward()""",
    "Invalid rank": """
torch.utils.data.DistributedSampler([1, 2], num_replicas=2, rank=2)""",
    "is deprecated, please use": """
dist.reduce_op.SUM""",
    "Our suggested max number of worker": """
DataLoader([1], num_workers=10_000)""",
    "Please check rank 0 logs for faulty rank": """
import time
if rank == 1:
    time.sleep(4)
else:
    dist.monitored_barrier(timeout=timedelta(seconds=2))""",
    "required CUDA 11+ and NCCL 2.10+": """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks
DDP(nn.Linear(1, 1)).register_comm_hook(None, hooks.bf16_compress_hook)""",
    "which does not belong to the given group": """
dist.all_reduce(one, group=dist.new_group([0]))""",
}
RANKS = {  # one, if not said here
    "appears not to match sizes of the same param": 2,
    "DDP expects same model across all ranks": 2,
    "Please check rank 0 logs for faulty rank": 3,
    "which does not belong to the given group": 2,
}

CURED = {  # the same, as the page says that it works
    "an autograd kernel was not registered": """
loss = nn.Linear(1, 1)(one).sum()
loss.backward()
dist.all_reduce(loss.detach())""",
    "but did not find any unused parameters": """
model = DDP(nn.Linear(1, 1))
model(one).sum().backward()""",
    "client socket has timed out after": """
first = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
dist.TCPStore("127.0.0.1", first.port, 2, False, timeout=timedelta(seconds=60))""",
    "device_ids and output_device arguments only work with": """
DDP(nn.Linear(1, 1))""",
    "Distributed package doesn't have NCCL built in": """
dist.new_group(backend="gloo")""",
    "Grad strides do not match bucket view strides": """
images = torch.ones(2, 3, 4, 4)
model = DDP(nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last))
model(images).sum().backward()""",
    "is not needed when a module doesn't have any parameter": """
nn.Linear(1, 1).requires_grad_(False)(one)""",
    "Length of IterableDataset": """
Stream.__len__ = lambda stream: 4
loader = DataLoader(Stream(), batch_size=None, num_workers=0)
len(loader), list(loader)""",
    "No backend type associated with device type cpu": """
dist.all_reduce(one, group=dist.new_group(backend="cpu:gloo,cuda:gloo"))""",
    "DistributedDataParallel' object has no attribute": """
model = nn.Linear(1, 1)
model.classes = ["cat", "dog"]
DDP(model).module.classes""",
    "'pin_memory' argument is set as true but no accelerator is found": """
list(DataLoader([1.0]))""",
    "Attempting to deserialize object on a CUDA device": """
import io
file = io.BytesIO()
torch.serialization.location_tag = lambda storage: "cuda:0"
torch.save(one, file)
file.seek(0)
torch.load(file, map_location="cpu", weights_only=True)""",
    "does not support sparse gradients": """
table = nn.Embedding(3, 1, sparse=True)
table(torch.tensor([1])).sum().backward()
torch.optim.SparseAdam(table.parameters()).step()
torch.optim.SGD(table.parameters()).step()""",
    "has been modified by an inplace operation": """
model = DDP(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
optimizer = torch.optim.SGD(model.parameters())
first, second = model(one).sum(), model(one).sum()
(first + second).backward()
optimizer.step()""",
    "Invalid rank": """
torch.utils.data.DistributedSampler([1, 2], num_replicas=2, rank=1)""",
    "is deprecated, please use": """
dist.ReduceOp.SUM""",
    "required CUDA 11+ and NCCL 2.10+": """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks
model = DDP(nn.Linear(1, 1))
model.register_comm_hook(None, hooks.fp16_compress_hook)
model(one).sum().backward()""",
    "which does not belong to the given group": """
members = dist.new_group([0])
if rank == 0:
    dist.all_reduce(one, group=members)""",
}

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
SPAWNS = """
import os, signal
import torch.multiprocessing as mp
def work(rank):
    {}
if {}:
    mp.spawn(work, nprocs=1)
"""
MAIN = "__name__ == '__main__'"
KILLED = """
import os, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
time.sleep(600)
"""
STORE = """
import subprocess, sys
from datetime import timedelta
import torch.distributed as dist
host = '''
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
'''
pipe = subprocess.PIPE
agent = subprocess.Popen([sys.executable, "-c", host], stdin=pipe, stdout=pipe)
port, limit = int(agent.stdout.readline()), timedelta(seconds=60)
store = dist.TCPStore("127.0.0.1", port, 2, False, timeout=limit)
agent.kill()
agent.wait()
for key in "ab":  # the first call sees the end, and the second one cannot send
    try:
        store.get(key)
    except dist.DistNetworkError as error:
        print(error)
"""
GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
RPC = """
import torch.distributed.rpc as rpc
rpc.init_rpc("alone", rank=0, world_size=1)
rpc.shutdown()
"""
JOBS = {  # words before the script, the script, variables, and all that it must say
    "a rank is killed": (
        [*TORCHRUN, "--nproc-per-node", "2"],
        KILLED,
        {},
        [
            "ChildFailedError",
            "exitcode: -9",
            "Setting OMP_NUM_THREADS environment variable",
            "Signal 15 (SIGTERM) received by PID",
        ],
    ),
    "no GPU": (
        [*TORCHRUN, "--nproc-per-node", "gpu"],
        "",
        {},
        ["Cuda is not available"],
    ),
    "the old launcher": (
        ["-m", "torch.distributed.launch", "--nproc-per-node", "1"],
        "",
        {},
        ["and will be removed in future. Use torchrun"],
    ),
    "spawned without a guard": (
        [],
        SPAWNS.format("pass", "True"),
        {},
        ["bootstrapping phase", "terminated with exit code 1"],
    ),
    "spawned, and killed": (
        [],
        SPAWNS.format("os.kill(os.getpid(), signal.SIGKILL)", MAIN),
        {},
        ["terminated with signal SIGKILL"],
    ),
    "spawned, and code below Python breaks": (
        [],
        SPAWNS.format("os.kill(os.getpid(), signal.SIGSEGV)", MAIN),
        {"PYTHONFAULTHANDLER": "1"},
        ["terminated with signal SIGSEGV"],
    ),
    "spawned, and it raises": (
        [],
        SPAWNS.format("raise KeyError", MAIN),
        {},
        ["terminated with the following error"],
    ),
    "the store is gone": (
        [],
        STORE,
        {},
        ["Failed to recv, got 0 bytes", "Broken pipe"],
    ),
    "no such interface": (
        [],
        GROUP,
        {"GLOO_SOCKET_IFNAME": "no-such"},
        ["Unable to find address for"],
    ),
    "no such way": (
        [],
        GROUP,
        {"GLOO_DEVICE_TRANSPORT": "NONE"},
        ["makeDeviceForHostname(): unsupported gloo device"],
    ),
    "RPC": (
        [],
        RPC,
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
        ["This usage is deprecated since PyTorch 2.0"],
    ),
}
BY_JOBS = {message for *_, told in JOBS.values() for message in told}


@pytest.mark.parametrize("row", rows(1), ids=lambda row: row[1][:40])
def test_a_message_of_the_second_table_is_said_here(row):
    message = row[1]
    if "NCCL" in message and dist.is_nccl_available():
        pytest.skip("this torch has NCCL")
    if message in CODE:
        ranks = RANKS.get(message, 1)
        run = torchrun(says, CODE[message], ranks=ranks, quiet=True, env=CPU)
        assert message in " ".join([*sum(run.lines.values(), []), *run.stderr.values()])
    else:
        assert message in BY_JOBS | {"got signal: 1"}


def test_no_message_is_said_for_nothing():
    assert {row[1] for row in rows(1)} == {*CODE} | BY_JOBS | {"got signal: 1"}


@pytest.mark.parametrize("job", JOBS)
def test_a_message_of_a_launcher_or_of_a_lone_process_is_said_here(job, tmp_path):
    words, script, variables, told = JOBS[job]
    path = tmp_path / "job.py"
    path.write_text(script)
    env = {name: v for name, v in os.environ.items() if name != "OMP_NUM_THREADS"}
    how = {"env": env | CPU | variables, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words, path], timeout=300, **how)
    all_of_it = done.stdout + done.stderr
    assert [message for message in told if message not in all_of_it] == []
    assert "PYTHONFAULTHANDLER" not in variables or 'job.py", line' in all_of_it


@pytest.mark.parametrize("message", CURED)
def test_the_cure_is_not_followed_by_the_message(message):
    ranks = RANKS.get(message, 1)
    run = torchrun(says, CURED[message], ranks=ranks, quiet=True, env=CPU)
    assert sum(run.lines.values(), []) == []
    assert message not in "".join(run.stderr.values())


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_torchrun_hears_that_a_terminal_has_closed(tmp_path):
    """So it does in spite of nohup, which ignores that signal; the option mends it."""
    path = tmp_path / "sleeps.py"
    path.write_text("import time; print('begun', flush=True); time.sleep(600)\n")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    mended = ["--signals-to-handle", "SIGTERM,SIGINT,SIGQUIT"]
    logs, agents = [tmp_path / "plain.log", tmp_path / "mended.log"], []
    for log, options in zip(logs, [[], mended], strict=True):
        with log.open("w") as out:
            command = ["nohup", *launch, *options, path]
            agents.append(subprocess.Popen(command, stdout=out, stderr=out))
    try:
        while not all("begun" in log.read_text() for log in logs):
            assert all(agent.poll() is None for agent in agents)
            time.sleep(0.1)
        for agent in agents:
            agent.send_signal(signal.SIGHUP)
        agents[0].wait(300)
        assert "got signal: 1" in logs[0].read_text()
        assert agents[1].poll() is None
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait(300)


def test_the_third_table_quotes_what_torch_says():
    """Python is read, and what was compiled is searched, where this torch has it.

    NCCL's calls are only in a torch for GPUs; CUDA's own words are NVIDIA's.
    """
    torch = Path(importlib.util.find_spec("torch").origin).parent
    compiled = [path.read_bytes() for path in (torch / "lib").glob("libtorch_*.so")]
    found = 0
    for _, message, link, *_ in rows(2, SOURCED):
        path = link.partition("/blob/cf30153/torch/")[2]
        if path.endswith(".py"):
            assert message in (torch / path).read_text()
        elif path and compiled and ("NCCL" not in path or dist.is_nccl_available()):
            assert any(message.encode() in library for library in compiled)
        found += bool(path)
    assert found > 5


def test_the_third_table_says_where_each_message_was_seen():
    """In a source at a fixed commit or release, or on a page of torch's manual."""
    fixed = r"https://github.com/[^/]+/[^/]+/blob/(v\d[\w.-]+|[0-9a-f]{7,40})/.+"
    manual = r"https://docs\.pytorch\.org/docs/2\.\d+/.+"
    for _, message, link, *_ in rows(2, SOURCED):
        assert re.fullmatch(f"{fixed}|{manual}", link), message
