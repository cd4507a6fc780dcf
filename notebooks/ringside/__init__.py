"""What the notebooks import: it launches, draws and checks, and computes no lesson.

launch/        runs a script, or a function of a cell, on several ranks
recording.py   reads what ranks recorded, and refuses what is wrong
draw/          makes a picture of a recording, or a player
check/         judges a learner's answers, one module for each lesson
mailboxes.py   runs ranks that are only simulated, as threads of the kernel

Each of the three folders begins with a map. `python -m ringside` makes lessons again.
"""

from . import check
from .draw.player import Picture, Player, film, still
from .launch import RankFailed, RankTimeout, Run, script_of, torchrun
from .mailboxes import Simulated, simulate
from .recording import (
    Notes,
    Recording,
    WrongRecording,
    load,
    only,
    values,
    verify,
)
