"""Finds what stands in a notebook: its cells, and the functions they define."""

import ast
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
SCRIPTS = NOTEBOOKS.parent / "scripts"


def code_with(stem: str, text: str) -> nbformat.NotebookNode:
    """Return the one code cell of a lesson that has some text in it."""
    cells = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", 4).cells
    [found] = [c for c in cells if c.cell_type == "code" and text in c.source]
    return found


def quoted(stem: str, text: str) -> str:
    """Return the one piece of Python in the prose of a lesson that has some text."""
    cells = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", 4).cells
    prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    pieces = re.findall("^```python\\n(.*?)```", prose, re.DOTALL | re.MULTILINE)
    [found] = [piece for piece in pieces if text in piece]
    return found


def functions_of(stem: str, folder: Path) -> ModuleType:
    """Return a module with the imports, plain values, functions and classes."""
    cells = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", 4).cells
    parts = []
    for source in (cell.source for cell in cells if cell.cell_type == "code"):
        for node in ast.parse(source).body:
            kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
            known = isinstance(node, kinds)
            plain = not any(isinstance(part, ast.Call) for part in ast.walk(node))
            plain &= isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            known |= plain
            if known and not getattr(node, "decorator_list", None):
                parts.append(ast.get_source_segment(source, node))
    path = folder / f"cells_of_{stem}.py"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where inspect looks for its text
    spec.loader.exec_module(module)
    return module


def changed(stem: str, folder: Path, *changes: tuple[str, str]) -> Path:
    """Return a lesson's script in which some texts, each there once, are others."""
    text = (SCRIPTS / f"{stem}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    for name in ("shared.py", "timing.py"):  # which a script needs beside it
        shutil.copy(SCRIPTS / name, folder)
    (folder / f"{stem}.py").write_text(text, encoding="utf-8")
    return folder / f"{stem}.py"
