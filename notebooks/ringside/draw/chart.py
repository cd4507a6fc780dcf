"""Draws charts of measurements: numbers in, SVG out."""

import io
import re

import matplotlib as mpl
from matplotlib.figure import Figure

from .player import Picture
from .svg import SHADES

STYLE = {
    "svg.hashsalt": "ringside",
    "svg.fonttype": "none",  # letters stay letters, on any machine
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
}


def bars(groups: dict[str, dict[str, float]], title: str, unit: str) -> Picture:
    """Return horizontal bars, one for each name, a shade for each group."""
    names = list(next(iter(groups.values())))
    with mpl.rc_context(STYLE):
        figure = Figure((7.2, 0.5 * len(names) + 1.6))
        axes = figure.add_subplot()
        thick = 0.8 / len(groups)
        for number, (group, found) in enumerate(groups.items()):
            places = [i + number * thick for i in range(len(names))]
            lengths = [found[name] for name in names]
            drawn = axes.barh(places, lengths, thick * 0.9, label=group)
            for bar in drawn:
                bar.set_facecolor(SHADES[number % len(SHADES)])
            axes.bar_label(drawn, [f"{length:.2f}" for length in lengths], padding=3)
        middle = thick * (len(groups) - 1) / 2
        axes.set_yticks([i + middle for i in range(len(names))], names)
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        axes.set_title(title)
        figure.legend(loc="outside lower right", frameon=False)
        figure.set_layout_engine("constrained")
        page = io.StringIO()
        figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None})
    told = "; ".join(
        f"{group}: " + ", ".join(f"{name} {found[name]:.2f}" for name in names)
        for group, found in groups.items()
    )
    svg = page.getvalue()[page.getvalue().index("<svg") :]
    svg = re.sub(r' width="([\d.]+)pt"', r' width="\1"', svg, count=1)
    svg = re.sub(r' height="([\d.]+)pt"', r' height="\1"', svg, count=1)
    return Picture(re.sub(">", f"><title>{title}. {told}</title>", svg, count=1))
