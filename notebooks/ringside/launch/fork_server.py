"""What a new fork server imports first: it ends with its supervisor, and has torch."""

import os

from . import in_rank

if parent := os.environ.pop("RINGSIDE_SUPERVISOR", None):  # a copy has none, and all
    in_rank.die_with(int(parent))  # first, for what follows takes seconds
    in_rank.preload()
    in_rank.settle()
