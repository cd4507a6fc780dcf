"""Tests the page for teachers: what it counts, names and removes."""

import re
import shutil
from pathlib import Path

import nbformat
from ringside import check, road

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
CELLS = nbformat.read(ROOT / "notebooks/teaching.ipynb", 4).cells
TEXT = "\n\n".join(cell.source for cell in CELLS)


def prose(path: Path) -> str:
    """Return the text of a page, without its code."""
    cells = nbformat.read(path, 4).cells
    return "\n\n".join(c.source for c in cells if c.cell_type == "markdown")


def test_it_is_one_click_away_and_names_lessons_that_are_there():
    assert "](notebooks/teaching.ipynb)" in (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((\d\w+)\.ipynb\)", TEXT)
    assert len(links) > 15 and {*links} <= {*road.STEMS}


def test_a_lesson_has_as_many_exercises_as_it_says():
    """Three, unless the page for teachers says another number beside its link."""
    counted = {path.stem: prose(path).count("\n## Exercise") for path in PAGES}
    told = r"three in most lessons, (two in .+? and .+?), (nine in .+?),"
    [(two, nine)] = re.findall(told, TEXT)
    said = dict.fromkeys(re.findall(r"\((\w+)\.ipynb", two), 2)
    said |= dict.fromkeys(re.findall(r"\((\w+)\.ipynb", nine), 9)
    assert counted == dict.fromkeys(counted, 3) | said and len(said) == 3


def test_a_solved_exercise_is_counted(capsys):
    check.five_ranks(chunk=4, messages=8, bytes_sent=160)
    assert capsys.readouterr().out.startswith("right: ")
    check.five_ranks(chunk=3, messages=8, bytes_sent=160)
    assert capsys.readouterr().out.startswith("not yet: ")
    assert "grep -c '\"right: '" in TEXT


def test_the_solutions_go_and_all_else_stays(tmp_path, monkeypatch):
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "notebooks").mkdir()
    for path in PAGES:
        shutil.copy(path, tmp_path / "notebooks")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    for path in PAGES:
        old, new = prose(path), prose(tmp_path / "notebooks" / path.name)
        assert "<summary>Solution" in old and "<summary>Solution" not in new
        assert new.count("<details>") == new.count("</details>")
        for kept in ("<summary>Hint", "\n## ", "](.."):
            assert old.count(kept) == new.count(kept)
