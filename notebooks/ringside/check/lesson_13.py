"""Checks the answers of DP."""

from collections.abc import Callable

import torch

from .table import asks
from .verdict import attempt, says


@asks(
    "out 56 + 300 + 28 = 384, in 28 + 300 = 328",
    types="each answer is a whole number of bytes, such as leave=100",
    leave=(
        384,
        "{} bytes do not leave device 0",
        {
            356: "356 is scatter and replicate; the gradients of seven outputs leave"
            " too",
            328: "328 leaves out the rows that are scattered: seven of 8 bytes",
            84: "84 leaves out the weights: three devices get all of them, on every"
            " step",
            184: "184 has the weights once; three devices need them",
            420: "420 counts all ten rows and outputs: three of them stay on device 0",
            520: "520 counts device 0 too: its own share needs no copy",
            408: "408 scatters all ten rows: three of them stay on device 0",
            396: "396 has gradients of all ten outputs: three of them stay on device 0",
            390: "390 is for even pieces of 2.5 rows: chunk makes 3, 3, 3 and 1",
            484: "484 has the weights four times: device 0 has its own already",
        },
    ),
    arrive=(
        328,
        "{} bytes do not reach device 0",
        {
            300: "300 is the gradients of the weights; the outputs of seven rows arrive"
            " too",
            28: "28 is the outputs; the gradients of three copies of the weights arrive"
            " too",
            128: "128 has the gradients once; each of three devices sends all of them",
            340: "340 counts all ten outputs: three of them are on device 0 already",
            384: "384 also counts gradients of rows: nobody asks for these",
            440: "440 counts device 0 too: its own share needs no copy",
            428: "428 has four gradients of the weights: one is on device 0 already",
        },
    ),
)
def ten_rows(leave: int, arrive: int):
    """Check two predictions: the bytes that leave and reach device 0 in a step."""


@asks(
    "only what is changed in place, on device 0, is kept",
    like="calls=1",
    calls=(
        0,
        "calls does not say {}",
        {
            3: "3 calls would need one shell that lives on: each is thrown away",
            12: "12 calls did happen, but in shells that were thrown away",
        },
    ),
    seen=(
        9,
        "seen does not say {}",
        {
            30: "30 is every row: those of other devices went to their copies",
            0: "what is added in place to device 0's buffer is kept",
            3: "3 is one forward: the buffer is kept from one to the next",
            10: "10 is one forward of all rows: count device 0's, three times",
            1: "chunk gives device 0 three of the ten rows",
        },
    ),
    total=(
        0,
        "total does not say {}",
        {
            9: "self.total = ... puts a new tensor in a shell, in no buffer of yours",
            30: "30 is every row: all four shells are thrown away",
            3: "3 is one forward, but it went to a shell that was thrown away",
        },
    ),
)
def three_forwards(calls: int, seen: int, total: int):
    """Check three predictions: what a module knows after three forwards."""


@says("rows in order, a loss for each device, and tuples")
def collect(function: Callable) -> str | None:
    """Check collect(outputs), which joins what the devices return."""
    rows = [torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([[4.0, 5.0]])]
    losses = [torch.tensor(7.0), torch.tensor(8.0)]
    lone = [torch.tensor([[9.0]])]
    flat = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    pairs = list(zip(rows, losses))
    nested = [(pair, pair[1]) for pair in pairs]
    both = torch.cat(rows), torch.stack(losses)
    for what, outputs, right in (
        ("rows", rows, torch.cat(rows)),
        ("rows of one number", flat, torch.cat(flat)),
        ("one device", lone, lone[0]),
        ("losses", losses, torch.stack(losses)),
        ("tuples", pairs, both),
        ("tuples in tuples", nested, (both, both[1])),
    ):
        answer = attempt(f"{what}:", function, list(outputs))
        if answer is None:
            return f"{what}: it returned None"
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
