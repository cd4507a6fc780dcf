"""Checks the mended scripts of broken scripts: each runs on 2 ranks, on 3, and on 1."""

from collections.abc import Callable

from ..launch.failure import name as ranks_named
from .verdict import Mistake, says
from .watched import Rank, launch

SIZES = (2, 3, 1)


def numbers_in(values) -> str:
    """Return "6 and 7", or "5.5, 6.5 and 7.5"."""
    *most, last = [f"{value:g}" for value in values]
    return f"{', '.join(most)} and {last}" if most else last


def each(ranks: list[Rank], word: str) -> list[float]:
    """Return the last number that each rank printed behind a word."""
    for number, rank in enumerate(ranks):
        if not rank.said(word):
            raise Mistake(f"rank {number} prints no line such as '{word} 6.5'")
    return [rank.said(word)[-1] for rank in ranks]


def shared(ranks: list[Rank], samples: int = 12) -> None:
    """Raise a mistake if the samples are not shared out."""
    whole = [n for n, rank in enumerate(ranks) if len({*rank.seen}) == samples]
    if len(ranks) > 1 and whole:
        told = ranks_named(whole)
        raise Mistake(f"{told} computed all {samples} samples: nothing is shared out")
    if lost := samples - len({x for rank in ranks for x in rank.seen}):
        raise Mistake(f"{lost} of {samples} samples are computed by nobody")


def ends_with(ranks: list[Rank], want: float, steps: int = 1) -> None:
    """Raise a mistake unless all ranks take the steps of one process."""
    shared(ranks)
    weights = each(ranks, "weight")
    for step, grads in enumerate(zip(*(rank.grads for rank in ranks)), 1):
        given = [grad[0] for grad in grads if grad]
        if len({*given}) > 1 and len({*weights}) > 1:
            told = numbers_in(given)
            raise Mistake(f"the ranks' gradients differ in step {step}: {told}")
    if len({*weights}) > 1:
        raise Mistake(f"the ranks end with unequal weights: {numbers_in(weights)}")
    if abs(weights[0] - want) > 1e-4:
        told = f"the weight is {weights[0]:g}, and with one process {want:g}"
        if len({len(rank.grads) for rank in ranks} | {steps}) > 1:
            told += f": a rank takes {len(ranks[0].grads)} steps, not {steps}"
        raise Mistake(told)


def script(number: int, right: str) -> Callable:
    """Make a checker of a function that judges the ranks of one run."""

    def make(judge: Callable) -> Callable:
        def find(mended: Callable) -> str | None:
            for size in SIZES:
                try:
                    judge(launch(mended, size))
                except Mistake as mistake:
                    return f"on {size} rank{'s' * (size > 1)}, {mistake}"
            return None

        find.__name__ = f"script_{number}"
        find.__doc__ = judge.__doc__
        return says(f"on 1, 2 and 3 ranks, {right}")(find)

    return make


@script(1, "one step is the step of one process")
def script_1(ranks: list[Rank]) -> None:
    """Check the training that went around DDP."""
    ends_with(ranks, 6.5)


@script(2, "the file fits the plain model")
def script_2(ranks: list[Rank]) -> None:
    """Check the export: what is loaded is what was trained."""
    shared(ranks)
    if {*each(ranks, "weight")} == {0.0} and ranks[0].grads:
        raise Mistake("it loads without an error, and no weight has found its place")
    ends_with(ranks, 6.5)


@script(3, "rank 0 tests, and no rank waits")
def script_3(ranks: list[Rank]) -> None:
    """Check the test between two epochs."""
    ends_with(ranks, 13, 2)
    if (told := ranks[0].said("test")) != [-16.25, -32.5]:
        seen = numbers_in(told) if told else "nothing"
        raise Mistake(f"rank 0 tells {seen}, and one process -16.25 and -32.5")


@script(4, "all end, and with one weight")
def script_4(ranks: list[Rank]) -> None:
    """Check an epoch of 13 samples: a few may be left out, or be read twice."""
    size, seen = len(ranks), sum((rank.seen for rank in ranks), [])
    whole = [n for n, rank in enumerate(ranks) if len({*rank.seen}) == 13]
    if size > 1 and whole:
        raise Mistake(f"{ranks_named(whole)} computed all 13: nothing is shared out")
    if len({*seen}) < 13 - 2 * size:
        raise Mistake(f"only {len({*seen})} of 13 samples are computed")
    weights = each(ranks, "weight")
    if len({*weights}) > 1:
        raise Mistake(f"all end, but with unequal weights: {numbers_in(weights)}")


