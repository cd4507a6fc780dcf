"""Checks the answers of splitting the batch."""

import threading
from collections.abc import Callable

import torch

from ..standins.threads import at_once
from .table import Near, asks
from .verdict import attempt, says


@asks(
    "3.875 and 4: two lone slopes weigh twice as much as the other four",
    like="by_count=2.5",
    mean_of_means=(
        Near(3.875, 0.006),
        "{} is not the mean of the four means",
        {
            4: "4 is the mean of all six; ranks 0 and 1 first average two slopes each",
            15.5: "15.5 is the sum of the four means: divide it by the four ranks",
            6: "6 is the sum of all slopes over the four ranks; average each share"
            " first",
            4.75: "4.75 is for neighbours (1, 2), (3, 4), 5, 9: share as above, every"
            " fourth",
        },
    ),
    by_count=(
        4,
        "{} is not the mean by count",
        {
            3.875: "3.875 is the mean of the means: by count, each slope weighs the"
            " same",
            24: "24 is the sum of all slopes: divide it by how many there are",
            6: "6 is 24 over four ranks: divide by the six samples",
        },
    ),
)
def two_means(mean_of_means: float, by_count: float):
    """Check two predictions: six slopes 1, 2, 3, 4, 5, 9 on four ranks."""


@says("every sample has the same weight")
def weigh(function: Callable) -> str | None:
    """Check weigh(means, counts): mean gradients and counts, one of each per rank."""
    for means, counts in (
        ([4.0, 1.0], [3, 1]),
        ([2.0, 5.0, 1.0, 8.0], [2, 2, 2, 2]),
        ([3.0, 6.0, 0.0], [1, 2, 5]),
        ([7.0], [4]),
        ([5.0, 0.0], [3, 0]),
    ):
        case = f"weigh({means}, {counts})"
        right = sum(m * c for m, c in zip(means, counts)) / sum(counts)
        answer = attempt(f"{case}:", function, [*means], [*counts], into=float)
        if abs(answer - right) < 1e-6:
            continue
        if abs(answer - sum(means) / len(means)) < 1e-6:
            return f"{case} gave the mean of the means, {answer:g}, not {right:g}"
        if abs(answer - right * sum(counts)) < 1e-6:
            return f"{case} gave a sum, {answer:g}: divide it by the samples of all"
        if abs(answer - right * sum(counts) / len(means)) < 1e-6:
            return f"{case} divided by the ranks: divide by the samples of all"
        if abs(answer - sum(means) / sum(counts)) < 1e-6:
            return f"{case} gave {answer:g}: a mean stands for all samples of its rank"
        if abs(answer - sum(m / max(c, 1) for m, c in zip(means, counts))) < 1e-6:
            return f"{case} gave {answer:g}: a mean is divided by its count already"
        return f"{case} gave {answer:g}, not {right:g}"
    return None


@says("all ranks take the step that one process takes")
def step(program: Callable) -> str | None:
    """Check step(w, x, y, all_reduce): the new weight of a rank with its share."""
    x = torch.tensor([1.0, 2, 1, 2, 3, 2, 2, 3])
    y = torch.tensor([0.0, 0, 1, -3, 2, -1, 1, 1])
    for size in (1, 4, 2, 3, 9):  # with nine ranks, one has no sample
        case = f"with {size} rank{'s' * (size > 1)},"
        shares = [(x[r::size], y[r::size]) for r in range(size)]
        found = attempt(case, together, program, shares)
        if None in found:
            return f"{case} it returned None, not the new weight"
        if found == [0.0] * size:
            continue
        slopes = [x[r::size] * (x[r::size] - y[r::size]) for r in range(size)]
        sums, lengths = [float(s.sum()) for s in slopes], [len(s) for s in slopes]
        mean = sum(s / max(n, 1) for s, n in zip(sums, lengths)) / size
        means, total = round(1 - 0.25 * mean, 4), round(1 - 0.25 * mean * size, 4)
        if len(set(found)) > 1:
            why = "gradients must be added up"
            return f"{case} the weights end apart, at {found}: {why}"
        if found[0] == total:
            how = "divide the sum by the samples of all ranks"
            return f"{case} the step is {size} times too long: {how}"
        if found[0] == means:
            return f"{case} w becomes {found[0]:g}, which is the mean of the means"
        if found[0] == 4.0:
            return f"{case} w becomes 4, which is the gradient: take the step"
        if found[0] == -3.0 and size == 1:
            return f"{case} w becomes -3: where is the rate, 0.25?"
        if found[0] == 2.0:
            return f"{case} w becomes 2: a step goes down the slope, so subtract"
        return f"{case} w becomes {found[0]:g}, and one process finds 0"
    return None


def together(program: Callable, shares: list[tuple]) -> list[float | None]:
    """Return the weight that step(w, x, y, all_reduce) gives each simulated rank."""
    size, answers = len(shares), [None] * len(shares)
    meeting = threading.Barrier(size, timeout=2)
    brought = [None] * size

    def one(rank: int) -> None:
        def all_reduce(value):
            brought[rank] = torch.as_tensor(value).detach().clone()
            meeting.wait()
            total = sum(brought)
            meeting.wait()
            return total

        try:
            new = program(torch.tensor(1.0), *shares[rank], all_reduce)
            if new is not None:
                answers[rank] = round(float(torch.as_tensor(new).detach()), 4)
        except BaseException:
            meeting.abort()
            raise

    errors = at_once(one, size).values()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    if errors:
        raise TimeoutError("not all ranks call all_reduce equally often")
    return answers
