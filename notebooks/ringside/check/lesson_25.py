"""Checks the answers of the learning rate."""

from collections.abc import Callable
from itertools import product
from math import isclose

from .table import Near, asks
from .verdict import attempt, read, says

CASES = list(product((0, 1, 3, 4, 9), (0.1, 0.5), (1, 4, 8), (4, 1, 0)))
WHO = {  # throws a number: the same one again, or not, and why
    "forked": (True, "a forked process is a copy of its parent, with its generator"),
    "spawned": (False, "a spawned one is a fresh interpreter, with a random seed"),
    "seeded_inside": (True, "it sets its own seed, and that is always 8"),
    "loader_worker": (True, "its seed is drawn from the generator that has seed 7"),
}
number = read("a number", float)


def near(number: float) -> Near:
    """Return a number as it may be rounded."""
    return Near(number, 0.002 * number)


@asks(
    "3.2, 0.72 and 156: the batch is 32 times as large",
    like="batches=100",
    learning_rate=(
        near(3.2),
        "not {:g}: how many times as large is the batch?",
        {
            near(25.6): "the GPUs are 256 times as many, but each takes 32 images, not"
            " 256",
            near(0.1 * 32**0.5): "that is the square root: the linear rule multiplies"
            " by all of 32",
        },
    ),
    after_one_epoch=(
        near(0.72),
        "not {:g}: go a fifth of the way from 0.1 to 3.2",
        {
            near(0.64): "it begins at 0.1, not at 0: a fifth of the difference is"
            " added",
            near(0.62): "0.62 is a fifth of the difference: it is added to 0.1",
        },
    ),
    batches=(
        near(156),
        "not {:g} whole batches: 1,281,167 / (256 * 32), rounded down",
        {
            near(5004): "that many steps had the one machine: now a batch has 8192"
            " images"
        },
    ),
)
def hour(learning_rate: float, after_one_epoch: float, batches: float):
    """Check the linear rule and its warm-up for 256 GPUs with 32 images each."""


@says(f"it rises to the linear rule's learning rate, {len(CASES)} times")
def warm_up(function: Callable) -> str | None:
    """Check warm(step, lr, ranks, warm_steps): from lr to lr * ranks."""
    for step, lr, ranks, steps in CASES:
        part = min(1, step / steps) if steps else 1
        right = lr * (1 + (ranks - 1) * part)
        where = f"step {step}, lr {lr}, {ranks} ranks, {steps} warm steps:"
        said = attempt(where, function, step, lr, ranks, steps, into=number)
        if isclose(said, right):
            continue
        if part < 1 and isclose(said, lr * ranks):
            return f"{where} the warm-up is not over yet"
        if part < 1 and isclose(said, lr * ranks * part, abs_tol=1e-12):
            return f"{where} it begins at lr, not at 0"
        if part < 1 and isclose(said, lr * (1 + (ranks - 1) * (step + 1) / steps)):
            return f"{where} one step too early: step 0 has lr"
        if step > steps and said > lr * ranks:
            return f"{where} it goes on rising after the warm-up"
        if isclose(said, lr):
            return f"{where} it stays at lr, and should rise to lr * ranks"
        return f"{where} it is {right:g}, not {said:g}"
    return None


@asks(
    "only the bare spawned one has a seed that nobody chose",
    types="each answer is True or False",
    **{who: (same, f"not so for {who}: {why}") for who, (same, why) in WHO.items()},
)
def again(forked: bool, spawned: bool, seeded_inside: bool, loader_worker: bool):
    """Check which processes throw the same number in each run of a seeded parent."""
