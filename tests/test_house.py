"""Holds the rooms of the course true to each other."""

import ast
import html
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from ringside import load, road
from ringside.author import new as new_lesson
from ringside.author import signs
from ringside.author.make import METADATA
from ringside.author.minutes import LABEL, label
from ringside.draw.player import animate, scenes

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
SCRIPTS = sorted((ROOT / "scripts").glob("[0-9]*.py"))
AS_PEOPLE_HAVE_IT = "00_four_ranks_tonight"  # so it leans on nothing that others share
STEMS = sorted({path.stem for path in [*NOTEBOOKS, *SCRIPTS]})
BESIDE = "shared.py", "timing.py"  # what scripts import: all of them, and the measured
MEASURED = "04_distributed_data_parallel", "05_dp_vs_ddp"
TOOLS = [ROOT / "scripts" / name for name in ("course.py", "nodes.py")]
HELPERS = sorted((ROOT / "notebooks" / "ringside").rglob("*.py"))
SHARED = {  # the functions of its script that a notebook shows, at least
    "00_four_ranks_tonight": "Adder",
    "01_split_the_batch": "gradient share",
    "13_data_parallel": "data_parallel gather move parallel_apply replicate scatter",
    "10_ranks_and_messages": "chain circle exchange",
    "11_collectives": "calls",
    "03_ring_all_reduce": "allgather scatter_reduce",
    "12_how_fast_can_it_get": "all_reduce double halve swap_all",
    "04_distributed_data_parallel": "average begin buckets_of finish when_ready",
    "14_ddp_habits": "Layer wrap",
    "15_two_losses": "play",
    "05_dp_vs_ddp": "task train",
    "02_sampler_and_set_epoch": "audit deal",
    "16_workers_and_streams": "begin_and_leap",
    "17_dice": "Dice first_throw predict throw",
    "20_batch_norm": "JoinedNorm SumOverRanks",
    "21_evaluation": "accuracy gather results",
    "22_checkpoint_and_resume": "make resume save take_step",
    "23_sharded_checkpoints": "in_pieces",
    "24_precision": "photo take_step",
    "25_learning_rate": "rate train",
    "30_launchers": "commands",
    "31_two_nodes": "around",
    "32_slurm": "from_slurm",
    "33_when_it_breaks": "at_fault begun make plan",
    "34_elastic": "agent live share train watch",
    "35_broken_scripts": "doctor in_one loss_of make numbers",
    "40_horovod": "fuse make negotiate share train",
    "41_parameter_server": "answer star",
}
README = (ROOT / "README.md").read_text(encoding="utf-8")


def cells(path: Path, kind: str) -> list[str]:
    """Return the sources of a notebook's cells of one kind, without keys of numbers."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]
    return [re.sub(r"<!--\w+-->", "", text) for text in texts]


def outputs(path: Path) -> list[dict]:
    """Return all outputs of a notebook."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [output for cell in found for output in cell.get("outputs", [])]


def functions(source: str) -> dict[str, str]:
    """Return the syntax trees of functions and classes at the top of code, by name."""
    kinds, tree = (ast.FunctionDef, ast.ClassDef), ast.parse(source)
    return {f.name: ast.dump(f) for f in tree.body if isinstance(f, kinds)}


@pytest.mark.parametrize("stem", STEMS)
def test_a_lesson_is_whole(stem):
    parts = {
        f"notebooks/{stem}.ipynb": "the notebook that tells it",
        f"scripts/{stem}.py": "the script that does it",
        f"figures/{stem}.jsonl": "what the ranks recorded: python -m ringside",
        f"figures/{stem}.svg": "the picture of that: python -m ringside",
    }
    missing = [f"{p} ({what})" for p, what in parts.items() if not (ROOT / p).exists()]
    missing += [
        f"a line in README.md for {p}"
        for p in parts
        if "figures" not in p and p not in README
    ]
    assert not missing, f"lesson {stem} still lacks " + ", ".join(missing)


def test_figures_belong_to_lessons():
    """And so do the measurements that a benchmark has left beside them."""
    names = {path.stem for path in (ROOT / "figures").iterdir()}
    names -= {"map", "ran"}  # of all lessons together
    assert {name.removesuffix("_measured") for name in names} == set(STEMS)


def test_what_last_ran_are_lessons():
    ran = json.loads((ROOT / "figures" / "ran.json").read_text("utf-8"))
    assert {*ran} <= {*STEMS}
    for told in ran.values():
        assert {*told} == {"torch", "python", "processor", "date"}


