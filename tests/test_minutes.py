"""Tests the minutes that a page takes, counted from what is on it."""

import pytest
from ringside.author.minutes import LABEL, label, minutes

FIGURE = [{"data": {"text/html": "<figure><img></figure><figure><img></figure>"}}]


def md(text):
    return {"cell_type": "markdown", "source": text}


def code(text, outputs=()):
    return {"cell_type": "code", "source": text, "outputs": list(outputs)}


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([md("word " * 180)], 2),
        ([md("word " * 90 + "![a picture](x.svg)")], 2),
        ([md("[word](a/long/address.html) " * 90 + "<br> | ·")], 1),
        ([md("word " * 90 + "<details>folded " + "word " * 900 + "</details>")], 1),
        ([md("word " * 90 + "\n```python\n" + "x = 1\n\n" * 12 + "```\n")], 3),
        (
            [
                md(
                    "<details>"
                    + "\n```\n"
                    + "x\n" * 90
                    + "```\n</details>"
                    + "word " * 90
                )
            ],
            1,
        ),
        ([md("word " * 90 + "**Main road 38 minutes** · side roads 24 " * 40)], 1),
        ([code("x = 1\n\n" * 12)], 2),
        ([code("x = 1\n" * 6, FIGURE)], 2),
        ([code("mb_with_4, mb_with_400 = ..., ...")], 1),
        ([code("share = ...")], 1),
    ],
)
def test_words_lines_pictures_and_bets_take_their_time(cells, found):
    assert minutes(cells) == {"main road": found}


PAGE = [
    md("# A question?\n\n" + "word " * 90 + "\n\n## Exercise 1: by hand\n\nCount."),
    code("check.it(n=...)"),
    md("## Exercise 2: with code\n\n" + "word " * 900),
    code("def step(w): ...\n\n\ncheck.step(step)"),
    md(
        "## Side road: why?\n\n"
        + "word " * 270
        + "\n\n## In real life\n\n"
        + "word " * 90
    ),
    md("## Sandbox\n\n" + "word " * 900),
]


def test_side_roads_and_exercises_are_counted_apart():
    assert minutes(PAGE) == {
        "main road": 2,
        "Exercise 1: by hand": 5,
        "Exercise 2: with code": 8,
        "Side road: why?": 3,
        "Sandbox": 10,
    }
    assert label(PAGE) == "**Main road 2 minutes** · side roads 3 · exercises 13"
    assert label(PAGE[:1]) == "**Main road 1 minutes**"


def test_a_label_is_written_in_the_place_of_the_old_one():
    old = "**Main road 9 minutes** · side roads 9 · exercises 9 · needs a CPU"
    assert LABEL.sub("new", old) == "new · needs a CPU"
    assert LABEL.sub("new", "**30 minutes**") == "**30 minutes**"
