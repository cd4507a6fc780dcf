"""Finds a place for everything in a picture of ranks that pass numbers on."""

import math
from collections import defaultdict
from functools import cached_property

from .svg import box, covered

CELL, BAND, LINE = 22, 7, 36  # heights of a number, of its stripes, and of both
GAP = 62  # between two cards
ROW = 5  # numbers of one name that stand side by side on a rank's card
CROWD = 24  # messages at once, beyond which no number on its way could be read


class Layout:
    """Where everything stands, for a recording."""

    margins = 16, 16

    def __init__(self, events: list[dict]):
        self.events = events
        header = getattr(events, "header", {})
        self.phases = header.get("phases", {})
        self.pace = header.get("pace")
        self.gap = header.get("gap", GAP)
        self.alone = header.get("alone", "the whole batch")  # the name of rank -1
        self.boxes = header.get("boxes", {})  # around some ranks, by their names
        self.fresh = header.get("fresh", ())  # what is emptied when a step begins
        steps = 1 + max(event["step"] for event in events)
        self.rows = [
            exchanged({e["rank"]: e for e in events if e["step"] == step})
            for step in range(steps)
        ]
        self.ranks = sorted(self.rows[0])
        self.size = sum(rank >= 0 for rank in self.ranks)
        self.name = header.get("title", f"A run of {self.size} ranks")
        self.rooms = {}
        self.places = self.arrange()

    @cached_property
    def cards(self) -> dict[int, dict[str, int]]:
        """Return the names that each card has room for, each with its widest cell."""
        found = {}
        for rank in self.ranks:
            room = defaultdict(int)
            for row in self.rows:
                for name, cells in row[rank]["holds"].items():
                    room[name] = max(room[name], *map(wide, cells), 0)
            found[rank] = dict(room)
        return found

    def room(self, rank: int) -> tuple[float, float]:
        """Return the width and the height of a card; all ranks have the same."""
        if (rank < 0) not in self.rooms:
            self.rooms[rank < 0] = self.measure(rank)
        return self.rooms[rank < 0]

    def measure(self, rank: int) -> tuple[float, float]:
        """Return how wide and high a card must be for all that it will hold."""
        like = [r for r in self.ranks if (r < 0) == (rank < 0)]
        most, lines = 0, 1
        for r in like:
            lines = max(lines, sum(self.lines(r, name) for name in self.cards[r]))
            for row in self.rows:
                for name, cells in row[r]["holds"].items():
                    across = min(len(cells), self.per(r, name)) * self.cards[r][name]
                    most = max(most, self.label(r) + across)
        title = max(len(self.title(r)) for r in like) * 8 + 20
        return max(most + 14, title, 92), 34 + lines * LINE

    @cached_property
    def most(self) -> dict[str, int]:
        """Return how many numbers of each name a rank holds at most."""
        found = defaultdict(int)
        for row in self.rows:
            for rank in row:
                for name, cells in row[rank]["holds"].items():
                    found[name] = max(found[name], len(cells) * (rank >= 0))
        return found

    def lines(self, rank: int, name: str) -> int:
        """Return how many lines the numbers of one name take on a card."""
        return max(-(-self.most[name] // ROW), 1) if rank >= 0 else 1

    def per(self, rank: int, name: str) -> int:
        """Return how many numbers of one name stand side by side on a card."""
        return -(-self.most[name] // self.lines(rank, name)) if rank >= 0 else 99

    def label(self, rank: int) -> float:
        return 20 + 6.8 * max(map(len, self.cards[rank]), default=0)

    def title(self, rank: int) -> str:
        return f"rank {rank}" if rank >= 0 else self.alone

    def arrange(self) -> dict[int, tuple[float, float]]:
        """Return the middle of each card, where all of the picture has room."""
        places = self.columns() if self.boxes else self.oval()
        rooms = {rank: self.room(rank) for rank in self.ranks}
        more = 16 * bool(self.boxes)
        left = min(x - rooms[r][0] / 2 for r, (x, y) in places.items()) - 18 - more
        top = min(y - rooms[r][1] / 2 for r, (x, y) in places.items()) - 44
        right = max(x + rooms[r][0] / 2 for r, (x, y) in places.items()) + 18 + more
        bottom = max(y + rooms[r][1] / 2 for r, (x, y) in places.items()) + 44 + more
        longest = max(map(len, self.phases.values()), default=0)
        self.width = max(right - left, 7 * longest + 32, 480)
        self.height = bottom - top
        aside = (self.width - (right - left)) / 2
        return {r: (x - left + aside, y - top) for r, (x, y) in places.items()}

    def columns(self) -> dict[int, tuple[float, float]]:
        """Return the middle of each card: a column for each box, rank -1 between."""
        places = {}
        for column, ranks in enumerate(self.boxes.values()):
            for line, rank in enumerate(ranks):
                wide, high = self.room(rank)
                places[rank] = column * (wide + 220), line * (high + 84)
        if -1 in self.ranks:
            both = self.room(-1)[1] + high
            places[-1] = (len(self.boxes) - 1) * (wide + 220) / 2, 8 - both / 2
        return places

    def around(self, ranks: list[int]) -> tuple[float, float, float, float]:
        """Return the box around some ranks, with room for its name."""
        w, h = self.room(ranks[0])
        (x0, y0), (x1, y1) = (self.places[rank] for rank in (ranks[0], ranks[-1]))
        return x0 - w / 2 - 14, y0 - h / 2 - 30, x1 - x0 + w + 28, y1 - y0 + h + 44

    def oval(self) -> dict[int, tuple[float, float]]:
        """Return the middle of each card: on the smallest oval where none overlap."""
        places, stretch = {}, 1.0
        while True:
            for rank in self.ranks:
                turn = math.tau * rank / max(self.size, 1) - math.tau / 4
                across, down = 105 * stretch, 78 * stretch
                away = rank >= 0 and (self.size > 1 or -1 in self.ranks)
                places[rank] = (
                    (across * math.cos(turn), down * math.sin(turn)) if away else (0, 0)
                )
            if all(
                self.apart(places, a, b)
                for a in self.ranks
                for b in self.ranks
                if a < b
            ):
                break
            stretch *= 1.03
        return places

    def apart(self, places: dict, a: int, b: int) -> bool:
        """Say whether two cards have a gap between them."""
        (wa, ha), (wb, hb) = self.room(a), self.room(b)
        (xa, ya), (xb, yb) = places[a], places[b]
        across, down = abs(xa - xb) - (wa + wb) / 2, abs(ya - yb) - (ha + hb) / 2
        return across >= self.gap or down >= self.gap

    def spot(self, rank: int, name: str) -> tuple[float, float]:
        """Return the top left corner of the cells of one name on a card."""
        x, y = self.places[rank]
        w, h = self.room(rank)
        names = list(self.cards[rank])
        line = sum(self.lines(rank, n) for n in names[: names.index(name)])
        return x - w / 2 + self.label(rank), y - h / 2 + 30 + line * LINE

    def halo(self, rank: int, name: str, count: int) -> str:
        """Return a box behind the cells of one name."""
        x, y = self.spot(rank, name)
        across, down = min(count, self.per(rank, name)), self.lines(rank, name) - 1
        w, h = across * self.cards[rank][name], down * LINE + CELL + BAND
        return box(x - 4, y - 3, w + 5, h + 6)

    def path(self, a: int, b: int) -> tuple[float, float, float, float]:
        """Return where a message leaves a card, and where it reaches another one."""
        (x0, y0), (x1, y1) = self.places[a], self.places[b]
        dx, dy = x1 - x0, y1 - y0
        crossed = any(
            to == a for row in self.rows for to, *_ in row[b].get("sends", [])
        )
        keep = 9 / math.hypot(dx, dy) if crossed else 0
        right, down = -keep * dy, keep * dx  # two that cross keep to their right
        out, into = (covered(self.room(rank), dx, dy, 8) for rank in (a, b))
        x0, y0 = x0 + out * dx + right, y0 + out * dy + down
        return x0, y0, x1 - into * dx + right, y1 - into * dy + down


def exchanged(row: dict[int, dict]) -> dict[int, dict]:
    """Return a step with what each rank gives in a call, seen from what the others get.

    Whoever is in what another rank gets has given it what it has: its one number, or
    the piece for that rank. Names that hold nothing are left out.
    """
    found = {}
    for rank, event in row.items():
        held = {name: cells for name, cells in event["holds"].items() if cells}
        found[rank] = {"sends": []} | event | {"holds": held}
    for to in sorted(row):
        for _, *whose in row[to]["holds"].get("gets", []):
            for rank in whose:
                if rank != to and "sends" not in row[rank]:
                    has = row[rank]["holds"]["has"]
                    found[rank]["sends"].append([to, "gets", [has[to % len(has)]]])
    return found


def wide(cell: list) -> float:
    """Return the width of a cell: [value, rank, rank, …]."""
    return max(26, 12 + 7.5 * len(f"{cell[0]}"))
