"""Turns a function that finds a mistake into a checker that prints one line."""

import functools
import inspect
from collections.abc import Callable

TODO = "your turn: replace the ... above, then run this cell again"
SHORTEST = len((lambda: ...).__code__.co_code)  # of a function without a body


class Mistake(Exception):
    """What is wrong with an answer, in words."""


def for_learners(function: Callable) -> Callable:
    """Mark a function as one that a page calls, as check.NAME."""
    function.for_learners = True
    return function


def says(right: str) -> Callable:
    """Make a checker of a function that returns a mistake, or None if all is right."""

    def make(find: Callable) -> Callable:
        takes = inspect.signature(find)
        call = f"{find.__name__}({', '.join(takes.parameters)})"

        @functools.wraps(find)
        def checker(*args, **kwargs) -> None:
            try:
                answers = takes.bind(*args, **kwargs).arguments
            except TypeError as error:
                print(f"not yet: {call}: {error}")
                return
            if any(map(untouched, answers.values())):
                print(TODO)
                return
            try:
                mistake = find(**answers)
            except Mistake as found:
                mistake = str(found)
            print(f"not yet: {mistake}" if mistake else f"right: {right}")

        checker.__signature__ = takes.replace(return_annotation=None)
        return for_learners(checker)

    return make


def attempt(case: str, function: Callable, *args, into: Callable | None = None):
    """Return what the learner's function returns; what it raises is the mistake.

    Where something must come back, `into` makes of it what the checker needs.
    """
    try:
        answer = function(*args)
        if into and answer is not None:
            answer = into(answer)
    except TimeoutError as error:  # of simulated ranks: it says who waits for whom
        raise Mistake(f"{case} {error}") from None
    except Exception as error:  # noqa: BLE001 it is the learner's
        raise Mistake(f"{case} it raised {type(error).__name__}: {error}") from None
    if into and answer is None:
        raise Mistake(f"{case} it returned None")
    return answer


def read(what: str, *kinds: Callable) -> Callable:
    """Make a reader of one thing that comes back, or of several, for `into`."""

    def reader(answer):
        try:
            if len(kinds) == 1:
                return kinds[0](answer)
            return tuple(kind(one) for kind, one in zip(kinds, answer, strict=True))
        except (TypeError, ValueError):
            raise Mistake(f"return {what}, not {answer!r}") from None

    return reader


def integer(number) -> int:
    """Return a whole number as it is, but nothing that would have to be made one."""
    if type(number) is not int:
        raise TypeError
    return number


def ints(numbers) -> list[int]:
    """Return numbers of any kind, such as tensors, as a list of whole ones."""
    return [int(number) for number in numbers]


def untouched(answer: object) -> bool:
    """Say whether an answer still has the ... that the exercise gave it."""
    if isinstance(answer, list | tuple | set):
        return any(one is ... for one in answer)
    code = getattr(answer, "__code__", None)
    if code is None or len(code.co_code) > SHORTEST:
        return answer is ...
    try:  # `pass` and `return None` make the same code
        return "..." in inspect.getsource(answer)
    except OSError:
        return False
