"""Says what is right or wrong about an answer, in one line."""

TODO = "your turn: replace the ... above, then run this cell again"


def say(mistake: str | None, right: str) -> None:
    """Print one line: what is right about an answer, or what is wrong with it."""
    if mistake == TODO:
        print(TODO)
    else:
        print(f"not yet: {mistake}" if mistake else f"right: {right}")
