"""Tests the pages that open without installing: made, walked, and used in a browser."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from ringside import check
from ringside.pages import forms, stage
from test_browser import launch  # noqa: F401 a fixture

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TABLES = {n: c for n, c in vars(check).items() if hasattr(c, "table")}
TOOLS = ROOT / ".venv-pages" / "bin" / "python"
LOUD = "NO PAGES WERE MADE. Their tools are missing: python3 scripts/course.py pages"


def cells(path):
    return json.loads(path.read_text("utf-8"))["cells"]


# ---- Forms -----------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_bet_has_a_field_and_an_answer(path):
    page = cells(path)
    bets, fields, folds = forms.bets_of(page), [], []
    for cell in page:
        if cell["cell_type"] == "code":
            html = "".join(forms.behind("".join(cell["source"]), bets))
            fields += re.findall(r'<input name="(\w+)"', html) if "bets" in html else []
            folds += re.findall(r'data-bet="(\w+)"', html)
            kept = [forms.without_answers(output) for output in cell["outputs"]]
            assert "no bet yet" not in json.dumps(kept)
    assert sorted(folds) == sorted(bets) and {*bets} <= {*fields}
    assert all(what and answer for what, answer in bets.values())


def test_each_table_has_fields_on_a_page():
    found = []
    for path in NOTEBOOKS:
        text = json.dumps(stage.staged(path.stem, cells(path), None))
        found += re.findall(r'ringside-exercise\\" data-name=\\"(\w+)', text)
    assert sorted(found) == sorted({*TABLES} - {"joined"})  # it is asked of a variable


def test_fields_take_the_place_of_dots():
    """What a cell says of them stays where the answer is code, which no page runs."""
    page = stage.staged("10_ranks_and_messages", cells(NOTEBOOKS[6]), None)
    [cell] = [cell for cell in page if "your turn" in json.dumps(cell.get("outputs"))]
    assert "def piece_from_each" in "".join(cell["source"])


def test_what_else_a_cell_printed_stays():
    rows = "           your bet   answer\nrepeats           -        1  no bet yet\n"
    output = {"text": ["31 % unread\n", rows, "\n"], "name": "stdout"}
    assert forms.without_answers(output)["text"].split() == ["31", "%", "unread"]


def test_the_tables_of_the_pages_are_those_of_the_checkers():
    told = json.loads(json.dumps({n: c.table for n, c in TABLES.items()}))
    assert told == forms.TABLES and len(told) > 30


@pytest.mark.parametrize(
    ("remote", "name"),
    [
        ("https://github.com/an-owner/a.course.git", "an-owner/a.course"),
        ("https://somebody:secret@github.com/owner/course", "owner/course"),
        ("git@github.com:owner/course.git", "owner/course"),
        ("https://example.org/owner/course.git", ""),
        ("/a/folder/of/mine", ""),
        (None, ""),
    ],
)
def test_a_page_knows_where_it_comes_from_and_keeps_no_secret(
    remote, name, tmp_path, monkeypatch
):
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    if remote:
        subprocess.run([*git, "remote", "add", "origin", remote], check=True)
    monkeypatch.setattr(stage, "ROOT", tmp_path)
    stage.repository.cache_clear()
    try:
        strip = stage.run_it("notebooks/01_split_the_batch.ipynb", None)
        assert stage.repository() == name and "secret" not in strip
        assert (f"git clone https://github.com/{name} " in strip) == bool(name)
    finally:
        stage.repository.cache_clear()


# ---- A browser judges as Python does -----------------------------------------------


def answers_to(table):
    """Return answers to all questions of a table: right, and each fault once."""
    right = {field["name"]: example(field["truth"]) for field in table["fields"]}
    found = [right]
    for row in table["before"]:
        found.append(right | {n: example(where) for n, where in row["if"].items()})
    for field in table["fields"]:
        for row in field["wrongs"]:
            found.append(right | {field["name"]: example(row)})
        found.append(right | {field["name"]: other(field)})
    return [given for given in found if None not in given.values()]


def example(where):
    """Return an answer that a row is about; None if only a pattern tells."""
    if "outside" in where:
        low, high = where["outside"]
        number = high + 1 if high is not None else low - 1
        several = {"len": [*range(max(number, 0))], "max": [number]}
        return several.get(where.get("of"), number)
    return where.get("is")


def other(field):
    """Return an answer that no row is about."""
    if field["kind"] in ("list", "set"):
        return [97, 98]
    if isinstance(field["kind"], list):
        return field["kind"][-1]
    others = {"int": 9753, "float": 9753.5, "bool": False}
    return others.get(str(field["kind"]), "another")


def test_a_page_judges_with_the_words_of_a_notebook(launch, tmp_path, capsys):  # noqa: F811
    """Each wrong answer of each table, typed into a form, and given to the checker."""
    body = "".join(
        forms.exercise((name, checker.table["takes"]))
        for name, checker in TABLES.items()
    )
    script = (ROOT / "notebooks/ringside/pages/pages.js").read_text("utf-8")
    path = tmp_path / "page.html"
    head = '<!doctype html><meta charset="utf-8"><article>'
    path.write_text(f"{head}{body}</article><script>{script}</script>", "utf-8")
    cases, expected = [], []
    for name, checker in TABLES.items():
        for given in answers_to(checker.table):
            checker(**given)
            expected.append(capsys.readouterr().out.strip())
            cases.append([name, {n: typed(answer) for n, answer in given.items()}])
    browser = launch()
    try:
        page = browser.new_page()
        page.goto(path.as_uri())
        said = page.evaluate(JUDGE, cases)
    finally:
        browser.close()
    assert len(cases) > 200
    for case, one, another in zip(cases, said, expected, strict=True):
        assert one == another, case


JUDGE = """cases => cases.map(([name, given]) => {
    const form = document.querySelector(`[data-name=${name}]`);
    for (const [field, text] of Object.entries(given))
        form.elements[field].value = text;
    form.requestSubmit();
    return form.querySelector("output").textContent;
})"""


def typed(answer):
    """Return what somebody types who means an answer."""
    return json.dumps(answer) if not isinstance(answer, str) else answer


# ---- All pages -------------------------------------------------------------------


class Links(HTMLParser):
    """Collects the places in a page, and the addresses that it leads to or loads."""

    def __init__(self, text):
        super().__init__()
        self.places, self.leads, self.loads = {""}, set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.places.add(attrs.get("id") or "")
        if tag == "a" and attrs.get("href"):
            self.leads.add(attrs["href"])
        elif tag in ("link", "script", "img", "iframe"):
            rel = attrs.get("rel", "")
            address = attrs.get("src") or attrs.get("href")
            if address and rel not in ("next", "prev", "index", "search"):
                self.loads.add(address)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder with all pages, made by the tools of `course.py pages`."""
    if not TOOLS.exists():
        pytest.skip(LOUD)
    folder = tmp_path_factory.mktemp("made") / "pages of a course"
    line = [TOOLS, "-m", "ringside.pages", folder]
    env = os.environ | {"PYTHONPATH": ""}
    done = subprocess.run(line, cwd=ROOT / "notebooks", env=env, timeout=600)
    assert done.returncode == 0
    return folder


