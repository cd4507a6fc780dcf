"""Finds where everything stands in the picture of a ring."""

import math

from .svg import covered

STACK = 60  # the height of a full stack


class Layout:
    """Where everything stands, for a number of ranks."""

    margins = 16, 16

    def __init__(self, ranks: int):
        self.ranks = ranks
        kind = min(ranks, 9) - 1
        self.column = (44, 44, 40, 38, 46, 27, 24, 22, 20)[kind]
        self.w, self.h = max(100, ranks * self.column + 16), STACK + 52
        across = (0, 0, 190, 245, 300, 300, 340, 385, 430)[kind]
        down = (0, 110, 125, 165, 190, 225, 265, 305, 345)[kind]
        self.width = max(2 * across + self.w + 32, 480)
        top = 58 + self.h / 2
        turns = [math.tau * r / ranks - math.tau / 4 for r in range(ranks)]
        self.places = [
            (self.width / 2 + across * math.cos(t), top + down * (1 + math.sin(t)))
            for t in turns
        ]
        self.height = max(y for _, y in self.places) + self.h / 2 + 44

    def stack(self, rank: int, chunk: int) -> tuple[float, float, float, float]:
        """Return the place of a full stack: left, top, width, height."""
        x, y = self.places[rank]
        left = x + (chunk - self.ranks / 2) * self.column
        return left + 3, y - self.h / 2 + 28, self.column - 6, STACK

    def path(self, rank: int) -> tuple[float, float, float, float]:
        """Return where a message leaves a rank, and where it reaches the right one."""
        (x0, y0), (x1, y1) = self.places[rank], self.places[(rank + 1) % self.ranks]
        dx, dy = x1 - x0, y1 - y0
        cut = covered((self.w, self.h), dx, dy, 9)
        dx, dy = cut * dx, cut * dy
        aside = (26 if dy > 0 else -26) if self.ranks == 2 else 0
        return x0 + dx + aside, y0 + dy, x1 - dx + aside, y1 - dy
