"""Draws who reads which sample in which epoch: events and step in, SVG text out.

A row is an epoch, in the order of the deal: the first sample of each rank, then the
second of each. Hue is the rank that reads it, and so is the place of the peg under the
number. On top lies the data set: there a peg is a rank that reads the sample.
"""

from collections import defaultdict

from .clock import Clock
from .lattice import CELL, LEFT, PEG, Grid, caption, whole
from .recording import table
from .ring import HALO, HUES, NEW, WRONG
from .svg import GREY, INK, box, n, svg, text

PALE = "#fbe4e4"
BOLD, MIDDLE = ' font-weight="600"', ' text-anchor="middle"'
START, EPOCH, END, FLIGHT, LONGEST = 0.8, 2.2, 2.0, 0.8, 12.0  # seconds
MOST = 24  # flights, each of a sample for every rank, that one picture has
HATCH = (
    '<pattern id="again" width="5" height="5" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><path d="M0 0v5" stroke="{INK}" '
    'stroke-width="2.4" opacity=".45"/></pattern>'
)
AGAIN = f'<path fill="url(#again)" stroke="{INK}" stroke-width="2" d="{{}}"/>'
NEVER = f'<path stroke="{WRONG}" stroke-width="1.5" stroke-dasharray="3 2" d="{{}}"/>'


def labels(grid: Grid, placed: list[tuple]) -> str:
    """Return the numbers of cells."""
    half = grid.wide / 2 - 1.5
    found = "".join(
        f'<text x="{n(x + half)}" y="{n(y + 15)}">{number}</text>'
        for x, y, number, _ in placed
    )
    return f'<g font-size="12"{MIDDLE}>{found}</g>'


def shades(grid: Grid, placed: list[tuple]) -> str:
    """Return the hue of cells with one reader, and the pegs of all readers."""
    pegs, tints, w = defaultdict(str), defaultdict(str), grid.wide - 3
    for x, y, _, ranks in placed:
        for rank in ranks:
            hue, slot = HUES[rank % len(HUES)], w / grid.size
            pegs[hue] += f"M{n(x + rank * slot)} {n(y + CELL + PEG / 2)}h{n(slot)}"
            if len(ranks) == 1:
                tints[hue] += f"M{n(x)} {n(y + CELL / 2)}h{w}"
    return thick(tints, CELL, ' opacity=".3"') + thick(pegs, PEG)


def thick(lines: dict[str, str], width: int, more: str = "") -> str:
    """Return lines of one width, by hue: shorter to write than boxes."""
    found = "".join(f'<path stroke="{hue}" d="{d}"/>' for hue, d in lines.items())
    return f'<g stroke-width="{width}"{more}>{found}</g>' if found else ""


def marks(grid: Grid, epoch: int) -> str:
    """Return what is wrong or odd about an epoch: read again, left out, repeated."""
    found, w = "", grid.wide - 3
    if again := grid.again(epoch):
        found += AGAIN.format("".join(box(x, y, w, CELL) for x, y, *_ in again))
        found += f"<g{HALO}>{labels(grid, again)}</g>"
    crosses, left_out = "", grid.left_out(epoch)
    for x, y, *_ in left_out:
        crosses += box(x, y, w, CELL) + f"M{n(x)} {n(y + CELL)}l{n(w)} -{CELL}"
    if crosses:
        found += f'<g fill="none">{NEVER.format(crosses)}</g>'
        found += f"<g{HALO}>{labels(grid, left_out)}</g>"
    if (first := grid.same(epoch)) is not None:
        y = grid.y(epoch)
        found += text(14, y + 29, f"= epoch {first}", 12, f'{BOLD} fill="{WRONG}"')
        found += f'<path fill="{WRONG}" d="{box(4, y - 3, 4, grid.tall - 5)}"/>'
    return found


