"""Tests hangs: what ranks say when it breaks, and who is at fault."""

import json
import os
import re
import runpy
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from lesson import changed, functions_of
from ringside import RankFailed, check, load, still, torchrun
from ringside.draw.player import spelt

STEM = "33_when_it_breaks"
ROOT = Path(__file__).resolve().parents[1]
CPU = {"CUDA_VISIBLE_DEVICES": ""}


def stuck(rank, world_size, code):
    """Rank 0 waits in an all-reduce, while rank 1 asks it for its last call."""
    import json
    import os
    import signal
    import threading
    import time

    import torch
    import torch.distributed as dist

    here = {"json": json, "os": os, "signal": signal, "threading": threading}
    exec(code, here | {"torch": torch})
    pids = [None, None]
    dist.all_gather_object(pids, os.getpid())
    for _ in range(30 if rank == 1 else 0):
        time.sleep(0.1)
        os.kill(pids[0], signal.SIGUSR1)
    dist.all_reduce(torch.ones(1))


def test_a_rank_that_waits_tells_its_last_call_at_a_signal():
    page = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4)
    text = "".join(c.source for c in page.cells if c.cell_type == "markdown")
    [code] = re.findall(r"```python\n(def tell_on_signal.*?)```", text, re.DOTALL)
    run = torchrun(stuck, code + "\ntell_on_signal()\n", ranks=2, quiet=True, env=CPU)
    assert "last call: gloo:all_reduce" in run.lines[0] and not run.lines[1]


READS = """
import torch
from torch.utils.data import DataLoader, Dataset


class Large(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return torch.ones(2**20)


list(DataLoader(Large(), batch_size=2, num_workers=1, multiprocessing_context="fork"))
"""


def test_a_worker_tells_that_the_shared_memory_is_full(tmp_path):
    """In a mount namespace of its own, where /dev/shm has one MB."""
    (tmp_path / "reads.py").write_text(READS)
    small = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    alone = ["unshare", "-rm", "sh", "-c", small, "sh"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a mount namespace of its own")
    line = [*alone, sys.executable, str(tmp_path / "reads.py")]
    said = subprocess.run(line, capture_output=True, text=True).stderr
    assert "unable to allocate shared memory(shm)" in said or "Bus error" in said
    page = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4)
    [cell] = [cell for cell in page.cells if "mount -t tmpfs" in cell.source]
    line = [sys.executable, "-c", f"import subprocess, sys\n{cell.source}"]
    said = subprocess.run(line, capture_output=True, text=True).stdout
    assert said == cell.outputs[0].text


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / f"{STEM}.py"))


@pytest.mark.parametrize(
    ("boxes", "ranks"),
    [
        (["abc", "abc", "abc"], []),
        (["abc", "ab", "abc"], [1]),
        (["ab", "ab", "abc"], [2]),
        (["ab", "abc"], [0, 1]),
        (["abd", "abc", "abc"], [0]),
        (["abd", "abc"], [0, 1]),
        (["a"], []),
    ],
)
def test_the_boxes_point_at_who_is_behind_or_makes_another_call(boxes, ranks, script):
    assert script["at_fault"]([list(box) for box in boxes])[0] == ranks


def test_the_picture_shows_who_waits_for_whom():
    """Of the calls that never end, none is the last rank's, if it has skipped one."""
    events = spelt(load(STEM))
    waits = [(e["step"], e["lane"]) for e in events if e["kind"] == "wait"]
    assert waits == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert "step 4" in repr(still(load(STEM), 1)) + still(load(STEM), 1).svgs[0]


def test_a_job_that_is_ended_while_it_cleans_up_leaves_no_process(tmp_path):
    """The careless one: torchrun blames the witness, and ends the rank at fault."""
    cells = functions_of(STEM, tmp_path)
    page = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4).cells
    [text] = [c.source for c in page if c.source.startswith("CARELESS = ")]
    exec(text, names := {})
    (folder := tmp_path / "logs").mkdir()
    report = cells.launch(folder, names["CARELESS"]).rpartition("Root Cause")[2]
    assert re.search("rank +: (.)", report)[1] == "0", "a witness was seen first"
    assert cells.first_cause(folder) == [], "the cause stands in no file"
    left = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            left += [place.parent.name] if str(folder) in place.read_text() else []
        except OSError:  # it has ended meanwhile
            continue
    assert left == []


def test_a_fault_that_is_not_there_is_found(tmp_path):
    """A script whose recorder forgets a call must not say ok."""
    forgets = "for entry in own]", "for entry in own][:2]"
    path = changed(STEM, tmp_path, forgets)
    with pytest.raises(RankFailed, match="the boxes point at"):
        torchrun(path, "--timeout", 0.5, ranks=3, quiet=True)


def rightly(errors, world_size):
    for rank, text in errors:
        if "by peer" not in text and "Timed out" not in text:
            return rank
    [silent] = {*range(world_size)} - {rank for rank, _ in errors}
    return silent


def first(errors, world_size):
    return errors[0][0]


def without_time_out(errors, world_size):
    own = [rank for rank, text in errors if "by peer" not in text]
    return own[0] if own else rightly(errors, world_size)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (rightly, "right: it finds the rank at fault in 7 jobs"),
        (first, "rank 0 lost a peer: it is a witness"),
        (without_time_out, "rank 3 timed out"),
        (lambda errors, world_size: 7, "it is rank 2, not 7"),
        (lambda errors, world_size: "2", "return a rank, such as 2"),
        (lambda errors, world_size: None, "it returned None"),
    ],
)
def test_the_rank_at_the_root(function, told, capsys):
    check.at_the_root(function)
    assert re.search(told, capsys.readouterr().out)


def test_the_recording_has_no_clock():
    lines = (ROOT / "figures" / f"{STEM}.jsonl").read_text().splitlines()
    kept = {key for line in lines[1:] for key in json.loads(line)}
    assert kept == {"step", "rank", "phase", "what", "kind"}
    assert os.sep not in lines[1]


def odd_one(rank, world_size, makes):
    first, second = (dist.new_group(timeout=timedelta(seconds=1)) for _ in range(2))
    dist.barrier()
    order = (second, first) if rank == 0 and makes == "other" else (first, second)
    try:
        for group in order if rank or makes != "none" else ():
            dist.all_reduce(torch.ones(1), group=group)
        print("ended well")
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    found = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"]
    names = {entry["process_group"][0] for entry in found}
    print({first.group_name, second.group_name} & names)
    dist.barrier()


@pytest.mark.parametrize("makes", ["none", "other"])
def test_detail_does_not_name_rank_0_in_its_own_log(makes):
    """The others point at rank 0's log; there it is well, or blames all the others."""
    detail = CPU | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    run = torchrun(odd_one, makes, ranks=3, env=detail, quiet=True)
    told = (
        "ended well"
        if makes == "none"
        else "Ranks 1, 2 failed to pass monitoredBarrier"
    )
    assert told in run.lines[0][0]
    assert all("check rank 0 logs for faulty rank" in run.lines[r][0] for r in (1, 2))
    assert [lines[1] for lines in run.lines.values()] == 3 * ["set()"]  # empty boxes
