"""Tests the recording of a ring, its pictures and its player: data in, text out."""

import copy
import json
import random
import re
import runpy
import sys
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from ringside import (
    Notes,
    Player,
    Recording,
    WrongRecording,
    load,
    simulate,
    simulate_ring,
    still,
    torchrun,
    verify,
)
from ringside.draw import ring
from ringside.draw.player import animate, image
from ringside.standins import threads

NAME = "03_ring_all_reduce"
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def events():
    return copy.deepcopy(load(NAME))


@pytest.fixture(scope="module")
def recordings():
    """What real runs on 1 to 8 ranks recorded."""
    runs = {n: torchrun(NAME, ranks=n, record=True, quiet=True) for n in range(1, 9)}
    return {n: run.recording for n, run in runs.items()}


def test_the_committed_recording_is_right(events):
    assert len(events) == 4 * 7
    assert verify(events) is events


def test_after_scatter_reduce_rank_r_has_chunk_r_plus_1(recordings):
    for ranks, events in recordings.items():
        assert len(verify(events)) == ranks * (2 * ranks - 1)
        ones = (10**ranks - 1) // 9
        for event in ring.table(events)[ranks - 1]:
            full = [c for c, v in enumerate(event["chunks"]) if v == (c + 1) * ones]
            assert full == [(event["rank"] + 1) % ranks]


@pytest.mark.parametrize("key", ["send", "recv", "chunks", "phase", "rank"])
def test_no_change_of_one_value_goes_unseen(events, key):
    """Whatever single value is altered, the recording is refused."""
    for event in [e for e in events if e[key] is not None]:
        kept = copy.deepcopy(event[key])
        if key == "chunks":
            event[key][random.Random(0).randrange(4)] += 1
        elif key == "phase":
            if kept == "done":
                continue
            event[key] = "allgather" if kept == "scatter-reduce" else "scatter-reduce"
        else:
            event[key] = (kept + 1) % 4
        with pytest.raises(WrongRecording):
            verify(events)
        event[key] = kept
    verify(events)


def test_a_missing_event_is_seen(events):
    with pytest.raises(WrongRecording, match="step 2 does not have one event"):
        verify([e for e in events if (e["step"], e["rank"]) != (2, 1)])


def test_the_mistake_is_named(events):
    events[0]["send"] = 2
    with pytest.raises(WrongRecording, match="rank 0 sent chunk 2, and rank 1 took it"):
        verify(events)


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (1110, "ends with 1110 in chunk 0: missing are the numbers of rank 0$"),
        (12, "ends with 0012 in chunk 0: missing are the numbers of ranks 2 and 3$"),
        (1211, "ends with 1211 in chunk 0: not once are the numbers of rank 2$"),
    ],
)
def test_a_wrong_end_names_the_ranks(events, ends, says):
    last = [event | {"step": 0} for event in events if event["step"] == 6]
    verify(last)
    last[1]["chunks"] = [ends, *last[1]["chunks"][1:]]
    with pytest.raises(WrongRecording, match=f"^rank 1 {says}"):
        verify(last)


def test_the_order_of_notes_does_not_matter(events):
    shuffled = Recording(random.Random(1).sample(events, len(events)), picture="ring")
    assert animate(shuffled) == animate(events)


def test_every_picture_is_well_formed(recordings):
    for ranks, events in recordings.items():
        stills = [ring.frame(events, step) for step in range(2 * ranks - 1)]
        for svg in [*stills, animate(events)]:
            root = ElementTree.fromstring(svg)
            assert root[0].tag.endswith("title")
            assert "nan" not in svg


def test_a_still_shows_what_the_ranks_hold(events):
    for step in range(7):
        svg = ring.frame(events, step)
        held = [v for e in events if e["step"] == step for v in e["chunks"]]
        for value in held:
            assert f">{value:04}</text>" in svg
        stripes = sum(digit != "0" for value in held for digit in str(value))
        sent = [e["chunks"][e["send"]] for e in events if e["step"] == step - 1]
        stripes += sum(digit != "0" for value in sent for digit in str(value))
        hues = re.findall(r'<path fill="(#\w+)" d="([^"]+)"', svg)
        drawn = sum(d.count("M") for hue, d in hues if hue in ring.HUES)
        assert drawn == stripes


def test_a_wrong_sum_is_drawn_in_the_colour_of_mistakes(events):
    assert ring.WRONG not in ring.frame(events, 6)
    events[-1]["chunks"][2] += 1
    assert ring.WRONG in ring.frame(events, 6)


def test_cards_do_not_touch(recordings):
    for ranks in recordings:
        layout = ring.Layout(ranks)
        for a, (x, y) in enumerate(layout.places):
            assert layout.w / 2 <= x <= layout.width - layout.w / 2
            assert layout.h / 2 <= y <= layout.height - layout.h / 2
            for x2, y2 in layout.places[:a]:
                assert abs(x - x2) > layout.w + 4 or abs(y - y2) > layout.h + 4


@pytest.mark.parametrize("step", [-1, 7])
def test_a_step_that_is_not_there_is_refused(events, step):
    with pytest.raises(ValueError, match="step is a number from 0 to 6"):
        still(events, step)


def test_at_rest_the_moving_picture_shows_the_end(events):
    """Without style sheets for motion, only the last state is to be seen."""
    svg = animate(events)
    hidden = set(re.findall(r"\.(\w+)\{opacity:0;animation", svg))
    shown = re.findall(r'<text[^>]*?(?: class="(\w+)")?>([^<]*)</text>', svg)
    assert [t for name, t in shown if name and name not in hidden] == [
        "step 6 of 6 · allgather",
        "Every rank has every sum.",
    ]
    assert all(f'class="f{t}' in svg for t in (12, 26, 40, 54, 68, 82))


