"""Checks the answers of evaluation."""

from collections.abc import Callable
from itertools import chain

from .verdict import Mistake, attempt, says

CASES = [(7, 3), (11, 4), (8, 4), (5, 1), (3, 8), (0, 2)]  # samples, and ranks
EXACT, RANKS = 400 / 7, (100 / 3, 100, 50)  # of seven samples, and of each of 3 ranks
METRICS = {  # and why few numbers of each rank do, or not
    "recall": "the samples of class 1 that are found, and all of class 1: two sums",
    "median": "the middle of all may be the smallest of one rank",
    "auc": "the two samples of a pair may lie on two ranks",
    "largest": "the largest of the ranks' largest: an all-reduce with MAX",
    "root": "sum the squares and the samples; the root comes last",
}


@says(
    "61.1, 55.6, 66.7 and 57.1%",
    types="each answer is a number of percent, such as exact=12.5",
)
def four_ways(
    mean_of_means: float, padded: float, drop_last: float, exact: float
) -> str | None:
    """Check which accuracy three ranks find for seven samples, in four ways."""
    answers = mean_of_means, padded, drop_last, exact
    if all(0 <= answer <= 1 for answer in answers):
        return "in percent, please: a half is 50"
    if not near(exact, EXACT):
        return f"exact is not {exact:.1f}: four of seven are right"
    if near(mean_of_means, EXACT):
        return "the mean of means is not exact: a share of two counts as one of three"
    if not near(mean_of_means, sum(RANKS) / 3):
        return "the mean of means: the ranks have 1 of 3, 2 of 2 and 1 of 2"
    if near(padded, 100 * 6 / 9):
        return "padded: the model is wrong on sample 0 each time that it is tested"
    if near(padded, 100 * 4 / 9):
        return "padded: samples 0 and 1 come again, and the model is right on 1"
    if not near(padded, 100 * 5 / 9):
        return f"padded is not {padded:.1f}: nine tests, with samples 0 and 1 twice"
    if near(drop_last, 100 * 3 / 6):
        return "drop_last drops sample 6, and the model is wrong on it"
    if not near(drop_last, 100 * 4 / 6):
        return f"drop_last is not {drop_last:.1f}: samples 0 to 5 are tested"
    return None


def near(one: float, other: float) -> bool:
    """Say whether two numbers of percent are the same when rounded to a tenth."""
    return abs(one - other) < 0.1


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


@says("sums, counts and a largest number are few; a rank among all needs all")
def few_or_all(
    recall: str, median: str, auc: str, largest: str, root: str
) -> str | None:
    """Check for which metrics a few numbers of each rank are enough."""
    answers = recall, median, auc, largest, root
    if any(answer not in ("few", "all") for answer in answers):
        return 'each answer is "few" or "all"'
    for answer, (name, why) in zip(answers, METRICS.items()):
        right = "all" if name in ("median", "auc") else "few"
        if answer != right:
            return f"{name} needs {right}: {why}"
    return None
