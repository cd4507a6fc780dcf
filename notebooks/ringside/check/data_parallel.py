"""Checks the answers of lesson 02."""

from collections.abc import Callable

import torch

from .say import TODO, say


def ten_rows(leave: int, arrive: int) -> None:
    """Check two predictions: the bytes that leave and reach device 0 in a step."""
    if ... in (leave, arrive):
        say(TODO, "")
        return
    if any(type(answer) is not int for answer in (leave, arrive)):
        say("each answer is a whole number of bytes, such as leave=100", "")
        return
    wrong_leave = {
        356: "356 is scatter and replicate; the gradients of seven outputs leave too",
        328: "328 leaves out the rows that are scattered: seven of 8 bytes",
        84: "84 leaves out the weights: three devices get all of them, on every step",
        184: "184 has the weights once; three devices need them",
        420: "420 counts all ten rows and outputs: three of them stay on device 0",
        520: "520 counts device 0 too: its own share needs no copy",
        408: "408 scatters all ten rows: three of them stay on device 0",
        396: "396 has gradients of all ten outputs: three of them stay on device 0",
        390: "390 is for even pieces of 2.5 rows: chunk makes 3, 3, 3 and 1",
        484: "484 has the weights four times: device 0 has its own already",
    }
    wrong_arrive = {
        300: (
            "300 is the gradients of the weights; the outputs of seven rows arrive too"
        ),
        28: (
            "28 is the outputs; the gradients of three copies of the weights arrive too"
        ),
        128: "128 has the gradients once; each of three devices sends all of them",
        340: "340 counts all ten outputs: three of them are on device 0 already",
        384: "384 also counts gradients of rows: nobody asks for these",
        440: "440 counts device 0 too: its own share needs no copy",
        428: "428 has four gradients of the weights: one is on device 0 already",
    }
    mistake = None
    if leave != 384:
        mistake = wrong_leave.get(leave, f"{leave} bytes do not leave device 0")
    elif arrive != 328:
        mistake = wrong_arrive.get(arrive, f"{arrive} bytes do not reach device 0")
    say(mistake, "out 56 + 300 + 28 = 384, in 28 + 300 = 328")


def three_forwards(calls: int, seen: int, total: int) -> None:
    """Check three predictions: what a module knows after three forwards."""
    answers = {"calls": calls, "seen": seen, "total": total}
    if ... in answers.values():
        say(TODO, "")
        return
    if any(type(answer) is not int for answer in answers.values()):
        say("each answer is a whole number, such as calls=1", "")
        return
    wrong = {
        ("calls", 3): "3 calls would need one shell that lives on: each is thrown away",
        ("calls", 12): "12 calls did happen, but in shells that were thrown away",
        ("seen", 30): "30 is every row: those of other devices went to their copies",
        ("seen", 0): "what is added in place to device 0's buffer is kept",
        ("seen", 3): "3 is one forward: the buffer is kept from one to the next",
        ("seen", 10): "10 is one forward of all rows: count device 0's, three times",
        ("seen", 1): "chunk gives device 0 three of the ten rows",
        (
            "total",
            9,
        ): "self.total = ... puts a new tensor in a shell, in no buffer of yours",
        ("total", 30): "30 is every row: all four shells are thrown away",
        ("total", 3): "3 is one forward, but it went to a shell that was thrown away",
    }
    right = {"calls": 0, "seen": 9, "total": 0}
    mistake = None
    for name in reversed(answers):
        if answers[name] != right[name]:
            say_more = f"{name} does not say {answers[name]}"
            mistake = wrong.get((name, answers[name]), say_more)
    say(mistake, "only what is changed in place, on device 0, is kept")


def collect(function: Callable) -> None:
    """Check a function that joins what the devices return."""
    say(collect_mistake(function), "rows in order, a loss for each device, and tuples")


def collect_mistake(function: Callable) -> str | None:
    """Return what is wrong with collect(outputs), or None."""
    rows = [torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([[4.0, 5.0]])]
    losses = [torch.tensor(7.0), torch.tensor(8.0)]
    lone = [torch.tensor([[9.0]])]
    flat = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    pairs = list(zip(rows, losses))
    for what, outputs, right in (
        ("rows", rows, torch.cat(rows)),
        ("rows of one number", flat, torch.cat(flat)),
        ("one device", lone, lone[0]),
        ("losses", losses, torch.stack(losses)),
        ("tuples", pairs, (torch.cat(rows), torch.stack(losses))),
        (
            "tuples in tuples",
            [(pair, pair[1]) for pair in pairs],
            ((torch.cat(rows), torch.stack(losses)), torch.stack(losses)),
        ),
    ):
        try:
            answer = function(list(outputs))
        except Exception as error:  # noqa: BLE001 it is the learner's
            return f"{what}: it raised {type(error).__name__}: {error}"
        if answer is None or answer is ...:
            return TODO if what == "rows" else f"{what}: it returned nothing"
        if mistake := unlike(answer, right):
            return f"{what}: {mistake}"
    weight = torch.ones(2, 1, requires_grad=True)
    for what, each in (("rows", weight), ("losses", weight.sum())):
        if not function([each, each]).requires_grad:
            lost = "the gradient can't find its way back: join, don't copy the numbers"
            return f"{what}: {lost}"
    return None


def unlike(answer, right) -> str | None:
    """Return how an answer differs from what is right, or None."""
    if isinstance(right, tuple):
        if not isinstance(answer, tuple):
            return f"a tuple is collected to a tuple, not to a {type(answer).__name__}"
        if len(answer) != len(right):
            return f"there are {len(right)} parts, not {len(answer)}: one for each name"
        return next(filter(None, map(unlike, answer, right)), None)
    if not isinstance(answer, torch.Tensor):
        return f"join them to a tensor, not to a {type(answer).__name__}"
    if answer.shape == right.shape and torch.equal(answer, right):
        return None
    if answer.shape != right.shape:
        return f"the shape is {tuple(answer.shape)}, not {tuple(right.shape)}"
    return "the numbers are out of order, or are not those that came"