def test_the_player_has_all_steps_in_pictures_and_words(events):
    page = Player(events)._repr_html_()
    data = json.loads(re.search(r"parentElement, (.*)\);\n?</script>", page)[1])
    assert data["stepped"] and len(data["states"]) == 7
    tags = re.split("(?=<)", data["pieces"])[1:]
    for step, state in enumerate(data["states"]):
        svg = "".join(tags[part] for part in state["parts"]).replace("'", '"')
        title = f"<title>{ring.describe(events, step)}</title>"
        assert ring.frame(events, step) == svg.replace("<rect", title + "<rect", 1)
        assert state["label"] == str(step)
    caption, *held = state["words"]
    assert caption == "after step 6 of 6 · allgather. Every rank has every sum."
    assert held == [f"rank {r}: 1111 2222 3333 4444" for r in range(4)]


def test_a_player_is_a_moving_picture_where_scripts_are_not_allowed(events):
    page = Player(events)._repr_html_()
    picture, _, script = page.partition("<script>")
    assert picture == image(animate(events))
    assert script.count("</script") == 1 and script.endswith("</script>")
    assert page == Player(events)._repr_html_(), "no name in it differs each time"
    assert Player({"</script>": events})._repr_html_().count("</script") == 1


def test_a_picture_grows_with_the_text_around_it_and_stays_legible():
    svg = '<svg width="{}"><title>t</title><text font-size="{}">t</text></svg>'
    for width, size, em, least in ((700, 22, 50, 350), (1400, 11, 100, 1400)):
        style = re.search('style="(width[^"]*)"', image(svg.format(width, size)))[1]
        assert style == f"width:{em}em;max-width:100%;min-width:{least}px"


def test_simulated_ranks_count_what_passes():
    def pass_on(rank, world_size, grad, send, recv):
        send((rank + 1) % world_size, grad)
        grad += recv((rank - 1) % world_size)

    done = simulate(pass_on, [torch.ones(5) * rank for rank in range(3)])
    assert [grad[0].item() for grad in done.grads] == [2, 1, 3]
    assert (done.messages, done.sent, done.received) == ([1] * 3, [20] * 3, [20] * 3)


def test_a_simulated_deadlock_ends_and_is_named():
    with pytest.raises(TimeoutError, match="rank 0 waits for rank 1, which waits, too"):
        simulate(lambda rank, n, grad, send, recv: recv(1 - rank), [torch.ones(1)] * 2)


def test_a_slow_rank_is_waited_for():
    """No clock says that ranks are stuck: only that none of them can go on."""

    def program(rank, world_size, grad, send, recv):
        if rank:
            grad += recv(0)
        else:
            time.sleep(3)
            send(1, grad)

    assert simulate(program, [torch.ones(1)] * 2).grads[1].item() == 2


def test_a_rank_that_ends_as_the_time_is_up_has_ended(monkeypatch):
    near, frames = threading.Event(), sys._current_frames

    def late():
        near.set()
        time.sleep(0.2)
        return frames()

    monkeypatch.setattr(threads, "LONGEST", 0.1)
    monkeypatch.setattr(sys, "_current_frames", late)
    assert threads.at_once(lambda rank: near.wait(9), 2) == {}


def test_a_simulated_error_comes_before_those_that_wait_for_it():
    def program(rank, world_size, grad, send, recv):
        if rank == 1:
            raise KeyError("lost")
        recv(1)

    with pytest.raises(KeyError, match="lost"):
        simulate(program, [torch.ones(1)] * 3)


def halves():
    """Return the two functions that the lesson and its script have in common."""
    script = runpy.run_path(str(ROOT / "scripts" / f"{NAME}.py"))
    return [script["scatter_reduce"], script["allgather"]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_a_simulated_ring_adds_and_keeps_notes_of_it(ranks):
    grads = [torch.arange(1, ranks + 1) * 10**rank for rank in range(ranks)]
    done = simulate_ring(halves(), grads)
    assert all(torch.equal(grad, sum(grads)) for grad in done.grads)
    assert done.notes == verify(done.notes)
    assert done.messages == [2 * (ranks - 1)] * ranks
    for rank in range(ranks):  # it first sends its own, then what it has received
        own = [note for note in done.notes if note["rank"] == rank][:-1]
        came = [note["recv"] for note in own]
        assert [note["send"] for note in own] == [rank, *came][: len(own)]


def test_a_ring_that_went_wrong_can_be_stepped_through(events):
    events[-1]["chunks"][2] += 1
    with pytest.raises(WrongRecording):
        verify(events)
    player = Player(events)
    assert ring.WRONG in player.frames[-1] and "<figure" in player._repr_html_()


def test_all_ranks_of_a_ring_end_with_the_same_bits():
    grads = list(torch.rand(5, 7, generator=torch.Generator().manual_seed(0)))
    first, *others = simulate_ring(halves(), grads).grads
    assert all(torch.equal(first, grad) for grad in others)
    torch.testing.assert_close(first, sum(grads))


def test_notes_count_steps_by_rank():
    notes = Notes()
    for rank in (0, 1, 1):
        notes.add(rank, torch.tensor([1, 1, 2, 2]).split(2))
    assert notes[0]["chunks"] == [1, 2], "the first number of each"
    assert [(e["rank"], e["step"]) for e in notes] == [(0, 0), (1, 0), (1, 1)]