@script(5, "all stop after the step in which one process stops")
def script_5(ranks: list[Rank]) -> None:
    """Check the early stop: the mean loss decides."""
    shared(ranks)
    steps = each(ranks, "step")
    if len({*steps}) > 1:
        raise Mistake(f"the ranks stop after unequal steps: {numbers_in(steps)}")
    if steps[0] != 6:
        told = f"all stop after step {steps[0]:g}, and one process after step 6"
        raise Mistake(f"{told}: whose loss decides?")


@script(6, "the loss that is told is that of all samples")
def script_6(ranks: list[Rank]) -> None:
    """Check that the mean loss is told, and that the training is as it was."""
    shared(ranks)
    grads = {grad for rank in ranks for step in rank.grads for grad in step}
    if wrong := sorted(grad for grad in grads if abs(grad + 6.5) > 1e-4):
        raise Mistake(f"the gradient is {numbers_in(wrong)}: it was -6.5 before")
    told, own = each(ranks[:1], "loss")[0], [sum(r.seen) / len(r.seen) for r in ranks]
    if len(ranks) > 1 and abs(told + own[0]) < 1e-4:
        raise Mistake(f"rank 0 tells {told:g}: that is the loss of its own samples")
    if len(ranks) > 1 and abs(told + 6.5 * len(ranks)) < 1e-4:
        raise Mistake(f"rank 0 tells {told:g}: that is a sum over {len(ranks)} ranks")
    if abs(told + 6.5) > 1e-4:
        raise Mistake(f"rank 0 tells {told:g}, and one process -6.5")


@script(7, "each sample is tested once")
def script_7(ranks: list[Rank]) -> None:
    """Check an accuracy, told as "5 of 7"."""
    right, of = each(ranks[:1], "right")[0], each(ranks[:1], "of")[0]
    told = f"rank 0 tells {right:g} of {of:g}"
    if of > 7:
        raise Mistake(f"{told}: there are 7 samples, and some are tested twice")
    if of < 7:
        raise Mistake(f"{told}: some of the 7 samples are not tested, or not counted")
    if right != 5:
        raise Mistake(f"{told}: one process has 5 right, so one sample counts twice")


@script(8, "each epoch has an order of its own")
def script_8(ranks: list[Rank]) -> None:
    """Check the orders of three epochs."""
    lines = [[line.partition(":")[2].split() for line in r.lines] for r in ranks]
    orders = [[[*map(int, line)] for line in told if line] for told in lines]
    if any(len(epochs) != 3 for epochs in orders):
        raise Mistake("each rank prints three lines of samples, one for each epoch")
    for epoch, shares in enumerate(zip(*orders)):
        reads = sum(shares, [])
        if len(ranks) > 1 and any(len({*share}) == 12 for share in shares):
            raise Mistake("every rank reads all 12 samples: who shares them out?")
        if lost := {*range(12)} - {*reads}:
            twice = sorted({n for n in reads if reads.count(n) > 1})
            both = f"{len(lost)} samples are read by nobody, and {len(twice)} twice"
            raise Mistake(f"in epoch {epoch}, {both}: the ranks shuffle differently")
        if [n for turn in zip(*shares) for n in turn] == [*range(12)]:
            raise Mistake(f"epoch {epoch} is not shuffled")
    same = [e for e in (1, 2) if all(o[e] == o[e - 1] for o in orders)]
    if same:
        raise Mistake(f"epoch {same[0]} has the order of epoch {same[0] - 1}")


@script(9, "the weight is that of one process")
def script_9(ranks: list[Rank]) -> None:
    """Check the loss that was divided by all samples."""
    ends_with(ranks, 6.5)


@script(10, "the run goes on as with one process")
def script_10(ranks: list[Rank]) -> None:
    """Check the resumed run: weight and momentum are those of the file."""
    weights = each(ranks, "weight")
    if {*weights} == {13.0}:
        raise Mistake("all ranks have the weight 13: none goes on with the momentum")
    ends_with(ranks, 16.25)
