"""What the notebooks import: it launches, draws and checks, and computes no lesson."""

from . import check
from .failure import RankFailed, RankTimeout
from .launch import Run, torchrun
from .mailboxes import Simulated, loopback, simulate
from .player import Picture, Player, film, still
from .recording import (
    Notes,
    Recording,
    WrongRecording,
    load,
    only,
    values,
    verify,
)
from .script import script_of
