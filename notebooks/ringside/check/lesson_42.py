"""Checks the answers of the page on a model that nobody holds whole."""

from collections.abc import Callable
from itertools import product

from .table import Near, asks
from .verdict import attempt, ints, says

CASES = list(product((12, 10, 8, 5, 1), (1, 2, 3, 4, 5, 7)))  # rows, ranks


@asks(
    "16 bytes a weight; then 8 + 8/16; then 16/16",
    like="all_cut=2.5",
    ddp=(
        Near(25.6, 0.05),
        "not {} GB with DDP: how many numbers of 4 bytes are there for each weight?",
        {
            Near(32, 0.05): "in buckets that are gradients, a gradient lies once: not "
            "five numbers, but four",
            Near(6.4, 0.05): "6.4 GB are the weights alone",
            Near(19.2, 0.05): "AdamW keeps two numbers for each weight",
        },
    ),
    optimizer_cut=(
        Near(13.6, 0.05),
        "not {} GB: weights and gradients whole, and a sixteenth of AdamW's",
        {
            Near(
                12.8, 0.05
            ): "add AdamW's numbers for this rank's own chunk: 12.8 / 16",
            Near(1.6, 0.05): "weights and gradients are not cut yet",
            Near(13.2, 0.05): "AdamW keeps two numbers for each weight of the chunk",
        },
    ),
    all_cut=(
        Near(1.6, 0.05),
        "not {} GB: a sixteenth of everything",
        {Near(0.4, 0.05): "0.4 GB are the weights alone; gradients and AdamW?"},
    ),
)
def will_it_fit(ddp: float, optimizer_cut: float, all_cut: float):
    """Check how many GB a rank holds."""


@says(f"it deals out rows as torch does, {len(CASES)} times")
def own_rows(function: Callable) -> str | None:
    """Check own_rows(rows, rank, world_size)."""
    for rows, world_size in CASES:
        piece = -(-rows // world_size)
        for rank in range(world_size):
            right = list(range(rows))[rank * piece : (rank + 1) * piece]
            where = f"{rows} rows, rank {rank} of {world_size}:"
            said = attempt(where, function, rows, rank, world_size, into=ints)
            if said == right:
                continue
            if said == list(range(rank, rows, world_size)):
                return f"{where} neighbours lie together: {right}, not {said}"
            if said and max(said) >= rows:
                return f"{where} there is no row {max(said)}"
            if not right:
                return f"{where} no row is left for it, but it got {said}"
            return f"{where} {right}, not {said}"
    return None


@asks(
    "25 units: 24 come twice, the last once, and all gradients go once",
    like="numbers_sent=1.5",
    gathers=(
        49,
        "not {} all-gathers: a block is fetched for forward and again for backward",
        {
            50: "the last unit is not dropped: backward would ask for it at once",
            48: "the last call makes a unit, too: of all that is in no other",
            25: "in backward the blocks come again",
            24: "in backward they come again, and the last call makes a unit, too",
        },
    ),
    scatters=(
        25,
        "not {} reduce-scatters: one for each unit",
        {
            24: "the last call makes a unit, too",
            50: "a unit has its gradients once, in backward",
        },
    ),
    gathers_kept=(
        25,
        "not {}: what is kept for backward comes once",
        {24: "the last call makes a unit, too", 50: "what is kept comes once"},
    ),
    numbers_sent=(
        Near(2.25, 0.01),
        "not {}: two gathers and a scatter, each of (N - 1)/N",
        {
            Near(
                1.5, 0.01
            ): "1.5 is for weights that are kept: one gather, one scatter",
            Near(3, 0.01): "of its own chunk a rank sends nothing to itself",
        },
    ),
)
def count_calls(gathers: int, scatters: int, gathers_kept: int, numbers_sent: float):
    """Check how often a rank calls, and what it sends."""
