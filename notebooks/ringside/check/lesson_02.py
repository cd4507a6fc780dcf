"""Checks the answers of the sampler."""

import json
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, DistributedSampler

from ..launch import torchrun
from ..recording import Recording
from .table import Outside, asks
from .verdict import attempt, for_learners, ints, says

SAMPLES, RANKS, EPOCHS = 11, 4, 4
RUNS = {  # how each of the runs to look at was made: options, and what is wrong
    "a": ({"drop_last": True}, None),
    "b": ({"seed": 3}, "late"),
    "c": ({"seed": 5}, "forgotten"),
    "d": ({}, "no sampler"),
    "e": ({"shuffle": False}, None),
    "f": ({"seed": 7}, None),
}
LOOKS = {  # what each of them is known by
    "a": "a leaves samples out, drawn anew in each epoch: that is drop_last",
    "b": "in b, only epoch 1 has the order of epoch 0, and then there are new ones",
    "c": "all rows of c are equal, and shuffled",
    "d": "in d, every rank reads all samples, in an order of its own",
    "e": "e repeats 0 1 2 3 ...: nobody shuffles there, so set_epoch has no say",
    "f": "f has a new order in each epoch: another seed, and all is well",
}
CASES = [
    (length, rank, world_size, seed, epoch)
    for length in (12, 11, 0, 1, 3, 6, 40)
    for world_size in (4, 1, 3, 8)
    for seed, epoch in ((0, 0), (0, 1), (2, 0), (5, 3))
    for rank in range(world_size)
]


@for_learners
def six_runs() -> dict[str, Recording]:
    """Return runs a to f, each read by four real ranks."""
    cpu = {"CUDA_VISIBLE_DEVICES": ""}
    told = torchrun(tell_all, ranks=RANKS, env=cpu, quiet=True).lines
    runs = {name: [] for name in RUNS}
    for rank, lines in told.items():
        for events, line in zip(runs.values(), lines, strict=True):
            for epoch, mine in enumerate(json.loads(line)):
                events.append({"step": epoch, "rank": rank, "samples": mine})
    header = {"picture": "grid", "ranks": RANKS, "samples": SAMPLES}
    return {name: Recording(events, **header) for name, events in runs.items()}


def tell_all(rank: int, world_size: int) -> None:
    """Print what one rank reads in each run."""
    for options, fault in RUNS.values():
        print(run(rank, options, fault))


def run(rank: int, options: dict, fault: str | None) -> list[list[int]]:
    """Return what one rank reads in each epoch."""
    data, how = range(SAMPLES), {"shuffle": True}
    if fault == "no sampler":  # each rank draws on its own
        how["generator"] = torch.Generator().manual_seed(rank)
    else:
        sampler = DistributedSampler(data, **options)
        how = {"sampler": sampler}
    loader, epochs = DataLoader(data, batch_size=1, **how), []
    for epoch in range(EPOCHS):
        if fault is None:
            sampler.set_epoch(epoch)
        epochs.append([])
        for batch in loader:
            if fault == "late":
                sampler.set_epoch(epoch)
            epochs[-1] += batch.tolist()
    return epochs


@asks(
    "c repeats one order, b is an epoch late, d shares nothing out",
    types='each answer is one of "a" to "f"',
    among="abcdef",
    **{
        fault: (
            run,
            f"{fault} is not {{}}",
            {
                other: f"{fault} is not {other}: {looks}"
                for other, looks in LOOKS.items()
                if other != run
            },
        )
        for fault, run in {"forgotten": "c", "late": "b", "no_sampler": "d"}.items()
    },
)
def mysteries(forgotten: str, late: str, no_sampler: str):
    """Check which of the six runs have which of three mistakes."""


@asks(
    "6 and 2 come twice; with drop_last, 3 and 5 are left out",
    types="each answer is a list of samples, such as twice=[1, 2, 3]",
    twice=(
        {2, 6},
        "{} are not those that the order starts with",
        {
            (3, 5): "3 and 5 come last: the order starts over from its beginning",
            (0, 1): "0 and 1 are the first two places, but which samples stand there?",
            Outside(2, 2, "len"): "10 samples become 12, so 2 come twice, not {}",
        },
    ),
    left_out=(
        {3, 5},
        "{} are not those that the order ends with",
        {
            (2, 6): "drop_last cuts the end of the order, not its beginning",
            (8, 9): "8 and 9 are the last of the data set: cut the end of the order",
            Outside(2, 2, "len"): "8 of 10 samples can be shared, so 2 are cut, not {}",
        },
    ),
)
def padded(twice: list[int], left_out: list[int]):
    """Check which of ten samples four ranks read twice, or leave out with drop_last."""


def wanted(length, rank, world_size, seed, epoch, **more) -> list[int]:
    """Return what torch's sampler gives to a rank."""
    found = DistributedSampler(range(length), world_size, rank, seed=seed, **more)
    found.set_epoch(epoch)
    return list(found)


@says(f"what torch's sampler gives, {len(CASES)} times")
def my_share(function: Callable) -> str | None:
    """Check my_share(length, rank, world_size, seed, epoch) against torch's sampler."""
    for case in CASES:
        length, rank, world_size, seed, epoch = case
        where = f"{length} samples, rank {rank} of {world_size}, "
        where += f"seed {seed}, epoch {epoch}"
        answer, right = attempt(f"{where}:", function, *case, into=ints), wanted(*case)
        if answer != right:
            return f"{where}: {slip(answer, right, case)}"
    return None


def slip(answer: list[int], right: list[int], case: tuple) -> str:
    """Return the name of the mistake that leads to such an answer, if it has one."""
    length, rank, world_size, seed, epoch = case
    everything = wanted(length, 0, 1, seed, epoch)
    padded = everything * world_size
    if world_size > 1 and sorted(answer) == list(range(length)):
        return "this rank reads all samples; it should take every world_size-th"
    if answer == everything[rank::world_size]:
        return f"{answer}, and others have one more: start over until all are equal"
    if answer == padded[rank * len(right) : (rank + 1) * len(right)]:
        return "that is a block; take every world_size-th, from rank on"
    if answer == wanted(length, rank, world_size, seed, epoch, shuffle=False):
        return "nobody has shuffled"
    if answer == wanted(length, rank, world_size, seed, epoch, drop_last=True):
        return "the end of the order is cut; start over from its beginning instead"
    if answer == wanted(length, rank, world_size, seed + rank, epoch):
        return "each rank shuffles with a seed of its own, so some samples are nobody's"
    if answer == wanted(length, rank, world_size, seed, 0):
        return "that is the order of epoch 0: the generator starts from seed + epoch"
    if answer == wanted(length, rank, world_size, 0, epoch):
        return "that is the order of seed 0: the generator starts from seed + epoch"
    if length % world_size == 0 and answer[: len(right)] == right:
        return f"{length} divides by {world_size}, so nothing is to come twice"
    if len(answer) == len(right) and answer[:-1] == right[:-1]:
        return f"it ends with {answer[-1]}, not {right[-1]}: the order starts over"
    if len(answer) == len(right):
        return f"{answer}, not {right}: is it torch.randperm, from seed + epoch?"
    return f"{answer}, not {right}"
