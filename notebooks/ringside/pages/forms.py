"""Makes the forms of a page: fields for bets and answers, and what judges them."""

import ast
import json
import re
from html import escape
from pathlib import Path

HEADS = r"^ +your bet   answer$"  # of what check.bets has printed
BET = r"^(.*?)  +-  +(\S.*?)  no bet yet$"  # a row of it
TABLES = json.loads(Path(__file__).with_name("tables.json").read_text("utf-8"))


def behind(source: str, bets: dict[str, tuple[str, str]]) -> list[str]:
    """Return the forms that belong behind a cell, as HTML."""
    asked = [name for name in assigned(source) if name in bets]
    compared = [name for name in compares(source) if name in bets]
    found = [bet_form({name: bets[name] for name in asked})] if asked else []
    found += [comparison({name: bets[name] for name in compared})] if compared else []
    return found + [*map(exercise, asks(source))]


def trees(source: str) -> list[ast.stmt]:
    """Return the statements of a cell; none if it is no Python, as with a magic."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


def is_blank(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def assigned(source: str) -> list[str]:
    """Return the names that a cell sets to `...`, for bets."""
    found = []
    for node in trees(source):
        if isinstance(node, ast.Assign):
            values = getattr(node.value, "elts", [node.value])
            names = getattr(node.targets[0], "elts", [node.targets[0]])
            if all(map(is_blank, values)):
                found += [name.id for name in names if isinstance(name, ast.Name)]
    return found


def checks_in(source: str) -> list[ast.Call]:
    """Return a cell's calls of `check`, one after the other."""
    return [
        node.value
        for node in trees(source)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).startswith("check.")
    ]


def compares(source: str) -> list[str]:
    """Return the names of the bets that a cell compares with answers."""
    rows = [row for call in checks_in(source) for row in call.args]
    pairs = [row.elts[1] for row in rows if isinstance(row, ast.Tuple)]
    return [name.id for name in pairs if isinstance(name, ast.Name)]


def bets_of(cells: list[dict]) -> dict[str, tuple[str, str]]:
    """Return what each bet of a page is about, and the answer that was printed."""
    found = {}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and (names := compares(source)):
            told = "".join("".join(o.get("text", "")) for o in cell["outputs"])
            rows = re.findall(BET, told, re.MULTILINE)[-len(names) :]
            found |= dict(zip(names, rows, strict=True))
    return found


def asks(source: str) -> list[tuple[str, list[str]]]:
    """Return each checker that a cell calls with blanks, and what it asks for."""
    return [
        (call.func.attr, [word.arg for word in call.keywords])
        for call in checks_in(source)
        if call.keywords and all(is_blank(word.value) for word in call.keywords)
    ]


def bet_form(bets: dict[str, tuple[str, str]]) -> str:
    """Return fields for bets, which the browser keeps."""
    fields = "".join(field(name, what) for name, (what, _) in bets.items())
    return f'<form class="ringside-bets">{fields}</form>'


def without_answers(output: dict) -> dict:
    """Return an output without the table of bets: the answers come when asked for."""
    if "text" not in output:
        return output
    text = "".join(output["text"])
    return output | {"text": re.sub(rf"(?m)({HEADS}|{BET})\n?", "", text).strip("\n")}


def comparison(bets: dict[str, tuple[str, str]]) -> str:
    """Return the answers, folded; a script puts the bets beside them."""
    rows = "".join(
        f'<tr data-bet="{name}"><td>{escape(what)}</td><td>-</td>'
        f"<td>{escape(answer)}</td><td></td></tr>"
        for name, (what, answer) in bets.items()
    )
    heads = "<tr><td></td><th>your bet</th><th>answer</th><td></td></tr>"
    return (
        '<details class="ringside-compare"><summary>Compare with your bets</summary>'
        f"<table>{heads}{rows}</table></details>"
    )


def exercise(asked: tuple[str, list[str]]) -> str:
    """Return fields for the answers of an exercise, if a table can judge them."""
    checker, names = asked
    table = TABLES.get(checker)
    if table is None:
        return '<p class="ringside-own">To be judged, run it on a machine of yours.</p>'
    fields = "".join(field(name, name) for name in names)
    told = escape(json.dumps(table))
    return (
        f'<form class="ringside-exercise" data-name="{checker}" data-table="{told}">'
        f"{fields}<button>Check my answers</button>"
        '<output role="status"></output></form>'
    )


def field(name: str, what: str) -> str:
    return f'<label>{escape(what)} <input name="{name}" autocomplete="off"></label>'
