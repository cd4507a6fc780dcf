"""The map of the course: an evening as a line with stations, the parts as branches."""

from .. import road
from .svg import BOLD, EDGE, GREY, HUES, INK, MIDDLE, n, plain, svg, text

WIDTH, LINE, COLUMNS = 900, 96, 250  # the height of the line, of the columns' heads
GAP, FIRST, ROUND = 27, 34, 18  # between pages, above the first one; of a bend


def draw(address: str = "") -> str:
    """Return the map, as an SVG with its words inside; with links, if it has addresses.

    In an address, {} is the stem of a page.
    """
    evening, *parts = road.PARTS.items()
    stations, hue = evening[1], HUES[0]
    apart = (WIDTH - 190) / (len(stations) - 1)
    places = [100 + at * apart for at in range(len(stations))]
    end, foot = places[-1], COLUMNS - 74  # the line turns down, and along the branches
    wide = (WIDTH - 40) / len(parts)
    heads = [32 + at * wide for at in range(len(parts))]

    # the way on: from the last station down, back to the left, into each part
    bends = f"M{n(end)} {LINE}V{foot - ROUND}q0 {ROUND} {-ROUND} {ROUND}H{n(heads[0])}"
    body = f'<path d="{bends}" fill="none" stroke="{EDGE}" stroke-width="4"/>'
    body += line(f"M{n(places[0])} {LINE}H{n(end)}", hue, 7)
    body += text(24, 34, "One evening", 20, BOLD)
    body += text(190, 34, "after any station you may stop", 15, f' fill="{GREY}"')
    for at, (page, x) in enumerate(zip(stations, places)):
        y = LINE + (38 if at % 2 == 0 else -22)  # names take turns, below and above
        drawn = stop(x, LINE, hue, 10) + text(x, y, page.name, 16, MIDDLE + BOLD)
        body += linked(drawn, address, page)
    for at, ((name, pages), x) in enumerate(zip(parts, heads), 1):
        hue, low = HUES[(0, 2, 5, 3, 1)[at]], COLUMNS + FIRST + GAP * (len(pages) - 1)
        body += line(f"M{n(x)} {foot}V{low}", hue, 5)
        body += text(x + 16, COLUMNS - 6, name[0].upper() + name[1:], 17, BOLD)
        for place, page in enumerate(pages):
            y = COLUMNS + FIRST + GAP * place
            drawn = stop(x, y, hue, 6) + text(x + 16, y + 5, page.name, 15)
            body += linked(drawn, address, page)
    height = COLUMNS + FIRST + GAP * max(len(pages) for _, pages in parts) + 6
    told = "; ".join(
        f"{part}: {', '.join(page.name for page in pages)}"
        for part, pages in road.PARTS.items()
    )
    drawn = svg(WIDTH, height, "The map of the course", body)
    if address:  # a picture has nothing inside that one could open
        drawn = drawn.replace('role="img"', 'role="group"', 1)
    words = f"An evening is a line with six stations, and four branches follow. {told}."
    return drawn.replace("</title>", f"</title><desc>{plain(words)}</desc>", 1)


def linked(drawn: str, address: str, page: road.Page) -> str:
    """Return a page's place on the map, as a link to it if there is an address."""
    href = f'<a href="{address.format(page.stem)}">'
    return f"{href}{drawn}</a>" if address else drawn


def line(way: str, hue: str, wide: int) -> str:
    return f'<path d="{way}" fill="none" stroke="{hue}" stroke-width="{wide}"/>'


def stop(x: float, y: float, hue: str, r: int) -> str:
    """Return a station: a white disc with a rim."""
    rim = f'fill="#fff" stroke="{INK if r > 6 else hue}" stroke-width="3"'
    return f'<circle cx="{n(x)}" cy="{n(y)}" r="{r}" {rim}/>'
