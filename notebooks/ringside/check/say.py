"""Says what is right or wrong about an answer, in one line."""

TODO = "your turn: replace the ... above, then run this cell again"


def say(mistake: str | None, right: str) -> None:
    """Print one line: what is right about an answer, or what is wrong with it."""
    if mistake == TODO:
        print(TODO)
    else:
        print(f"not yet: {mistake}" if mistake else f"right: {right}")


def blank(): ...


def untouched(function) -> bool:
    """Say whether a function still has the empty body that the exercise gave it."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_code == blank.__code__.co_code
