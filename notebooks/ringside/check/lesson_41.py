"""Checks the answers of parameter servers."""

from collections.abc import Callable

import torch

from .table import asks
from .verdict import Mistake, attempt, ints, says

LOGS = [  # what came at a server, and how old the gradients were
    ("rA wA rA wA", [0, 0]),
    ("rA rB wA wB", [0, 1]),
    ("rA rB wA rA wA wB", [0, 0, 2]),
    ("rA rB rC wC wB rC wA wC", [0, 1, 2, 1]),
    ("", []),
]


@asks(
    "360, 120 and 100 MB: the boss carries a model for each worker",
    types="each answer is a number of MB, such as ring=10",
    server=(
        360,
        "the server does not send {:g} MB: 60 for each worker",
        {
            60: "60 MB is one model, and the server sends it to each of six workers",
            300: "300 MB would do if the server were one of the six workers",
            720: "720 MB are both ways: the server sends half of that",
        },
    ),
    each_of_three=(
        120,
        "not {:g} MB: share out what one would send",
        {
            20: "20 MB is the share of one server, which it sends to each worker",
            360: "each of three servers has a third of the weights only",
        },
    ),
    ring=(
        100,
        "not {:g} MB: 2 (N - 1)/N models, with N = 6",
        {
            50: "50 MB is one phase of the ring: it has two",
            120: "120 MB would be 2 models: a ring sends 2 (N - 1)/N of one",
            60: "60 MB is one model: a ring sends 2 (N - 1)/N of it",
        },
    ),
)
def boss_bytes(server: float, each_of_three: float, ring: float):
    """Check what the busiest sends, if six workers have a model of 60 MB."""


@says(f"the ages of all gradients in {len(LOGS)} logs")
def ages(ages: Callable) -> str | None:
    """Check a function that tells the ages of gradients from a server's log."""
    names = {"r": "read", "w": "write"}
    for text, right in LOGS:
        log = [(names[what], who) for what, who in text.split()]
        case = f"{', '.join(' '.join(pair) for pair in log) or 'an empty log'}:"
        found = attempt(case, ages, log, into=whole_numbers)
        if len(found) != len(right):
            return f"{case} {len(right)} gradients were written, not {len(found)}"
        if right and found == [age + 1 for age in right]:
            return f"{case} its own write is no part of a gradient's age"
        if found != right:
            return f"{case} the ages are {right}, not {found}"
    return None


def whole_numbers(answer) -> list[int]:
    """Return an answer as whole numbers."""
    if not isinstance(answer, list | tuple):
        raise Mistake(f"return a list of ages, not {answer!r}")
    return ints(answer)


class Call:
    """A future of a worker that has answered, or is gone."""

    def __init__(self, answer: float | None):
        self.answer = answer

    def wait(self) -> torch.Tensor:
        if self.answer is None:
            raise RuntimeError("eof")
        return torch.full((2,), self.answer)


@says("it goes on with those who live, and ends if nobody does")
def mean_of_the_living(mean_of_the_living: Callable) -> str | None:
    """Check a function that takes the mean of the gradients that came."""
    for answers in ([1.0, 2.0, 6.0], [4.0, None, 6.0], [None, None, 8.0]):
        gone = [rank for rank, answer in enumerate(answers, 1) if answer is None]
        came = [answer for answer in answers if answer is not None]
        told = f"ranks {gone} are gone" if gone else "nobody is gone"
        case = f"{told}, and the others answer {came}:"
        calls = {rank: Call(answer) for rank, answer in enumerate(answers, 1)}
        mean, lost = attempt(case, mean_of_the_living, calls, into=pair)
        right = sum(came) / len(came)
        if gone and close(mean, sum(came) / len(answers)):
            return f"{case} you divide by all workers, the dead ones too"
        if not close(mean, right):
            return f"{case} the mean is {right:g}, not {mean:g}"
        if lost != gone:
            return f"{case} the ranks that are gone are {gone}, not {lost}"
    try:
        mean_of_the_living({1: Call(None)})
    except RuntimeError:
        return None
    except ZeroDivisionError:
        return "nobody is left: say so by a RuntimeError, not by a division by 0"
    return "nobody is left, and it raised nothing"


def close(one: float, other: float) -> bool:
    """Say whether two numbers are equal but for rounding."""
    return abs(one - other) < 1e-4


def pair(answer) -> tuple[float, list[int]]:
    """Return an answer as a mean and a list of ranks."""
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise Mistake(f"return two things, a mean and a list of ranks, not {answer!r}")
    mean, lost = answer
    if not isinstance(mean, torch.Tensor) or mean.shape != (2,):
        raise Mistake(f"the mean is a tensor like the gradients, not {mean!r}")
    return mean[0].item(), ints(lost)
