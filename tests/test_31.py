"""Tests two nodes: two nodes, and what their link costs. See also test_nodes.py."""

import json
import re
import runpy
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from lesson import code_with
from ringside import WrongRecording, check, load, still
from ringside.draw.player import animate, spelt
from ringside.recording import Recording
from ringside.standins import nodes
from test_nodes import able, lack, left, tool, traces  # noqa: F401

STEM = "31_two_nodes"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / f"{STEM}.py"))
MEASURED = json.loads((ROOT / "figures" / f"{STEM}_measured.json").read_text())


def test_two_terminals_are_two_nodes():
    """What the page says to type into them, with a port of our own."""
    page = (ROOT / "notebooks" / f"{STEM}.ipynb").read_text("utf-8")
    lines = re.findall(r'"torchrun (--nnodes 2 --node-rank . .*\.py)\\n"', page)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = ["--master-port", f"{free.getsockname()[1]}"]
    start = [sys.executable, "-m", "torch.distributed.run", *port]
    how = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    nodes = [
        subprocess.Popen([*start, *shlex.split(line)], text=True, **how)
        for line in lines
    ]
    try:
        said, nothing = [node.communicate(timeout=120)[0] for node in nodes]
    finally:
        for node in nodes:
            node.terminate()
    assert [node.returncode for node in nodes] == [0, 0], said + nothing
    rows = re.findall(r"(?m)^ +(\d) +(\d) +(\d)  ", said)
    assert rows == [("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"), ("3", "1", "1")]
    assert "\nok: 4 ranks" in said


@pytest.mark.parametrize(
    ("order", "nodes", "crossing"),
    [
        ([0, 1, 2, 3], [0, 0, 1, 1], 2),
        ([0, 2, 1, 3], [0, 0, 1, 1], 4),
        ([0, 1, 2, 3, 4, 5, 6, 7], [0] * 4 + [1] * 4, 2),
    ],
)
def test_a_ring_in_order_crosses_the_link_twice_a_step(order, nodes, crossing):
    """Counted by the script's own function, from messages as the ring sends them."""
    size = len(order)
    rows = [
        {"rank": rank, "to": order[(place + 1) % size], "bytes": 1000}
        for place, rank in enumerate(order)
    ] * (2 * size - 2)
    assert SCRIPT["over_the_link"](rows, nodes) == crossing * (2 * size - 2) * 1000


