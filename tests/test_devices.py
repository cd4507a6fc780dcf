"""Tests that cells which name no number of ranks use what the machine has."""

import json
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from ringside import Run, check, road
from ringside.launch.run import as_many_as_there_are_gpus

from shared import own_device

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
OK = "ok: a rank for each GPU if there are several, else four on the CPU\n"


@pytest.fixture(params=[0, 1, 2, 8])
def gpus(request, monkeypatch):
    """A machine with so many GPUs, as far as torch says."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: request.param)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return request.param


def ran(ranks: int, said: str = "", last: str = "ok: all well") -> Run:
    lines = {rank: [last] for rank in range(ranks)}
    return Run("a command", lines, stderr=dict.fromkeys(lines, said))


def test_each_gpu_gets_a_rank_and_else_four_share_the_cpu(gpus, monkeypatch, capsys):
    ranks = as_many_as_there_are_gpus()
    assert ranks == {0: 4, 1: 4, 2: 2, 8: 8}[gpus]
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", str(ranks))
    for rank in reversed(range(ranks)):  # rank 0 last: what it says counts
        monkeypatch.setitem(os.environ, "LOCAL_RANK", str(rank))
        device, backend = own_device()
        if gpus < 2:
            assert (str(device), backend) == ("cpu", "gloo")
        else:
            assert (str(device), backend) == (f"cuda:{rank}", "nccl")
    check.all_devices(ran(ranks, capsys.readouterr().err))
    assert capsys.readouterr().out == OK


def test_other_ranks_other_devices_or_no_ok_are_seen(gpus):
    ranks, few = as_many_as_there_are_gpus(), "too few GPUs (1)"
    said = few if gpus == 1 else ""
    with pytest.raises(AssertionError, match="ranks, and"):
        check.all_devices(ran(ranks + 1, said))
    with pytest.raises(AssertionError, match="rank 0 says"):
        check.all_devices(ran(ranks, "" if said else few))
    on = {0: "cuda", 1: "cuda"}.get(gpus, "cpu")  # as the first station says it
    with pytest.raises(AssertionError, match="rank 0 says") if gpus else nullcontext():
        check.all_devices(ran(ranks, "", f"ok: {ranks} ranks on {on}"))
    with pytest.raises(AssertionError, match="no ok"):
        check.all_devices(ran(ranks, said, "something else"))


@pytest.mark.parametrize("stem", [page.stem for page in road.PARTS["the evening"]])
def test_a_station_has_one_cell_for_all_devices(stem):
    """nbval does not compare what it prints, and the next cell looks at the run."""
    cells = json.loads((NOTEBOOKS / f"{stem}.ipynb").read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    call = re.compile(
        rf'run = torchrun\("{stem}"(, "--[\w-]+", [\d._]+)*(, timeout=\d+)?\)'
    )
    [at] = [place for place, source in enumerate(sources) if call.fullmatch(source)]
    assert cells[at]["metadata"]["tags"] == ["nbval-ignore-output"]
    assert sources[at + 1] == "check.all_devices(run)"
