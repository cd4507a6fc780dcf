"""Tests ranks and messages: what its script prints and records, its checkers."""

import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from lesson import code_with, functions_of
from ringside import RankFailed, check, load, only, torchrun
from ringside.draw.player import spelt

MESSAGES = "10_ranks_and_messages"
CPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_both_ways_reach_the_sum_in_as_many_messages_as_the_lesson_says(ranks):
    run = torchrun(MESSAGES, ranks=ranks, record=True, quiet=True)
    total, last = ranks * (ranks + 1) // 2, ranks - 1
    assert run.lines[0][:2] == [
        f"chain   sum {total}, messages {2 * last}, steps {2 * last}",
        f"circle  sum {total}, messages {ranks * last}, steps {last}",
    ]
    phases = [e["phase"] for e in run.recording if e["rank"] == 0]
    there_and_back = ["there"] * last + ["back"] * last
    assert phases == ["numbers", *there_and_back, "numbers", *["circle"] * last]


def those_in(places):
    """Return the ranks that are in a sum, of which each gave its rank + 1."""
    assert all(given in (0, rank + 1) for rank, given in enumerate(places))
    return {rank for rank, given in enumerate(places) if given}


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_recorded_sum_is_made_of_what_came(ranks):
    events = torchrun(MESSAGES, ranks=ranks, record=True, quiet=True).recording
    rows = {(e["step"], e["rank"]): e for e in events}
    for (step, rank), event in rows.items():
        whose = those_in(event["places"])
        if event["phase"] == "numbers":
            assert whose == {rank}
            continue
        givers = [r for r in range(ranks) if rows[step, r].get("to") == rank]
        assert len(givers) <= 1
        heard = set()
        for giver in givers:
            heard = those_in(rows[step, giver]["given"])
            had = those_in(rows[step - 1, giver]["places"])
            assert heard <= had, "a rank can't send what it has not heard"
            assert event["phase"] != "circle" or giver == (rank - 1) % ranks
        assert whose == those_in(rows[step - 1, rank]["places"]) | heard
    circle = only(events, "circle")
    assert [e["phase"] for e in circle if e["rank"] == 0][:2] == ["numbers", "circle"]


def test_a_picture_tells_whose_sums_are_held_and_sent():
    told = [event for event in spelt(load(MESSAGES)) if event["rank"] == 1]
    assert [event["holds"]["sum"][0] for event in told[:2]] == [[2, 1], [3, 0, 1]]
    assert told[2]["sends"] == [[2, "sum", [[3, 0, 1]]]]
    assert told[-1]["sends"] == [[2, "sum", [[4, 3]]]], "what came a step before"
    assert told[-1]["holds"] == {"sum": [[10, 0, 1, 2, 3]]}


def test_four_ranks_can_agree_in_two_steps():
    sums, held = [1, 2, 3, 4], []
    for away in (1, 2):
        sums = [sums[rank] + sums[rank - away] for rank in range(4)]
        held.append(sums)
    assert held == [[5, 3, 5, 7], [10] * 4]


def test_the_order_of_adding_explains_what_the_ranks_of_the_circle_print():
    cell = code_with(MESSAGES, "run = torchrun(fractions")
    said = [line for line in cell.outputs[0].text.splitlines() if "circle" in line]
    assert [line.split()[-1] for line in said] == [
        str(0.1 + 0.4 + 0.3 + 0.2),
        str(0.2 + 0.1 + 0.4 + 0.3),
        str(0.3 + 0.2 + 0.1 + 0.4),
        str(0.4 + 0.3 + 0.2 + 0.1),
    ]


def begun_one_by_one(rank, world_size):
    given, came = torch.tensor([[rank], [-1]])
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for request in [dist.isend(given, right), dist.irecv(came, left)]:
        request.wait()
    print(came.item())


def names_of_own_groups(rank, world_size):
    """Print the name of a group of its own, made by a counter, and by its members."""
    print(dist.new_group([rank]).group_name)
    print(dist.new_group([rank], use_local_synchronization=True).group_name)


def members_only(rank, world_size):
    own = [1, 3] if rank % 2 else [0, 2]
    group = dist.new_group(own, use_local_synchronization=True)
    number = torch.tensor([rank + 1])
    dist.all_reduce(number, group=group)
    print(number.item())


