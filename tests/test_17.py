"""Tests dice: what its script prints and records, its picture, its checkers."""

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from lesson import changed
from ringside import Player, RankFailed, check, load, still, torchrun

SCRIPT = "17_dice"
COUNT = itertools.count()
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (3, 4), (5, 2)])
def test_any_ranks_and_workers(ranks, workers):
    """As many different numbers as there are seeds, less those that chance repeats."""
    how = {"ranks": ranks, "record": True, "quiet": True}
    run = torchrun(SCRIPT, "--workers", workers, **how)
    said = [list(map(int, re.findall(r"\d+", line))) for line in run.lines[0][:-1]]
    seeds = (2 * workers, ranks + workers - 1, 2 * workers, 2 * ranks * workers)
    for (found, total), most in zip(said, seeds, strict=True):
        assert most - 1 <= found <= most and total == 2 * ranks * workers
    for step in range(4):
        rows = [e["holds"] for e in run.recording if e["step"] == step]
        assert [len(row) for row in rows] == [workers] * ranks
        thrown = [{n for cells in row.values() for n, *_ in cells} for row in rows]
        for row in rows:
            for number, *whose in (cell for cells in row.values() for cell in cells):
                assert whose == [r for r in range(ranks) if number in thrown[r]]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('0 if way == "one seed" else rank', "rank", "one seed: one process predicts"),
        ('0 if way == "one seed" else rank', "0", "seed . rank: one process predicts"),
        ("manual_seed(rank + worker)", "manual_seed(rank)", "rank . worker: one proc"),
        ('["generator"] = torch', '["generator"] = None and torch', "recipe: one proc"),
    ],
)
def test_dice_that_are_seeded_otherwise_fail(old, new, says, tmp_path):
    path = changed(SCRIPT, tmp_path, (old, new))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, ranks=2, quiet=True)


def test_a_picture_shows_who_throws_the_same():
    recording = load(SCRIPT)
    shared = []
    for step in range(4):
        svg = still(recording, step).svgs[0]
        ElementTree.fromstring(svg)
        cells = [c for e in recording if e["step"] == step for c in sum_of(e["holds"])]
        assert len(cells) == 16
        assert len(re.findall(r">\d+</text>", svg)) == 16
        shared.append(sorted({len(cell) - 1 for cell in cells}))
    assert shared == [[4], [1, 2], [4], [1]], "stripes under a number"
    assert repr(Player(recording)) == "Player: 4 states"


def sum_of(holds):
    """Return the cells of all workers of a rank."""
    return [cell for cells in holds.values() for cell in cells]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *place: ..., "your turn"),
        (lambda *place: print(end=""), "it returned None"),
        (lambda *place: 1 / 0, "ZeroDivisionError"),
        (lambda *place: 1.5, "a seed is a whole number, not 1.5"),
        (lambda *place: "7", "a seed is a whole number, not '7'"),
        (lambda r, k, e, w, n: r - 1, "a seed is from 0 to 2**63 - 1, not -1"),
        (lambda r, k, e, w, n: 2**63, "a seed is from 0 to 2**63 - 1"),
        (lambda *place: next(COUNT), "called twice for the same worker"),
        (lambda *place: 7, "worker 0 has seed 7 in epochs 0 and 1: the epoch has no"),
        (lambda r, k, e, w, n: r * n + k, "in epochs 0 and 1: the epoch has no say"),
        (
            lambda r, k, e, w, n: r + k + 1000 * e,
            "in epoch 0, rank 0's worker 1 and rank 1's worker 0 have seed 1",
        ),
        (lambda r, k, e, w, n: r + 1000 * e, "rank 0's worker 0 and rank 0's worker 1"),
        (lambda r, k, e, w, n: e + r * n + k, "leave room for all of an epoch"),
        (lambda r, k, e, w, n: e * w + r * n + k, "leave room for all of an epoch"),
        (lambda r, k, e, w, n: (e * w + r) * n + k, "right: "),
        (lambda r, k, e, w, n: 10**6 * e + 1000 * r + k, "right: "),
        (lambda r, k, e, w, n: torch.tensor(10**6 * e + 1000 * r + k), "right: "),
        (None, "TypeError"),
    ],
)
def test_own_seeds(function, says, capsys):
    check.own_seeds(function)
    assert says in capsys.readouterr().out
