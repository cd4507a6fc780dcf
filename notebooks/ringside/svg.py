"""The few shapes that pictures are made of, as short strings of SVG."""

INK, GREY, PAPER = "#1c2430", "#5b6675", "#f4f6f9"


def n(value: float) -> str:
    """Return a coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")


def box(x, y, w, h) -> str:
    """Return a rectangle as a path, which many can share."""
    return f"M{n(x)} {n(y)}h{n(w)}v{n(h)}h{n(-w)}z"


def text(x, y, words, size, more="") -> str:
    return f'<text x="{n(x)}" y="{n(y)}" font-size="{size}"{more}>{words}</text>'


def svg(width: float, height: float, title: str, body: str) -> str:
    """Return a whole picture with its title."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {n(width)} {n(height)}" '
        f'width="{n(width)}" height="{n(height)}" fill="{INK}" '
        'font-family="Inter,Helvetica,Arial,sans-serif" role="img">'
        f"<title>{title}</title>"
        f'<rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n'
    )