def members_alone(rank, world_size):
    if rank % 2 == 0:
        dist.new_group([0, 2])
    else:
        time.sleep(60)


def test_members_that_make_their_group_alone_wait_for_the_others():
    with pytest.raises(RankFailed) as failed:
        torchrun(members_alone, ranks=4, quiet=True, env=CPU, timeout=3)
    said = failed.value.details.splitlines()
    assert said[0] == "ranks 0 and 2 stood in members_alone: dist.new_group([0, 2])"


def test_what_the_lesson_says_of_messages_and_groups_in_words_is_so():
    how = {"ranks": 4, "quiet": True, "env": CPU}
    begun = torchrun(begun_one_by_one, **how).lines
    assert [*begun.values()] == [["3"], ["0"], ["1"], ["2"]]
    counted, hashed = zip(*torchrun(names_of_own_groups, **how).lines.values())
    assert len({*counted}) == 1 and len({*hashed}) == 4
    sums = torchrun(members_only, **how).lines
    assert [*sums.values()] == [["4"], ["6"], ["4"], ["6"]]


def test_what_gloo_carries_is_what_the_lesson_says(tmp_path):
    """The cell that shows it may show more on another machine, and is not compared."""
    carry = functions_of(MESSAGES, tmp_path).carry
    run = torchrun(carry, "gloo", "cpu", ranks=4, quiet=True, env=CPU)
    kinds, *lines = run.lines[0]
    rows = {line[:16].strip(): line[16:].split() for line in lines[:10]}
    found = {name: dict(zip(kinds[16:].split(), row)) for name, row in rows.items()}
    assert {*found.pop("send, recv").values()} == {"yes"}
    mean = found.pop("all_reduce, mean")
    assert (mean["int64"], mean["float32"]) == ("no", "yes")
    assert {row["int16"] for row in found.values()} == {"no"}
    assert {row["float32"] for row in found.values()} == {"yes"}
    assert lines[10:], "reasons"


def test_the_script_on_the_page_reads_as_all_scripts_do(tmp_path):
    exec(code_with(MESSAGES, "SCRIPT = ").source, found := {})
    path = tmp_path / "report.py"
    path.write_text(found["SCRIPT"].lstrip())
    for how in (["check"], ["format", "--check"]):
        line = [sys.executable, "-m", "ruff", *how, "--no-cache", str(path)]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    run = torchrun(path, ranks=3, quiet=True, env=CPU)
    assert run.lines[0] == ["rank 1 sent 2", "rank 2 sent 3"]


def idle(rank, world_size, grad, send, recv):
    pass


def nothing_sent(rank, world_size, grad, send, recv):
    return rank


def keyword_order(rank, world_size, grad, send, recv):
    send(grad, (rank + 1) % world_size)


def torch_order(rank, world_size, grad, send, recv):
    if rank == 0:
        recv(grad, world_size - 1)


def deaf(rank, world_size, grad, send, recv):
    if rank:
        send((rank + 1) % world_size, grad)
        grad.copy_(recv((rank - 1) % world_size))


def all_send_first(rank, world_size, grad, send, recv):
    send((rank + 1) % world_size, grad)
    grad.copy_(recv((rank - 1) % world_size))


def all_receive_first(rank, world_size, grad, send, recv):
    came = recv((rank - 1) % world_size)
    send((rank + 1) % world_size, grad)
    grad.copy_(came)


def overwrites(rank, world_size, grad, send, recv):
    if rank:
        send((rank + 1) % world_size, grad)
        grad.copy_(recv((rank - 1) % world_size))
    else:
        grad.copy_(recv((rank - 1) % world_size))
        send((rank + 1) % world_size, grad)


def by_parity(rank, world_size, grad, send, recv, way=1):
    right, left = (rank + way) % world_size, (rank - way) % world_size
    if rank % 2:
        send(right, grad)
        grad.copy_(recv(left))
    else:
        came = recv(left)
        send(right, grad)
        grad.copy_(came)


def leftwards(*ours):
    by_parity(*ours, way=-1)


