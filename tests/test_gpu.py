"""Tests what gpu.py does around its trials, on machines that have no GPU."""

import os
import runpy
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest
import torch

GPU = Path(__file__).with_name("gpu.py")
BENCH = GPU.with_name("bench_gpu.py")


@pytest.fixture
def gpu(monkeypatch):
    """What gpu.py defines, on a machine with a made-up GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: "A fine GPU")
    return runpy.run_path(str(GPU))


@pytest.mark.parametrize("path", [GPU, BENCH], ids=["gpu", "bench"])
def test_without_a_gpu_it_says_so_and_fails(path, tmp_path):
    how = {"capture_output": True, "text": True}
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, path, tmp_path / "new"], env=env, **how)
    assert done.returncode == 1
    assert done.stdout == "torch finds no GPU on this machine: nothing was tried\n"
    assert not (tmp_path / "new").exists()


def test_what_failed_is_told_and_the_rest_goes_on(gpu, tmp_path, capsys):
    def fails():
        raise ValueError("a wrong sum")

    tried = {"one": lambda: "by NCCL 2.28", "two": fails, "three": lambda: None}
    gpu["main"].__globals__["trials"] = lambda gpus, folder: tried
    assert gpu["main"](tmp_path / "found") == 1
    head, one, two, three, end = (
        (tmp_path / "found" / "report.txt").read_text().splitlines()
    )
    assert head == f"1 GPUs (A fine GPU), torch {torch.__version__}"
    assert (one[:3], one[-12:]) == ("one", "by NCCL 2.28")
    assert two.endswith("s  FAILED") and three.endswith("s  ok")
    assert end == "1 of 3 failed"
    assert "a wrong sum" in (tmp_path / "found" / "two.txt").read_text()
    del tried["two"]
    assert gpu["main"](tmp_path / "found") == 0


def test_every_script_and_every_lesson_is_tried(gpu, tmp_path):
    names = [*gpu["trials"](1, tmp_path)]
    for room, kinds in {
        "scripts": ("1 ranks", "2 ranks"),
        "notebooks": ("cells",),
    }.items():
        stems = [path.stem for path in (GPU.parents[1] / room).glob("[0-9]*.*")]
        assert {f"{stem}, {kind}" for stem in stems for kind in kinds} <= {*names}
    assert {"03_ring_all_reduce, 2 nodes", "24_precision, 3 nodes"} <= {*names}
    assert not {"05_dp_vs_ddp, 2 nodes", "17_dice, 2 nodes"} & {*names}


@pytest.mark.parametrize(
    ("several", "fault"),
    [
        ([2.4102, 2.3611], None),
        ([2.4102, 2.3621], AssertionError),
        ([2.38565], AssertionError),
    ],
)
def test_the_first_script_begins_on_nodes_as_on_one_rank(gpu, several, fault):
    outputs = [f"first loss {loss:.6f}\n" for loss in several] + [""] * (
        2 - len(several)
    )

    def run(line, env):
        assert line[-2:] == ["--epochs", "1"]
        return subprocess.CompletedProcess(
            line, 0, "first loss 2.385650\nok: 1 rank", ""
        )

    gpu["begins_as_one"].__globals__["run"] = run
    path = GPU.parents[1] / "scripts" / "00_four_ranks_tonight.py"
    assert gpu["uses_gpus"](path)
    with pytest.raises(fault) if fault else nullcontext():
        gpu["begins_as_one"](path, outputs)


@pytest.mark.parametrize(
    ("log", "said", "fault"),
    [
        ("... via NET/Socket/0", "ok: 1", None),
        ("... via P2P", "ok: 1", "via P2P"),
        ("", "ok: 1", "no NCCL"),
        ("... via NET/Socket/0", "a sum", "a sum"),
    ],
)
def test_nodes_are_named_apart_and_talk_by_sockets(gpu, log, said, fault):
    seen = {}

    def run(line, env):
        node = line[line.index("--node-rank") + 1]
        seen[node] = line[line.index("--master-port") + 1], env["NCCL_HOSTID"]
        Path(env["NCCL_DEBUG_FILE"].replace("%p", node)).write_text(log)
        return subprocess.CompletedProcess(line, 0, f"{said}\n" * (node == "0"), "")

    gpu["run_nodes"].__globals__["run"] = run
    path = GPU.parents[1] / "scripts" / "03_ring_all_reduce.py"
    if fault is None:
        assert gpu["run_nodes"](path, 3) == "NCCL, by a socket"
        ports, names = zip(*(seen[node] for node in "012"))
        assert len({*ports}) == 1 and len({*names}) == 3
    else:
        with pytest.raises(AssertionError, match=fault):
            gpu["run_nodes"](path, 2)


@pytest.mark.parametrize(
    ("log", "said", "told", "fault"),
    [
        ("NCCL version 2.28", "ok: 1", "", None),
        ("", "ok: 1", "", "no NCCL"),
        ("NCCL version 2.28", "a sum", "", "a sum"),
        ("NCCL version 2.28", "ok: 1", "too few GPUs (1)", "too few"),
    ],
)
def test_a_script_with_a_gpu_must_talk_by_nccl(gpu, log, said, told, fault):
    def run(line, env):
        Path(env["NCCL_DEBUG_FILE"]).write_text(log)
        return subprocess.CompletedProcess(line, 0, f"{said}\n", told)

    gpu["run_script"].__globals__["run"] = run
    path = GPU.parents[1] / "scripts" / "03_ring_all_reduce.py"
    if fault is None:
        assert gpu["run_script"](path, 1) == log
    else:
        with pytest.raises(AssertionError, match=fault):
            gpu["run_script"](path, 1)


def test_the_node_that_fails_says_why_and_not_the_one_that_waits(gpu):
    def run(line, env):
        if env["NCCL_HOSTID"] == "node1":
            raise AssertionError("a wrong sum")
        raise subprocess.TimeoutExpired(line, 1)

    gpu["run_nodes"].__globals__["run"] = run
    with pytest.raises(AssertionError, match="a wrong sum"):
        gpu["run_nodes"](GPU.parents[1] / "scripts" / "03_ring_all_reduce.py", 3)


@pytest.mark.parametrize(("given", "wanted"), [(None, "0"), ("3", "3"), ("5,6", "5")])
def test_nodes_share_the_first_gpu_that_may_be_seen(gpu, monkeypatch, given, wanted):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    seen = []

    def run(line, env):
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        Path(env["NCCL_DEBUG_FILE"]).write_text("via NET/Socket")
        return subprocess.CompletedProcess(line, 0, "ok: 1\n", "")

    gpu["run_nodes"].__globals__["run"] = run
    gpu["run_nodes"](GPU.parents[1] / "scripts" / "03_ring_all_reduce.py", 2)
    assert seen == [wanted] * 2


def test_a_cell_that_fails_fails_the_lesson(tmp_path):
    cells = ["def f():\n    return 1", "import inspect\nprint(inspect.getsource(f))"]
    path = tmp_path / "08_new.ipynb"
    for more, code in ((["assert f() == 1"], 0), (["assert f() == 2"], 1)):
        made = [nbformat.v4.new_code_cell(text) for text in cells + more]
        nbformat.write(nbformat.v4.new_notebook(cells=made), path)
        how = {"capture_output": True, "text": True}
        done = subprocess.run([sys.executable, GPU, path], **how)
        assert (done.returncode, "return 1" in done.stdout) == (code, True)


def test_a_page_that_tells_of_a_gpu_has_a_command_that_shows_it_again():
    told = {lesson for _, lesson, *_ in runpy.run_path(str(BENCH))["FACTS"].values()}
    pages = {
        path.name.partition("_")[0]
        for path in (GPU.parents[1] / "notebooks").glob("[0-9]*.ipynb")
        if "H100" in path.read_text("utf-8")
    }
    assert pages == set(", ".join(told).split(", "))


RANK = """
import os, sys, time
print("rank", os.environ["RANK"], "is", os.environ.get("NCCL_HOSTID"), flush=True)
if os.environ["RANK"] == "1":
    sys.exit("a word before\\nValueError: a wrong sum")
time.sleep(float(sys.argv[1] == "waits") * 60)
"""


def test_what_the_ranks_of_a_fact_say_is_told_and_how_they_end(tmp_path):
    bench = runpy.run_path(str(BENCH))
    names = bench["run"].__globals__
    (tmp_path / "rank.py").write_text(RANK)
    names |= {"__file__": str(tmp_path / "rank.py"), "LONGEST": 2}
    names["FACTS"] |= dict.fromkeys(("ends", "waits"), (print, "99", 2, False))
    lines = ["== 99: ends", "rank 0 | rank 0 is node0"]
    lines += ["rank 1 | rank 1 is node1", "rank 1 | exit code 1"]
    assert bench["run"]("ends").splitlines() == [*lines, "ValueError: a wrong sum"]
    waits = "exit code none: it still waits after 2 s"
    assert bench["run"]("waits").splitlines()[2] == f"rank 0 | {waits}"
