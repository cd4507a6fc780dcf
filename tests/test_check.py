"""Tests the checkers of exercises: each wrong answer gets the name of its mistake."""

import inspect
import json
import math
import re
import threading
import time
from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
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
OF_TABLES = [c for c in CHECKERS if hasattr(c, "table")]
OF_FUNCTIONS = [c for c in CHECKERS if Callable in inspect.get_annotations(c).values()]


def solutions() -> list:
    """Return what each fold of each notebook has checkers say, as (name, code)."""
    found = []
    for path in NOTEBOOKS:
        if path.stem == PRACTICE:  # test_35 runs them, with the page's functions
            continue
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
        fold = r"<summary>(?:Solution|Answer)</summary>(.*?)</details>"
        for folded in re.findall(fold, text, re.DOTALL):
            code = r"```python\n(.*?)```|`(check\.\w+\(.*?\))`"
            for pair in re.findall(code, folded, re.DOTALL):
                line = "".join(pair)
                if "check." in line and "check.moved(" not in line:  # test_40 runs it
                    found.append((f"{path.stem}-{len(found)}", line))
    return found


@pytest.mark.parametrize(
    "code", [c for _, c in solutions()], ids=[n for n, _ in solutions()]
)
def test_the_folded_solution_is_right(code, capsys):
    exec(code, {"check": check})
    assert capsys.readouterr().out.startswith("right: ")


def test_a_solution_gives_all_answers_that_a_table_asks_for():
    """So that each truth is held by a page: without one of them, nothing is right."""
    code = "\n".join(code for _, code in solutions())
    called = re.findall(r"check\.(\w+)\(", code)
    assert {checker.__name__ for checker in OF_TABLES} <= {*called}


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


def about(row: dict, answer) -> bool:
    """Say whether a row of a table is about an answer."""
    if "match" in row:
        return re.search(row["match"], answer) is not None
    if "outside" in row:
        low, high = row["outside"]
        number = {"len": len, "max": max, "": int}[row["of"]](answer)
        return not (number if low is None else low) <= number <= high
    if "within" in row:
        return abs(answer - row["is"]) <= row["within"]
    return answer == row["is"]


def to_try(field: dict) -> list:
    """Return answers of the right type, among them some that no row is about."""
    kind, rows = field["kind"], [field["truth"], *field["wrongs"]]
    if kind == "bool" or isinstance(kind, list):
        return [False, True] if kind == "bool" else kind
    if isinstance(kind, dict):
        words = [*permutations("abcdef"), *product("abcdef", repeat=3)]
        return ["", "c", "cf", "fc", *map("".join, words)]
    found = [row["is"] for row in rows if "is" in row]
    if kind in ("list", "set"):
        return [*found, [1], [1, 2], [1, 2, 3], [12, 13]]
    if kind == "str":
        return [*found, "something else"]
    parts = [(row, part) for row in rows for part in (-1.1, -0.9, 0.9, 1.1)]
    found += [r["is"] + r["within"] * part for r, part in parts if "within" in r]
    return [*found, 2, 3, 98, 99]


def before(table: dict, answers: dict) -> bool:
    """Say whether a row about several answers is about these."""
    return any(
        all(about(where, answers[name]) for name, where in row["if"].items())
        for row in table["before"]
    )


