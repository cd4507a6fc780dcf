"""Reads what is asked of a tool of this folder, before the tool imports anything slow.

So a tool imports this module first. Its help is the text that it begins with.
"""

import ast
import sys
from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
)
from pathlib import Path


def times(word: str) -> int:
    """Return a number of times, 1 or more."""
    if not word.isdecimal() or int(word) < 1:
        raise ArgumentTypeError(f"{word!r} is no whole number of 1 or more")
    return int(word)


QUICK = {"action": "store_true", "help": "far fewer rounds"}
PATH = {"nargs": "?", "type": Path, "help": "a JSON file for what was measured"}
FACTS = {"nargs": "*", "metavar": "NAME", "help": "a fact; all if none is named"}
GPU = {"nargs": "?", "type": Path, "help": "where the report goes"}
RACE = {"nargs": "?", "const": True, "metavar": "PATH", "help": "all ways, all sizes"}
ONLY = {"action": "append", "metavar": "NAME", "help": "promises with this in their"}
ONLY["help"] += " name; may stand several times"
COUNT = {"type": times, "metavar": "N", "help": "how often each is tried"}
LIST = {"action": "store_true", "help": "show the promises and their counts, no more"}
ROUNDS = {"nargs": "?", "type": times, "help": "how many"}

TOOLS = {
    "bench_alone": {"--quick": QUICK},
    "bench_ddp": {"--quick": QUICK},
    "bench_elastic": {"PATH": PATH},
    "bench_gpu": {"NAME": FACTS},
    "bench_horovod": {"PATH": PATH},
    "bench_launch": {"ROUNDS": ROUNDS},
    "bench_nodes": {"PATH": PATH},
    "bench_ring": {"--quick": QUICK, "--race": RACE},
    "bench_sampler": {"PATH": PATH},
    "bench_star": {"PATH": PATH},
    "bench_start": {"--quick": QUICK},
    "gpu": {"FOLDER": GPU},
    "soak": {"--quick": QUICK, "--only": ONLY, "--count": COUNT, "--list": LIST},
}


class Words(ArgumentParser):
    """A parser that refuses wrong words in one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (--help says more)\n")


def words(tool: Path, told: list[str]) -> Namespace:
    """Return what is asked of a tool; its help, or a refusal, ends this process."""
    text = ast.get_docstring(ast.parse(tool.read_text("utf-8")))
    how = {"formatter_class": RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = Words(tool.name, description=text, **how)
    for name, kind in TOOLS[tool.stem].items():
        if name.startswith("--"):
            parser.add_argument(name, **kind)
        else:
            parser.add_argument(name.lower(), **{"metavar": name} | kind)
    return parser.parse_args(told)


WORDS = Namespace()
main = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
ours = main.parent.resolve() == Path(__file__).parent.resolve() and main.stem in TOOLS
if ours and sys.argv[1:2] != ["be"]:  # that is a process of the tool's own
    WORDS = words(main, sys.argv[1:])
