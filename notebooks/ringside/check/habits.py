"""Checks the answers of lesson 05b."""

from collections.abc import Callable
from contextlib import contextmanager

from .say import TODO, say


def rank_three(weight: float, buffer: float, gradient: float) -> None:
    """Check three predictions about rank 3 of four, after a forward and a backward."""
    answers = (weight, buffer, gradient)
    if ... in answers:
        say(TODO, "")
        return
    if not all(type(answer) in (int, float) for answer in answers):
        say("each answer is a number, such as weight=5", "")
        return
    mistake = None
    if weight == 38:
        mistake = "38 is 8 + 30, but wrapping had put rank 0's 5 in place of the 8"
    elif weight == 8:
        mistake = "8 is what rank 3 began with; two things happened to it since"
    elif weight == 5:
        mistake = "weights are copied when the model is wrapped, and never again"
    elif weight != 35:
        mistake = f"not {weight}: rank 0's weight came first, and then 30 was added"
    elif buffer in (80, 110):
        mistake = "buffers are copied from rank 0 again, at each forward"
    elif buffer != 50:
        mistake = f"not {buffer}: what is the buffer of rank 0 before the forward?"
    elif gradient == 4:
        mistake = (
            "4 is rank 3's own gradient; backward ends with the same one everywhere"
        )
    elif gradient == 10:
        mistake = "10 is the sum; DDP divides it by the ranks"
    elif gradient != 2.5:
        mistake = f"{gradient} is not the mean of 1, 2, 3 and 4"
    say(mistake, "its weight is its own, its buffer rank 0's, its gradient everybody's")


class Pretender:
    """Behaves as a DDP model does, and keeps a record of it."""

    def __init__(self):
        self.require_backward_grad_sync = True  # as DDP calls it
        self.called, self.wiped, self.done, self.inside = False, False, [], []

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
        self.called = True
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


def accumulation(program: Callable) -> None:
    """Check accumulate(model, batches): one all-reduce, with the last batch."""
    say(accumulation_mistake(program), "every batch counts, and the ranks talk once")


def accumulation_mistake(program: Callable) -> str | None:
    """Return what is wrong with accumulate(model, batches), or None."""
    for size in (3, 1, 2, 5):
        model, batches = Pretender(), [f"batch {i}" for i in range(size)]
        case = f"with {size} batch{'es' * (size > 1)},"
        try:
            answer = program(model, list(batches))
        except Exception as error:  # noqa: BLE001 it is the learner's
            return f"{case} it raised {type(error).__name__}: {error}"
        if answer is ... or not model.called:
            return TODO
        if not model.done:
            return f"{case} no backward ran, so there is no gradient"
        if model.wiped:
            return f"{case} zero_grad forgot what earlier batches had brought"
        seen = [batch for batch, _ in model.done]
        if sorted(seen) != batches:
            return f"{case} backward ran for {len(seen)}: {', '.join(map(str, seen))}"
        talks = sum(sync for _, sync in model.done)
        if talks == size > 1 and any(model.inside):
            return (
                f"{case} all {size} are averaged: only backward stands in no_sync(),"
                " and the forward decides"
            )
        if talks > 1:
            return f"{case} {talks} backwards average: all but the last should not"
        if not talks:
            return f"{case} no backward averages, so the ranks' gradients differ"
        if not model.done[-1][1]:
            return f"{case} what comes after the one that averages is averaged by none"
    return None
