"""Functions that ranks run as scripts: what goes along, is refused, is shown."""

import ast
import functools
import linecache
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from random import Random, randint
from types import FunctionType, ModuleType

import pytest
import torch
import torch.distributed as dist
from IPython.core import interactiveshell
from ringside import RankFailed, RankTimeout, check, script_of, torchrun
from ringside.launch.client import server
from ringside.launch.failure import Refused
from ringside.launch.run import Turns
from torch import nn, ones
from torch.nn.parallel import DistributedDataParallel as Wrapped

SIZES = {"wide": [2, 3]}
numbers = torch.ones(3)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((SIZES["wide"][0],), 3.0))

    def forward(self, x):
        return twice(self.weight * x).sum()


def twice(x):
    return x * 2 if x.sum() else twice(x + 1)


def trains(rank, world_size, name="none"):
    model = Wrapped(Layer())
    model(torch.ones(2) * rank).backward()
    torch.optim.SGD(model.parameters(), lr=1).step()
    print(rank, world_size, name, model.module.weight.tolist())
    print(f"again, {timedelta(hours=1)}")


def same_name(rank, world_size):
    numbers = torch.full((1,), rank)
    dist.all_reduce(numbers)
    print([numbers.item() for numbers in numbers])


def test_ranks_run_what_stands_in_a_notebook(capfd):
    """A function comes with the functions, classes, values and imports it needs."""
    with server():
        pass  # the first launch of a process has a word more to say
    torchrun(trains, "o'four", ranks=2)
    shown = capfd.readouterr().out.splitlines()
    assert shown == [
        "$ torchrun --standalone --nproc-per-node 2 trains.py",
        "rank 0 | 0 2 o'four [2.0, 2.0]",
        "rank 1 | 1 2 o'four [2.0, 2.0]",
        "rank 0 | again, 1:00:00",
        "rank 1 | again, 1:00:00",
    ]


def test_a_local_name_hides_the_notebooks_own():
    run = torchrun(same_name, ranks=2, quiet=True)
    assert run.lines == {0: ["[1]"], 1: ["[1]"]}


def queue(rank, world_size):
    import queue  # a fresh interpreter looks beside the script first

    print(queue.Queue().empty())


def test_a_function_may_have_the_name_of_a_module(capfd):
    torchrun(queue, ranks=1, warm=False)
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].endswith(" queue_.py")
    assert shown[1:] == ["rank 0 | True"]


LOOK = """
import time

def threads():
    for path in Path("/proc/self/task").iterdir():
        try:
            yield (path / "comm").read_text().strip()
        except OSError:  # it has just ended
            pass

for _ in range(500):  # one that was waited for is listed a moment longer
    if "gloo" not in str(found := [*threads()]):
        break
    time.sleep(0.01)
print(found)
"""


def test_the_text_is_a_script_of_its_own(tmp_path):
    """Saved and started as the cell shows it, it prints the same, and ends cleanly."""
    look = "\nfrom pathlib import Path\n" + LOOK
    (tmp_path / "trains.py").write_text(script_of(trains, "saved") + look)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += ["--local-addr", "127.0.0.1", "--nproc-per-node", "1", "trains.py"]
    env = os.environ | {"PYTHONPATH": ""}
    how = {"capture_output": True, "text": True, "timeout": 120, "env": env}
    done = subprocess.run(line, cwd=tmp_path, **how)
    assert done.returncode == 0, done.stderr
    *said, threads = done.stdout.splitlines()
    assert said == torchrun(trains, "saved", ranks=1, quiet=True).lines[0]
    assert not re.search("gloo", threads), "the group outlives the script"


CELL = """import dataclasses

@dataclasses.dataclass
class Pair:
    left: int = 3

    def right(self):
        return self.left + 1

def pairs(rank, world_size):
    print(Pair(rank).right())

class Bare:
    left = 3

def bare(rank, world_size):
    print(Bare.left)
"""


def test_a_class_that_stands_in_a_notebook_goes_along(monkeypatch):
    """A notebook is no file; its cells are kept where tracebacks look for them."""
    name, notebook = "/tmp/ipykernel_1/2.py", ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    entry = (len(CELL), None, CELL.splitlines(keepends=True), name)
    monkeypatch.setitem(linecache.cache, name, entry)
    exec(compile(CELL, name, "exec"), notebook.__dict__)
    assert CELL[CELL.index("@") : CELL.index("def pairs")] in script_of(notebook.pairs)
    run = torchrun(notebook.pairs, ranks=2, quiet=True)
    assert run.lines == {0: ["1"], 1: ["2"]}
    with pytest.raises(Refused, match="text of Bare: a class is found by a def"):
        script_of(notebook.bare)


def evaluates(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)

    return wrapped


@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@evaluates
@torch.no_grad()
def halves(x):
    return ones(1) * x / 2


device, backend = "mine", "a pigeon"
never, kinds = float("inf"), range(2)
half = torch.bfloat16


def leaves(rank, world_size):
    print(device, backend, fibonacci(9), halves(3).item(), randint(4, 4), never, kinds)
    print(half, torch.get_default_dtype())
    dist.destroy_process_group()


