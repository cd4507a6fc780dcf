"""A real JupyterLab in a real browser: a learner opens a lesson, runs it, stops it."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import nbconvert
import nbformat
import psutil
import pytest
from ringside import Player, load

ROOT = Path(__file__).resolve().parents[1]
STEM = "03_ring_all_reduce"
LOUD = f"""NOTHING WAS TESTED IN A BROWSER. It needs Chromium, or another one named in
RINGSIDE_BROWSER, and Playwright: {sys.executable} -m pip install playwright"""
SWITCHES = """--disable-gpu --disable-dev-shm-usage --disable-background-networking
--disable-component-update --disable-sync --no-first-run""".split()
HOMES = """HOME IPYTHONDIR JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR
TMPDIR XDG_CACHE_HOME""".split()
STUCK = """import torch, torch.distributed as dist
from ringside import torchrun
def stuck(rank, world_size):
    dist.send(torch.zeros(0), (rank + 1) % world_size)
torchrun(stuck, ranks=4)"""
PICTURE = re.compile(r"<img |<svg |!\[[^]]+\]\(")
SCRIPT = re.compile("<script>.*?</script>", re.DOTALL)  # it has pictures of its own
PLAYER = ".ringside-player"
COUNT = "cells => cells.map(cell => cell.querySelectorAll('img').length)"
ERROR = '.jp-Notebook [data-mime-type="application/vnd.jupyter.stderr"]'
DONE = f"""() => document.querySelector('{ERROR}') || [...document.querySelectorAll(
'.jp-CodeCell .jp-InputPrompt')].at(-1).innerText.match(/[0-9]/)"""


@pytest.fixture(scope="module")
def launch(request):
    """What starts a browser; or a skip, which pytest's summary shows."""
    api = pytest.importorskip("playwright.sync_api", reason=LOUD)
    names = ("chromium", "chromium-browser", "google-chrome")
    found = [os.environ.get("RINGSIDE_BROWSER"), *map(shutil.which, names)]
    try:
        play = api.sync_playwright().start()
    except Exception as error:  # a library may be missing that its driver needs
        pytest.skip(f"{LOUD}\n{error}")
    request.addfinalizer(play.stop)
    path = next(filter(None, found), play.chromium.executable_path)
    if not Path(path).is_file():
        pytest.skip(LOUD)
    return lambda *more: play.chromium.launch(
        executable_path=path,
        args=[*SWITCHES, *more],
        chromium_sandbox=os.geteuid() != 0,  # it refuses to work for root
    )


def wait(happened, seconds=60):
    """Return what happened, or whatever is false after so many seconds."""
    last = time.monotonic() + seconds
    while not (thing := happened()) and time.monotonic() < last:
        time.sleep(0.05)
    return thing


