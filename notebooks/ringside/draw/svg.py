"""The colours and the few shapes that pictures are made of, as short strings of SVG."""

import math
from html import escape

INK, GREY, PAPER = "#1c2430", "#5b6675", "#f4f6f9"
HUES = "#0072B2 #E69F00 #009E73 #CC79A7 #56B4E9 #D55E00 #F0E442 #8C6BB1 #999999".split()
SHADES = "#0072B2 #9db8cc".split()  # dark and light, so that grey print tells them too
EDGE, NEW, WRONG, PALE = "#c3cad4", "#dce2ea", "#c1121f", "#fbe4e4"
BOLD, MIDDLE = ' font-weight="600"', ' text-anchor="middle"'
HALO = ' stroke="#fff" stroke-width="4" paint-order="stroke"'
HEAD = '<path d="M0 0l-9 -4.5v9z" transform="translate({} {}) rotate({})"/>'


def n(value: float) -> str:
    """Return a coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")


def box(x, y, w, h) -> str:
    """Return a rectangle as a path, which many can share."""
    return f"M{n(x)} {n(y)}h{n(w)}v{n(h)}h{n(-w)}z"


def plain(words) -> str:
    """Return words as they stand in SVG, where < and & begin something else."""
    return escape(str(words), quote=False)


def text(x, y, words, size, more="") -> str:
    return f'<text x="{n(x)}" y="{n(y)}" font-size="{size}"{more}>{plain(words)}</text>'


def empty(boxes: str) -> str:
    """Return boxes, as one path, with nothing in them yet."""
    return f'<path fill="#fff" stroke="{EDGE}" d="{boxes}"/>'


def words(layout, corner: str, sentence: str, more="") -> str:
    """Return the corner and the sentence, if there are such, in their places."""
    (left, foot), half = layout.margins, layout.width / 2
    said = text(left, 28, corner, 17, BOLD + more) if corner else ""
    if sentence:
        said += text(half, layout.height - foot, sentence, 14, MIDDLE + more)
    return said


def arrows(ways: list[tuple], wide: int = 2) -> str:
    """Return an arrow for each way, which is (from x, from y, to x, to y)."""
    lines, heads = "", ""
    for x0, y0, x1, y1 in ways:
        turn = math.degrees(math.atan2(y1 - y0, x1 - x0))
        lines += f"M{n(x0)} {n(y0)}L{n(x1)} {n(y1)}"
        heads += HEAD.format(n(x1), n(y1), n(turn))
    line = f'<path d="{lines}" stroke="{GREY}" stroke-width="{wide}"/>'
    return f'<g fill="{GREY}">{line}{heads}</g>' if ways else ""


def covered(room: tuple, dx: float, dy: float, gap: float) -> float:
    """Return which part of a way from the middle of a card the card covers."""
    sides = ((side / 2 + gap) / (abs(d) or 1e-9) for side, d in zip(room, (dx, dy)))
    return min(sides)


def svg(width: float, height: float, title: str, body: str) -> str:
    """Return a whole picture with its title."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {n(width)} {n(height)}" '
        f'width="{n(width)}" height="{n(height)}" fill="{INK}" '
        'font-family="Inter,Helvetica,Arial,sans-serif" role="img">'
        f"<title>{plain(title)}</title>"
        f'<rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n'
    )


class Stock:
    """Keeps what is drawn often in a long picture, so that it is written once."""

    def __init__(self, long: bool):
        self.long, self.names = long, {}

    def put(self, body: str, more: str, x: float = 0, y: float = 0) -> str:
        """Return a drawing, or a line that points at the one that is kept."""
        if not self.long:
            return f"<g{more}>{body}</g>"
        name = self.names.setdefault(body, f"s{len(self.names)}")
        place = f' x="{n(x)}" y="{n(y)}"' if x or y else ""
        return f'<use href="#{name}"{place}{more}/>'

    def defs(self) -> str:
        """Return all that is kept."""
        kept = (f'<g id="{name}">{body}</g>' for body, name in self.names.items())
        return f"<defs>{''.join(kept)}</defs>" if self.names else ""
