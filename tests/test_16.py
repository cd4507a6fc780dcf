"""Tests workers and streams: what its script records, its picture, its checkers."""

import re
from collections import Counter
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch.distributed as dist
from lesson import changed
from ringside import Player, RankFailed, Recording, check, film, load, still, torchrun
from ringside.draw.player import animate
from ringside.draw.stream import Layout, describe, sentence
from torch.utils.data import DataLoader, IterableDataset

SCRIPT = "16_workers_and_streams"
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("ranks", "samples", "workers"),
    [(5, 11, 3), (8, 20, 2), (8, 3, 1), (4, 0, 2), (1, 5, 1), (3, 40, 4)],
)
def test_any_ranks_samples_and_workers(ranks, samples, workers):
    """Shared by both, each sample is read once; nobody reads two more than another."""
    more = ("--samples", samples, "--workers", workers)
    run = torchrun(SCRIPT, *more, ranks=ranks, record=True, quiet=True)
    places = ranks * workers
    said = [list(map(int, re.findall(r"\d+", line))) for line in run.lines[0][:-1]]
    for found, times in zip(said, (places, ranks, places // ranks, 1), strict=True):
        assert found[:2] == [samples * times, times]
        assert sum(found[2:]) == samples * times
    assert run.lines[0][-1].startswith(f"ok: {samples} samples for {ranks} ranks with")
    last = [event["reads"] for event in run.recording if event["step"] == 3]
    parts = [mine for reads in last for mine in reads]
    assert len(parts) == places
    assert sorted(chain(*parts)) == list(range(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("leap *= workers", "pass", "shared by worker: not 2 of each"),
        ("begin += worker * leap", "pass", "shared by worker: not 2 of each"),
        (
            "begin, leap = rank, world_size",
            "leap = world_size",
            "shared by rank: not 2",
        ),
        ("range(self.samples), begin", "range(9), begin", "shared by nobody: not 4"),
    ],
)
def test_a_stream_that_is_shared_wrongly_fails(old, new, says, tmp_path):
    path = changed(SCRIPT, tmp_path, (old, new))
    with pytest.raises(RankFailed, match=says):
        torchrun(path, ranks=2, quiet=True)


def made(*states, samples=6) -> Recording:
    """Return a recording of states, each the reads by rank and worker."""
    events = [
        {"step": step, "rank": rank, "phase": f"way {step}", "reads": reads}
        for step, ranks in enumerate(states)
        for rank, reads in enumerate(ranks)
    ]
    return Recording(events, picture="stream", samples=samples)


ONCE = [[[0, 4], [2]], [[1, 5], [3]]]


def test_a_picture_holds_every_read():
    recording = load(SCRIPT)
    for step, reads in enumerate((88, 44, 22, 11)):
        svg = still(recording, step).svgs[0]
        ElementTree.fromstring(svg)
        assert svg.count('<path fill="#') == reads + 4 + 1, "and a mark for each rank"
        numbers = Counter(map(int, re.findall(r">(\d+)</text>", svg)))
        found = Counter(
            flat
            for e in recording
            for mine in e["reads"]
            for flat in mine
            if e["step"] == step
        )
        feet = Counter({(8, 4, 2, 1)[step]: 11})
        assert numbers == found + feet + Counter(range(11)), "cells, counts, the stream"
    ElementTree.fromstring(animate(recording))
    assert film(recording).svgs == tuple(still(recording, i).svgs[0] for i in range(4))
    for samples in (0, 16, 26, 40):
        layout = Layout(made(ONCE, samples=samples))
        assert layout.x(samples) < layout.width
    assert Layout(list(made(ONCE, samples=16))).samples == 6, "as far as it is read"
    assert Layout(list(made([[[]]]))).samples == 0
    assert repr(Player(recording)) == "Player: 4 states"
    with pytest.raises(ValueError, match="step is a number from 0 to 3, not 4"):
        still(recording, 4)


@pytest.mark.parametrize(
    ("state", "says", "red"),
    [
        (ONCE, "6 reads of 6 samples: each is read once.", 0),
        ([*ONCE, *ONCE], "12 reads of 6 samples: each is read twice.", 6),
        ([*ONCE] * 3, "18 reads of 6 samples: each is read 3 times.", 6),
        ([[[], []]], "0 reads of 6 samples: none is read.", 6),
        (
            [[[0, 4], [2]], [[0, 5], [3]]],
            "6 reads of 6 samples: 1 never read, 1 more than once.",
            2,
        ),
    ],
)
def test_what_is_not_read_once_is_told_and_red(state, says, red):
    recording = made(state)
    assert sentence(Layout(recording), 0) == says
    assert says in describe(recording, 0)
    assert still(recording, 0).svgs[0].count('font-weight="600" fill="#c1121f"') == red


def test_words_say_what_each_worker_reads():
    told = describe(made(ONCE), 0)
    assert told.endswith("rank 0: 0 4 | 2; rank 1: 1 5 | 3")
    assert sentence(Layout(made([[[]]], samples=0)), 0) == "0 reads of 0 samples."


def blocks(r, w, k, n, samples):
    place, size = r * n + k, samples // (w * n)
    return range(place * size, samples if place + 1 == w * n else (place + 1) * size)


def mine(r, w, k, n, samples):
    return range(k * w + r, samples, w * n)


def backwards(r, w, k, n, samples):
    return [samples - 1 - number for number in mine(r, w, k, n, samples)]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *place: ..., "your turn"),
        (lambda *place: print(end=""), "it returned None"),
        (lambda *place: 1 / 0, "ZeroDivisionError"),
        (lambda r, w, k, n, s: range(s), "who tells workers apart?"),
        (lambda r, w, k, n, s: range(r, s, w), "who tells workers apart?"),
        (lambda r, w, k, n, s: range(k, s, n), "who tells the ranks apart?"),
        (lambda r, w, k, n, s: range(k * w + r, s, w * n + 1), "nobody reads 2: is"),
        (lambda r, w, k, n, s: range(k * w + r, s, w), "both read 1. is the leap"),
        (lambda r, w, k, n, s: range(k * w + r, s + 1, w * n), "there is no sample"),
        (lambda *p: [*mine(*p)] * 2, "one worker reads 0 more"),
        (blocks, "one worker reads 5, another 3"),
        (lambda r, w, k, n, s: [] if r or k else range(s), "another 0"),
        (lambda r, w, k, n, s: range(r * n + k, s, w * n), "one rank reads 2, another"),
        (backwards, "right: "),
        (mine, "right: "),
        (None, "TypeError"),
    ],
)
def test_stream_parts(function, says, capsys):
    check.stream_parts(function)
    assert says in capsys.readouterr().out


class WhoAmI(IterableDataset):
    """Asks in a worker which rank it belongs to."""

    def __iter__(self):
        try:
            yield dist.get_rank()
        except ValueError as error:
            yield f"{error}"


def ask_in_workers(rank, world_size):
    for way in ("fork", "spawn", "forkserver"):
        loader = DataLoader(WhoAmI(), None, num_workers=1, multiprocessing_context=way)
        print(way, *loader)


def test_only_a_forked_worker_knows_the_rank_by_itself():
    """What the page says of get_rank in a worker."""
    lines = torchrun(ask_in_workers, ranks=1, quiet=True).lines
    for rank, said in lines.items():
        assert said[0] == f"fork {rank}"
        assert "group has not been initialized" in said[1]
        assert "group has not been initialized" in said[2]
