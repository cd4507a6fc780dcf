"""What the notebooks import: it launches, draws and checks, and computes no lesson."""

from .launch import Run, torchrun
from .player import Picture, Player, film, still
from .recording import check, load