class Lab:
    """A fresh copy of the course, with a JupyterLab and a browser; a pytest plugin."""

    def __init__(self, folder, browser):
        self.folder, self.course, self.said = folder, folder / "a course", []
        for name in (".jupyter", "notebooks", "scripts", "figures"):
            shutil.copytree(ROOT / name, self.course / name)
        shutil.copy(ROOT / "requirements.txt", self.course)
        path = self.course / "notebooks" / f"{STEM}.ipynb"
        notebook = nbformat.read(path, 4)
        self.cells, notebook.cells = notebook.cells, [nbformat.v4.new_code_cell(STUCK)]
        nbformat.write(notebook, path.with_stem("scratch"))
        self.browser = browser.new_context(viewport={"width": 1200, "height": 900})
        self.browser.set_default_timeout(240_000)
        self.browser.on("console", lambda message: self.said.append(message.text))
        self.browser.on("weberror", lambda error: self.said.append(str(error.error)))
        env = os.environ | dict.fromkeys(HOMES, str(folder))
        env["JUPYTER_TOKEN"] = self.token = secrets.token_hex()
        command = [sys.executable, self.course / "scripts" / "course.py", "--here"]
        command += ["lab", "--no-browser", "--port=0"]
        with (folder / "server.txt").open("wb") as log:
            place = {"cwd": self.course, "env": env}
            self.server = subprocess.Popen(command, stdout=log, stderr=log, **place)

    def open(self, stem=None):
        """Open a notebook, or what opens by itself, and wait for its kernel."""
        notes = wait(lambda: [*self.folder.glob("jpserver-*.json")])
        assert notes, (self.folder / "server.txt").read_text()
        page, url = self.browser.new_page(), json.loads(notes[0].read_text())["url"]
        path = f"lab/tree/notebooks/{stem}.ipynb?reset&" if stem else "?"
        page.goto(f"{url}{path}token={self.token}")
        page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()
        return page

    def run(self, page):
        for name in ("Edit", "Clear Outputs of All Cells", "Run", "Run All Cells"):
            page.get_by_role("menuitem", name=name, exact=True).click()

    def processes(self):
        """Find what the server started, and what that started, by its variables."""
        found = psutil.process_iter(["environ"])
        return [p for p in found if str(self.folder) in str(p.info["environ"])]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        """When a test here fails, keep what can be seen, and say where it is."""
        report = yield
        if report.failed and item.path == Path(__file__):
            kept = ROOT / "test-results" / item.name
            report.sections.append(("Screenshots and logs are in", str(kept)))
            with suppress(Exception):  # the failure matters more than its picture
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.folder / "server.txt", kept)
                (kept / "console.txt").write_text("\n".join(self.said), "utf-8")
                for i, page in enumerate(self.browser.pages):
                    page.screenshot(path=kept / f"page {i}.png")
        return report


@pytest.fixture(scope="module")
def lab(launch, request, tmp_path_factory):
    """The lesson as a learner first sees it; in the end, no process may be left."""
    lab = Lab(tmp_path_factory.mktemp("lab"), launch())
    request.config.pluginmanager.register(lab)
    try:
        lab.lesson = lab.open(STEM)
        yield lab
    finally:
        lab.browser.close()
        lab.server.terminate()
        gone = wait(lambda: not lab.processes(), 20)
        for process in lab.processes():
            process.kill()
        lab.server.wait()
    assert gone, "the server left processes behind"


@pytest.fixture(scope="module")
def ran(lab):
    """The lesson after all of its cells have run."""
    lab.run(lab.lesson)
    lab.lesson.wait_for_function(DONE)
    return lab.lesson


def test_untrusted_lesson_shows_its_pictures(lab):
    """A fresh clone is not trusted; JupyterLab then hides most kinds of picture."""
    lab.lesson.get_by_title("Notebook not trusted").wait_for()
    seen = [SCRIPT.sub("", str(c.get("outputs", c.source))) for c in lab.cells]
    kept = [len(PICTURE.findall(text)) for text in seen]
    assert kept[0] == 1
    cells = lab.lesson.locator(".jp-Notebook .jp-Cell")
    assert wait(lambda: cells.evaluate_all(COUNT) == kept, 20), f"not all of {kept}"
    assert not cells.locator('[data-mime-type="text/plain"]').all_text_contents()
    for picture in cells.locator("img").all():
        name = picture.get_attribute("alt")
        assert name not in (None, "", "Image")  # JupyterLab itself puts "Image" there
        assert picture.evaluate("p => p.decode().then(() => p.naturalWidth)"), name


def test_all_cells_run(ran, lab):
    """No cell fails, the real run says ok, and the player is alive.

    And the terminal of a newcomer has shown no warning that is for others to heed:
    that notebooks are not trusted, or what a kernel says to its server.
    """
    assert ran.locator(ERROR).all_text_contents() == []
    ran.get_by_text("ok: 4 ranks").first.wait_for()
    ran.locator(PLAYER).first.wait_for()
    said = (lab.folder / "server.txt").read_text()
    assert not re.search(r"\[[WE] 20|WARNING|ERROR", said), said


