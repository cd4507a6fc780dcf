"""Checks the answers of lesson 01."""

import threading
from collections.abc import Callable

import torch

from ..mailboxes import at_once
from .say import TODO, say, untouched


def two_means(mean_of_means: float, by_count: float) -> None:
    """Check two predictions: six slopes 1, 2, 3, 4, 5, 9 on four ranks."""
    if ... in (mean_of_means, by_count):
        say(TODO, "")
        return
    if not all(type(answer) in (int, float) for answer in (mean_of_means, by_count)):
        say("each answer is a number, such as by_count=2.5", "")
        return
    wrong_means = {
        4: "4 is the mean of all six; ranks 0 and 1 first average two slopes each",
        15.5: "15.5 is the sum of the four means: divide it by the four ranks",
        6: "6 is the sum of all slopes over the four ranks; average each share first",
        4.75: (
            "4.75 is for neighbours (1, 2), (3, 4), 5, 9: share as above, every fourth"
        ),
    }
    wrong_count = {
        3.875: "3.875 is the mean of the means: by count, each slope weighs the same",
        24: "24 is the sum of all slopes: divide it by how many there are",
        6: "6 is 24 over four ranks: divide by the six samples",
    }
    mistake = None
    if abs(mean_of_means - 3.875) > 0.006:
        mistake = wrong_means.get(
            mean_of_means, f"{mean_of_means} is not the mean of the four means"
        )
    elif by_count != 4:
        mistake = wrong_count.get(by_count, f"{by_count} is not the mean by count")
    say(mistake, "3.875 and 4: two lone slopes weigh twice as much as the other four")


def weigh(function: Callable) -> None:
    """Check a function of mean gradients and counts, one of each per rank."""
    say(weigh_mistake(function), "every sample has the same weight")


def weigh_mistake(function: Callable) -> str | None:
    """Return what is wrong with weigh(means, counts), or None."""
    if untouched(function):
        return TODO
    for means, counts in (
        ([4.0, 1.0], [3, 1]),
        ([2.0, 5.0, 1.0, 8.0], [2, 2, 2, 2]),
        ([3.0, 6.0, 0.0], [1, 2, 5]),
        ([7.0], [4]),
        ([5.0, 0.0], [3, 0]),
    ):
        case = f"weigh({means}, {counts})"
        right = sum(m * c for m, c in zip(means, counts)) / sum(counts)
        try:
            answer = function(list(means), list(counts))
            if answer is None:
                return f"{case} returned None"
            answer = float(answer)
        except Exception as error:  # noqa: BLE001 it is the learner's
            return f"{case} raised {type(error).__name__}: {error}"
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


def step(program: Callable) -> None:
    """Check step(w, x, y, all_reduce): the new weight of a rank with its share."""
    say(step_mistake(program), "all ranks take the step that one process takes")


def step_mistake(program: Callable) -> str | None:
    """Return what is wrong with a step of data-parallel training, or None."""
    x = torch.tensor([1.0, 2, 1, 2, 3, 2, 2, 3])
    y = torch.tensor([0.0, 0, 1, -3, 2, -1, 1, 1])
    if untouched(program):
        return TODO
    for size in (1, 4, 2, 3, 9):  # with nine ranks, one has no sample
        case = f"with {size} rank{'s' * (size > 1)},"
        try:
            found = together(program, [(x[r::size], y[r::size]) for r in range(size)])
            if any(answer is None for answer in found):
                return f"{case} it returned None, not the new weight"
            found = [round(float(torch.as_tensor(a).detach()), 4) for a in found]
        except threading.BrokenBarrierError:
            return f"{case} not all ranks call all_reduce equally often"
        except Exception as error:  # noqa: BLE001 it is the learner's
            return f"{case} it raised {type(error).__name__}: {error}"
        if found == [0.0] * size:
            continue
        slopes = [x[r::size] * (x[r::size] - y[r::size]) for r in range(size)]
        sums, lengths = [float(s.sum()) for s in slopes], [len(s) for s in slopes]
        mean = sum(s / max(n, 1) for s, n in zip(sums, lengths)) / size
        means, total = round(1 - 0.25 * mean, 4), round(1 - 0.25 * mean * size, 4)
        if len(set(found)) > 1:
            return (
                f"{case} the weights end apart, at {found}: gradients must be added up"
            )
        if found[0] == total:
            return (
                f"{case} the step is {size} times too long: divide the sum by the "
                "samples"
                " of all ranks"
            )
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


def together(program: Callable, shares: list[tuple]) -> list:
    """Run step(w, x, y, all_reduce) on simulated ranks, all at once."""
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
            answers[rank] = program(torch.tensor(1.0), *shares[rank], all_reduce)
        except BaseException:
            meeting.abort()
            raise

    if errors := at_once(one, size):
        own = [
            e for e in errors.values() if type(e) is not threading.BrokenBarrierError
        ]
        raise (own or list(errors.values()))[0]
    return answers
