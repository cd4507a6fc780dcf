"""Checks the answers of precision."""

from collections.abc import Callable
from itertools import product

from .verdict import attempt, read, says

LINES = {
    "a": "step",
    "b": "the clipping",
    "c": "scale and backward",
    "d": "update",
    "e": "unscale_",
    "f": "the forward",
}
ORDER, EACH = "fcebad", "fc"
WHY = {  # what is wrong if the first of two lines comes after the second
    "fc": "backward needs a loss",
    "ce": "before backward there are no gradients to divide",
    "eb": "the limit is meant for the true gradients: they must be divided first",
    "ba": "what is clipped after the step is never used",
    "ea": "the step must not take scaled gradients",
    "ad": "update says what the scale of the next step is, so it comes last",
}
CASES = list(product((1.0, 1024.0), (0, 1, 2), (False, True)))
pair = read("a scale and a number", float, int)


@says("1/32, 1/256, and 2 to the power 6: 2^-30 becomes 2^-24", like="exponent=3")
def neighbours(bf16_part: int, fp16_part: int, exponent: int) -> str | None:
    """Check how far apart neighbours are from 4 to 8, and which scale is enough."""
    for name, part, at_one in (("bf16", bf16_part, 128), ("fp16", fp16_part, 1024)):
        if part == at_one:
            return f"{name}: 1/{at_one} is right from 1 to 2; from 4 to 8 it is more"
        if part == at_one // 2:
            return f"{name}: 1/{part} is right from 2 to 4; at 4 it doubles again"
        if part == at_one * 4:
            return f"{name}: the distance grows with the numbers, so divide, by 4"
        if part != at_one // 4:
            return f"{name}: not 1/{part}: 1/{at_one} doubles at 2, and again at 4"
    if exponent == 5:
        return "2^-30 times 2^5 is 2^-25, half of the smallest number: it becomes 0"
    if exponent == -6:
        return "the scale must make the gradient larger"
    if exponent != 6:
        return f"2^-30 times 2^{exponent} is 2^{exponent - 30}: what must it be?"
    return None


@says("the pieces share a scale, and the true gradients are clipped")
def step_order(order: str, for_each_piece: str) -> str | None:
    """Check the order of a step's lines, and which of them run for each piece."""
    for answer in (order, for_each_piece):
        if not isinstance(answer, str) or set(answer) - set(LINES):
            return 'write letters from a to f, such as order="abcdef"'
    if sorted(order) != sorted(LINES):
        return "order must have each of the six letters once"
    for early, late in WHY:
        if order.index(early) > order.index(late):
            return f"{LINES[late]} before {LINES[early]}: {WHY[early + late]}"
    for line in for_each_piece:
        if line in "be":
            return f"{LINES[line]} needs the gradients of all pieces: once, at the end"
        if line in "ad":
            return f"{LINES[line]} comes once: all pieces make one step, with one scale"
    if set(for_each_piece) != set(EACH):
        return "each piece has a forward and a backward of its own"
    if for_each_piece != EACH:
        return "in which order do a piece's lines run?"
    return None


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