def test_the_top_level_holds_no_more_than_it_should():
    named = {"README.md", "notebooks", "scripts", "figures", "requirements.txt"}
    named |= {"tests", "LICENSE", "test-results"}
    extra = [p.name for p in ROOT.iterdir() if p.name not in named]
    assert [name for name in extra if not name.startswith(".")] == []


@pytest.mark.parametrize("stem", STEMS)
def test_twins_have_equal_functions(stem):
    """A function that stands in a notebook and in its script is the same in both."""
    path = ROOT / "notebooks" / f"{stem}.ipynb"
    prose = "\n\n".join(cells(path, "markdown"))
    quoted = re.findall("^```python\\n(.*?)```", prose, re.DOTALL | re.MULTILINE)
    told = [functions(text) for text in [*cells(path, "code"), *quoted]]
    done = functions((ROOT / "scripts" / f"{stem}.py").read_text())
    shared = [
        (name, tree) for part in told for name, tree in part.items() if name in done
    ]
    assert [name for name, tree in shared if tree != done[name]] == []
    gone = set(SHARED.get(stem, "").split()) - {name for name, _ in shared}
    assert shared and not gone, f"the notebook shows no {gone or 'part'} of its script"


def test_the_ring_is_two_short_functions():
    tree = ast.parse((ROOT / "scripts/03_ring_all_reduce.py").read_text())
    lines = {
        f.name: f.end_lineno - f.lineno + 1 for f in tree.body if hasattr(f, "name")
    }
    assert lines["scatter_reduce"] <= 12 and lines["allgather"] <= 12


def test_what_scripts_share_stands_in_one_place():
    common = [functions((ROOT / "scripts" / name).read_text()) for name in BESIDE]
    for path in SCRIPTS:
        own = functions(path.read_text(encoding="utf-8"))
        assert not any(own.keys() & shared.keys() for shared in common), path


def test_every_script_has_the_same_ending_and_takes_its_words_in_the_same_way():
    """Main, then gc.collect, then the group is destroyed: as in train.py."""
    ending = ast.parse((ROOT / "scripts" / "train.py").read_text("utf-8")).body[-1]
    steps = [*map(ast.unparse, ending.body)]
    assert steps[:2] == ["main()", "gc.collect()"] and "destroy" in steps[2]
    others = [path for path in SCRIPTS if path.stem != AS_PEOPLE_HAVE_IT]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in others]
    for tree in trees:
        assert ast.dump(tree.body[-1]) == ast.dump(ending)
        main = next(f for f in tree.body if getattr(f, "name", "") == "main")
        assert [*map(ast.unparse, main.decorator_list)] == ["errors.record"]
        first, *flags = [ast.unparse(line) for line in main.body]
        assert first == "parser = Parser(__doc__)"
        while flags[0].startswith("parser.add_argument("):
            flags.pop(0)
        assert flags[0] == "args, rank, world_size = start(parser)"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_keeps_to_its_contract(path):
    source = path.read_text(encoding="utf-8")
    imported = imports(source) - {"shared", "train_alone"}
    if path.stem in MEASURED:
        imported.discard("timing")
    if path.stem == "40_horovod":
        imported.discard("horovod")  # only if horovodrun has started it
    assert imported <= {*sys.stdlib_module_names, "torch"}, (
        "only torch, Python's own, and what all scripts share"
    )
    assert source.count("add_argument(") <= 2, "and --record, which all have"
    lines = len(source.splitlines())
    assert 80 <= lines <= 150, "one thing, with room for why it is done"
    first = ast.get_docstring(ast.parse(source)).splitlines()[2].strip()
    assert first == f"torchrun --standalone --nproc-per-node 4 scripts/{path.name}"


