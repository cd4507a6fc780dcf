"""Counts the honest minutes of a lesson, from its page, and writes them on it.

Ninety words a minute, ten seconds for a line of code (in a cell or in the text), a
minute for each picture, player and bet. An exercise takes five minutes by hand, eight
with code to write. Side roads and exercises are counted apart; what is folded, and the
sandbox, are not counted.
"""

import re
from collections import Counter

WORDS, LINES = 90, 6  # in a minute
FOLDED = r"(?s)<details>.*?</details>"
FENCED = r"(?ms)^ *```\w*\n(.*?)^ *```$"
UNREAD = r"<[^>]*>|(?<=\])\([^)]*\)"
APART = r"## ((?:Side road|Exercise|Sandbox).*)"
LABEL = re.compile(r"\*\*Main road \d+ minutes\*\*( · (side roads|exercises) \d+)*")


def minutes(cells: list) -> dict[str, int]:
    """Return the minutes of the main road, and of each section apart from it."""
    found, part = Counter(), "main road"
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            found[part] += working(source, cell["outputs"])
            if part.startswith("Exercise"):
                found[part] = 8 if "def " in source else 5
            continue
        for section in re.split(r"(?m)^(?=## )", LABEL.sub("", source)):
            if section.startswith("## "):
                apart = re.match(APART, section)
                part = apart[1] if apart else "main road"
            found[part] += 0 if part.startswith("Exercise") else reading(section)
    return {name: round(spent) for name, spent in found.items()}


def reading(text: str) -> float:
    """Return the minutes that some prose takes, with its pictures and its code."""
    pictures, text = text.count("!["), re.sub(FOLDED, "", text)
    lines = sum(map(count_lines, re.findall(FENCED, text)))
    text = re.sub(UNREAD, "", re.sub(FENCED, "", text))
    return len(re.findall(r"\S*\w\S*", text)) / WORDS + lines / LINES + pictures


def working(source: str, outputs: list) -> float:
    """Return the minutes that a cell takes: a bet, or lines and a picture."""
    if re.fullmatch(r"[\w, ]+ = [., ]+", source):
        return 1
    pages = ("".join(o.get("data", {}).get("text/html", "")) for o in outputs)
    pictures = sum("<figure" in page for page in pages)
    return count_lines(source) / LINES + pictures


def count_lines(code: str) -> int:
    """Return how many lines of some code are not empty."""
    return len(re.findall(r"(?m)^.*\S", code))


def label(cells: list) -> str:
    """Return the line of minutes that stands at the top of the page."""
    found = minutes(cells)
    told = f"**Main road {found['main road']} minutes**"
    for name in ("Side road", "Exercise"):
        if spent := sum(n for part, n in found.items() if part.startswith(name)):
            told += f" · {name.lower()}s {spent}"
    return told