def scenery(grid: Grid) -> str:
    """Return what never changes: names, empty cells, what hues and marks mean."""
    frames, parts = "", [f"<defs>{HATCH}</defs>"]
    for epoch in range(len(grid.epochs)):
        parts.append(text(14, grid.y(epoch) + 14, f"epoch {epoch}", 13, BOLD))
        for k in range(grid.longest):
            for x, y, *_ in grid.turn(epoch, k):
                frames += box(x, y, grid.wide - 3, CELL)
    if grid.deck:
        parts.append(text(14, 85, "data set", 13, BOLD))
        for number in range(grid.samples):
            frames += box(*grid.home(number), grid.wide - 3, CELL)
    parts.insert(1, f'<path fill="#fff" stroke="#c3cad4" d="{frames}"/>')
    for rank in range(grid.size):
        x = LEFT + rank * 70
        parts.append(text(x + 20, 54, f"rank {rank}", 12))
        hue, slot = HUES[rank % len(HUES)], 15 / grid.size
        parts.append(f'<path fill="{hue}" opacity=".3" d="{box(x, 42, 15, 10)}"/>')
        parts.append(f'<path fill="{hue}" d="{box(x + rank * slot, 52, slot, 5)}"/>')
    x, y = LEFT, grid.height - 46
    if any(map(grid.again, range(len(grid.epochs)))):
        parts.append(AGAIN.format(box(x, y - 11, 18, 14)))
        parts.append(text(x + 24, y, "read again in the same epoch", 12))
        x += 212
    if grid.aside:
        d = box(x, y - 11, 18, 14) + f"M{x} {n(y + 3)}l18 -14"
        parts.append(f'<g fill="none">{NEVER.format(d)}</g>')
        parts.append(text(x + 24, y, "not read in this epoch", 12))
    return "".join(parts)


def describe(events: list[dict], step: int) -> str:
    """Return who reads what in one epoch, in words."""
    grid = Grid(events)
    corner, sentence = caption(grid, step)
    each = enumerate(grid.epochs[step])
    told = "; ".join(f"rank {r}: {' '.join(map(str, mine))}" for r, mine in each)
    return f"{corner}. {sentence} {told}"


def words(grid: Grid, corner: str, sentence: str, more: str = "") -> str:
    """Return the corner and the sentence in their places."""
    return text(14, 28, corner, 17, BOLD + more) + text(
        grid.width / 2, grid.height - 16, sentence, 14, MIDDLE + more
    )


def ground(grid: Grid, epoch: int) -> str:
    """Return what lies under an epoch that repeats the order of another."""
    d = box(10, grid.y(epoch) - 4, grid.width - 20, grid.tall - 2)
    return f'<path fill="{PALE}" d="{d}"/>' if grid.same(epoch) is not None else ""


def row(grid: Grid, epoch: int) -> str:
    """Return all that one epoch adds."""
    turns = (grid.turn(epoch, k) for k in range(grid.longest))
    placed = [cell for turn in turns for cell in turn]
    return shades(grid, placed) + labels(grid, placed) + marks(grid, epoch)


def deck(grid: Grid) -> str:
    """Return the numbers of the data set."""
    return labels(grid, [(*grid.home(i), i, []) for i in range(grid.samples)])


def readers(grid: Grid, epoch: int) -> str:
    """Return the ranks that read each sample of the data set in one epoch."""
    whose = defaultdict(list)
    for rank, mine in enumerate(grid.epochs[epoch]):
        for number in dict.fromkeys(mine):
            whose[number].append(rank)
    return shades(grid, [(*grid.home(i), i, whose[i]) for i in sorted(whose)])


def states(events: list[dict]) -> int:
    """Return how many states there are to look at."""
    return len(table(events))


