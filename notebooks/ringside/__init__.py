"""What the notebooks import: it launches, draws and checks, and computes no lesson.

launch/        runs a script, or a function of a cell, on several ranks
recording.py   reads a file that scripts/shared.py wrote, as a list of events with a
               header, and refuses it if a field lacks; the table of kinds and fields
draw/          makes a picture of a recording, or a player
check/         judges a learner's answers, one module for each lesson
standins/      plays what most of us do not have: nodes, Slurm, Horovod, more agents
taken_out.py   runs the first lesson's script without each of its changes

road.py        what is said of each page, from road.toml

pages/         makes a site of the notebooks: `course.py pages`
author/        makes lessons: `python -m ringside`
learners.py    lets several learners run a cell at once: `course.py doctor --learners`

Each of the six folders begins with a map. From `torchrun(...)` in a cell to a picture
the way leads through launch/, in the order of its map, the script itself, with
scripts/shared.py, recording.py, draw/player.py, a kind of picture such as draw/ring.py,
draw/svg.py, and, in the browser, draw/player.js.
"""

import os
from importlib import import_module

os.environ.setdefault("PYTHON_COLORS", "0")  # else what a cell starts prints colours

ROOMS = {
    ".draw.player": "Picture Player film still",
    ".launch": "RankFailed RankTimeout Run script_of torchrun",
    ".recording": "Notes Recording WrongRecording load only reads values verify",
    ".standins.agents": "Agent agents elastic",
    ".standins.horovod": "horovodrun",
    ".standins.nodes": "Nodes NodeFailed two_nodes",
    ".standins.slurm": "slurm",
    ".standins.threads": "Simulated at_barriers simulate simulate_ring",
    ".taken_out": "without_each",
}
ROOM = {name: room for room, names in ROOMS.items() for name in names.split()}
__all__ = ["check", *ROOM]  # noqa: PLE0604


def __getattr__(name: str):
    """Import what is asked for: the processes that start ranks need launch/ alone."""
    if name in ROOM:
        return getattr(import_module(ROOM[name], __name__), name)
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
