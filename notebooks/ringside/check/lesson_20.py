"""Checks the answers of BatchNorm."""

from collections.abc import Callable
from math import isclose, isnan

from .table import Near, asks
from .verdict import attempt, read, says

CASES = [  # samples, by rank
    [[1, 3], [5, 7], [9, 11], [13, 15]],
    [[1], [3], [5], [7, 9, 11, 13, 15]],
    [[2, 4, 6]],
    [[4, 8], [], [1]],
]
pair = read("a mean and a variance", float, float)


@asks(
    "0.1 of its own mean, 0.9 of rank 0's; in evaluation, rank 0's alone",
    like="after_one=1.5",
    after_one=(
        Near(1.5, 0.004),
        "after_one is not {}: 0.9 x 0 + 0.1 x its own mean",
        {
            15: "15 is the mean that rank 1 subtracts; it keeps 0.1 of it",
            0.3: "0.3 is what rank 0 has; rank 1 keeps 0.1 of its own mean",
            0.9: "0.9 is 0.1 of the joined mean; plain BatchNorm joins nothing",
        },
    ),
    after_two=(
        Near(1.77, 0.004),
        "after_two is not {}: 0.9 x what was copied, and then?",
        {
            2.85: "2.85 begins with rank 1's own 1.5, but forward 2 copies rank 0's",
            0.57: "0.57 is what rank 0 has after two forwards",
        },
    ),
    evaluation=(
        Near(0.57, 0.004),
        "evaluation is not {}: whose running mean is copied?",
        {
            1.77: "a forward in evaluation copies as well, before it subtracts",
            15: "15 is the mean of the batch; evaluation takes the running mean",
            3: "3 is the mean of a batch; evaluation takes the running mean",
        },
    ),
)
def running_means(after_one: float, after_two: float, evaluation: float):
    """Check the running mean of rank 1 of two, whose means are 3 and 15."""


def spread(samples: list[float]) -> tuple[float, float]:
    """Return mean and variance; of no samples, numbers that must not matter."""
    if not samples:
        return 0.0, 0.0
    mean = sum(samples) / len(samples)
    return mean, sum((x - mean) ** 2 for x in samples) / len(samples)


@says(f"mean and variance of the joined batch, {len(CASES)} times")
def join(function: Callable) -> str | None:
    """Check join(counts, means, variances) against the joined samples."""
    for parts in CASES:
        counts = [len(part) for part in parts]
        means, variances = map(list, zip(*map(spread, parts)))
        case = f"with {' and '.join(map(str, counts))} samples,"
        given = counts, list(means), list(variances)
        mean, variance = attempt(case, function, *given, into=pair)
        right_mean, right_variance = spread(sum(parts, []))
        if not isclose(mean, right_mean, abs_tol=1e-6):
            if isclose(mean, sum(means) / len(means), abs_tol=1e-6):
                return f"{case} each rank's mean counts alike, but ranks are unequal"
            return f"{case} the mean is {right_mean:g}, not {mean:g}"
        if not isclose(variance, right_variance, abs_tol=1e-6):
            inside = sum(n * v for n, v in zip(counts, variances)) / sum(counts)
            return f"{case} {wrong_variance(variance, right_variance, inside)}"
    return None


def wrong_variance(variance: float, right: float, inside: float) -> str:
    """Return what is wrong with a joined variance."""
    if isclose(variance, inside, abs_tol=1e-6):
        return f"{variance:g} leaves out how far the ranks' means lie apart"
    if isclose(variance, right - inside, abs_tol=1e-6):
        return f"{variance:g} is how far the means lie apart: add what is inside"
    if isnan(variance):
        return "the variance is not a number"
    return f"the variance is {right:g}, not {variance:g}"


@asks(
    "two calls a layer; 2 C + 1 numbers forward, 2 C backward, for 448 channels",
    like="calls=6",
    calls=(
        6,
        "not {} calls: two for each of three layers",
        {
            3: "3 would be one call a layer; backward needs a call, too",
            2: "each layer makes its own calls, when its turn comes",
            896: "a call takes all channels of a layer",
        },
    ),
    forward=(
        899,
        "forward is not {}: 2 C + 1 numbers for C channels",
        {
            896: "each layer also sends its count, once for all channels",
            897: "each of the three layers sends a count",
            448: "two numbers for each channel: a mean, and 1 / standard deviation",
            1344: "the count is the same for all channels, so it goes once a layer",
        },
    ),
    backward=(
        896,
        "backward is not {}: 2 C numbers for C channels",
        {
            899: "backward sends no counts: they are known from the forward",
            448: "two sums for each channel",
            1344: "two sums for each channel, not three",
        },
    ),
)
def what_it_sends(calls: int, forward: int, backward: int):
    """Check what three converted layers with 64, 128 and 256 channels add to a step."""
