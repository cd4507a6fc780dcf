"""Checks the answers of DDP's habits."""

from collections.abc import Callable
from contextlib import contextmanager

from .table import asks
from .verdict import attempt, says


@asks(
    "its weight is its own, its buffer rank 0's, its gradient everybody's",
    like="weight=5",
    weight=(
        35,
        "not {}: rank 0's weight came first, and then 30 was added",
        {
            38: "38 is 8 + 30, but wrapping had put rank 0's 5 in place of the 8",
            8: "8 is what rank 3 began with; two things happened to it since",
            5: "weights are copied when the model is wrapped, and never again",
        },
    ),
    buffer=(
        50,
        "not {}: what is the buffer of rank 0 before the forward?",
        {(80, 110): "buffers are copied from rank 0 again, at each forward"},
    ),
    gradient=(
        2.5,
        "{} is not the mean of 1, 2, 3 and 4",
        {
            4: "4 is rank 3's own gradient; backward ends with the same one everywhere",
            10: "10 is the sum; DDP divides it by the ranks",
        },
    ),
)
def rank_three(weight: float, buffer: float, gradient: float):
    """Check three predictions about rank 3 of four, after a forward and a backward."""


class Pretender:
    """Behaves as a DDP model does, and keeps a record of it."""

    def __init__(self):
        self.require_backward_grad_sync = True  # as DDP calls it
        self.wiped, self.done, self.inside = False, [], []

    def zero_grad(self):
        """Note whether there was a gradient to forget."""
        self.wiped = self.wiped or bool(self.done)

    @contextmanager
    def no_sync(self):
        """Let no gradient be averaged whose forward runs in here."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def __call__(self, batch):
        return Loss(self, batch, self.require_backward_grad_sync)


class Loss:
    """What a pretender's forward returns."""

    def __init__(self, model: Pretender, batch: object, sync: bool):
        self.model, self.batch, self.sync = model, batch, sync

    def backward(self):
        """Note which batch it was, and whether its gradient is averaged."""
        self.model.done.append((self.batch, self.sync))
        self.model.inside.append(not self.model.require_backward_grad_sync)

    def __radd__(self, other):
        raise TypeError("run backward for each loss: a sum keeps all graphs in memory")

    __add__ = __radd__

    def __truediv__(self, other):
        raise TypeError("the gradients are to be added up: divide no loss")


@says("every batch counts, and the ranks talk once")
def accumulation(program: Callable) -> str | None:
    """Check accumulate(model, batches): one all-reduce, with the last batch."""
    for size in (3, 1, 2, 5):
        model, batches = Pretender(), [f"batch {i}" for i in range(size)]
        case = f"with {size} batch{'es' * (size > 1)},"
        attempt(case, program, model, list(batches))
        if not model.done:
            return f"{case} no backward ran, so there is no gradient"
        if model.wiped:
            return f"{case} zero_grad forgot what earlier batches had brought"
        seen = [batch for batch, _ in model.done]
        if sorted(seen) != batches:
            return f"{case} backward ran for {len(seen)}: {', '.join(map(str, seen))}"
        talks = sum(sync for _, sync in model.done)
        if talks == size > 1 and any(model.inside):
            why = "only backward stands in no_sync(), and the forward decides"
            return f"{case} all {size} are averaged: {why}"
        if talks > 1:
            return f"{case} {talks} backwards average: all but the last should not"
        if not talks:
            return f"{case} no backward averages, so the ranks' gradients differ"
        if not model.done[-1][1]:
            return f"{case} what comes after the one that averages is averaged by none"
    return None
