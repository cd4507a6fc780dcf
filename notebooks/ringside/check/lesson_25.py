"""Checks the answers of the learning rate."""

from collections.abc import Callable
from functools import partial
from itertools import product
from math import isclose

from .verdict import attempt, read, says

CASES = list(product((0, 1, 3, 4, 9), (0.1, 0.5), (1, 4, 8), (4, 1, 0)))
WHO = {  # throws a number, and why the same one again, or not
    "forked": "a forked process is a copy of its parent, with its generator",
    "spawned": "a spawned one is a fresh interpreter, with a random seed",
    "seeded_inside": "it sets its own seed, and that is always 8",
    "loader_worker": "its seed is drawn from the generator that has seed 7",
}
number = read("a number", float)
near = partial(isclose, rel_tol=0.002)  # right, but for rounding


@says("3.2, 0.72 and 156: the batch is 32 times as large", like="batches=100")
def hour(learning_rate: float, after_one_epoch: float, batches: float) -> str | None:
    """Check the linear rule and its warm-up for 256 GPUs with 32 images each."""
    if near(learning_rate, 25.6):
        return "the GPUs are 256 times as many, but each takes 32 images, not 256"
    if near(learning_rate, 0.1 * 32**0.5):
        return "that is the square root: the linear rule multiplies by all of 32"
    if not near(learning_rate, 3.2):
        return f"not {learning_rate:g}: how many times as large is the batch?"
    if near(after_one_epoch, 0.64):
        return "it begins at 0.1, not at 0: a fifth of the difference is added"
    if near(after_one_epoch, 0.62):
        return "0.62 is a fifth of the difference: it is added to 0.1"
    if not near(after_one_epoch, 0.72):
        return f"not {after_one_epoch:g}: go a fifth of the way from 0.1 to 3.2"
    if near(batches, 5004):
        return "that many steps had the one machine: now a batch has 8192 images"
    if not near(batches, 156):
        return f"not {batches:g} whole batches: 1,281,167 / (256 * 32), rounded down"
    return None


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


@says("only the bare spawned one has a seed that nobody chose")
def again(
    forked: bool, spawned: bool, seeded_inside: bool, loader_worker: bool
) -> str | None:
    """Check which processes throw the same number in each run of a seeded parent."""
    answers = forked, spawned, seeded_inside, loader_worker
    if any(type(answer) is not bool for answer in answers):
        return "each answer is True or False"
    for answer, (name, why) in zip(answers, WHO.items()):
        if answer != (name != "spawned"):
            return f"not so for {name}: {why}"
    return None