def new_name(rank, world_size, grad, send, recv):
    mine = grad.clone()
    by_parity(rank, world_size, mine, send, recv)


def adds(rank, world_size, grad, send, recv):
    own = grad.clone()
    by_parity(rank, world_size, grad, send, recv)
    grad += own


def one_adds(rank, world_size, grad, send, recv):
    by_parity(rank, world_size, grad, send, recv)
    grad += 8 * (rank == 1)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (idle, "no rank has sent anything"),
        (keyword_order, "the receiver comes first"),
        (torch_order, "returns a tensor"),
        (deaf, "rank 3 sends to rank 0, which does not answer"),
        (nothing_sent, "no rank has sent anything"),
        (all_send_first, "rank 0 sends to rank 1, which waits, too"),
        (all_receive_first, "rank 0 waits for rank 3, which waits, too"),
        (overwrites, "rank 1 holds 4, rank 3's number: rank 0 received before it sent"),
        (leftwards, "its right neighbour's number"),
        (new_name, "change grad itself"),
        (adds, "not its left neighbour's number"),
        (one_adds, "rank 1 holds 9, not its left neighbour's number"),
        (by_parity, "right: "),
        (None, "TypeError"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_in_turns(program, says, capsys):
    check.in_turns(program)
    assert says in capsys.readouterr().out


def untouched(rank, world_size, grad, send, recv): ...


def nothing(rank, world_size, grad, send, recv):
    return rank


def own_name(rank, world_size, grad, send, recv):
    for other in range(world_size):
        send(other, grad[other])
    grad = [recv(other) for other in range(world_size)]


def too_early(rank, world_size, grad, send, recv):
    for other in range(world_size):
        if other != rank:
            send(other, grad[other])
            grad[other] = recv(other)
            grad[(other + 1) % world_size] = grad[other]


def backwards(rank, world_size, grad, send, recv):
    for other in range(world_size):
        send(other, grad[other])
    for other in range(world_size):
        grad[world_size - 1 - other] = recv(other)


def sums(rank, world_size, grad, send, recv):
    for other in range(world_size):
        send(other, grad[other])
    for other in range(world_size):
        grad[other] += recv(other)


def whole_lists(rank, world_size, grad, send, recv):
    for other in range(world_size):
        send(other, grad)
    found = [recv(other)[rank] for other in range(world_size)]
    for other in range(world_size):
        grad[other] = found[other]


def same_piece(rank, world_size, grad, send, recv):
    own = grad.clone()
    for other in range(world_size):
        send(other, own[rank])
    for other in range(world_size):
        grad[other] = recv(other)


def waits(rank, world_size, grad, send, recv):
    grad[0] = recv((rank + 1) % world_size)
    send((rank + 1) % world_size, grad[0])


def neighbours(rank, world_size, grad, send, recv):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    send(right, grad[right])
    grad[left] = recv(left)


def to_itself(rank, world_size, grad, send, recv):
    for other in range(world_size):
        send(other, grad[other])
    for other in range(world_size):
        grad[other] = recv(other)


def not_alone(rank, world_size, grad, send, recv):
    to_itself(rank, world_size, grad, send, recv)
    return 1 / (world_size - 1)


def not_in_pairs(rank, world_size, grad, send, recv):
    to_itself(rank, world_size, grad, send, recv)
    return 1 / (world_size - 2)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (untouched, "your turn"),
        (nothing, "no rank has sent anything"),
        (own_name, "with 4 ranks, rank 0 still holds its own pieces: change grad"),
        (too_early, "has one of them twice"),
        (backwards, "out of order"),
        (sums, "nothing is to be added"),
        (whole_lists, "a piece for each is enough"),
        (same_piece, "rank 0 got 21 from rank 1, and that is for somebody else: which"),
        (waits, "which waits, too"),
        (neighbours, "still holds its own 11 where rank 1's piece should be"),
        (to_itself, "right: "),
        (not_alone, "with 1 rank, it raised ZeroDivisionError"),
        (not_in_pairs, "with 2 ranks, it raised ZeroDivisionError"),
        (None, "TypeError"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_piece_from_each(program, says, capsys):
    check.piece_from_each(program)
    assert says in capsys.readouterr().out
