"""Times the parts of a moving picture.

Style sheets do the moving: they obey a reader who asks for less motion, and a reader
whose program knows none of them sees the end of the run.
"""

from collections.abc import Iterator, Sized

from .svg import n

START, STEP, END = 1.2, 1.4, 2.4  # seconds
ROUNDS = 3  # then it rests, and shows the end
LONGEST = 12.0  # that a reader has to wait for the first state to come back
TRAVEL, LOOK = 0.75, 0.6  # the part of a step in which its messages move


def moments(
    steps: int, pace: float | None = None
) -> tuple[list[float], list[float], float]:
    """Return when each state begins, when it is complete, and when all is over.

    pace is for a recording that is many pictures in one: the seconds of each step, with
    more time to look at its end.
    """
    step = pace or min(STEP, (LONGEST - START - END) / max(steps, 1))
    travel = (LOOK if pace else TRAVEL) * step
    begin = [0.0, *(START + number * step for number in range(steps))]
    total = begin[-1] + step * (steps > 0) + END
    return begin, [0.0, *(time + travel for time in begin[1:]), total], total


def so_far(step: int, states: Sized, name: str) -> str:
    """Return how many steps are done, and what the last one was: a picture's corner."""
    return f"step {step} of {len(states) - 1} · {name}"


def stretches(values: list) -> Iterator[tuple[int, int, object]]:
    """Give each run of equal values: where it begins, where it has ended, the value."""
    first = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[first]:
            yield first, i, values[first]
            first = i


class Clock:
    """The style sheet of an animation: it grows with each class that is asked for."""

    def __init__(self, total: float):
        self.total, self.rules = total, {}

    def during(self, begin: float, end: float) -> str:
        """Return the class of what is seen from begin to end, or to the very end."""
        name = f"d{begin * 10:.0f}_{end * 10:.0f}"
        if begin > 0 or end < self.total:
            a, b = self.percent(begin) if begin else "0%", self.percent(end)
            key = f"0%,{a}{{opacity:0}}" if begin else ""
            if end < self.total:
                key += f"{a},{b}{{opacity:1}}{b},to{{opacity:0}}"
            else:
                key += f"{a},to{{opacity:1}}"
            still = "" if end >= self.total else "opacity:0;"
            self.add(name, key, "step-end", still)
        return f' class="{name}"'

    def flight(self, begin, end, dx, dy, easing="ease-in-out") -> str:
        """Return the class of what moves by dx and dy from begin to end."""
        name = f"f{begin * 10:.0f}"
        a, b = self.percent(begin), self.percent(end)
        key = f"0%{{opacity:0}}{a}{{opacity:0;transform:none}}"
        key += f"{self.percent(begin + 0.02)}{{opacity:1;transform:none}}"
        key += f"{b}{{opacity:1;transform:translate(var(--x),var(--y))}}"
        key += f"{self.percent(end + 0.02)},to{{opacity:0}}"
        self.add(name, key, easing, "opacity:0;")
        return f' class="{name}" style="--x:{n(dx)}px;--y:{n(dy)}px"'

    def percent(self, seconds: float) -> str:
        return f"{100 * seconds / self.total:.2f}%"

    def add(self, name: str, key: str, easing: str, still: str) -> None:
        self.rules[name] = (
            f"@keyframes {name}{{{key}}}"
            f".{name}{{{still}animation:{name} {self.total:g}s {easing} {ROUNDS}}}"
        )

    def style(self) -> str:
        calm = "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"
        return "<style>" + "".join(self.rules.values()) + calm + "</style>"
