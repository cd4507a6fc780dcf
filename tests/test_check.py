"""Tests the checkers of exercises: each wrong answer gets the name of its mistake."""

import inspect
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ringside import check
from ringside.check.verdict import TODO

ROOT = Path(__file__).resolve().parents[1]
PRACTICE = "35_broken_scripts"
NOT_ASKED = "all_devices", "bets", "six_runs", "would_start"  # nothing to fill in
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
CHECKERS = [
    checker
    for name, checker in vars(check).items()
    if inspect.isfunction(checker) and name not in NOT_ASKED
]
OF_FUNCTIONS = [c for c in CHECKERS if Callable in inspect.get_annotations(c).values()]


def solutions() -> list:
    """Return each folded solution of each notebook, as (name, code)."""
    found = []
    for path in NOTEBOOKS:
        if path.stem == PRACTICE:  # test_35 runs them, with the page's functions
            continue
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            folded = re.findall(
                r"<summary>Solution</summary>\s+```python\n(.*?)```",
                "".join(cell["source"]),
                re.DOTALL,
            )
            found += [
                (f"{path.stem}-{len(found) + i}", c)
                for i, c in enumerate(folded)
                if "check.moved(" not in c  # test_40 runs it, on ranks
            ]
    return found


@pytest.mark.parametrize(
    "code", [c for _, c in solutions()], ids=[n for n, _ in solutions()]
)
def test_the_folded_solution_is_right(code, capsys):
    exec(code, {"check": check})
    assert capsys.readouterr().out.startswith("right: ")


def test_there_is_a_solution_for_each_exercise():
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        exercises = len(re.findall(r"## Exercise \d", text))
        assert 2 <= exercises <= 3 or path.stem == PRACTICE and exercises == 9
        assert text.count("<summary>Solution</summary>") == exercises
        assert text.count("<summary>Hint</summary>") == exercises


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda c: c.__name__)
def test_an_argument_that_is_missing_or_unknown_is_named(checker, capsys):
    *others, last = inspect.signature(checker).parameters
    checker(**dict.fromkeys(others, ...))
    call = f"not yet: {checker.__name__}({', '.join([*others, last])}): "
    assert capsys.readouterr().out.startswith(call + "missing")
    checker(**dict.fromkeys([*others, last, "strange"], ...))
    said = capsys.readouterr().out
    assert said.startswith(call) and "'strange'" in said and said.count("\n") == 1


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda c: c.__name__)
def test_what_is_still_to_fill_in_is_your_turn(checker, capsys):
    names = [*inspect.signature(checker).parameters]
    for blank in (..., [1, ...], dots):
        checker(**dict.fromkeys(names, blank))
        assert capsys.readouterr().out == TODO + "\n"


@pytest.mark.parametrize("checker", OF_FUNCTIONS, ids=lambda c: c.__name__)
def test_a_function_that_returns_none_is_not_told_to_replace_dots(checker, capsys):
    for function in (passes, returns_none):
        checker(function)
        assert capsys.readouterr().out.startswith("not yet: ")


def dots(*args): ...


def passes(*args):
    pass


def returns_none(*args):
    return None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((..., 8, 160), "your turn"),
        ((3, 8, 160), "torch's reduce_scatter hands"),
        ((2, 8, 160), "chunk 2 is complete on rank 1"),
        ((1, 8, 160), "chunk 1 is complete on rank 0"),
        ((0, 8, 160), "chunk 0 is complete on rank 4"),
        ((7, 8, 160), "rank 3 does not end scatter-reduce with 7"),
        ((4, 6, 160), "6 would do for four ranks"),
        ((4, 8, 150), "150 would be right for four ranks"),
        ((4, 4, 160), "one phase"),
        ((4, 10, 160), "N steps in each phase"),
        ((4, 8, 80), "one phase"),
        ((4, 8, 800), "a message is one chunk"),
        ((4, 8, 20), "one message"),
        ((4, 8, 200), "10 messages of 20"),
        ((4, 8, 100), "the size of the gradient"),
        (("chunk 4", 8, 160), "each answer is a whole number"),
        ((4, 8, 160), "right: chunk 4, 8 messages, 160 bytes"),
    ],
)
def test_five_ranks(answer, says, capsys):
    check.five_ranks(*answer)
    assert says in capsys.readouterr().out


def untouched(rank, world_size, grad, send, recv): ...


def nothing(rank, world_size, grad, send, recv):
    return rank


def endless(rank, world_size, grad, send, recv):
    while True:
        pass


def boss(rank, world_size, grad, send, recv):
    if rank == 0:
        for other in range(1, world_size):
            send(other, grad)
    else:
        grad.copy_(recv(0))


def shortcut(rank, world_size, grad, send, recv):
    if rank > 0:
        grad.copy_(recv(0 if rank == 2 else rank - 1))
    for other in {0: (1, 2), 1: ()}.get(rank, (rank + 1,)):
        if other < world_size:
            send(other, grad)


def not_alone(rank, world_size, grad, send, recv):
    if rank > 0:
        grad.copy_(recv(rank - 1))
    if rank < world_size - 1:
        send(rank + 1, grad)
    return 1 / (world_size - 1)


def not_in_pairs(rank, world_size, grad, send, recv):
    return not_alone(rank, world_size, grad, send, recv) / (world_size - 2)


