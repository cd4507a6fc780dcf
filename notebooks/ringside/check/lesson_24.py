"""Checks the answers of precision."""

import re
from collections.abc import Callable
from itertools import product

from .table import asks
from .verdict import attempt, read, says

LINES = {
    "a": "step",
    "b": "the clipping",
    "c": "scale and backward",
    "d": "update",
    "e": "unscale_",
    "f": "the forward",
}
WHY = {  # what is wrong if the first of two lines comes after the second
    "fc": "backward needs a loss",
    "ce": "before backward there are no gradients to divide",
    "eb": "the limit is meant for the true gradients: they must be divided first",
    "ba": "what is clipped after the step is never used",
    "ad": "update says what the scale of the next step is, so it comes last",
}
ONCE = {  # and which lines do not run for each piece
    "needs the gradients of all pieces: once, at the end": "be",
    "comes once: all pieces make one step, with one scale": "ad",
}
TWICE_OR_NEVER = re.compile(r"(.).*\1|^.{0,5}$")
NOT_BOTH = re.compile("^(f*|c*)$")
CASES = list(product((1.0, 1024.0), (0, 1, 2), (False, True)))
pair = read("a scale and a number", float, int)


@asks(
    "1/32, 1/256, and 2 to the power 6: 2^-30 becomes 2^-24",
    like="exponent=3",
    **{
        f"{name}_part": (
            part,
            f"{name}: not 1/{{}}: 1/{4 * part} doubles at 2, and again at 4",
            {
                4 * part: f"{name}: 1/{4 * part} is right from 1 to 2; from 4 to 8 it"
                " is more",
                2 * part: f"{name}: 1/{2 * part} is right from 2 to 4; at 4 it doubles"
                " again",
                16 * part: f"{name}: the distance grows with the numbers, so divide,"
                " by 4",
            },
        )
        for name, part in (("bf16", 32), ("fp16", 256))
    },
    exponent=(
        6,
        "2^-30 times 2^{} is 2^{exponent-30}: what must it be?",
        {
            5: "2^-30 times 2^5 is 2^-25, half of the smallest number: it becomes 0",
            -6: "the scale must make the gradient larger",
        },
    ),
)
def neighbours(bf16_part: int, fp16_part: int, exponent: int):
    """Check how far apart neighbours are from 4 to 8, and which scale is enough."""


@asks(
    "the pieces share a scale, and the true gradients are clipped",
    types='write letters from a to f, such as order="abcdef"',
    among=re.compile("[a-f]*"),
    order=(
        "fcebad",
        "order must have each of the six letters once",
        {TWICE_OR_NEVER: "order must have each of the six letters once"}
        | {
            re.compile(f"{b}.*{a}"): f"{LINES[b]} before {LINES[a]}: {why}"
            for (a, b), why in WHY.items()
        },
    ),
    for_each_piece=(
        "fc",
        "in which order do a piece's lines run?",
        {
            re.compile(f"^[fc]*{line}"): f"{LINES[line]} {why}"
            for why, lines in ONCE.items()
            for line in lines
        }
        | {NOT_BOTH: "each piece has a forward and a backward of its own"},
    ),
)
def step_order(order: str, for_each_piece: str):
    """Check the order of a step's lines, and which of them run for each piece."""


@says(f"it scales as GradScaler does, {len(CASES)} times")
def next_scale(function: Callable) -> str | None:
    """Check next_scale(scale, good_steps, found_inf)."""
    for scale, good_steps, found_inf in CASES:
        where = f"scale {scale:g}, {good_steps} good steps, inf: {found_inf}:"
        right = (scale / 2, 0) if found_inf else (scale, good_steps + 1)
        if right[1] == 3:
            right = scale * 2, 0
        said = attempt(where, function, scale, good_steps, found_inf, into=pair)
        if said == right:
            continue
        if found_inf and said[0] == scale:
            return f"{where} an infinite gradient halves the scale"
        if found_inf and said[0] == scale / 2:
            return f"{where} the good steps are no longer in a row"
        if found_inf:
            return f"{where} the scale is {said[0]:g}, not {right[0]:g}"
        if right[0] != scale and said[0] == scale:
            return f"{where} this is the third good step in a row"
        if right[0] != scale and said[0] == right[0]:
            return f"{where} after a doubling, the counting begins again"
        if right[0] == scale and said[0] == scale * 2:
            return f"{where} this is only good step number {good_steps + 1}"
        return f"{where} it is {right}, not {said}"
    return None
