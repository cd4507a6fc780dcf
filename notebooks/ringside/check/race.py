"""Checks the answers of lesson 06."""

from collections.abc import Callable

from .say import TODO, say, untouched

FLAWS = ("loaders", "order", "warm-up", "batch")


def kept(efficiency: float, times_faster: float) -> None:
    """Check two predictions: 50 ms alone, 62.5 ms on four ranks, each its own batch."""
    if ... in (efficiency, times_faster):
        say(TODO, "")
        return
    if not all(type(answer) in (int, float) for answer in (efficiency, times_faster)):
        say("each answer is a number, such as efficiency=0.5", "")
        return
    wrong_efficiency = {
        1.25: "1.25 is how much longer a step takes: efficiency is the other way round",
        0.2: "0.2 is 50 / (4 * 62.5): but each rank does a whole batch, not a quarter",
        80: "80 would be percent; here efficiency is 1 if all is kept",
    }
    wrong_times = {
        4: "4 would be an efficiency of 1",
        0.8: "0.8 is the efficiency of each rank, and there are four of them",
        1.25: "1.25 is how much longer a step takes; four ranks do four batches in it",
        5: "5 is 4 * 1.25: the step takes longer, so it is 4 / 1.25",
    }
    mistake = None
    if efficiency != 0.8:
        mistake = wrong_efficiency.get(
            efficiency, f"{efficiency} is not what is kept of the speed of one process"
        )
    elif abs(times_faster - 3.2) > 1e-9:
        mistake = wrong_times.get(
            times_faster, f"{times_faster} is not the ratio of samples per second"
        )
    say(mistake, "0.8 of each of four ranks is kept: 3.2 times the samples per second")


def step_time(function: Callable) -> None:
    """Check step_time(compute_ms, megabytes, ms_per_megabyte, ranks)."""
    say(step_time_mistake(function), "compute, then 2 (N - 1) / N of the gradient")


def step_time_mistake(function: Callable) -> str | None:
    """Return what is wrong with a prediction of the time of a step, or None."""
    if untouched(function):
        return TODO
    cases = ((50, 0.5, 2, 4), (10, 16, 2, 2), (20, 8, 1, 8), (30, 16, 2, 1))
    for compute, size, slow, ranks in cases:
        case = f"step_time({compute}, {size}, {slow}, {ranks})"
        try:
            answer = function(compute, size, slow, ranks)
            if answer is None:
                return f"{case} returned None"
            answer = float(answer)
        except Exception as error:  # noqa: BLE001 it is the learner's
            return f"{case} raised {type(error).__name__}: {error}"
        ring = 2 * (ranks - 1) / ranks * size * slow
        if abs(answer - compute - ring) < 1e-6:
            continue
        if abs(answer - compute) < 1e-6:
            return f"{case} gave {answer:g}: the gradients have to be sent as well"
        if abs(answer - compute - size * slow) < 1e-6:
            return f"{case} sends the gradient once: a rank sends 2 (N - 1) / N of it"
        if abs(answer - compute - 2 * size * slow) < 1e-6:
            return (
                f"{case} sends two whole gradients: a ring sends 2 (N - 1) / N of one"
            )
        if abs(answer - compute - 2 * (ranks - 1) * size * slow) < 1e-6:
            return f"{case} sends as device 0 of DP does; a ring sends that over N"
        if abs(answer - compute - ring / 2) < 1e-6:
            return f"{case} sends one phase of the ring: it has two"
        if abs(answer - ring) < 1e-6:
            return f"{case} gave {answer:g}, without the time to compute"
        return f"{case} gave {answer:g}, not {compute + ring:g}"
    return None


def flaws(**answers: str) -> None:
    """Check which flaw each of four benchmarks has."""
    right = {"a": "loaders", "b": "order", "c": "warm-up", "d": "batch"}
    if ... in answers.values():
        say(TODO, "")
        return
    unknown = [word for word in answers.values() if word not in FLAWS]
    if unknown or set(answers) != set(right):
        say(f"give a, b, c and d, each one of {', '.join(FLAWS)}", "")
        return
    why = {
        "a": "look at how many processes read images in each row",
        "b": "what else changed between the first ten runs and the last ten?",
        "c": "the mean of nine steps of 50 ms and one of 900 ms is 135 ms",
        "d": "how many samples does each of the two do in a step?",
    }
    wrong = [name for name in right if answers[name] != right[name]]
    mistake = (
        f"{wrong[0]} is not about {answers[wrong[0]]}: {why[wrong[0]]}"
        if wrong
        else None
    )
    say(mistake, "other loaders, another order, a cold start, another batch")
