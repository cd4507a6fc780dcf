"""A real JupyterLab in a real browser: a learner opens the lesson, runs it, stops it.

It needs Playwright and Chromium; the reason for a skip says how to get them. After a
failure, test-results/ holds screenshots and what the console and the server said.
"""

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

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
STEM = "04_ring_all_reduce"
SWITCHES = "disable-gpu disable-dev-shm-usage disable-sync no-first-run"
SWITCHES += " disable-background-networking disable-component-update"
HOMES = "HOME IPYTHONDIR TMPDIR XDG_CACHE_HOME"
HOMES += " JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR"
DEADLOCK = f"""from ringside import torchrun
torchrun("{STEM}", "--wire", "blocking", ranks=4, timeout=60)"""
PICTURE = re.compile(r"<img |!\[[^]]+\]\(")
ERROR = '.jp-Notebook [data-mime-type="application/vnd.jupyter.stderr"]'
DONE = f"""last => document.querySelector('{ERROR}') ||
[...document.querySelectorAll('.jp-InputPrompt')].some(p => p.innerText == last)"""


@pytest.fixture(scope="module")
def launch(request):
    """What starts a browser; or a skip that pytest's summary shows in any case."""
    request.config.pluginmanager.get_plugin("terminalreporter").reportchars += "s"
    loud = "NOTHING WAS TESTED IN A BROWSER:"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip(f"{loud} first, {sys.executable} -m pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = [os.environ.get("RINGSIDE_BROWSER"), *map(shutil.which, names)]
    with sync_playwright() as play:
        path = next(filter(None, found), play.chromium.executable_path)
        if not Path(path).is_file():
            pytest.skip(f"{loud} install Chromium, or name one in RINGSIDE_BROWSER")
        yield lambda *more: play.chromium.launch(
            executable_path=path,
            args=[f"--{switch}" for switch in (*SWITCHES.split(), *more)],
            chromium_sandbox=os.geteuid() != 0,  # it refuses to work for root
        )


def wait(happened, otherwise, seconds=60):
    """Wait until something is true, and return it."""
    last = time.monotonic() + seconds
    while not (thing := happened()):
        assert time.monotonic() < last, otherwise
        time.sleep(0.05)
    return thing


def menu(page, *path):
    for name in path:
        page.get_by_role("menuitem", name=name, exact=True).click()


class Lab:
    """The course after git clone, a JupyterLab over it, and a browser; a pytest plugin."""

    def __init__(self, folder, browser):
        self.folder, self.course, self.said = folder, folder / "a course", []
        for name in ("notebooks", "scripts", "figures"):
            litter = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
            shutil.copytree(ROOT / name, self.course / name, ignore=litter)
        path = self.course / "notebooks" / f"{STEM}.ipynb"
        notebook = json.loads(path.read_text("utf-8"))
        self.cells = notebook["cells"]
        cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": DEADLOCK}
        notebook["cells"] = [cell | {"outputs": [], "execution_count": None}]
        path.with_stem("scratch").write_text(json.dumps(notebook), "utf-8")
        self.browser = browser.new_context(viewport={"width": 1200, "height": 900})
        self.browser.set_default_timeout(60_000)
        self.browser.on("console", lambda message: self.said.append(message.text))
        self.browser.on("weberror", lambda error: self.said.append(str(error.error)))
        new = {name: str(folder / name) for name in HOMES.split()}
        new["JUPYTER_TOKEN"] = self.token = secrets.token_hex()
        (folder / "TMPDIR").mkdir()
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"]
        command += ["--port=0", "--LabApp.news_url=None"]
        command += [f"--ServerApp.root_dir={self.course}"]
        command += ["--allow-root"] if os.geteuid() == 0 else []
        env = os.environ | new
        with (folder / "server.txt").open("wb") as log:
            self.server = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def open(self, stem):
        """Open a notebook in the browser, and wait until its kernel is ready."""
        runtime, page = self.folder / "JUPYTER_RUNTIME_DIR", self.browser.new_page()
        note, *_ = wait(lambda: [*runtime.glob("jpserver-*.json")], "no server came up")
        url = json.loads(wait(note.read_text, "the server has no address"))["url"]
        page.goto(f"{url}lab/tree/notebooks/{stem}.ipynb?reset&token={self.token}")
        page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()
        return page

    def processes(self):
        """Find what the server started, and what that started, by its TMPDIR."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if str(self.folder) in process.environ().get("TMPDIR", ""):
                    yield process

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        """When a test here fails, keep what can be seen, and say where it is."""
        report = yield
        if report.failed and item.path == Path(__file__):
            kept = ROOT / "test-results" / item.name
            with suppress(Exception):  # the failure matters more than its picture
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.folder / "server.txt", kept)
                (kept / "console.txt").write_text("\n".join(self.said), "utf-8")
                for i, page in enumerate(self.browser.pages):
                    page.screenshot(path=kept / f"page {i}.png")
            report.sections.append(("What could be seen", f"is kept in {kept}"))
        return report


@pytest.fixture(scope="module")
def lab(launch, request, tmp_path_factory):
    """A JupyterLab over a copy of the course; in the end, no process may be left."""
    browser = launch()
    lab = Lab(tmp_path_factory.mktemp("lab"), browser)
    request.config.pluginmanager.register(lab)
    yield lab
    browser.close()
    lab.server.terminate()
    try:
        wait(lambda: not [*lab.processes()], "the server left processes behind", 20)
    finally:
        for process in lab.processes():
            process.kill()
        lab.server.wait()
        request.config.pluginmanager.unregister(lab)


@pytest.fixture(scope="module")
def lesson(lab):
    """The lesson as a learner first sees it."""
    return lab.open(STEM)


@pytest.fixture(scope="module")
def ran(lab, lesson):
    """The lesson after all of its cells have run, with none of its old outputs."""
    menu(lesson, "Edit", "Clear Outputs of All Cells")
    menu(lesson, "Run", "Run All Cells")
    count = sum(cell["cell_type"] == "code" for cell in lab.cells)
    lesson.wait_for_function(DONE, arg=f"[{count}]:")
    return lesson


def test_untrusted_lesson_shows_its_pictures(lab, lesson):
    """A fresh clone is not trusted; JupyterLab then hides most kinds of picture."""
    lesson.get_by_title("Notebook not trusted").wait_for()
    shown = lesson.locator(".jp-Notebook .jp-Cell").all()
    for cell, there in zip(lab.cells, shown, strict=True):
        text = cell["cell_type"] == "markdown"
        seen = "".join(cell["source"]) if text else json.dumps(cell["outputs"])
        assert there.locator("img").count() == len(PICTURE.findall(seen)), seen
    assert shown[0].locator("img").count() == 1
    for picture in lesson.locator(".jp-Notebook img").all():
        name = picture.get_attribute("alt")
        assert name
        assert picture.evaluate("p => p.decode().then(() => p.naturalWidth)"), name


def test_all_cells_run(ran):
    """No cell fails, the real run says ok, and the player is alive."""
    assert ran.locator(ERROR).all_inner_texts() == []
    ran.get_by_text("ok: 4 ranks").first.wait_for()
    ran.locator(".widget-play").first.wait_for()


def test_player_steps(ran):
    """A button, an arrow key and Play each change the picture and its words."""
    player = ran.locator(".jp-OutputArea-output", has=ran.locator(".widget-play")).first

    def see(step):
        words = f"step {step} of 6 · {'scatter-reduce' if step < 4 else 'allgather'}"
        player.get_by_text(words).wait_for()
        player.locator(f'img:visible[alt^="{words}"]').wait_for()

    player.get_by_role("button", name="2", exact=True).click()
    see(2)
    player.locator(".noUi-handle").focus()
    ran.keyboard.press("ArrowRight")
    see(3)
    player.locator(".widget-play button").first.click()
    see(4)
    see(5)


def test_reduced_motion(lab, launch):
    """The picture moves, unless the reader has asked the system for less motion."""
    html = lab.course / "picture.html"
    html.write_text(f'<img src="figures/{STEM}.svg">')
    page, shots, start = lab.browser.new_page(), set(), time.monotonic()
    page.goto(html.as_uri())
    wait(lambda: shots.add(page.screenshot()) or len(shots) > 3, "it does not move")
    last = time.monotonic() + (time.monotonic() - start)
    # a page's own setting does not reach its pictures, so this takes another browser
    with launch("force-prefers-reduced-motion") as calm:
        page = calm.new_page()
        page.goto(html.as_uri())
        first = page.screenshot()
        while time.monotonic() < last:
            assert page.screenshot() == first


def test_interrupt_leaves_no_rank(lab):
    """The stop button ends a launch, and every rank of it with it."""
    page, ids = lab.open("scratch"), "TMPDIR/rs-*/*/*.pid"
    menu(page, "Run", "Run All Cells")
    wait(lambda: len([*lab.folder.glob(ids)]) == 4, "four ranks did not start")
    ranks = [psutil.Process(int(path.read_text())) for path in lab.folder.glob(ids)]
    page.get_by_role("button", name="Interrupt the kernel").click()
    page.locator(ERROR).get_by_text("KeyboardInterrupt").first.wait_for()
    _, left = psutil.wait_procs(ranks, timeout=10)
    assert not left
