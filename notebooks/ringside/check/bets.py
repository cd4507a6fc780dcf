"""Puts a reader's bets beside the answers."""


def bets(*rows: tuple[str, object, object]) -> None:
    """Print each bet, given as (what, bet, answer), and how it compares."""
    wide = max(len(what) for what, *_ in rows)
    print(f"{'':{wide}}  your bet   answer")
    for what, bet, answer in rows:
        shown = "-" if bet is ... else shortly(bet)
        found = f"{shortly(answer):>7}  {judged(bet, answer)}"
        print(f"{what:{wide}}  {shown:>8}  {found}")


def shortly(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def judged(bet: object, answer: object) -> str:
    """Return how a bet compares with the answer; a bet within a hundredth is right."""
    if bet is ...:
        return "no bet yet"
    if not all(type(value) in (int, float) for value in (bet, answer)):
        return "right" if bet == answer else "not so"
    if abs(bet - answer) <= abs(answer) / 100:
        return "right"
    return "too high" if bet > answer else "too low"
