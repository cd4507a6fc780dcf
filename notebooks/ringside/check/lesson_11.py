"""Checks the answers of collectives."""

import re
import threading
from collections.abc import Callable
from itertools import permutations

import torch

from ..launch.failure import name
from ..standins import threads
from .table import asks
from .verdict import says

SEVERAL = "all_to_all leaves several whole numbers: a list, such as [10, 20]"
NEEDS = {
    "weights": ("broadcast", "all need what rank 0 has"),
    "mean_loss": ("all_reduce", "all need the sum of all"),
    "predictions": ("gather", "rank 0 alone needs everyone's, not a sum"),
    "own_part": ("reduce_scatter", "each needs a part of the sum, and a part only"),
    "whole_again": ("all_gather", "all need everyone's, not a sum"),
}
INSTEAD = {
    "broadcast": "gives rank 0's to all",
    "all_reduce": "gives the whole sum to all",
    "gather": "gives everyone's to one",
    "reduce": "gives the sum to one",
    "scatter": "gives the pieces of one to all",
    "reduce_scatter": "gives each the sum of its pieces",
    "all_gather": "gives everyone's to all",
    "all_to_all": "gives each a piece from each, without a sum",
    "barrier": "gives nobody anything",
}


@asks(
    "42 from the root, a piece from each, and their sum, 108",
    types="scatter and reduce_scatter each leave one whole number",
    before=[({"all_to_all": []}, SEVERAL)],
    scatter=(
        42,
        "{} is not rank 3's piece for rank 2",
        {
            32: "32 is rank 2's own piece for itself; the root is rank 3",
            23: "23 is what rank 1 has for rank 3: the tens say who gives",
            33: "33 is what rank 2 would give to rank 3, and rank 3 is the one that"
            " gives",
            12: "12 comes from rank 0, but the root is rank 3",
        },
    ),
    all_to_all=(
        [12, 22, 32, 42],
        "not {list}: from each rank, the piece that ends in 2",
        {
            (30, 31, 32, 33): "[30, 31, 32, 33] is what rank 2 gives: it gets one from"
            " each"
        }
        | dict.fromkeys(
            [*permutations([12, 22, 32, 42])][1:],
            "the right numbers; they come in the order of ranks, 0 first",
        ),
        SEVERAL,
    ),
    reduce_scatter=(
        108,
        "{} is not the sum of [12, 22, 32, 42]",
        {
            126: "126 is the sum of rank 2's own pieces",
            10: "10 is the sum of the ranks' numbers; here pieces are added up",
        },
    ),
)
def rank_two(scatter: int, all_to_all: list[int], reduce_scatter: int):
    """Check three predictions about rank 2 of four; the root is rank 3."""


@asks(
    "each need has the call that gives it, and no more",
    **{
        need: (
            call,
            f"{need}: {{!r}} is none of {', '.join(INSTEAD)}",
            {
                other: f"{need}: {other} {gives}; here {why}"
                for other, gives in INSTEAD.items()
                if other != call
            },
        )
        for need, (call, why) in NEEDS.items()
    },
)
def right_call(weights, mean_loss, predictions, own_part, whole_again):
    """Check the names of the calls that five needs of a training job ask for."""


@says("all make the call, and rank 0 tells")
def mended(program: Callable) -> str | None:
    """Check report(rank, world_size, loss, all_reduce): a mean that rank 0 tells."""
    for size in (4, 2):
        told, given = [None] * size, [[] for _ in range(size)]
        door = threading.Barrier(size)

        def one(rank: int, size=size, told=told, given=given, door=door) -> None:
            def all_reduce(tensor: torch.Tensor) -> None:
                given[rank].append(tensor.clone())
                door.wait(threads.PATIENCE)
                tensor.copy_(sum(numbers[len(given[rank]) - 1] for numbers in given))

            loss = torch.tensor([float(rank + 1)])
            told[rank] = program(rank, size, loss, all_reduce)

        errors = threads.at_once(one, size)
        for rank, error in sorted(errors.items()):
            if not isinstance(error, threading.BrokenBarrierError):
                return f"rank {rank} raised {type(error).__name__}: {error}"
        calls = [len(numbers) for numbers in given]
        if not any(calls):
            return "no rank calls all_reduce, so none can know the mean"
        if len({*calls}) > 1:
            here = name([rank for rank in range(size) if calls[rank]])
            what = f"only {here} made the call, and would wait for ever"
            if all(calls):
                what = f"they call {calls} times, and some wait for ever"
            return f"with {size} ranks, {what}"
        rest = [rank for rank in range(1, size) if told[rank] is not None]
        if told[0] is None:
            return f"{name(rest)} told, not rank 0" if rest else "rank 0 told nothing"
        if rest:
            return f"{name(rest)} told it, too: rank 0 alone should"
        mean = (size + 1) / 2
        found = re.fullmatch(r"mean loss (\d+(\.\d+)?)", str(told[0]))
        if not isinstance(told[0], str) or not found:
            return f"rank 0 returned {told[0]!r}, and not the text 'mean loss {mean}'"
        if float(found[1]) != mean:
            return f"with {size} ranks, rank 0 told {told[0]!r}: the mean is {mean}"
    return None
