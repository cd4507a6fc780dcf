"""Checks the answers of the fastest all-reduce."""

from collections.abc import Callable
from math import inf, isclose, log2

import torch

from ..standins.threads import simulate
from .table import asks
from .verdict import Mistake, attempt, says


@asks(
    "30 steps against 8, and 4 whole tensors",
    like="ring_steps=2",
    ring_steps=(
        30,
        "a ring of 16 does not take {} steps",
        {
            15: "15 steps are one phase of the ring; allgather takes as many again",
            32: "32 would be N steps in each phase; a phase has N - 1",
            16: "16 is the number of ranks: a phase has N - 1 steps, and there are two",
        },
    ),
    halving_steps=(
        8,
        "halve and double do not take {} steps",
        {
            4: "4 steps are the halving; the doubling takes as many again",
            16: "16 is the number of ranks: how often can you halve 16?",
            32: "32 is 2 * 16: how often can you halve 16?",
        },
    ),
    tensors=(
        4,
        "swap_all does not send {} tensors",
        {
            15: "15 is a whole tensor to each of the others; partners add in between",
            16: "16 is the number of ranks; a rank sends a tensor in each step",
            2: "2 is about what the other two ways send; here no tensor is cut",
            8: "8 would be two phases; swap_all has one",
        },
    ),
)
def sixteen_ranks(ring_steps: int, halving_steps: int, tensors: int):
    """Check three predictions for 16 ranks."""


@says("equal at that size, for any number of ranks")
def crossing(function: Callable) -> str | None:
    """Check crossing(ranks, delay, bandwidth): where swap_all and halving are equal."""
    for ranks, delay, bandwidth in ((4, 50e-6, 1e9), (8, 1e-3, 1e8), (16, 1e-5, 1e10)):
        case = f"crossing({ranks}, {delay:g}, {bandwidth:g})"
        size = attempt(f"{case}:", function, ranks, delay, bandwidth, into=float)
        steps, both = log2(ranks), delay * bandwidth
        right = steps * both / (steps - 2 + 2 / ranks)
        if isclose(size, right, rel_tol=1e-6):
            continue
        ring = (2 * (ranks - 1) - steps) * both / (steps - 2 + 2 / ranks)
        if isclose(size, ring, rel_tol=1e-6):
            return f"{case} gave {size:g}: there swap_all meets the ring"
        if isclose(size, right / bandwidth, rel_tol=1e-6):
            return f"{case} gave {size:g}: those are seconds, without the bandwidth"
        if isclose(size, 1 / right, rel_tol=1e-6):
            return f"{case} gave {size:g}: upside down"
        return f"{case} gave {size:g}, not {right:g} bytes"
    if attempt("crossing(2, 1e-05, 1e+09):", function, 2, 1e-5, 1e9) == inf:
        return None
    return "two ranks swap one tensor either way: the lines never meet, so return inf"


@says("every rank gets every sum, in as few steps as halving took")
def doubling(function: Callable) -> str | None:
    """Check a function that swaps complete chunks, on ranks that have one each."""
    for size in (2, 4, 8, 1):
        case, wrong = f"with {size} rank{'s' * (size > 1)}", []
        grads = [*torch.eye(size, dtype=torch.int64)]
        try:
            done = attempt(f"{case},", simulate, watched(function, wrong), grads)
        except Mistake:
            if not wrong:
                raise
        if wrong:
            return f"{case}, {wrong[0]}"
        for rank, grad in enumerate(done.grads):
            if lost := [chunk for chunk in range(size) if not grad[chunk]]:
                return f"{case}, rank {rank} ends without the sum of chunk {lost[0]}"
        if max(done.messages) > log2(size):
            return f"{case}, a rank sends {max(done.messages)} times: double each time"
    return None


def watched(function: Callable, wrong: list[str]) -> Callable:
    """Return a program that runs function, and notes what is wrong with its swaps."""

    def program(rank, world_size, grad, send, recv):
        def exchange(partner, give, add_to=None, keep_in=None):
            out, into = (range(*part) for part in (give, add_to or keep_in))
            if add_to:
                wrong.append("the sums are complete: keep what comes, do not add")
            if lost := {*out, *into} - {*range(world_size)}:
                wrong.append(f"there is no chunk {min(lost)}")
            if lost := [c for c in out if not grad[c : c + 1].all()]:
                wrong.append(f"rank {rank} gives chunk {lost[0]} before it has it")
            if len(out) != len(into):
                wrong.append(f"rank {rank} gives {len(out)} chunks for {len(into)}")
            send(partner, grad[out.start : out.stop])
            grad[into.start : into.stop] = recv(partner)

        function(rank, world_size, exchange)

    return program
