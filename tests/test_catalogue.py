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
    names |= {"one": torch.ones(1, 1), "timedelta": timedelta}
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
}


@pytest.mark.parametrize("row", rows(1), ids=lambda row: row[1][:40])
def test_a_message_of_the_second_table_is_said_here(row):
    message = row[1]
    if "NCCL" in message and dist.is_nccl_available():
        pytest.skip("this torch has NCCL")
    if message in CODE:
        run = torchrun(says, CODE[message], ranks=1, quiet=True, env=CPU)
        assert message in " ".join([*run.lines[0], run.stderr.get(0, "")])
    else:
        assert message == "got signal: 1"


@pytest.mark.parametrize("message", CURED)
def test_the_cure_is_not_followed_by_the_message(message):
    run = torchrun(says, CURED[message], ranks=1, quiet=True, env=CPU)
    assert run.lines[0] == [] and message not in run.stderr.get(0, "")


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
    """Where this torch has the text; NCCL and Windows have some of it elsewhere."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    found = 0
    for _, message, link, *_ in rows(2, SOURCED):
        if "/torch/" in link and link.endswith(".py"):
            assert message in (torch / link.partition("/torch/")[2]).read_text()
            found += 1
    assert found > 1
