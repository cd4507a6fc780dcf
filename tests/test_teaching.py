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
    """Two or three, unless the page for teachers says another number."""
    counted = {path.stem: prose(path).count("\n## Exercise") for path in PAGES}
    [nine] = re.findall(r"\]\((\w+)\.ipynb\) has nine,", TEXT)
    assert counted.pop(nine) == 9 and {*counted.values()} == {2, 3}


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


def answers(stem: str) -> set[str]:
    """Return the answers to the bets of a page, as its own cells print them."""
    cells = nbformat.read(ROOT / f"notebooks/{stem}.ipynb", 4).cells
    outputs = [o for cell in cells for o in cell.get("outputs", ())]
    printed = "".join(o.text for o in outputs if "text" in o)
    found = set(re.findall(r"(?m)  - +(\S.*?)  no bet yet$", printed))
    return found | {f"{float(a):.0f}" for a in found if re.match(r"[\d.]+$", a)}


def section(head: str) -> str:
    """Return the text of a part of the page for teachers."""
    [text] = [cell.source for cell in CELLS if cell.source.startswith(f"## {head}")]
    return text


def test_ninety_minutes_are_ninety_and_each_answer_is_the_page_s():
    _, *stations = section("Ninety minutes").split("\n### ")
    heads = [re.match(r"(\d+) minutes: \[.+\]\((\w+)\.ipynb\)\n", s) for s in stations]
    assert sum(int(head[1]) for head in heads) == 90
    evening = [page.stem for page in road.PARTS["the evening"]]
    assert [head[2] for head in heads] == evening
    for stem, text in zip(evening, stations):
        told = re.findall(r"\*\*(.+?)\*\*", text)
        assert told and {*told} <= answers(stem), stem
    [route] = [r for r in road.TABLE["route"] if r["time"] == "90 minutes"]
    assert [road.BY_NUMBER[n].stem for n in route["pages"].split()] == evening


def test_each_other_page_has_a_vote_and_its_answer_is_the_page_s():
    rows = re.findall(r"(?m)^\| \[.+?\]\((\w+)\.ipynb\) \| (.+)$", section("One vote"))
    evening = [page.stem for page in road.PARTS["the evening"]]
    assert [stem for stem, _ in rows] == road.STEMS[len(evening) :]
    for stem, row in rows:
        vote, wrong, talk = row.removesuffix(" |").split(" | ")
        [told] = re.findall(r"\*\*(.+?)\*\*", row)
        assert f"**{told}**" in vote and told in answers(stem), stem
        assert told not in re.findall(r"\*(.+?)\*", wrong) and talk, stem
