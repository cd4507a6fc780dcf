"""Makes a checker of a table: what is right, and what each wrong answer has missed.

A table holds data only, so that a page in a browser can judge by it, too, if it does
what mistake() and the functions below it do. The kind of a field is "int", "float",
"bool", "str" (whatever it is), "list" (of whole numbers), "set" (the same, in any
order), a list of words, or a pattern to match.
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .verdict import says


@dataclass(frozen=True)
class Near:
    """All numbers so near to one that rounding may be the difference."""

    number: float
    within: float


@dataclass(frozen=True)
class Outside:
    """All whole numbers below `low` or above `high`; of a list, its "len" or "max"."""

    low: int | None
    high: int | None
    of: str = ""


def asks(
    right: str, /, like: str = "", types: str = "", among=(), before=(), **fields: tuple
) -> Callable:
    """Make a checker of a function that has only a signature and a sentence.

    Each of its parameters is a field, judged in the order in which they stand here:
    (truth, what to say to another answer, {wrong answer: what to say}, what to say to
    an answer of another type). A set as truth: in any order; a list: in this one. A
    wrong answer is a value, several in a tuple, a pattern of a text, Near or Outside.
    For braces in what is said, see filled().

    All answers are `among` some words, or match a pattern. `types` is said to one that
    is not, or has another type; `like`, an example of an answer, makes that sentence;
    without either, any type will do. `before` has rows about several answers,
    ({field: answer}, what to say).
    """

    def make(asked: Callable) -> Callable:
        kinds = inspect.get_annotations(asked)
        number = "a number" if float in kinds.values() else "a whole number"
        table = {
            "right": right,
            "takes": [*inspect.signature(asked).parameters],
            "types": types or like and f"each answer is {number}, such as {like}",
            "before": [
                {"if": {name: about(answer) for name, answer in which.items()}}
                | {"says": words}
                for which, words in before
            ],
            "fields": [
                {"name": name, "kind": kind_of(field[0], kinds.get(name), among)}
                | as_data(*field)
                for name, field in fields.items()
            ],
        }

        @functools.wraps(asked)
        def find(**answers) -> str | None:
            return mistake(table, answers)

        checker = says(right)(find)
        checker.table = table
        return checker

    return make


def as_data(truth, otherwise: str, wrongs: dict | None = None, types: str = "") -> dict:
    """Return a field as data, with a row for each wrong answer."""
    field = {"truth": about(truth), "otherwise": otherwise, "wrongs": []}
    for answer, words in (wrongs or {}).items():
        several = isinstance(answer, tuple) and not isinstance(truth, list | set)
        for one in answer if several else [answer]:
            field["wrongs"].append(about(one) | {"says": words})
    return field | ({"types": types} if types else {})


def about(answer) -> dict:
    """Return as data which answers a row is about."""
    if isinstance(answer, re.Pattern):
        return {"match": answer.pattern}
    if isinstance(answer, Near):
        return {"is": answer.number, "within": answer.within}
    if isinstance(answer, Outside):
        return {"outside": [answer.low, answer.high], "of": answer.of}
    if isinstance(answer, set):
        return {"is": sorted(answer)}
    return {"is": [*answer] if isinstance(answer, tuple | list) else answer}


def kind_of(truth, asked: object, among) -> object:
    """Return what an answer must be: the name of a type, some words, or a pattern."""
    if asked == list[int]:
        return "list" if isinstance(truth, list) else "set"
    if isinstance(among, re.Pattern):
        return {"match": among.pattern}
    return [*among] or getattr(asked, "__name__", "str")


def mistake(table: dict, answers: dict) -> str | None:
    """Return what is wrong with answers, or None: the first row that is about one."""
    # a function stands for its name, as in weights=dist.broadcast
    answers = {name: getattr(a, "__name__", a) for name, a in answers.items()}
    seen, misfits = dict(answers), []
    for field in table["fields"]:
        name, kind = field["name"], field["kind"]
        types = field.get("types", table["types"])
        if types and not fits(answers[name], kind):
            misfits.append(types)
        elif kind in ("list", "set"):
            seen[name] = sorted(answers[name]) if kind == "set" else [*answers[name]]
    if misfits:  # what is said of all answers goes before what is said of one
        return table["types"] if table["types"] in misfits else misfits[0]
    for row in table["before"]:
        if all(holds(where, seen[name]) for name, where in row["if"].items()):
            return filled(row["says"], answers)
    for field in table["fields"]:
        name, answer = field["name"], seen[field["name"]]
        if holds(field["truth"], answer):
            continue
        for row in field["wrongs"]:
            if holds(row, answer):
                number = measured(answer, row.get("of"))
                return filled(row["says"], answers, number)
        return filled(field["otherwise"], answers, answers[name])
    return None


def fits(answer: object, kind: object) -> bool:
    """Say whether an answer is of a kind; what order counts in is a list or a tuple."""
    if isinstance(kind, list):
        return answer in kind
    if isinstance(kind, dict):
        return isinstance(answer, str) and bool(re.fullmatch(kind["match"], answer))
    if kind in ("list", "set"):
        several = isinstance(answer, list | tuple if kind == "list" else Collection)
        tensor = hasattr(answer, "ndim")  # a number is one, too, and has no length
        return several and not tensor and all(type(one) is int for one in answer)
    wanted = {"int": [int], "float": [int, float], "bool": [bool]}
    return kind == "str" or type(answer) in wanted[kind]


def holds(where: dict, answer) -> bool:
    """Say whether a row is about an answer."""
    if "match" in where:
        return bool(re.search(where["match"], answer))
    if "outside" in where:
        low, high = where["outside"]
        number = measured(answer, where["of"])
        return low is not None and number < low or high is not None and number > high
    if "within" in where:
        return abs(answer - where["is"]) <= where["within"]
    return answer == where["is"]


def measured(answer, of: str | None):
    """Return the number of a list that a row is about, or the answer itself."""
    if of == "len":
        return len(answer)
    return max(answer, default=0) if of == "max" else answer


def filled(words: str, answers: dict, answer=None) -> str:
    """Return words with answers in place of their braces.

    {} is the answer, {list} or {sorted} what is in it, {name} the answer of that field,
    and {name-30} is 30 less.
    """
    words = re.sub(r"{(\w+)-(\d+)}", lambda m: f"{answers[m[1]] - int(m[2])}", words)
    if fits(answer, "set"):
        answers = answers | {"list": [*answer], "sorted": sorted(answer)}
    return words.format(answer, **answers)
