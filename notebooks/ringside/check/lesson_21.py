"""Checks the answers of evaluation."""

from collections.abc import Callable
from itertools import chain

from .table import Near, asks
from .verdict import Mistake, attempt, says

CASES = [(7, 3), (11, 4), (8, 4), (5, 1), (3, 8), (0, 2)]  # samples, and ranks
METRICS = {  # whether few numbers of each rank do, and why
    "recall": (
        "few",
        "the samples of class 1 that are found, and all of class 1: two sums",
    ),
    "median": ("all", "the middle of all may be the smallest of one rank"),
    "auc": ("all", "the two samples of a pair may lie on two ranks"),
    "largest": ("few", "the largest of the ranks' largest: an all-reduce with MAX"),
    "root": ("few", "sum the squares and the samples; the root comes last"),
}
WAYS = "mean_of_means", "padded", "drop_last", "exact"


def percent(right: float, of: float) -> Near:
    """Return the percent of what is right, rounded to a tenth at most."""
    return Near(100 * right / of, 0.1)


@asks(
    "61.1, 55.6, 66.7 and 57.1%",
    types="each answer is a number of percent, such as exact=12.5",
    before=[
        (
            dict.fromkeys(WAYS, Near(0.5, 0.5)),  # all from 0 to 1
            "in percent, please: a half is 50",
        )
    ],
    exact=(percent(4, 7), "exact is not {:.1f}: four of seven are right"),
    mean_of_means=(
        Near((100 / 3 + 100 + 50) / 3, 0.1),
        "the mean of means: the ranks have 1 of 3, 2 of 2 and 1 of 2",
        {
            percent(4, 7): "the mean of means is not exact: a share of two counts as"
            " one of three"
        },
    ),
    padded=(
        percent(5, 9),
        "padded is not {:.1f}: nine tests, with samples 0 and 1 twice",
        {
            percent(6, 9): "padded: the model is wrong on sample 0 each time that it is"
            " tested",
            percent(4, 9): "padded: samples 0 and 1 come again, and the model is right"
            " on 1",
        },
    ),
    drop_last=(
        percent(4, 6),
        "drop_last is not {:.1f}: samples 0 to 5 are tested",
        {percent(3, 6): "drop_last drops sample 6, and the model is wrong on it"},
    ),
)
def four_ways(mean_of_means: float, padded: float, drop_last: float, exact: float):
    """Check which accuracy three ranks find for seven samples, in four ways."""


@says(f"the order of the data set, {len(CASES)} times")
def in_order(function: Callable) -> str | None:
    """Check in_order(lists): the texts of all ranks in the order of the data set."""
    for samples, ranks in CASES:
        texts = [f"{(5 * i) % 13}: text {i}" for i in range(samples)]
        lists = [texts[rank::ranks] for rank in range(ranks)]
        where = f"{samples} samples on {ranks} rank{'s' * (ranks > 1)}:"
        copies = [mine.copy() for mine in lists]
        answer = attempt(where, function, copies, into=as_list)
        if answer != texts:
            return f"{where} {slip(answer, texts, lists)}"
    return None


def as_list(answer) -> list:
    """Return an answer as a list, if it is several things."""
    if isinstance(answer, str) or not hasattr(answer, "__iter__"):
        raise Mistake(f"a list must come back, not {answer!r}")
    return list(answer)


def slip(answer: list, texts: list[str], lists: list[list[str]]) -> str:
    """Return the name of the mistake that leads to such an answer, if it has one."""
    rounds = min(map(len, lists))
    if answer == list(chain(*lists)):
        return "that is rank by rank: the first sample of each rank comes first"
    if answer == list(chain(*zip(*lists))):
        return f"only {rounds} whole rounds came back: where is the last one?"
    if answer == sorted(texts):
        return "they are sorted by their letters: the data set has another order"
    if None in answer or "" in answer:
        return "an empty place is left: trim what no rank has filled"
    if len(answer) != len(texts):
        return f"{len(answer)} texts came back, not {len(texts)}"
    if sorted(map(str, answer)) == sorted(texts):
        first = next(i for i, text in enumerate(answer) if text != texts[i])
        return f"all texts are there, but place {first} has {answer[first]!r}"
    return "these are not the texts that the ranks gave"


@asks(
    "sums, counts and a largest number are few; a rank among all needs all",
    types='each answer is "few" or "all"',
    among=("few", "all"),
    **{
        name: (right, f"{name} needs {right}: {why}")
        for name, (right, why) in METRICS.items()
    },
)
def few_or_all(recall: str, median: str, auc: str, largest: str, root: str):
    """Check for which metrics a few numbers of each rank are enough."""
