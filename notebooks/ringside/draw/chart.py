"""Draws charts of measurements, as bars or lines: numbers in, SVG out."""

import io
import re

import matplotlib as mpl
from matplotlib.figure import Figure

from .player import Picture
from .svg import HUES, SHADES, plain

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
        told = "; ".join(
            f"{group}: " + ", ".join(f"{name} {found[name]:.2f}" for name in names)
            for group, found in groups.items()
        )
        return picture(figure, f"{title}. {told}")


def lines(
    found: dict[str, dict[int, float]], said: dict[str, dict[int, float]], title: str
) -> Picture:
    """Return milliseconds by bytes, as found by a run and, dashed, as said before."""
    with mpl.rc_context(STYLE):
        figure = Figure((7.2, 4.2))
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(found.items()):
            hue = HUES[number % len(HUES)]
            axes.plot([*points], [*points.values()], "o-", color=hue, label=name)
            points = said.get(name, {})
            axes.plot([*points], [*points.values()], "--", color=hue)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = [*next(iter(found.values()))]
        axes.set_xticks(sizes, map(size_of, sizes))
        axes.set_ylabel("milliseconds")
        axes.set_title(title)
        axes.legend(frameon=False)
        told = "; ".join(
            f"{name}: "
            + ", ".join(f"{size_of(s)} {ms:.3g}" for s, ms in points.items())
            for name, points in found.items()
        )
        return picture(figure, f"{title}, in milliseconds. {told}")


def spreads(tasks: dict[str, dict[str, dict[int, list]]], unit: str) -> Picture:
    """Return lines by number of ranks, through means, with whiskers to the extremes.

    One field for each task; in it a line for each name, and a list for each number.
    """
    with mpl.rc_context(STYLE):
        figure, told = Figure((7.2, 3.6)), []
        fields = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for axes, (title, found) in zip(fields, tasks.items()):
            for number, (name, by_ranks) in enumerate(found.items()):
                middle = [sum(each) / len(each) for each in by_ranks.values()]
                pairs = [*zip(middle, by_ranks.values())]
                ends = [[m - min(e) for m, e in pairs], [max(e) - m for m, e in pairs]]
                aside = 2 ** (0.08 * (number - (len(found) - 1) / 2))  # none hides
                how = {"color": HUES[(0, 5, 2, 3)[number % 4]], "label": name}
                how |= {"marker": "os^D"[number % 4], "capsize": 2, "markersize": 5}
                axes.errorbar([n * aside for n in by_ranks], middle, ends, **how)
                each = (
                    f"{n} {min(e):.0f} to {max(e):.0f}" for n, e in by_ranks.items()
                )
                told.append(f"{title}, {name}: {', '.join(each)}")
            axes.set_xscale("log", base=2)
            axes.set_xticks([*by_ranks], map(str, by_ranks))
            axes.minorticks_off()
            axes.set_title(title)
            axes.set_xlabel("ranks")
        fields[0].set_ylim(0, 100)
        fields[0].set_ylabel(unit)
        fields[0].legend(frameon=False, loc="lower left")
        return picture(figure, f"{unit[0].upper()}{unit[1:]}. {'; '.join(told)}")


def size_of(size: int) -> str:
    """Return a number of bytes in words, such as 64 MiB."""
    for unit, power in (("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:g} {unit}"
    return f"{size} B"


def picture(figure: Figure, words: str) -> Picture:
    """Return a figure as a picture that also tells itself in words."""
    figure.set_layout_engine("constrained")
    page = io.StringIO()
    figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None})
    svg = page.getvalue()[page.getvalue().index("<svg") :]
    svg = re.sub(r' width="([\d.]+)pt"', r' width="\1"', svg, count=1)
    svg = re.sub(r' height="([\d.]+)pt"', r' height="\1"', svg, count=1)
    return Picture(svg.replace(">", f"><title>{plain(words)}</title>", 1))
