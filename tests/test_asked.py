"""What the tools of this folder answer to --help and to wrong words, and how soon."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import asked
import pytest

TESTS = Path(__file__).parent
WRONG = {
    "bench_launch": ["many"],
    "soak": ["--count", "0"],
    "bench_ring": ["--quik"],
    "gpu": ["one", "two"],
}
SECONDS = 1.0  # of a processor; to import torch takes more


def ask(tool: str, *words: str) -> tuple[subprocess.CompletedProcess, float]:
    """Return what a tool answers, and the processor's seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = [sys.executable, f"tests/{tool}.py", *words]
    env = os.environ | {"COLUMNS": "200", "PYTHON_COLORS": "0"}
    how = {"capture_output": True, "text": True, "cwd": TESTS.parent, "env": env}
    done = subprocess.run(line, **how)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_every_tool_is_asked():
    paths = [TESTS / "gpu.py", TESTS / "soak.py", *TESTS.glob("bench_*.py")]
    assert {path.stem for path in paths} == set(asked.TOOLS)


@pytest.mark.parametrize("tool", asked.TOOLS)
def test_help_is_told_at_once(tool):
    """And nothing is started: that would take longer."""
    done, seconds = ask(tool, "--help")
    first = (TESTS / f"{tool}.py").read_text("utf-8").partition("\n")[0]
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.startswith(f"usage: {tool}.py ")
    assert first.removeprefix('"""') in done.stdout
    assert seconds < SECONDS


@pytest.mark.parametrize("tool", asked.TOOLS)
def test_wrong_words_are_refused_in_one_line(tool):
    words = WRONG.get(tool, ["--no-such-word"])
    done, seconds = ask(tool, *words)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"{tool}.py: ") and done.stderr.count("\n") == 1
    assert seconds < SECONDS


def test_words_that_always_worked_still_do():
    path = TESTS / "bench_ring.py"
    assert vars(asked.words(path, [])) == {"quick": False, "race": None}
    assert asked.words(path, ["--race"]).race is True
    assert asked.words(path, ["--quick", "--race", "x.json"]).race == "x.json"
    assert asked.words(TESTS / "bench_launch.py", ["3"]).rounds == 3
    assert asked.words(TESTS / "bench_star.py", ["a.json"]).path == Path("a.json")
    assert asked.words(TESTS / "bench_gpu.py", ["caps", "sums"]).name == [
        "caps",
        "sums",
    ]
    assert asked.words(TESTS / "gpu.py", []).folder is None


def test_soak_shows_its_promises_and_runs_none():
    done, _ = ask("soak", "--list", "--only", "recv", "--only", "refused", "--quick")
    rows = [line.rsplit(None, 1) for line in done.stdout.splitlines()]
    assert ["1 interrupt: recv", "2"] in rows and len(rows) == 4