@pytest.mark.parametrize("checker", OF_TABLES, ids=lambda c: c.__name__)
def test_each_answer_gets_the_words_of_its_row(checker, capsys):
    table = checker.table
    fields = {field["name"]: field for field in table["fields"]}
    right = {name: field["truth"]["is"] for name, field in fields.items()}
    assert json.loads(json.dumps(table)) == table, "a table holds data only"
    assert [*inspect.signature(checker).parameters] == table["takes"]
    assert {*table["takes"]} == {*fields}

    def said(**answers) -> str:
        checker(**right | answers)
        return capsys.readouterr().out

    def says(words: str, **answers) -> None:
        """Compare what is said, but for what stands in place of braces."""
        parts = map(re.escape, re.split("{.*?}", f"not yet: {words}\n"))
        assert re.fullmatch("(.+)".join(parts), said(**answers)), (words, answers)

    assert said() == f"right: {table['right']}\n"
    for row in table["before"]:
        some = row["if"].items()
        says(row["says"], **{n: w.get("is", 99) for n, w in some})
    for place, (name, field) in enumerate(fields.items(), start=1):
        assert said(**{name: ...}) == TODO + "\n"
        types = field.get("types", table["types"])
        if types and field["kind"] != "str":
            says(types, **{name: object()})
        if field["kind"] in ("list", "set"):
            turned = said(**{name: right[name][::-1]})
            assert turned.startswith("right: ") == (field["kind"] == "set")
        later = {  # all wrong, and not yet looked at
            n: next(a for a in to_try(f) if not about(f["truth"], a))
            for n, f in [*fields.items()][place:]
        }
        heard = set()
        for answer in to_try(field):
            given = later | {name: answer}
            if about(field["truth"], answer) or before(table, right | given):
                continue
            rows = [row["says"] for row in field["wrongs"] if about(row, answer)]
            words = [*rows, field["otherwise"]][0]
            says(words, **given)
            heard.add(words)
        assert heard >= {row["says"] for row in field["wrongs"]}, "a row is never said"


@pytest.mark.parametrize("checker", OF_TABLES, ids=lambda c: c.__name__)
def test_words_that_open_with_a_number_are_about_it(checker):
    for field in checker.table["fields"]:
        for row in field["wrongs"]:
            numbers = re.findall(r"(?<![\w.^-])-?\d+(?:\.\d+)?", row["says"])
            opens = re.match(r"(\w+: )?-?[\d.]+ (?!/|and )", row["says"])
            if opens and type(row.get("is")) in (int, float):
                assert row["is"] in map(float, numbers), row


@pytest.mark.parametrize(
    ("checker", "answers", "says"),
    [
        (check.rank_9, (0, 1, 12), "not yet: rank 9 is not on node 0"),
        (check.after_moves, (7.0, 27.5, 42.5), "not yet: first: not 7: backward b"),
        (check.four_ways, (61.1, 55.6, 66.7, 42.86), "not yet: exact is not 42.9:"),
        (check.right_call, ("send",) * 5, "not yet: weights: 'send' is none of"),
        (check.right_call, (dist.send,) * 5, "not yet: weights: 'send' is none of"),
        (check.padded, ((2, 5), [3, 5]), "not yet: (2, 5) are not those that"),
        (check.padded, ([6], [3, 5]), "not yet: 10 samples become 12, so 2 come"),
        (check.worker_reads, (range(1, 3),), "not yet: not [1, 2]: how many"),
        (check.worker_reads, ([13, 4],), "not yet: there is no sample 13: thirteen"),
        (check.gpus, (4, [3, 0]), "not yet: it is not [0, 3]: which of cuda:0"),
        (check.guilty, (9, 0, 4), "not yet: job a has ranks 0 to 3, and no rank 9"),
        (check.neighbours, (32, 256, 8), "not yet: 2^-30 times 2^8 is 2^-22: what"),
        (check.rank_two, (42, "x", 1.5), "not yet: scatter and reduce_scatter each"),
        (check.rank_two, (32, [], 108), "not yet: all_to_all leaves several"),
        (check.joined, ({2, 4, 6},), "not yet: four whole numbers"),
        (check.rank_9, (2.0, 1, 12), "not yet: each answer is a whole number"),
        (check.rank_9, (2, True, 12), "not yet: each answer is a whole number"),
        (check.padded, ([2.0, 6], [3, 5]), "not yet: each answer is a list"),
        (check.padded, (torch.tensor(2), [3]), "not yet: each answer is a list"),
        (check.two_means, (math.nan, 4), "not yet: nan is not the mean of the"),
        (check.step_order, (123, "fc"), "not yet: write letters from a to f"),
        (check.step_order, ("fcebad", "fcx"), "not yet: write letters from a to f"),
        (check.drift, (0, 1, 1, 0), "not yet: give a, b, c and d, each True or"),
    ],
)
def test_answers_stand_in_what_is_said_and_others_have_no_place(
    checker, answers, says, capsys
):
    checker(*answers)
    assert capsys.readouterr().out.startswith(says)


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
    monkeypatch.setattr("ringside.standins.threads.LONGEST", 1)
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
