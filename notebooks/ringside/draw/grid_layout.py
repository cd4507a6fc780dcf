"""Finds places and words for a picture of who reads which sample, and when."""

from collections import Counter

from ..recording import table

LEFT, CELL, PEG, LINE = 92, 22, 7, 38  # where rows begin, and heights
WIDEST, ASIDE = 24, 8  # cells in a line of a row, and in one of samples left out


class Layout:
    """Where everything stands, and what is remarkable, for a recording."""

    margins = 14, 16

    def __init__(self, events: list[dict], deck: bool = True):
        self.epochs = [[e["samples"] for e in row] for row in table(events)]
        self.size = len(self.epochs[0])
        seen = [number for row in self.epochs for mine in row for number in mine]
        known = getattr(events, "header", {}).get("samples")
        self.samples = max(seen, default=-1) + 1 if known is None else known
        self.times = [Counter(i for m in row for i in m) for row in self.epochs]
        self.never = [
            [i for i in range(self.samples) if not times[i]] for times in self.times
        ]
        self.per = max(1, WIDEST // self.size) * self.size
        self.longest = max(len(mine) for row in self.epochs for mine in row)
        self.wide = 26 if self.longest * self.size > self.per // 2 + self.size else 36
        lines = max(1, -(-self.longest * self.size // self.per))
        self.aside = max(map(len, self.never))
        lines = max(lines, -(-self.aside // ASIDE))
        self.deck = -(-self.samples // WIDEST) if deck else 0
        self.top = 76 + self.deck * LINE + 12 * (self.deck > 0)
        self.tall = lines * LINE + 6 * (lines > 1)
        across = min(self.longest * self.size, self.per)
        self.edge = LEFT + across * self.wide + across // self.size * self.gap
        more = min(self.aside, ASIDE) * self.wide + 34 * (self.aside > 0)
        deck_edge = LEFT + min(self.samples, WIDEST) * self.wide * (self.deck > 0)
        self.width = max(self.edge + more, deck_edge, 110 + 70 * self.size, 620) + 20
        self.height = self.top + len(self.epochs) * self.tall + 74

    @property
    def gap(self) -> int:
        return 8 if self.size > 1 else 0

    def y(self, epoch: int) -> float:
        return self.top + epoch * self.tall

    def spot(self, epoch: int, column: int) -> tuple[float, float]:
        """Return the top left corner of a cell of a row."""
        line, i = divmod(column, self.per)
        x = LEFT + i * self.wide + i // self.size * self.gap
        return x, self.y(epoch) + line * LINE

    def home(self, number: int) -> tuple[float, float]:
        """Return the top left corner of a sample in the data set."""
        line, i = divmod(number, WIDEST)
        return LEFT + i * self.wide, 70 + line * LINE

    def turn(self, epoch: int, k: int) -> list[tuple]:
        """Return the k-th cell of each rank, as (x, y, number, ranks)."""
        row = enumerate(self.epochs[epoch])
        return [
            (*self.spot(epoch, k * self.size + rank), mine[k], [rank])
            for rank, mine in row
            if k < len(mine)
        ]

    def same(self, epoch: int) -> int | None:
        """Return the first epoch before this one that dealt in the same order."""
        if len(self.times[epoch]) > 1 and self.epochs[epoch] in self.epochs[:epoch]:
            return self.epochs.index(self.epochs[epoch])
        return None

    def again(self, epoch: int) -> list[tuple]:
        """Return the cells whose sample was dealt before, in the same epoch."""
        seen, found = set(), []
        for k in range(self.longest):
            for cell in self.turn(epoch, k):
                if cell[2] in seen:
                    found.append(cell)
                seen.add(cell[2])
        return found

    def left_out(self, epoch: int) -> list[tuple]:
        """Return the cells of the samples that nobody reads, beside their epoch."""
        found = []
        for i, number in enumerate(self.never[epoch]):
            line, place = divmod(i, ASIDE)
            x = self.edge + 26 + place * self.wide
            found.append((x, self.y(epoch) + line * LINE, number, []))
        return found


def caption(layout: Layout, epoch: int) -> tuple[str, str]:
    """Return the corner and the sentence for one epoch."""
    times, first = layout.times[epoch], layout.same(epoch)
    more = [i for i in range(layout.samples) if times[i] > 1]
    never, found = layout.never[epoch], {*times.values()}
    if not times:
        told = "No rank reads anything"
    elif len(found) == 1 and not never:
        count = {1: "once", 2: "twice"}.get(max(found), f"{max(found)} times")
        told = f"Every sample is read {count}"
    else:
        some = [some_are(more, "read more than once")] if more else []
        some += [some_are(never, "not read")] if never else []
        told = " and ".join(some) + (", the others once" if 1 in found else "")
        told = told[0].upper() + told[1:]
    order = f" · the order of epoch {first}" if first is not None else ""
    return f"epoch {epoch}{order or ' · a new order' * (epoch > 0)}", f"{told}."


def some_are(numbers: list[int], what: str) -> str:
    """Return a few samples by number, and many by how many they are."""
    if len(numbers) > 4:
        return f"{len(numbers)} samples are {what}"
    *rest, last = map(str, numbers)
    several = f"samples {', '.join(rest)} and {last} are {what}"
    return several if rest else f"sample {last} is {what}"


def summary(layout: Layout) -> str:
    """Return in words what each epoch is like."""
    told = f"{layout.samples} samples, read by {layout.size} ranks."
    for epoch in range(len(layout.epochs)):
        told += " {}: {}".format(*caption(layout, epoch))
    return told
