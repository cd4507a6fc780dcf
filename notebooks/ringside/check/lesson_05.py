"""Checks the answers of DP vs DDP."""

from collections.abc import Callable

from .table import Near, asks
from .verdict import attempt, says

FLAWS = {  # of benchmarks a to d, and what shows them
    "loaders": "look at how many processes read images in each row",
    "order": "what else changed between the first ten runs and the last ten?",
    "warm-up": "the mean of nine steps of 50 ms and one of 900 ms is 135 ms",
    "batch": "how many samples does each of the two do in a step?",
}


@asks(
    "0.8 of each of four ranks is kept: 3.2 times the samples per second",
    like="efficiency=0.5",
    efficiency=(
        0.8,
        "{} is not what is kept of the speed of one process",
        {
            1.25: "1.25 is how much longer a step takes: efficiency is the other way"
            " round",
            0.2: "0.2 is 50 / (4 * 62.5): but each rank does a whole batch, not a"
            " quarter",
            80: "80 would be percent; here efficiency is 1 if all is kept",
        },
    ),
    times_faster=(
        Near(3.2, 1e-9),
        "{} is not the ratio of samples per second",
        {
            4: "4 would be an efficiency of 1",
            0.8: "0.8 is the efficiency of each rank, and there are four of them",
            1.25: "1.25 is how much longer a step takes; four ranks do four batches in"
            " it",
            5: "5 is 4 * 1.25: the step takes longer, so it is 4 / 1.25",
        },
    ),
)
def kept(efficiency: float, times_faster: float):
    """Check two predictions: 50 ms alone, 62.5 ms on four ranks, each its own batch."""


@says("compute, then 2 (N - 1) / N of the gradient")
def step_time(function: Callable) -> str | None:
    """Check step_time(compute_ms, megabytes, ms_per_megabyte, ranks)."""
    cases = ((50, 0.5, 2, 4), (10, 16, 2, 2), (20, 8, 1, 8), (30, 16, 2, 1))
    for compute, size, slow, ranks in cases:
        case = f"step_time({compute}, {size}, {slow}, {ranks})"
        given = compute, size, slow, ranks
        answer = attempt(f"{case}:", function, *given, into=float)
        ring = 2 * (ranks - 1) / ranks * size * slow
        if abs(answer - compute - ring) < 1e-6:
            continue
        if abs(answer - compute) < 1e-6:
            return f"{case} gave {answer:g}: the gradients have to be sent as well"
        if abs(answer - compute - size * slow) < 1e-6:
            return f"{case} sends the gradient once: a rank sends 2 (N - 1) / N of it"
        if abs(answer - compute - 2 * size * slow) < 1e-6:
            why = "a ring sends 2 (N - 1) / N of one"
            return f"{case} sends two whole gradients: {why}"
        if abs(answer - compute - 2 * (ranks - 1) * size * slow) < 1e-6:
            return f"{case} sends as device 0 of DP does; a ring sends that over N"
        if abs(answer - compute - ring / 2) < 1e-6:
            return f"{case} sends one phase of the ring: it has two"
        if abs(answer - ring) < 1e-6:
            return f"{case} gave {answer:g}, without the time to compute"
        return f"{case} gave {answer:g}, not {compute + ring:g}"
    return None


@asks(
    "other loaders, another order, a cold start, another batch",
    types=f"give a, b, c and d, each one of {', '.join(FLAWS)}",
    among=FLAWS,
    **{
        name: (flaw, f"{name} is not about {{}}: {shown}")
        for name, (flaw, shown) in zip("abcd", FLAWS.items())
    },
)
def flaws(a: str, b: str, c: str, d: str):
    """Check which flaw each of four benchmarks has."""