def frame(events: list[dict], step: int) -> str:
    """Return a still: all epochs up to one, and the data set shared out in that one."""
    grid = Grid(events)
    now = box(10, grid.y(step) - 4, grid.width - 20, grid.tall - 2)
    body = f'<path fill="{NEW}" d="{now}"/>'
    body += "".join(ground(grid, epoch) for epoch in range(step)) + scenery(grid)
    body += readers(grid, step) + deck(grid)
    body += "".join(row(grid, epoch) for epoch in range(step + 1))
    body += words(grid, *caption(grid, step))
    return svg(grid.width, grid.height, describe(events, step), body)


def strip(events: list[dict]) -> str:
    """Return all epochs on one sheet."""
    grid = Grid(events, deck=False)
    epochs = range(len(grid.epochs))
    body = "".join(ground(grid, epoch) for epoch in epochs) + scenery(grid)
    body += "".join(row(grid, epoch) for epoch in epochs)
    body += words(grid, f"{grid.samples} samples, {grid.size} ranks", "")
    return svg(grid.width, grid.height - 20, whole(grid), body)


def animate(events: list[dict]) -> str:
    """Return all epochs as one moving picture: every sample flies to its place."""
    grid = Grid(events)
    last = len(grid.epochs)
    each = min(EPOCH, (LONGEST - START - END) / last)
    clock = Clock(START + last * each + END)
    under, shared, rows, flights, said = "", "", "", "", ""
    for epoch in range(last):
        begin = START + epoch * each
        until = clock.total if epoch == last - 1 else begin + each
        seen = clock.during(begin if epoch else 0, until)
        said += words(grid, *caption(grid, epoch), seen)
        seen = clock.during(begin, until)
        shared += f"<g{seen}>{readers(grid, epoch)}</g>"
        turns = [grid.turn(epoch, k) for k in range(grid.longest)]
        few = len(turns) <= 8 and len(turns) * last <= MOST
        for k, cells in enumerate(turns if few else [sum(turns, [])]):
            away = begin + k * (0.8 - FLIGHT / EPOCH) * each / len(turns)
            there = away + FLIGHT / EPOCH * each
            seen = clock.during(there, clock.total)
            rows += f"<g{seen}>{shades(grid, cells)}{labels(grid, cells)}</g>"
            if few:
                flights += flight(grid, cells, clock.flight(away, there))
        seen = clock.during(begin + 0.85 * each, clock.total)
        rows += f"<g{seen}>{marks(grid, epoch)}</g>" if marks(grid, epoch) else ""
        under += f"<g{seen}>{ground(grid, epoch)}</g>" if ground(grid, epoch) else ""
    body = clock.style() + under + scenery(grid) + shared + deck(grid) + rows
    if flights:
        body += f'{tokens(grid)}<g font-size="12"{MIDDLE}>{flights}</g>'
    body += said
    return svg(grid.width, grid.height, whole(grid), body)


def tokens(grid: Grid) -> str:
    """Return each sample at home, to be used where it flies."""
    found, half = "", grid.wide / 2 - 1.5
    for number in range(grid.samples):
        x, y = grid.home(number)
        shape = f'<path stroke="{GREY}" d="{box(x, y, grid.wide - 3, CELL)}"/>'
        name = f'<text x="{n(x + half)}" y="{n(y + 15)}" fill="{INK}">{number}</text>'
        found += f'<g id="t{number}">{shape}{name}</g>'
    return f"<defs>{found}</defs>"


def flight(grid: Grid, cells: list[tuple], name: str) -> str:
    """Return samples on their way from the data set to their places."""
    found = ""
    for x, y, number, (rank,) in cells:
        left, top = grid.home(number)
        way = f"--x:{n(x - left)}px;--y:{n(y - top)}px"
        pale = paler(HUES[rank % len(HUES)])
        how = f'class="{name}" fill="{pale}" style="{way}"'
        found += f'<use href="#t{number}" {how}/>'
    return found


def paler(hue: str) -> str:
    """Return a hue as it looks in a cell."""
    parts = (int(hue[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.3 * (255 - part)):02x}" for part in parts)
