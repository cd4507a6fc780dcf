"""Makes the files of a new lesson, which runs at once, and says what is left to do."""

import re
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from .. import road
from ..recording import ROOT

SCRIPT = '''"""Say in one sentence what it does.

    torchrun --standalone --nproc-per-node 4 scripts/{stem}.py

With --record PATH, rank 0 keeps what all did, as JSON lines. The last line begins with
"ok". The lesson: notebooks/{stem}.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, own_device, save_recording, start


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    device, backend = own_device()
    dist.init_process_group(backend, timeout=timedelta(minutes=1))

    # Each rank does its part, and notes what it holds.
    number = torch.tensor([rank + 1], device=device)
    events = [
        {{"step": 0, "rank": rank, "phase": "begin"}}
        | {{"holds": {{"number": [[number.item(), rank]]}}}}
    ]
    dist.all_reduce(number)

    # Something else tells what is right: one process, torch, or a formula.
    assert number.item() == world_size * (world_size + 1) // 2
    save_recording(args.record, events, picture="flow")
    if rank == 0:
        print(f"ok: {{world_size}} ranks agree")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
'''
CHECKER = '''"""Checks the answers of this page."""

from .table import asks


@asks(
    "four ranks find 1 + 2 + 3 + 4 = 10",
    like="sum=3",
    sum=(10, "{{}} is not the sum", {{4: "4 is what rank 3 has alone"}}),
)
def {checker}(sum: int):
    """Check a prediction: what each of four ranks has in the end."""
'''
TEST = '''"""Tests this lesson: break the script in one place, and see it noticed."""

import pytest
from lesson import changed
from ringside import RankFailed, torchrun

STEM = "{stem}"


def test_a_sum_that_is_wrong_is_noticed(tmp_path):
    broken = changed(STEM, tmp_path, ("dist.all_reduce(number)", "number += 1"))
    with pytest.raises(RankFailed):
        torchrun(broken, ranks=2, quiet=True)
'''
TOP = """# What is the question?

![Four ranks begin, each with its number.](../figures/{stem}.svg)

**Main road 1 minutes** · needs only a CPU · twin script: \
[scripts/{stem}.py](../scripts/{stem}.py)

**You are here:** nowhere yet

Make somebody want the answer."""
BET = """Before you run it, bet: four ranks add up 1, 2, 3 and 4. What has each of
them in the end? Replace the `...`."""
EXERCISE = """Say what the reader has now, and which question is left.

**Next:** nothing yet

## Exercise 1: by hand

What has each of four ranks in the end?"""
FOLDS = """<details><summary>Hint</summary>Begin with rank 0.</details>

<details><summary>Solution</summary>

```python
check.{checker}(sum=10)
```
</details>"""
ROW = """
[[page]]
stem = "{stem}"
name = "{words}"
question = "What is the question?"
rests_on = "{before}"
come_here = "something that this page is about"
vote = ["what has each of them? **10**", "*4*: nobody has added", "nothing yet"]
"""
LEFT = """
{stem} is there, and runs. What is left:
  ringside/road.toml               its question, its short name, a vote for teachers
  ../scripts/{stem}.py
                                   the lesson's main line; 80 to 150 lines
  {stem}.ipynb
                                   the page: the question pulls, the last screen pays
  ringside/check/lesson_{number}.py     two or three exercises that name the mistake
  ../tests/test_{number}.py             what would go wrong unnoticed
Then, again and again, python -m ringside {stem} and --map, and course.py test."""


def new(stem: str) -> None:
    """Write the files of a new lesson, or say why that cannot be."""
    found = re.fullmatch(r"(\d)\d_[a-z][a-z0-9_]+", stem)
    if not found or found[1] not in road.TABLE["parts"]:
        sys.exit(f"a lesson is called like 36_a_new_thing, not {stem}: see road.toml")
    number = road.number(stem)
    if number in road.BY_NUMBER:
        sys.exit(f"{number} is taken, by {road.BY_NUMBER[number].stem}")

    before = max((page.stem for page in road.PAGES if page.stem < stem), default="")
    fields = {"stem": stem, "number": number, "before": road.number(before)}
    fields |= {"words": stem[3:].replace("_", " "), "checker": f"sum_of_{number}"}
    helper = ROOT / "notebooks" / "ringside"
    files = {
        ROOT / "scripts" / f"{stem}.py": SCRIPT,
        helper / "check" / f"lesson_{number}.py": CHECKER,
        ROOT / "tests" / f"test_{number}.py": TEST,
    }
    page_path = ROOT / "notebooks" / f"{stem}.ipynb"
    if there := [path for path in (*files, page_path) if path.exists()]:
        sys.exit(f"{there[0].relative_to(ROOT)} is there already: name it otherwise")
    for path, text in files.items():
        path.write_text(text.format(**fields), "utf-8")
    cells = [
        new_markdown_cell(TOP.format(**fields)),
        new_markdown_cell(BET),
        new_code_cell("sum_of_all = ..."),
        new_markdown_cell("Four ranks run the twin script:"),
        new_code_cell(
            f"from ringside import Player, check, torchrun\n\n"
            f'run = torchrun("{stem}", ranks=4, record=True)\nPlayer(run.recording)'
        ),
        new_code_cell('check.bets(("the sum", sum_of_all, 10))'),
        new_markdown_cell(EXERCISE),
        new_code_cell(f"check.{fields['checker']}(sum=...)"),
        new_markdown_cell(FOLDS.format(**fields)),
        new_markdown_cell("**Next:** nothing yet"),
    ]
    page = new_notebook(cells=cells)
    for at, cell in enumerate(page.cells):
        cell["id"] = f"cell-{at}"
    nbformat.write(page, page_path)

    # Its row stands on the map where its number belongs.
    rows = [
        f'\n[[page]]\nstem = "{page.stem}"' for page in road.PAGES if page.stem > stem
    ]
    end = "\n# README's first screen"
    put_before([*rows, end][0], ROW.format(**fields), helper / "road.toml")
    print(LEFT.format(**fields).strip())


def put_before(mark: str, new: str, path: Path) -> None:
    """Put some text into a file before the first place of a mark."""
    text = path.read_text("utf-8")
    at = text.index(mark)
    path.write_text(text[:at] + new + text[at:], "utf-8")
