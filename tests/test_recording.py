"""Tests what a recording may hold: known fields, and neither clock nor host."""

import copy
import json
import re
from pathlib import Path

import pytest
from ringside import Notes, Player, Recording, WrongRecording, reads
from ringside.draw.player import DRAWS
from ringside.draw.retell import TELLS
from ringside.recording import FIELDS, KINDS, checked, read

ROOT = Path(__file__).resolve().parents[1]
KEPT = {path.stem: path for path in sorted((ROOT / "figures").glob("*.jsonl"))}
WHERE = ("machine", "torch", "date")  # of a recording of measured times


def numbers(value):
    """Give every number in a value of a recording, however deep it lies."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers(inner)
    elif isinstance(value, int | float):
        yield value


@pytest.mark.parametrize("name", KEPT)
def test_a_recording_has_no_clock_and_no_host(name):
    """One of times says what machine they are from, but not which one."""
    recording = read(KEPT[name])
    assert recording
    if recording.header.get("measured"):
        about = {key: recording.header[key] for key in WHERE}
        kinds = r"\d+ (CPU cores|GPUs|.{1,20} GPUs?), \w+"
        assert re.fullmatch(kinds, about["machine"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"])
        return
    lines = [json.loads(line) for line in KEPT[name].read_text().splitlines()]
    assert [n for n in numbers(lines) if n % 0.125 or abs(n) > 10**6] == []


@pytest.mark.parametrize("name", KEPT)
def test_every_field_is_in_the_table(name):
    for event in read(KEPT[name]):
        assert event.keys() <= FIELDS.keys()


def test_each_kind_is_drawn_or_told_as_one_that_is():
    assert DRAWS.keys() | TELLS.keys() == KINDS.keys()
    assert not DRAWS.keys() & TELLS.keys()


def test_lines_of_samples_make_a_grid():
    printed = reads({0: ["[3, 1]", "[]"], 1: ["[0]", "[2, 2]"]}, samples=5)
    assert [(e["step"], e["rank"], e["samples"]) for e in printed] == [
        (0, 0, [3, 1]),
        (1, 0, []),
        (0, 1, [0]),
        (1, 1, [2, 2]),
    ]
    assert checked(printed).header == {"picture": "grid", "ranks": 2, "samples": 5}


def test_what_a_cell_has_made_is_looked_at_too():
    with pytest.raises(WrongRecording, match="event 0 has no 'holds', as flow needs"):
        Player(Recording([{"step": 0, "rank": 0, "phase": "x"}], picture="flow"))
    with pytest.raises(WrongRecording, match="picture is None, none of"):
        Player([{"step": 0, "rank": 0, "chunks": [1]}])
    with pytest.raises(WrongRecording, match="run with record=True"):
        Player(None)  # what a run without it has


def test_the_table_has_what_kinds_of_picture_need():
    assert set(" ".join(KINDS.values()).split()) <= FIELDS.keys()


@pytest.mark.parametrize("name", KEPT)
def test_a_field_that_lacks_is_named(name):
    kept = read(KEPT[name])
    for field in KINDS[kept.header["picture"]].split():
        events = copy.deepcopy(kept)
        del events[-1][field]
        with pytest.raises(WrongRecording) as caught:
            checked(events)
        last = f"event {len(events) - 1} has no '{field}', as {kept.header['picture']}"
        assert str(caught.value) == f"{last} needs it: {FIELDS[field]}"


@pytest.mark.parametrize("header", [{}, {"picture": "rings"}])
def test_an_unknown_kind_of_picture_is_refused(header, tmp_path):
    path = tmp_path / "08_new.jsonl"
    path.write_text(json.dumps({"lesson": "08_new", "ranks": 2} | header) + "\n")
    with pytest.raises(WrongRecording, match="picture is .*, none of ring, flow,"):
        read(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not begin with a header"),
        ("{}\n", "does not begin with a header"),
        ("[1]\n", "does not begin with a header"),
        ('{"lesson": "08_new"}\n{"step": ', "has a line that is not JSON: Expecting"),
    ],
)
def test_a_file_without_a_header_or_with_half_a_line_is_refused(text, says, tmp_path):
    path = tmp_path / "08_new.jsonl"
    path.write_text(text)
    with pytest.raises(WrongRecording, match=says):
        read(path)


def test_notes_of_a_cell_are_a_ring():
    assert checked(Notes()) == Recording()
