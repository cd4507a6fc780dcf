"""Keeps torch away from processes that a test can do without it.

An import of torch costs more than all else in most of these runs, and in a supervisor
torch._dynamo costs nearly as much again, which few ranks need.
"""

import textwrap
from pathlib import Path

SUPERVISOR, RANK = "ringside.launch.supervisor", "in_rank.py"  # words in their argv
NO_TORCH = "sys.modules['torch'] = None"  # a plain rank then does not wait for it
NO_DYNAMO = """
import importlib
whole = importlib.import_module
def most(name, package=None):
    return None if name == "torch._dynamo" else whole(name, package)
importlib.import_module = most
"""


def before_all(folder: Path, *texts: tuple[str, str]) -> str:
    """Return a folder for PYTHONPATH: a text runs first where argv has its word."""
    folder.mkdir(exist_ok=True)
    with (folder / "sitecustomize.py").open("w") as file:
        file.write("import sys\n")
        for word, text in texts:
            file.write(f"if {word!r} in str(sys.orig_argv):\n")
            file.write(textwrap.indent(textwrap.dedent(text).strip(), "    ") + "\n")
    return str(folder)
