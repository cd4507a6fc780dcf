"""Makes a script of a function that stands in a notebook, so that ranks can run it."""

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import FunctionType, ModuleType

from .failure import Refused

HEAD = '''
"""{name}, from a notebook. Start it with torchrun."""

import gc
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: imported later, it keeps the group alive
'''
TAIL = '''
def own_device():
    """Return a GPU for this rank and nccl, or if they are too few, the CPU and gloo."""
    gpus, local_rank = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank), "nccl"
    if gpus and local_rank == 0:
        print(f"too few GPUs ({{gpus}}): all ranks use the CPU", file=sys.stderr)
    return torch.device("cpu"), "gloo"


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    {call}


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
'''


def script_of(function: Callable, *args: object) -> str:
    """Return a whole script in which each rank calls function(rank, world_size)."""
    name = getattr(function, "__name__", "")
    if not isinstance(function, FunctionType) or not name.isidentifier():
        raise Refused(f"name a script, or a function made with def, not {function!r}")
    if name in ("main", "own_device"):
        raise Refused(f"each script has its own {name}: call this function otherwise")
    parts: dict[str, str] = {}
    imports: list[str] = []
    collect(function, name, parts, imports)
    given = "".join(f", {literal(arg, f'the argument {arg!r}')}" for arg in args)
    head = HEAD.strip().format(name=name) + "\n"
    more = [line for line in dict.fromkeys(imports) if f"\n{line}\n" not in head]
    head += "".join(f"{line}\n" for line in more)
    tail = TAIL.strip().format(call=f"{name}(rank, world_size{given})")
    return "\n\n".join([head, *parts.values(), tail]) + "\n"


def file_of(function: Callable) -> str:
    """Return a name for the function's script that hides no module from the ranks."""
    name = function.__name__
    return f"{name}_.py" if PathFinder.find_spec(name) else f"{name}.py"


def collect(thing: Callable, name: str, parts: dict, imports: list[str]) -> None:
    """Put into parts the text of a function or a class, after all that it needs."""
    thing = inspect.unwrap(thing)  # its decorators stand in its text
    try:
        text = textwrap.dedent(text_of(thing))
    except (OSError, TypeError):
        why = "run its cell again"
        if isinstance(thing, type):
            why = "a class is found by a def in it, so write one"
        raise Refused(f"nobody kept the text of {name}: {why}") from None
    world = inspect.getmodule(thing).__dict__
    if isinstance(thing, FunctionType):
        world = thing.__globals__
        if thing.__code__.co_freevars:
            own = ", ".join(thing.__code__.co_freevars)
            raise Refused(f"{name} stands in another function, and uses its {own}")
    parts[name] = ""  # it may need itself
    for need in sorted(globals_in(text) & set(world)):
        value = world[need]
        inner = inspect.unwrap(value) if callable(value) else value
        module = getattr(inner, "__module__", None)
        if callable(value) and inner is vars(builtins).get(need):
            continue  # a notebook has an open() of its own around Python's
        if isinstance(value, ModuleType):
            imports.append(importing(value.__name__, None, need))
        elif isinstance(inner, FunctionType | type) and module == thing.__module__:
            if need not in parts:
                collect(value, need, parts, imports)
        elif callable(value) and hasattr(value, "__name__") and module:
            imports.append(importing(*home(value, f"{need}, which {name} uses,"), need))
        else:
            who = f"{need}, which {name} uses,"
            parts.setdefault(need, f"{need} = {literal(value, who)}\n")
    parts[name] = parts.pop(name) + text


def text_of(thing: Callable) -> str:
    """Return the text of a function or a class.

    Python looks for a class in the file of its module, and a notebook has none: look
    where a function of the class came from.
    """
    for own in vars(thing).values() if isinstance(thing, type) else []:
        code = getattr(inspect.unwrap(own), "__code__", None) if callable(own) else None
        lines = linecache.getlines(code.co_filename) if code else []
        for node in ast.parse("".join(lines)).body:
            if isinstance(node, ast.ClassDef) and node.name == thing.__name__:
                starts = [node.lineno, *(part.lineno for part in node.decorator_list)]
                first = min(starts)
                if code and first <= code.co_firstlineno <= (node.end_lineno or 0):
                    return "".join(lines[first - 1 : node.end_lineno])
    return inspect.getsource(thing)


def globals_in(text: str) -> set[str]:
    """Return the names that some code takes from outside."""
    found, tables = set(), [symtable.symtable(text, "", "exec")]
    while tables:
        table = tables.pop()
        outer = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (outer or symbol.is_global()):
                found.add(symbol.get_name())
        tables += table.get_children()
    return found


def home(value: Callable, who: str) -> tuple[str, str]:
    """Return the module from which a thing can be imported, and its name there."""
    module, name = value.__module__, value.__name__
    for place in (module.split("._")[0], module):  # not pathlib._local, but pathlib
        if getattr(sys.modules.get(place), name, None) is value:
            return place, name
    raise Refused(f"{who} can't be imported by its name: write it with its module's")


def importing(module: str, name: str | None, known: str) -> str:
    """Return the line that imports a module, or a name from it."""
    if module.partition(".")[0] == "ringside":
        raise Refused(f"{known} is the notebook's helper: no rank has it")
    what = name or module
    line = f"from {module} import {name}" if name else f"import {module}"
    return line if what == known else f"{line} as {known}"


def literal(value: object, who: str) -> str:
    """Return the text of a value that can be written down."""
    text = repr(value)
    if type(value) is float and text in ("inf", "-inf", "nan"):
        return f"float({text!r})"
    if type(value) is range or text.startswith("torch.") and text[6:].isalnum():
        return text
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError):
        pass
    kind = type(value).__name__
    raise Refused(
        f"{who} is a {kind} in this notebook, and ranks share nothing with it:"
        " make it in the function"
    )
