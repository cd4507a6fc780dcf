"""Tests sharded checkpoints: who writes which part, and who reads it on fewer ranks."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import rounds
import torch
import torch.distributed.checkpoint as dcp
from lesson import changed, code_with, quoted
from ringside import RankFailed, check, load, still, torchrun
from ringside.draw.player import animate

STEM = "23_sharded_checkpoints"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / f"{STEM}.py"


def pieces(numel, ranks):
    """Return how chunk cuts so many numbers."""
    return [p.tolist() for p in torch.arange(1, numel + 1).chunk(ranks)]


@pytest.mark.parametrize(("ranks", "numel"), [(5, 12), (3, 10), (2, 1), (8, 24)])
def test_half_of_the_ranks_load_what_all_have_saved(ranks, numel):
    run = torchrun(STEM, "--numel", numel, ranks=ranks, quiet=True)
    half = max(1, ranks // 2)
    saved, loaded, last = run.lines[0]
    assert saved == " ".join(["saved ", *map(str, pieces(numel, ranks))])
    assert loaded == " ".join(["loaded", *map(str, pieces(numel, half))])
    assert last == f"ok: {half} ranks hold what {ranks} ranks have saved"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("            dcp.load(", "            dict(", "not equal"),
        ('state["small"], small)', 'state["small"], small + 1)', "not equal"),
        ("_id=names[0], process", '_id="no", process', "CheckpointException"),
    ],
)
def test_a_load_that_fills_nothing_fails(old, new, says, tmp_path):
    """On one rank: a second one may miss the folder that a failed rank removes."""
    path = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, ranks=1, quiet=True)


def test_what_a_training_prints_is_what_one_process_without_checkpoints_has():
    """get_state_dict takes a step, and Adam counts it: the lesson must forget it."""
    take_step = rounds.told(STEM)["take_step"]
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    after = {}
    for step in range(12):
        take_step(step, model, optimizer, 0, 1)
        after[step + 1] = f"{step + 1} steps: {model.weight.item():.5f}"
    printed = code_with(STEM, "torchrun(train").outputs[0]["text"]
    told = [line.partition(", ")[2] for line in printed.splitlines()]
    assert told == [after[6], after[12], after[12]]


def test_what_lies_in_pieces_is_what_one_process_has():
    """A step of get_state_dict that Adam counts would make the rows others."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    due = [round(row, 2) for row in model.weight.sum(1).tolist()]
    printed = code_with(STEM, "torchrun(sharded").outputs[0]["text"]
    rows = re.findall(r"(\d) of 6 rows, their sums (.*)", printed)
    assert rows == [("2", f"{due}")] * 3 + [("3", f"{due}")] * 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_second_save_into_a_folder_warns(tmp_path):
    dcp.save({"one": torch.ones(1)}, checkpoint_id=tmp_path)
    with pytest.warns(UserWarning, match="Detected an existing checkpoint"):
        dcp.save({"one": torch.ones(1)}, checkpoint_id=tmp_path)


def test_the_picture_has_each_number_in_the_file_of_its_rank():
    events = load(STEM)
    disk = [e for e in events if e["rank"] == -1]
    files = disk[1]["holds"]
    assert disk[0]["holds"] == {} and disk[2]["holds"] == disk[3]["holds"] == files
    for rank, piece in enumerate(pieces(12, 4)):
        cells = files[f"file {rank}"]
        assert [n for n, _ in cells if n] == piece
        assert {whose for _, whose in cells} == {rank}
    assert sum(number == 0 for cells in files.values() for number, _ in cells) == 1
    for rank, piece in enumerate(pieces(12, 2)):
        [event] = [e for e in events if e["rank"] == rank and e["phase"] == "load"]
        assert [n for n, _ in event["holds"]["big"]] == piece
        assert [rank, "big", event["holds"]["big"]] in disk[3]["sends"]
    for step in range(4):
        svg = still(events, step).svgs[0]
        ElementTree.fromstring(svg)
        assert "the disk" in svg and "the whole batch" not in svg
        assert len(re.findall(r">rank \d</text>", svg)) == 4
    ElementTree.fromstring(animate(events))


def right(numel, old_ranks, new_ranks, rank):
    """Return what exercise 2 asks for, from what chunk does."""
    new = [*pieces(numel, new_ranks), *[[]] * new_ranks][rank]
    return [i for i, piece in enumerate(pieces(numel, old_ranks)) if {*piece} & {*new}]


def every(numel, old_ranks, new_ranks, rank):
    """Return the file of each number, with what comes twice."""
    old, new = math.ceil(numel / old_ranks), math.ceil(numel / new_ranks)
    return [n // old for n in range(rank * new, min(rank * new + new, numel))]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *given: ..., "your turn"),
        (lambda *given: print(end=""), "it returned None"),
        (lambda *given: 1 / 0, "ZeroDivisionError"),
        (lambda *given: 3, "TypeError"),
        (every, "each file once, and in order"),
        (lambda n, o, w, r: range(o), "it reads"),
        (lambda n, o, w, r: [o], "there is no file"),
        (lambda n, o, w, r: right(n, o, w, r) or [0], "so it reads no file"),
        (right, "right: "),
    ],
)
def test_files_to_read(function, says, capsys):
    check.files_to_read(function)
    assert says in capsys.readouterr().out


def half_of_the_fold(rank, world_size, text, folder):
    """Run one of its two pieces; print what the loaded dice throw next."""
    torch.manual_seed(rank)
    names = {"torch": torch, "dcp": dcp, "folder": folder}
    exec(text, names | {"rank": rank, "world_size": world_size}, found := {})
    for dice in found.get("state", {}).values():
        torch.set_rng_state(dice)
        print(torch.randint(1000, ()).item())


def test_two_ranks_learn_that_four_have_saved(tmp_path):
    """And have the dice of all four, as the fold says."""
    saves, loads = quoted(STEM, '"ranks": world_size').split("\n\n")
    torchrun(half_of_the_fold, saves, str(tmp_path), ranks=4, quiet=True)
    run = torchrun(half_of_the_fold, loads, str(tmp_path), ranks=2, quiet=True)
    dice = [torch.Generator().manual_seed(rank) for rank in range(4)]
    right = [str(torch.randint(1000, (), generator=d).item()) for d in dice]
    assert run.lines == {0: right, 1: right} and len({*right}) == 4