def test_what_notebooks_have_goes_along_under_its_own_name():
    """Decorated functions, methods that a module lends, names that a script has."""
    run = torchrun(leaves, ranks=1, quiet=True)
    assert run.lines[0] == [
        "mine a pigeon 34 1.5 4 inf range(0, 2)",
        "torch.bfloat16 torch.float32",
    ]


def blocked(rank, world_size):
    dist.recv(torch.zeros(1), (rank + 1) % world_size)


def in_a_folder(rank, world_size):
    print(Path("here").name)


def test_a_name_is_imported_from_where_people_import_it():
    """Python 3.13 keeps Path in pathlib._local; a script is the same everywhere."""
    assert "\nfrom pathlib import Path\n" in script_of(in_a_folder)


def test_a_function_that_hangs_is_told_by_its_line():
    there = "in blocked: dist.recv(torch.zeros(1), (rank + 1) % world_size)"
    there = f"ranks 0 and 1 stood {there}"
    for timeout in (2, 10, 30):  # until both have come so far
        with pytest.raises(RankTimeout) as caught:
            torchrun(blocked, ranks=2, timeout=timeout, quiet=True)
        if caught.value.details == there:
            break
    assert caught.value.details == there


def fails(rank, world_size):
    print("before")
    dist.barrier()  # all have said so
    if rank == 1:
        raise ValueError(f"rank {rank} has no number")
    dist.barrier()


def test_a_function_that_fails_shows_what_came_before(capfd):
    with pytest.raises(RankFailed, match="^rank 1 raised ValueError: rank 1 has no"):
        torchrun(fails, ranks=2)
    shown = capfd.readouterr().out.splitlines()
    assert shown[1:] == ["rank 0 | before", "rank 1 | before"]


def outer(number):
    def inner(rank, world_size):
        print(number)

    return inner


def with_tensor(rank, world_size):
    print(numbers)


dice = Random(0).randint


def with_dice(rank, world_size):
    print(dice(1, 6))


def main(rank, world_size):
    print(rank)


def with_helper(rank, world_size):
    check.rank_9()


def opens(rank, world_size):
    with open("/dev/null") as nothing:
        print(nothing.read())


def test_a_notebook_s_own_open_stands_for_python_s(monkeypatch):
    """A kernel puts one of IPython's among the learner's names."""
    monkeypatch.setitem(opens.__globals__, "open", interactiveshell._modified_open)
    run = torchrun(opens, ranks=1, quiet=True)
    assert run.lines == {0: [""]}


@pytest.mark.parametrize(
    ("what", "how", "says"),
    [
        (lambda rank, world_size: 1, {}, "name a script, or a function made with def"),
        (print, {}, "name a script, or a function made with def"),
        (functools.partial(fails, 1), {}, "name a script, or a function made with def"),
        (outer(3), {}, "inner stands in another function, and uses its number"),
        (with_tensor, {}, "numbers, which with_tensor uses, is a Tensor in this note"),
        (with_dice, {}, "dice, which with_dice uses, can't be imported by its name"),
        (main, {}, "each script has its own main"),
        (with_helper, {}, "check is the notebook's helper: no rank has it"),
        (
            FunctionType(compile("def f(): 0", "?", "exec").co_consts[0], {}),
            {},
            "nobody kept the text of f: run its cell again",
        ),
        (fails, {"record": True}, "a script keeps a recording"),
        (fails, {"ranks": 0}, "ranks is a whole number"),
    ],
)
def test_what_ranks_can_not_run_is_refused(what, how, says):
    with pytest.raises(Refused, match=re.escape(says)):
        torchrun(what, **how)


def test_an_argument_must_be_written_down():
    with pytest.raises(Refused, match="the argument tensor.* is a Tensor in this"):
        torchrun(trains, numbers)


@pytest.mark.parametrize("came", ["001122", "210210", "221100", "012012"])
def test_lines_are_shown_in_turns_however_they_come(came):
    shown, count = [], {"0": 0, "1": 0, "2": 0}
    turns = Turns(lambda rank, line: shown.append((rank, line)), 3)
    for rank in came:
        turns(int(rank), count[rank])
        count[rank] += 1
    turns.rest()
    assert shown == [(rank, line) for line in (0, 1) for rank in (0, 1, 2)]


def test_a_rank_without_a_line_holds_up_no_other():
    shown = []
    turns = Turns(lambda rank, line: shown.append(f"{rank}{line}"), 3)
    for rank, line in [(2, "a"), (0, "a"), (2, "b"), (0, "b")]:
        turns(rank, line)
    assert shown == ["0a"], "rank 1 may still say something"
    turns.rest()
    assert shown == ["0a", "2a", "0b", "2b"]


def test_a_made_script_finds_its_device_as_the_others_do():
    path = Path(__file__).resolve().parents[1] / "scripts/shared.py"
    theirs, ours = (
        {part.name: ast.dump(part) for part in ast.parse(text).body if defines(part)}
        for text in (path.read_text("utf-8"), script_of(fails))
    )
    assert ours["own_device"] == theirs["own_device"]


def defines(part) -> bool:
    return isinstance(part, ast.FunctionDef)