def steps(player):
    """By button, arrow key and Play, the picture and what is said of it change."""

    def shown(step):
        begin = f"after step {step} of 6 · "
        player.locator(f'img:visible[alt^="{begin}"]').wait_for()
        assert player.locator("img:visible").count() == 1
        assert player.get_by_role("status").text_content().startswith(begin)
        assert player.get_by_role("radio", name=str(step), exact=True).is_checked()
        assert player.get_by_role("slider", name="Step").input_value() == str(step)
        assert player.evaluate("player => player.contains(document.activeElement)")

    player.get_by_role("radio", name="2", exact=True).check()
    shown(2)
    player.page.keyboard.press("ArrowRight")
    shown(3)
    player.get_by_role("slider", name="Step").focus()
    player.page.keyboard.press("ArrowLeft")
    shown(2)
    player.get_by_role("button", name="Play").click()
    player.locator('img:visible:not([alt^="after step 2 of 6"])').wait_for()
    player.page.keyboard.press("ArrowRight")  # perhaps late: a machine may stand still
    player.get_by_role("button", name="Play").wait_for()  # it was Pause
    last = int(player.get_by_role("slider", name="Step").input_value())
    assert 4 <= last <= 6
    shown(last)
    return last


def test_player_steps(ran):
    """Also with the mouse, and no arrow key makes Jupyter go to another cell."""
    player, active = ran.locator(PLAYER).first, ran.locator(".jp-Cell.jp-mod-active")
    player.get_by_text("1", exact=True).click()
    player.locator('img:visible[alt^="after step 1 of 6"]').wait_for()
    assert active.locator(PLAYER).count() == 1
    steps(player)
    for control in (player.get_by_role("button"), player.get_by_role("group").first):
        control.focus()
        for key in ("ArrowDown", "ArrowUp", "ArrowLeft", "x", "Enter"):
            ran.keyboard.press(key)
    assert active.locator(PLAYER).count() == 1
    assert player.evaluate("player => player.contains(document.activeElement)")


def test_a_saved_lesson_reopens_whole(lab, ran):
    """The state of a player is the page: no kernel stands behind it."""
    ran.get_by_role("button", name="Save and create checkpoint").click()
    ran.locator("#jp-main-dock-panel .lm-mod-current:not(.jp-mod-dirty)").wait_for()
    ran.close()
    page = lab.open(STEM)
    page.get_by_title("Notebook trusted").wait_for()
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
    page.get_by_text("No Kernel").first.wait_for()
    steps(page.locator(PLAYER).first)
    page.close()


@pytest.fixture(scope="module")
def exported(lab):
    """The committed lesson as an HTML page, in a browser that reaches no network."""
    source = lab.course / "notebooks" / f"{STEM}.ipynb"
    body, _ = nbconvert.HTMLExporter().from_filename(source)
    file, page = source.with_suffix(".html"), lab.browser.new_page()
    file.write_text(body, encoding="utf-8")
    page.route("http*://**", lambda route: route.abort())
    page.goto(file.as_uri())
    return page


def test_an_exported_page_steps(exported):
    steps(exported.locator(PLAYER).first)


def test_all_controls_have_names(exported):
    """What a screen reader says of each; no control is left without."""
    player = exported.locator(PLAYER).first
    named = [("button", "Play"), ("slider", "Step"), ("checkbox", "Repeat")]
    named += [("radiogroup", "Step"), *(("radio", str(step)) for step in range(7))]
    for role, name in [*named, ("group", "Picture")]:
        assert player.get_by_role(role, name=name, exact=True).count() == 1, name
    assert player.locator("button, input, [tabindex]").count() == 3 + 7 + 1


@pytest.mark.parametrize("width", [900, 700, 350])
def test_a_narrow_or_zoomed_window_cuts_nothing(exported, width):
    """Controls wrap, the slider keeps a track, text in pictures stays legible."""
    exported.set_viewport_size({"width": width, "height": 600})
    player = exported.locator(PLAYER).first
    room = player.bounding_box()
    for control in player.locator("button, label, [type=range]").all():
        box = control.bounding_box()
        assert room["x"] <= box["x"]
        assert box["x"] + box["width"] <= room["x"] + room["width"]
        assert control.evaluate("c => c.scrollWidth <= c.clientWidth + 2")
    assert player.get_by_role("slider").bounding_box()["width"] > 100
    assert room["x"] + room["width"] <= width
    for picture in exported.locator("img:visible[style]").all():
        scale = picture.evaluate("p => p.width / p.naturalWidth")
        assert 12 * scale > 10.9, "the smallest text has 12 pixels"