def imports(source: str) -> set[str]:
    """Return the names of the packages that some code imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("path", HELPERS, ids=lambda path: path.stem)
def test_a_helper_is_small_and_has_a_name_of_its_own(path):
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 250
    assert path.stem.startswith("__") or path.stem not in sys.stdlib_module_names
    assert "scripts" not in imports(source)


def test_the_helper_needs_no_notebook():
    """Each supervisor imports it, too, and IPython would cost it a quarter second."""
    line = "import ringside, sys; print({'IPython', 'ipywidgets'} & {*sys.modules})"
    place = {"cwd": ROOT / "notebooks", "capture_output": True, "text": True}
    assert subprocess.run([sys.executable, "-c", line], **place).stdout == "set()\n"


def test_the_helper_computes_no_lesson():
    """No function of a lesson stands in the helper under its own name."""
    taught = {name for path in SCRIPTS for name in functions(path.read_text())}
    helped = {name for path in HELPERS for name in functions(path.read_text())}
    assert taught & helped <= {"main", "start"}  # of each script, and of no lesson


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_to_its_budget(path):
    code = cells(path, "code")
    assert max(source.count("\n") for source in code) < 20
    assert path.stat().st_size <= 250 * 1024


def test_the_signs_are_those_of_the_map():
    """But for the minutes, which are counted when the signs are put up again."""
    minute = re.compile(r"(?<=Main road )\d+|(?<=roads )\d+|(?<=cises )\d+|(?<=\| )\d+")
    for path, text in signs.made().items():
        there = minute.sub("", path.read_text("utf-8"))
        assert there == minute.sub("", text), f"{path.name}: python -m ringside --map"


def test_the_map_shows_each_page_and_no_words_overlap():
    svg = signs.draw()
    title, told = re.search("<title>(.+?)</title><desc>(.+?)</desc>", svg).groups()
    texts = re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)" font-size="(\d+)"(.*?)>(.+?)<', svg
    )
    boxes = []
    for x, y, size, more, words in texts:
        wide, x = 0.58 * int(size) * len(words), float(x)
        left = x - wide / 2 if "middle" in more else x
        assert left >= 0 and left + wide <= 900, f"{words} leaves the picture"
        boxes.append((left, left + wide, float(y) - int(size), float(y), words))
    for a, b in itertools.combinations(boxes, 2):
        beside = a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2]
        assert beside, f"{a[4]} lies over {b[4]}"
    names = {html.unescape(words) for *_, words in boxes}
    assert {page.name for page in road.PAGES} <= names
    assert all(page.name in html.unescape(told) for page in road.PAGES) and title


def glossary() -> dict[str, str]:
    """Return the page that explains a word, for each word."""
    [page] = cells(ROOT / "notebooks" / "glossary.ipynb", "markdown")
    row = r"(?m)^\| \*\*(.+?)\*\* \| \S.+\. \| \[.+\]\((\w+)\.ipynb\) \|$"
    rows = re.findall(row, page)
    assert len(rows) == page.count("\n| **") > 20
    assert rows == sorted(rows, key=lambda row: row[0].lower())
    return dict(rows)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_word_is_explained_before_it_is_used(path):
    """In bold where it first stands, or on a page that this one rests on.

    Else the first sentence with it has a link to the page that explains it.
    """
    first, *rest = cells(path, "markdown")
    assert "](glossary.ipynb)" in first, "the glossary is one click away"
    first = re.sub(r"## What you will .*?(?=\n## |$)", "", first, flags=re.DOTALL)
    prose = "\n\n".join([first, *rest])
    prose = re.sub(r"(?s)```.*?```|`[^`]*`|!\[.*?\]", "", prose)
    prose = re.sub(r"\[[^\]]+\]\((\w+)\.ipynb\)", r"(\1)", prose)
    prose = re.sub(r"\[([^\]]+)\]\(.*?\)", r"\1", prose)
    sentences = [part for part in re.split(r"[.\n]", prose) if part[:1] != "#"]
    known, early = road.below(path.stem), []
    for word, stem in glossary().items():
        form = rf"(?i)\b{re.escape(word)}(s|es)?\b"
        uses = [s for s in sentences if re.search(form, s)]
        bold = rf"(?i)\*\*([^*]* )?{re.escape(word)}(s|es)?\*\*"
        assert uses or stem != path.stem, f"{word} is no word of this lesson"
        if uses and stem not in known and not re.search(bold, uses[0]):
            early += [(word, use) for use in uses[:1] if f"({stem})" not in use]
    assert early == []


def written() -> list[Path]:
    """Return each file of ours with words in it."""
    rooms = ("notebooks/**/*", "scripts/*", "tests/*", "figures/*", ".ci/*", "*")
    found = (path for room in rooms for path in ROOT.glob(room))
    kinds = {".ipynb", ".py", ".md", ".txt", ".svg", ".jsonl", ".js", ".css", ""}
    return [p for p in found if p.is_file() and p.suffix in kinds]


def test_no_prose_says_the_number_of_a_page():
    """Numbers are of the files; a reference is a link, so a file may get another."""
    number = re.compile(r"(?i)\blessons?[ \n]+(?:#[ \n]*)?\d\d[a-z]?\b")
    told = {path.name: number.findall(path.read_text("utf-8")) for path in written()}
    assert {name: found for name, found in told.items() if found} == {}


def test_a_heading_is_of_one_page():
    """Pages do not come out alike; what each page has is called the same on all."""
    on_all = r"Exercise \d|Side road|Sandbox|You will read|What you write on Monday"
    found = Counter()
    for path in NOTEBOOKS:
        found.update(re.findall(r"(?m)^## (.+)", "\n".join(cells(path, "markdown"))))
    twice = [heading for heading, pages in found.items() if pages > 1]
    assert [heading for heading in twice if not re.match(on_all, heading)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_main_road_ends_in_words_and_goes_on(path):
    """Who stops before the exercises leaves with a sentence, and with the next page.

    (The exercises of the first station and of the broken scripts are on the road.)
    """
    text = "\n\n".join(cells(path, "markdown"))
    road_of_it = text.partition("\n## Exercise 1")[0].strip().split("\n\n")
    onward = 1 if path.stem[:2] in ("00", "35") else 2
    if onward == 2:
        assert road_of_it.pop().startswith("**Next:**")
        assert road_of_it[-1][0] not in "|<`-#"
    assert text.count("**Next:**") == onward


def test_a_link_to_a_page_has_its_short_name():
    pages = [*(ROOT / "notebooks").glob("*.ipynb"), ROOT / "README.md"]
    wrong = []
    for path in pages:
        text = "\n".join(cells(path, "markdown")) if path.suffix != ".md" else README
        for name, target in re.findall(
            r"(?<!!)\[([^]\n]+)\]\(([^)\s]+\.ipynb)\)", text
        ):
            if name.lower() != road.NAMES[Path(target).stem].lower():
                wrong.append(f"{path.name}: [{name}]({target})")
            assert (path.parent / target).exists()
    assert wrong == []


def test_the_map_has_each_page_once():
    assert sorted(road.STEMS) == STEMS
    assert len({*road.NAMES.values()}) == len(road.NAMES)
    order = [page.stem for page in road.PAGES]
    assert order == sorted(order), "a page's number says where it stands"
    for page in road.PAGES:
        [title] = re.findall(r"\A# (.+)", cells(notebook(page.stem), "markdown")[0])
        assert title in (page.question, page.name.capitalize())
        assert page.stem not in road.below(page.stem)


def notebook(stem: str) -> Path:
    return ROOT / "notebooks" / f"{stem}.ipynb"


def test_each_question_has_an_answer_in_a_lesson():
    page, *_ = cells(ROOT / "notebooks" / "questions.ipynb", "markdown")
    rows = re.findall(r"(?m)^\| (.+\?) \| ([^|]+\.) \| (\[.+\]\(.+\)) \|$", page)
    heads = page.count("\n|---")
    assert len(rows) == page.count("\n| ") - heads > 50, "a row has another form"
    assert len({question for question, *_ in rows}) == len(rows)
    linked = [link for *_, links in rows for link in links.split(", ")]
    known = {road.link(stem) for stem in STEMS}
    assert set(linked) <= known, "a lesson that is not there"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_reads_well(path):
    kinds = [c["cell_type"] for c in json.loads(path.read_text())["cells"]]
    assert "code" in kinds[:3], "code within the first three cells"
    assert "code code code" not in " ".join(kinds), "no three code cells in a row"
    title = cells(path, "markdown")[0].splitlines()[0]
    named = title[2:] == road.NAMES[path.stem].capitalize()
    assert title.startswith("# ") and (named or title.endswith("?")), "it asks"
    launched = [
        c for c in cells(path, "code") if re.search(r"^\s*[!%]", c, re.MULTILINE)
    ]
    assert not launched, "`!` and `%%` hide failures: launch with torchrun(...)"
    prose = "\n\n".join(cells(path, "markdown"))
    swallowed = re.findall(r"</details>\n(?!<details)(.+)", prose)
    assert not swallowed, "what follows a fold at once is not rendered: a blank line"
    prose = re.sub(r"(?ms)^```.*?^```", "", prose)
    typed = re.findall(r"</summary>.*(?:`|\]\(|\*\*).*|<summary>.*`.*", prose)
    assert not typed, "nor is what stands in a line of HTML: a blank line before it"


@pytest.mark.parametrize("path", [*(ROOT / "notebooks").glob("*.ipynb")], ids=str)
def test_a_page_kills_nothing_by_a_name(path):
    """`pkill -f job.py` ends a second job of this script, too, and an editor."""
    prose = "\n".join(cells(path, "markdown"))
    told = prose.count("`pkill -f job.py` also ends a second")
    assert prose.count("pkill -f") == told


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_picture_has_words_and_is_compared(path):
    for output in outputs(path):
        data = output.get("data", {})
        assert not {"image/png", "image/jpeg"} & set(data), "nbval never compares these"
        for tag in re.findall("<img[^>]*>", "".join(data.get("text/html", ""))):
            assert re.search('alt="[^"]{20}', tag), f"no words for {tag[:60]}"
    for text in cells(path, "markdown"):
        for alt, target in re.findall(r"!\[(.*?)\]\((.*?)\)", text):
            assert len(alt) > 20, f"no words for {target}"
            assert (path.parent / target).exists()


@pytest.mark.parametrize("path", sorted((ROOT / "figures").glob("[0-9]*.svg")), ids=str)
def test_a_picture_is_small_and_calm(path):
    svg = path.read_text(encoding="utf-8")
    assert len(svg) <= 40_000
    title, words = re.search("<title>(.+?)</title><desc>(.+?)</desc>", svg).groups()
    assert len(words) > len(title) > 20, "what moves is also told in words"
    assert "prefers-reduced-motion" in svg
    longest = (
        26 if "pace" in scenes(load(path.stem))[0][1].header else 12
    )  # many in one
    rounds = re.findall(r"([\d.]+)s [\w-]+ (\w+)}", svg)
    assert {count for _, count in rounds} == {"3"}, "then it rests"
    assert max(float(seconds) for seconds, _ in rounds) <= longest


@pytest.mark.parametrize("stem", STEMS)
def test_a_picture_is_drawn_from_its_recording(stem):
    picture = (ROOT / "figures" / f"{stem}.svg").read_text(encoding="utf-8")
    assert animate(load(stem)) == picture, "draw it again: python -m ringside"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_form_that_running_it_gives(path):
    """With nbval, which compares all outputs: running it again changes no byte."""
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, 4)
    assert nbformat.writes(notebook) + "\n" == text
    assert notebook.metadata == METADATA
    counts = [c.execution_count for c in notebook.cells if c.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert "widget-view" not in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_output_that_nobody_compares_has_the_words_of_its_cell(path):
    """Making the lesson again keeps it, as its numbers are new each time."""
    for cell in nbformat.read(path, 4).cells:
        said = "".join(out.get("text", "") for out in cell.get("outputs", []))
        if said and "nbval-ignore-output" in cell.metadata.get("tags", []):
            texts = [
                part.value
                for node in ast.walk(ast.parse(cell.source))
                if ast.unparse(node).startswith("print(")
                for text in ast.walk(node)
                if isinstance(text, ast.JoinedStr)
                for part in text.values
                if isinstance(part, ast.Constant) and len(part.value) > 5
            ]
            gone = [text for text in texts if text.strip() not in said]
            assert gone == [], "its words are others now: run it, and save the page"


def test_making_a_lesson_again_changes_no_byte(tmp_path):
    """Recorded, drawn and run, from end to end; of the notebook, its first cells.

    What was there before differs, so that none of it can have stayed by chance.
    """
    for room in ("notebooks", "scripts", "figures"):
        shutil.copytree(ROOT / room, tmp_path / room)
    stem = "03_ring_all_reduce"
    names = [f"figures/{stem}.jsonl", f"figures/{stem}.svg", f"notebooks/{stem}.ipynb"]
    recording, picture, path = (tmp_path / name for name in names)
    notebook = nbformat.read(path, 4)
    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    del notebook.cells[code[3] :]
    top = notebook.cells[0]
    top.source = LABEL.sub(label(notebook.cells), top.source)
    nbformat.write(notebook, path)
    made = [file.read_bytes() for file in (recording, picture, path)]
    recording.write_bytes(made[0].replace(b'"step": 0', b'"step": 9'))
    picture.write_text("an old picture")
    for cell in notebook.cells[code[0] :]:
        cell |= {"outputs": [], "execution_count": 7} if "outputs" in cell else {}
    nbformat.write(notebook, path)
    for words in ([stem], ["--draw", stem]):
        line = [sys.executable, "-m", "ringside", *words]
        subprocess.run(line, cwd=tmp_path / "notebooks", check=True, timeout=300)
        for file, before in zip((recording, picture, path), made):
            assert file.read_bytes() == before, f"{file.name} is not what is made now"
        picture.write_text("an old picture")


# A name that no lesson has: whatever number it is, it may be taken tomorrow.
FREE = next(
    f"{number}_a_new_thing"
    for number in range(30, 40)
    if f"{number}" not in road.BY_NUMBER
)


def test_a_new_lesson_is_whole_and_runs(tmp_path):
    """All its files are there, the map has it, and its own test passes."""
    for room in ("notebooks", "scripts", "figures", "tests", "README.md"):
        copy = shutil.copytree if (ROOT / room).is_dir() else shutil.copy
        copy(ROOT / room, tmp_path / room)
    stem, line = FREE, [sys.executable, "-m", "ringside"]
    made = {"cwd": tmp_path / "notebooks", "capture_output": True, "text": True}
    for words in (["--new", stem], [stem], ["--map"]):
        done = subprocess.run([*line, *words], **made, timeout=300)
        assert done.returncode == 0, done.stderr
    its = [f"notebooks/{stem}.ipynb", f"notebooks/ringside/check/lesson_{stem[:2]}.py"]
    its += [f"scripts/{stem}.py", f"tests/test_{stem[:2]}.py"]
    for name in [*its, f"figures/{stem}.jsonl", f"figures/{stem}.svg"]:
        assert (tmp_path / name).exists(), name
    page = nbformat.read(tmp_path / its[0], 4)
    before = max(other for other in road.STEMS if other < stem)
    assert f"before: {road.link(before)}" in page.cells[0].source
    assert "your turn" in page.cells[-3].outputs[0].text
    for name in ("README.md", "notebooks/teaching.ipynb", "notebooks/questions.ipynb"):
        assert "[a new thing]" in (tmp_path / name).read_text(), name
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", its[-1]]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("wrong", ["03_again", "96_nowhere", "new"])
def test_a_new_lesson_with_a_wrong_name_is_refused_in_one_line(
    wrong, tmp_path, monkeypatch
):
    monkeypatch.setattr(new_lesson, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as refused:
        new_lesson.new(wrong)
    assert "\n" not in refused.value.code and [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "name", [f"tests/test_{FREE[:2]}.py", f"notebooks/{FREE}.ipynb"]
)
def test_a_new_lesson_writes_over_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setattr(new_lesson, "ROOT", tmp_path)
    (own := tmp_path / name).parent.mkdir()
    own.write_text("mine")
    with pytest.raises(SystemExit, match=f"^{name} is there already"):
        new_lesson.new(FREE)
    assert own.read_text() == "mine" and [*tmp_path.iterdir()] == [own.parent]


@pytest.mark.parametrize(
    "how", [["check"], ["format", "--check"]], ids=lambda how: how[0]
)
def test_ruff_finds_nothing(how):
    line = [sys.executable, "-m", "ruff", *how, "--no-cache", str(ROOT)]
    found = subprocess.run(line, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_mypy_finds_nothing():
    line = [sys.executable, "-m", "mypy", "--cache-dir=/dev/null"]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("name", ["README.md", ".github/CONTRIBUTING.md"])
def test_a_link_of_the_front_door_leads_somewhere(name):
    path = ROOT / name
    links = re.findall(r"\]\(([^)#\s]+)", path.read_text("utf-8"))
    near = [link for link in links if "://" not in link]
    assert near and [x for x in near if not (path.parent / x).exists()] == []


def test_no_door_is_left_open():
    """No pickle, shell or network door stands in what we ship."""
    doors = ("shell=True", "weights_only=False", "os.system", "0.0.0.0", "allow_origin")
    shown = "torch.load(trap, weights_only=False)"  # in checkpoints, and what it does
    scripts = (ROOT / "scripts").glob("*.py")
    for path in [*scripts, *HELPERS, *NOTEBOOKS]:
        source = path.read_text(encoding="utf-8").replace(shown, "", 1)
        assert [door for door in doors if door in source] == [], path.name
        loads = re.findall(r"torch\.load\(.*", source)
        assert [line for line in loads if "weights_only=True" not in line] == []
