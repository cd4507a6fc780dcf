"""Holds `course.py doctor --learners` to what it says, with kernels that fail."""

import asyncio

import psutil
import pytest
from ringside import learners


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Kernels that import nothing; afterwards none of them is left."""
    monkeypatch.setattr(learners, "READY", "")
    yield
    children = psutil.Process().children(recursive=True)  # a launcher may be there
    assert not [child for child in children if "ipykernel" in str(child.cmdline())]


def tried(number: int, capsys) -> tuple[int, list[str]]:
    code = asyncio.run(learners.tried(number))
    return code, capsys.readouterr().out.splitlines()


def test_all_can_work_and_the_slowest_is_told(monkeypatch, capsys):
    monkeypatch.setattr(learners, "CELL", "import time; time.sleep(0.2)")
    code, said = tried(2, capsys)
    assert code == 0 and said[-1].startswith("Nothing ran out")
    assert [line.split(" at once")[0].strip() for line in said[1:3]] == ["1", "2"]
    assert all(float(line.split()[3]) >= 0.2 for line in said[1:3])


def test_a_cell_that_fails_and_a_kernel_that_is_killed_are_told(monkeypatch, capsys):
    fails = "import os; os.path.exists('.') and 1 / 0"
    monkeypatch.setattr(learners, "CELL", fails)
    code, said = tried(1, capsys)
    assert code == 1
    assert (
        said[-1] == "2 cells failed, as this one: ZeroDivisionError: division by zero"
    )
    monkeypatch.setattr(learners, "CELL", "import os; os.kill(os.getpid(), 9)")
    code, said = tried(1, capsys)
    assert code == 1 and "its kernel is gone" in said[-1]


def test_learners_stop_coming_before_the_memory_is_full(monkeypatch, capsys):
    free = iter([9000, 9000, 800])
    monkeypatch.setattr(learners, "free_megabytes", lambda: next(free, 700))
    monkeypatch.setattr(learners, "CELL", "")
    code, said = tried(5, capsys)
    assert code == 1
    assert said[-1] == "What ran out first: memory, when learner 2 came."