def test_equal_players_do_not_disturb_each_other(lab):
    """Nothing in them has a name that holds for the whole page."""
    page, player = lab.browser.new_page(), Player(load(STEM))._repr_html_()
    page.set_content(f"<div>{player}</div>" * 2)
    first, second = page.locator(PLAYER).all()
    last = steps(second)
    first.locator('img:visible[alt^="start"]').wait_for()
    assert first.get_by_role("radio", name="0").is_checked()
    assert second.get_by_role("radio", name=str(last)).is_checked()


def test_what_is_chosen_has_its_room(lab):
    """Among pictures of two heights, all begin in one place, and nothing jumps."""
    page, race = lab.browser.new_page(), load("04_distributed_data_parallel")
    page.set_content(f"<div>{Player({'a': race, 'b': race})._repr_html_()}</div>")
    player, seen = page.locator(PLAYER), []
    for label in ("all", "a", "b"):
        player.get_by_role("radio", name=label, exact=True).check()
        picture = player.locator("img:visible").bounding_box()
        room = player.bounding_box()["height"]
        seen.append((picture["y"], room, picture["height"]))
    tops, rooms, heights = zip(*seen)
    assert len({*tops}) == len({*rooms}) == 1
    assert heights[0] > 1.5 * heights[1]


def test_reduced_motion(lab, launch):
    """The picture moves, unless the reader has asked the system for less motion."""
    (lab.course / "picture.html").write_text(f'<img src="figures/{STEM}.svg">')
    page, shots = lab.browser.new_page(), []
    page.goto(lab.course.as_uri() + "/picture.html")
    assert wait(lambda: shots.append(page.screenshot()) or len({*shots[9:][-3:]}) == 3)
    # a page's own setting does not reach its pictures, so this takes another browser
    with launch("--force-prefers-reduced-motion") as calm:
        page = calm.new_page()
        page.goto(lab.course.as_uri() + "/picture.html")
        assert len({*[page.screenshot() for _ in shots * 4][9:]}) == 1


def test_lab_shows_the_lessons_and_no_news(lab):
    """The first is open; the names can be read; nothing asks, nothing lies between."""
    page = lab.open()
    page.get_by_role("heading", name="Four ranks tonight").wait_for()
    listed = page.locator(".jp-DirListing-itemText")
    files = {path.name for path in lab.course.glob("notebooks/[!.]*.*")} - {
        "conftest.py"
    }
    assert [name.split("\n")[0] for name in listed.all_inner_texts()] == sorted(files)
    cut = "names => names.filter(n => n.scrollWidth > n.clientWidth + 50).length"
    assert listed.evaluate_all(cut) == 0
    page.wait_for_timeout(3000)  # time for a question about news
    assert page.locator(".Toastify__toast, .jp-Dialog").all_inner_texts() == []


def test_a_moving_picture_comes_to_rest(lab):
    """After its rounds it shows what it shows to those who ask for less motion."""
    page = lab.browser.new_page()
    page.goto((lab.course / "figures" / f"{STEM}.svg").as_uri())
    page.evaluate("document.getAnimations().forEach(a => a.finish())")  # or it throws
    rest = page.screenshot()
    page.emulate_media(reduced_motion="reduce")
    assert page.screenshot() == rest and page.evaluate("document.getAnimations()") == []


def test_interrupt_leaves_no_rank(lab):
    """The stop button ends a launch, and every rank of it with it."""
    page, ids = lab.open("scratch"), "rs-*/*/*.pid"
    lab.run(page)
    assert wait(lambda: len([*lab.folder.glob(ids)]) == 4), "no four ranks came up"
    ranks = [psutil.Process(int(path.read_text())) for path in lab.folder.glob(ids)]
    page.get_by_role("button", name="Interrupt the kernel").click()
    page.locator(ERROR).get_by_text("stopped: no rank runs any more").first.wait_for()
    _, left = psutil.wait_procs(ranks, timeout=100)
    assert not left