def test_the_picture_counts_what_crossed():
    told = spelt(load(STEM))
    link = [event["holds"]["bytes"][0][0] for event in told if event["rank"] == -1]
    assert link[6] == 12000 and link[7] == 0 and link[-1] == 24000
    assert told.header["boxes"] == {"node 0": [0, 1], "node 1": [3, 2]}
    [svg] = still(load(STEM), 6).svgs
    assert "node 0" in svg and "over the link: bytes 12000" in svg


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_the_picture_takes_other_numbers_of_ranks(ranks):
    half = -(-ranks // 2)
    events = [
        {"step": 0, "rank": rank, "phase": "in order", "node": rank // half}
        for rank in range(ranks)
    ]
    recording = Recording(events, picture="crossings", ranks=ranks)
    assert "<svg" in animate(recording)
    del events[0]["node"]
    with pytest.raises(WrongRecording, match="no 'node', as crossings needs it"):
        spelt(Recording(events, picture="crossings"))


def test_what_the_page_says_of_the_measured_times_holds():
    found = {}
    exec(code_with(STEM, "def predict(").source.replace("../", f"{ROOT}/"), found)
    links, ways, predict = MEASURED["links"], found["ways"], found["predict"]
    for limit in ("300", "100", "30"):
        for way, how in ways.items():
            assert abs(links[limit][way] / predict(links[limit], *how) - 1) < 0.1
    for limit in ("off", "3000", "1000"):
        more = links[limit]["fp16"] - predict(links[limit], *ways["fp16"])
        assert 8 <= more <= 12, "what the page calls about 10 ms"
    assert links["off"]["fp16"] > links["off"]["fp32"]
    for link in list(links.values())[1:]:
        assert link["fp16"] < link["fp32"]
    assert all(link["no_sync"] < link["fp32"] for link in links.values())
    for link in links.values():  # the kernel counted a tenth more at most
        assert 1 <= link["fp32 bytes"] / found["SIZE"] < 1.1
        assert 0.5 <= link["fp16 bytes"] / found["SIZE"] < 0.55


def test_the_names_of_nodes_are_sorted_as_text():
    """What the page and the exercise rest on, asked of torch's own class."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    nodes = [
        dynamic_rendezvous._NodeDesc(name, pid, 0)
        for pid, name in enumerate(["node2", "node10", "node1"])
    ]
    assert [node.addr for node in sorted(nodes)] == ["node1", "node10", "node2"]


def said(capsys, checker, *args, **kwargs) -> str:
    checker(*args, **kwargs)
    return capsys.readouterr().out.strip()


def test_exercise_2(capsys):
    def answer(count):
        def crossing_bytes(order, nodes, size):
            ranks = len(order)
            pairs = [*zip(order, order[1:] + order[:1])]
            cross = [nodes[one] != nodes[other] for one, other in pairs]
            return count(cross, ranks, size)

        return said(capsys, check.crossing_bytes, crossing_bytes)

    def right(cross, n, size):
        return sum(cross) * 2 * (n - 1) * size // n

    assert answer(right).startswith("right")
    assert "the last one" in answer(lambda c, n, s: right(c[:-1], n, s))
    assert "one half" in answer(lambda c, n, s: right(c, n, s) // 2)
    assert "one chunk" in answer(lambda c, n, s: right(c, n, s) * n)
    assert "all messages" in answer(lambda c, n, s: right([1] * n, n, s))


def test_exercise_3(capsys):
    def answer(function):
        return said(capsys, check.wins_below, function)

    def right(size, part, cost_ms):
        return size * (1 - part) / cost_ms / 1000 if cost_ms else float("inf")

    assert answer(right).startswith("right")
    assert "Mbit/s; MB/s are asked" in answer(lambda s, p, c: right(s, p, c) * 8)
    assert "those saved" in answer(lambda s, p, c: right(s, 1 - p, c))
    assert "kB/s" in answer(lambda s, p, c: right(s, p, c) * 1000)
    assert "still sends" in answer(lambda s, p, c: s / c / 1000)
    assert "ZeroDivisionError" in answer(lambda s, p, c: s * (1 - p) / c / 1000)


@pytest.mark.parametrize("name", ["three_names", "crossing_bytes", "wins_below"])
def test_the_solution_on_the_page_is_right(name, capsys):
    page = json.loads((ROOT / "notebooks" / f"{STEM}.ipynb").read_text())
    text = "\n".join("".join(cell["source"]) for cell in page["cells"])
    [solution] = [
        part.partition("```")[0]
        for part in text.split("```python\n")[1:]
        if f"check.{name}(" in part.partition("```")[0]
    ]
    exec(solution, {"check": check})
    assert capsys.readouterr().out.startswith("right")


def test_the_link_is_as_slow_as_asked(traces):  # noqa: F811
    """Without torch: 2.5 MB over TCP take 0.2 s at 100 Mbit/s, and less than that."""
    listen = (
        "import socket, time\n"
        "door = socket.create_server(('10.212.86.1', 5000))\n"
        "other, _ = door.accept()\nbegin = time.monotonic()\n"
        "while other.recv(1 << 16):\n    pass\nprint(time.monotonic() - begin)\n"
    )
    send = (
        "import socket, time\n"
        "for _ in range(100):\n    try:\n"
        "        s = socket.create_connection(('node0', 5000))\n        break\n"
        "    except OSError:\n        time.sleep(0.1)\n"
        "s.sendall(bytes(2_500_000))\ns.close()\n"
    )
    with nodes.two_nodes() as pair:
        pair.do("slow", "100")
        words = {"node0": ["-c", listen], "node1": ["-c", send]}
        line = {node: ["python3", *own] for node, own in words.items()}
        ended = pair.run(line)
    assert [end.code for end in ended.values()] == [0, 0], ended
    assert 0.15 < float(ended["node0"].last) < 2
