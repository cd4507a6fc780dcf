"""Writes down once what a long picture draws several times."""

from .svg import n


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
