"""Checks the answers of DDP."""

from collections.abc import Callable

import torch

from .table import asks
from .verdict import attempt, says


@asks(
    "3 + 1 + 6 MiB, after three gradients, and then 2 + 4 MiB",
    like="buckets=2",
    before=[
        (
            {"first_after": 2, "largest": 6},
            "you filled from the first weight: its gradient comes last",
        )
    ],
    buckets=(
        2,
        "{} is not the number of buckets: fill them one by one",
        {
            4: "4 would be right if no bucket could grow beyond its cap; this one can",
            1: "1 bucket would have to wait for everything: none takes more at 5 MiB",
        },
    ),
    first_after=(
        3,
        "the first bucket gets full with another gradient than that",
        {
            2: "after two gradients the first bucket has 4 MiB, so it is not full yet",
            5: "5 is for one flat buffer: a bucket begins when it is full",
        },
    ),
    largest=(
        10,
        "no bucket has {} MiB in it when it is full",
        {
            (5, 6): "not {}: with 4 MiB in it, a bucket still takes the next weight",
            16: "16 is all there is: the first bucket begins before it has that",
        },
    ),
)
def bucket_plan(buckets: float, first_after: float, largest: float):
    """Check three predictions: weights of 4, 2, 6, 1 and 3 MiB, buckets of 5 MiB."""


@says("the gradient is averaged, and the weight is left alone")
def fixed_hook(hook: Callable) -> str | None:
    """Check hook(weight, all_reduce, world_size): it averages a weight's gradient."""
    for size in (2, 1, 3):
        case = f"with {size} rank{'s' * (size > 1)},"
        weight, called = torch.full((2,), 8.0, requires_grad=True), []
        weight.grad = torch.full((2,), 6.0)  # all other ranks have 10

        def all_reduce(tensor: torch.Tensor, weight=weight, called=called, size=size):
            """Add the others' tensors: they have done the same to their gradients."""
            if not isinstance(tensor, torch.Tensor):
                raise TypeError("all_reduce takes a tensor")
            same = tensor.data_ptr() == weight.data_ptr()
            called.append("weight" if same else "other")
            tensor += 10 / 6 * tensor * (size - 1)

        with torch.no_grad():  # as in a hook of torch's
            attempt(case, hook, weight, all_reduce, size)
        mean, grad = torch.full((2,), (6 + 10 * (size - 1)) / size), weight.grad
        alone = grad is None or grad.eq(6).all() and size > 1
        if "weight" in called and alone:
            keeps = "this rank keeps the gradient of its own share"
            return f"{case} it averages the weights, and {keeps}"
        if not weight.eq(8).all():
            return f"{case} the weight changes: that is the optimizer's work"
        if not called:
            return f"{case} it adds nothing up: call all_reduce"
        if alone:
            return f"{case} the mean is not put into weight.grad"
        if torch.allclose(grad, mean * size) and size > 1:
            return f"{case} weight.grad becomes {grad[0]:g}, a sum: divide it in place"
        if not torch.allclose(grad, mean):
            return f"{case} the gradient becomes {grad[0]:g}, not {mean[0]:g}"
    return None


@says("every rank begins them in one order, as early as it can")
def launch_order(function: Callable) -> str | None:
    """Check launch(full): which buckets may begin as each bucket becomes full."""
    for full in ([0, 1, 2], [1, 0, 2], [2, 1, 0], [1, 3, 0, 2], [0], []):
        case = f"launch({full})"
        answer = attempt(f"{case}:", function, list(full))
        try:
            answer = [list(begun) for begun in answer]
        except TypeError:
            return f"{case} gave {answer!r}: a list of lists is wanted"
        if (lists := len(answer)) != len(full):
            return f"{case} gave {lists} lists: one for each bucket that gets full"
        begun = sum(answer, [])
        for turn, bucket in ((t, b) for t, row in enumerate(answer) for b in row):
            if bucket not in full[: turn + 1]:
                return f"{case} begins bucket {bucket} before it is full"
        if sorted(begun) != sorted(full):
            lost = sorted(set(full) - set(begun))
            does = f"never begins bucket {lost[0]}" if lost else "begins a bucket twice"
            return f"{case} {does}"
        if begun != sorted(begun):
            return f"{case} begins {begun}: another rank may begin in another order"
        ready, waits = set(), iter(sorted(full))
        coming = next(waits, None)
        for turn, bucket in enumerate(full):
            ready.add(bucket)
            best = []
            while coming in ready:
                best.append(coming)
                coming = next(waits, None)
            if answer[turn] != best:
                return f"{case} could begin {best} when bucket {bucket} is full"
    return None
