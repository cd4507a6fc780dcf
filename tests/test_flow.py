"""Tests pictures of ranks that pass numbers on: data in, text out."""

import copy
import itertools
import re
from xml.etree import ElementTree

import pytest
from ringside import Player, Recording, film, load, still, torchrun
from ringside.draw import cards, flow
from ringside.draw.flow_layout import BAND, CELL, Layout
from ringside.draw.player import animate, last, spelt
from ringside.draw.svg import box

LESSONS = ["01_split_the_batch"]
LESSONS += ["10_ranks_and_messages", "11_collectives"]
SENT = [
    {"step": 0, "rank": r, "phase": "start", "holds": {"x": [[10 * r, r]]}}
    for r in range(2)
] + [
    {
        "step": 1,
        "rank": 0,
        "phase": "swap",
        "holds": {"x": [[10, 1]]},
        "sends": [[1, "x"]],
    },
    {
        "step": 1,
        "rank": 1,
        "phase": "swap",
        "holds": {"x": [[0, 0]]},
        "sends": [[0, "x"]],
    },
]


@pytest.fixture(scope="module")
def recordings():
    """What real runs on 1 to 8 ranks recorded, as states."""
    found = {}
    for name, ranks in itertools.product(LESSONS, (1, 2, 3, 5, 8)):
        run = torchrun(name, ranks=ranks, record=True, quiet=True)
        found[name, ranks] = spelt(run.recording)
    return found


def test_a_picture_is_the_same_each_time(recordings):
    for events in recordings.values():
        again = Recording(copy.deepcopy([*events]), **events.header)
        assert animate(events) == animate(again)
        backward = Recording(reversed(events), **events.header)
        assert still(events, 1).svgs == still(backward, 1).svgs


def test_cards_never_overlap_and_never_leave_the_page(recordings):
    for events in recordings.values():
        layout = Layout(events)
        for rank in layout.ranks:
            (x, y), (w, h) = layout.places[rank], layout.room(rank)
            assert w / 2 <= x <= layout.width - w / 2
            assert h / 2 <= y <= layout.height - h / 2
        for a, b in itertools.combinations(layout.ranks, 2):
            assert layout.apart(layout.places, a, b)


def test_every_number_is_in_the_picture_and_in_the_words(recordings):
    for events in recordings.values():
        for step in range(1 + last(events)):
            svg, words = flow.frame(events, step), flow.describe(events, step)
            ElementTree.fromstring(svg)
            assert words.startswith("after step") == (step > 0)
            for event in (e for e in events if e["step"] == step):
                for name, cells in event["holds"].items():
                    for value, *_ in cells:
                        assert f">{value}</text>" in svg
                    numbers = " ".join(str(value) for value, *_ in cells)
                    assert f"{name} {numbers}" in words


@pytest.mark.parametrize("name", LESSONS)
def test_a_moving_picture_has_all_states(name):
    events = spelt(load(name))
    svg = animate(events)
    ElementTree.fromstring(svg)
    for step in range(1 + last(events)):
        corner, sentence = flow.caption(Layout(events), step)
        assert corner in svg and sentence in svg
    assert "prefers-reduced-motion" in svg
    assert len(svg) < 40_000


def test_a_message_is_drawn_from_its_sender_to_its_receiver():
    layout = Layout(SENT)
    x0, y0, x1, y1 = layout.path(0, 1)
    (_, top), (_, bottom) = layout.places[0], layout.places[1]
    assert top < y0 < y1 < bottom
    assert layout.path(1, 0)[0] != x0, "two messages that cross do not hide each other"
    svg = flow.frame(SENT, 1)
    assert len(re.findall("l-9 -4.5v9z", svg)) == 2
    assert len(re.findall("l-9 -4.5v9z", flow.frame(SENT, 0))) == 0
    assert ">0</text>" in flow.token(layout, 1, (0, 1, "x"), 0.5)


def test_a_band_joins_those_that_make_a_call():
    events = [
        {"step": 0, "rank": r, "phase": "two", "holds": {"n": [[r]]}, "call": "sum"}
        for r in range(4)
    ]
    assert flow.meeting(Layout(events), 0).count("M") == 1
    assert "z" in flow.meeting(Layout(events), 0)
    for event in events:
        event["group"] = event["rank"] // 2
    assert flow.meeting(Layout(events), 0).count("M") == 2
    for event in events:
        del event["call"]
    assert flow.meeting(Layout(events), 0) == ""


def meet_all(size: int) -> list[dict]:
    """Return a rest and a step in which everyone gets a number from everyone."""
    events = []
    for step, rank in itertools.product(range(2), range(size)):
        event = {"step": step, "rank": rank, "phase": "all", "holds": {"x": [[1]]}}
        if step:
            event["holds"]["all"] = [[100 + r, r] for r in range(size)]
            others = [to for to in range(size) if to != rank]
            event["sends"] = [[to, "all", [[200 + rank, rank]]] for to in others]
        events.append(event)
    return Recording(events, picture="flow", pace=2)


@pytest.mark.parametrize(("size", "lines"), [(3, 1), (5, 1), (6, 2), (8, 2), (11, 3)])
def test_many_numbers_stand_in_lines_on_their_card(size, lines):
    events = meet_all(size)
    layout = Layout(events)
    assert layout.lines(0, "all") == lines and layout.lines(0, "x") == 1
    svg = flow.frame(events, 1)
    for rank in range(size):
        (x, y), (w, h) = layout.places[rank], layout.room(rank)
        _, top = layout.spot(rank, "all")
        assert top + lines * 36 <= y + h / 2
        places = re.findall(rf'x="([\d.]+)" y="([\d.]+)">{100 + rank}<', svg)
        assert len(places) == size, "each rank has it once"
        inside = [
            abs(float(a) - x) < w / 2 and top < float(b) < y + h / 2 for a, b in places
        ]
        assert inside.count(True) == 1


@pytest.mark.parametrize(("size", "left", "wide"), [(1, 0, 20), (2, 10, 10)])
def test_a_stripe_under_a_number_has_the_place_of_its_rank(size, left, wide):
    drawn = cards.cells(Layout(meet_all(size)), 0, 0, 23, [[7, size - 1]])
    assert box(left, CELL, wide, BAND) in drawn


@pytest.mark.parametrize(("size", "numbers"), [(5, True), (6, False)])
def test_a_crowd_of_messages_bears_no_numbers(size, numbers):
    """Thirty messages at once would cover each other's, and those on the cards."""
    events = meet_all(size)
    for svg in (flow.frame(events, 1), animate(events)):
        assert (">200</text>" in svg) == numbers
    assert len(re.findall("l-9 -4.5v9z", flow.frame(events, 1))) == size * (size - 1)


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="step is a number from 0 to 1, not 2"):
        still(Recording(SENT, picture="flow"), 2)


def test_the_player_and_the_film_show_all_states():
    events = load("01_split_the_batch")
    assert repr(Player(events)) == "Player: 5 states"
    shown = film(events)._repr_html_()
    assert (shown.count("<figure"), shown.count('alt="after step')) == (5, 4)
    assert "flex-wrap:wrap" in shown, "as many beside each other as the window takes"
    assert str(film(events)).splitlines()[0].startswith("start. The same weight")