def test_each_link_leads_somewhere_and_nothing_is_loaded_from_outside(made):
    paths = [p for p in made.rglob("*.html") if "_static" not in p.parts]
    pages = {path: Links(path.read_text("utf-8")) for path in paths}
    assert len(pages) > 60
    for path, page in pages.items():
        assert path.stat().st_size <= 400_000, path.name
        for address in page.leads | page.loads:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https"):
                assert address in page.leads, f"{path.name} loads {address}"
            elif parts.scheme not in ("data", "mailto"):
                other = (path.parent / unquote(parts.path)).resolve()
                other = path if not parts.path else other
                assert other.is_file(), f"{path.name}: {address}"
                there = pages.get(other)
                assert not there or unquote(parts.fragment) in there.places, address


def test_pages_work_in_a_browser_from_a_folder(made, launch):  # noqa: F811
    """Every player steps; bets are kept, compared and forgotten; the search finds."""
    browser, asked, wrong = launch(), [], []
    try:
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.set_default_timeout(240_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        steps = 0
        for path in sorted((made / "notebooks").glob("[0-9]*.html")):
            page.goto(path.as_uri())
            steps += page.evaluate(STEP)
        assert steps > 30
        page.goto((made / "notebooks/00_four_ranks_tonight.html").as_uri())
        page.fill("[name=right_answers]", "as many")
        page.reload()
        page.click(".ringside-compare summary")
        row = page.locator("[data-bet=right_answers]")
        row.get_by_text("right", exact=True).wait_for()  # a fold tells a moment later
        assert row.inner_text().split("\t")[1:] == ["as many", "as many", "right"]
        page.click(".ringside-forget button")
        page.reload()
        assert page.input_value("[name=right_answers]") == ""
        page.goto((made / "notebooks/03_ring_all_reduce.html").as_uri())
        page.locator(".ringside-player + .ringside-full").first.click()
        page.wait_for_function("document.fullscreenElement")
        for _ in range(2):  # the key of a presenter's remote
            page.keyboard.press("PageDown")
        shown = "document.fullscreenElement.querySelector('[type=range]').value"
        assert page.evaluate(shown) == "2"
        page.goto((made / "search.html").as_uri() + "?q=set_epoch")
        found = page.get_by_role("link", name="Who sees which sample")
        found.last.wait_for()
        page.goto((made / "search.html").as_uri() + "?q=zebra set_epoch SIGKILL")
        page.get_by_role("link", name="Messages, and what they mean").wait_for()
        page.set_viewport_size({"width": 390, "height": 844})  # a phone
        for name in ("24_precision", "30_launchers", "catalogue", "teaching"):
            page.goto((made / "notebooks" / f"{name}.html").as_uri())
            wide = "document.documentElement.scrollWidth - innerWidth"
            assert page.evaluate(wide) <= 0, name
            assert page.evaluate(CUT) == [], name
    finally:
        browser.close()
    assert not wrong
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


CUT = """() => [...document.querySelectorAll('article table')]
    .filter(table => table.scrollWidth > table.parentElement.clientWidth + 2)
    .map(table => table.innerText.slice(0, 40))"""
STEP = """() => [...document.querySelectorAll('.ringside-player')].map(player => {
    const slider = player.querySelector('.time [type=range]');
    if (slider.max === '0') return 0;  // a picture that stands still
    const shown = () => player.querySelector('.stage').innerHTML;
    const before = shown();
    slider.value = slider.max;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    if (shown() === before) throw new Error('a player does not step');
    return 1;
}).reduce((a, b) => a + b, 0)"""


def test_the_tools_of_pages_are_not_needed_by_lessons():
    code = (
        "import ringside, sys; sys.exit(any('sphinx' in name for name in sys.modules))"
    )
    assert importlib.util.find_spec("ringside.pages")
    assert not subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "notebooks"
    ).returncode
