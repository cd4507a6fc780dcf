"""Checks a learner's answers: a wrong one gets the name of its mistake.

Each lesson has a file of checkers; all that are marked for learners can be called as
check.NAME. Predictions are judged by a table of data, of which
asks() in table.py makes a checker; a function of the learner's, by a function that
returns a mistake, or None. In verdict.py, says() makes either print one line, after a
look at blanks, and attempt() calls the learner's function, whose exception is the
mistake. And watched.py runs one on real ranks: it tells what each rank did, and who
waits for whom.

The tables also stand in pages/tables.json, by which a page without Python judges:
`python -m ringside --map` writes it.
"""

from importlib import import_module
from pathlib import Path

from .bets import bets
from .devices import all_devices

globals().update(
    {
        name: its
        for path in sorted(Path(__file__).parent.glob("lesson_*.py"))
        for name, its in vars(import_module(f".{path.stem}", __name__)).items()
        if getattr(its, "for_learners", False)
    }
)
del Path, import_module  # neither is a checker