def full_turn(rank, world_size, grad, send, recv):
    if rank > 0:
        grad.copy_(recv(rank - 1))
    send((rank + 1) % world_size, grad)


def own_name(rank, world_size, grad, send, recv):
    if rank > 0:
        grad = recv(rank - 1)
    if rank < world_size - 1:
        send(rank + 1, grad)


def all_wait(rank, world_size, grad, send, recv):
    grad.copy_(recv((rank - 1) % world_size))
    send((rank + 1) % world_size, grad)


def before_the_first(rank, world_size, grad, send, recv):
    grad.copy_(recv(rank - 1))


def off_the_edge(rank, world_size, grad, send, recv):
    if rank > 0:
        grad.copy_(recv(rank - 1))
    send(rank + 1, grad)


def too_early(rank, world_size, grad, send, recv):
    if rank < world_size - 1:
        send(rank + 1, grad)
    if rank > 0:
        grad.copy_(recv(rank - 1))


def added(rank, world_size, grad, send, recv):
    if rank > 0:
        grad += recv(rank - 1)
    if rank < world_size - 1:
        send(rank + 1, grad)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (untouched, "your turn"),
        (nothing, "no rank has sent anything"),
        (endless, "does not end: is there an endless loop?"),
        (boss, "may only pass on to its right"),
        (not_alone, "with 1 rank, it raised ZeroDivisionError"),
        (not_in_pairs, "with 2 ranks, it raised ZeroDivisionError"),
        (shortcut, "may only pass on to its right"),
        (full_turn, "the last one sends too"),
        (own_name, "must change grad itself"),
        (all_wait, "rank 0 waits for rank 3, which waits, too"),
        (too_early, "[10, 10, 10]: rank 1 sent before it had received"),
        (added, "[11, 11, 11]: what came belongs in the place of its own"),
        (off_the_edge, "rank 3 sends to rank 4, which is not there"),
        (before_the_first, "rank 0 receives from rank -1, which is not there"),
        (None, "TypeError"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_ring_broadcast(program, says, capsys, monkeypatch):
    monkeypatch.setattr("ringside.mailboxes.LONGEST", 1)
    before = threading.active_count()
    check.ring_broadcast(program)
    assert says in capsys.readouterr().out
    while threading.active_count() > before:
        time.sleep(0.01)  # for ever, if a loop of the learner's goes on


def even(numel, world_size):
    edges = [numel * chunk // world_size for chunk in range(world_size + 1)]
    return [*zip(edges, edges[1:])]


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        (lambda n, w: ..., "your turn"),
        (lambda n, w: print(end=""), "returned None"),
        (lambda n, w: [(0, n)], "gave 1 chunks for 4 ranks"),
        (
            lambda n, w: [(c * (n // w), (c + 1) * (n // w)) for c in range(w)],
            "leaves out number 8:",
        ),
        (lambda n, w: [(0, n)] * w, "in two chunks"),
        (
            lambda n, w: [
                (min(c * -(-n // w), n), min((c + 1) * -(-n // w), n)) for c in range(w)
            ],
            "bounds(10, 4) has chunks of [3, 3, 3, 1]: the largest",
        ),
        (
            lambda n, w: [(c * n // w, (c + 1) * n // w) for c in reversed(range(w))],
            "out of order",
        ),
        (lambda n, w: 1 / 0, "ZeroDivisionError"),
        (lambda n, w: [(c * n / w, (c + 1) * n / w) for c in range(w)], "not a whole"),
        (lambda n, w: [(c + 1) * n // w for c in range(w)], "has 2: a chunk is a pair"),
        (
            lambda n, w: [(c * n // w, (c + 1) * n // w - 1) for c in range(w)],
            "end is one past the last",
        ),
        (lambda n, w: 1 / (n // w) and even(n, w), "bounds(3, 4): it raised ZeroDi"),
        (lambda n, w: n / n and even(n, w), "bounds(0, 2): it raised ZeroDivision"),
        (lambda n, w: 1 / (w - 1) and even(n, w), "bounds(7, 1): it raised ZeroDi"),
    ],
    ids=[
        "nothing",
        "none",
        "one",
        "floor",
        "twice",
        "ceil",
        "reversed",
        "raises",
        "floats",
        "ends",
        "inclusive",
        "few",
        "no numbers",
        "one rank",
    ],
)
def test_uneven_chunks(bounds, says, capsys):
    check.uneven_chunks(bounds)
    assert says in capsys.readouterr().out


def test_bets_stand_beside_the_answers(capsys):
    check.bets(
        ("bytes", 150, 150.0),
        ("nearly", 198.5, 199.5),
        ("more", 7, 3),
        ("less", 2.5, 3),
        ("a word", "ring", "tree"),
        ("none", ..., 1),
    )
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == ["your", "bet", "answer"]
    assert [row.split() for row in rows] == [
        ["bytes", "150", "150", "right"],
        ["nearly", "198.5", "199.5", "right"],
        ["more", "7", "3", "too", "high"],
        ["less", "2.5", "3", "too", "low"],
        ["a", "word", "ring", "tree", "not", "so"],
        ["none", "-", "1", "no", "bet", "yet"],
    ]
    for row in rows:  # the columns are straight
        assert row[len(first) - 1].isalnum() and row[len(first) :].startswith("  ")
