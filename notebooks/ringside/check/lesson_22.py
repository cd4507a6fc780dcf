"""Checks the answers of checkpoints."""

from collections.abc import Callable
from itertools import product

from .table import asks
from .verdict import attempt, read, says

CASES = list(product((0, 1, 7, 23), (24, 10, 1), (1, 4), (2, 3)))
pair = read("an epoch and a number", int, int)


@asks(
    "14, 4, and epoch 2, place 4: 14 is 2 times 5, and 4",
    like="place=2",
    before=[
        (
            {"steps_done": 14, "taken_twice": 4, "epoch": 0, "place": 14},
            "a rank has 25 samples, and 5 in a batch: how long is an epoch?",
        )
    ],
    steps_done=(
        14,
        "it does not go on from {}: 18 steps have two times 7 in them",
        {18: "steps 15 to 18 were in memory only: which step was in the file?"},
    ),
    taken_twice=(4, "not {} steps are taken twice, but those after 14, up to 18"),
    epoch=(
        2,
        "not epoch {}: an epoch has 25 / 5 = 5 steps",
        {3: "epochs count from 0: after 10 steps, epochs 0 and 1 are over"},
    ),
    place=(
        4,
        "not place {}: divmod(14, 5) says both",
        {5: "places count from 0: steps 10 to 14 have the places 0 to 4"},
    ),
)
def after_kill(steps_done: int, taken_twice: int, epoch: int, place: int):
    """Check where a run goes on that saves after every 7 steps, killed after 18."""


@asks(
    "it trains epoch 4 twice, forgets the momentum, and writes over its only file",
    types="an epoch is a whole number, such as begins_with=3",
    begins_with=(
        4,
        "it does not begin with {}: what did the last save say?",
        {5: "the file says 4, and range begins with what the file says"},
    ),
    should_begin_with=(5, "epoch 4 was over when it was saved: which one is next?"),
    not_saved=(
        "optimizer",
        'not_saved is "optimizer", "sampler" or "rank"',
        {
            "sampler": "the sampler makes its order from the epoch: nothing is lost",
            "rank": "torchrun tells each process its rank, in each run",
        },
    ),
    lost_in=(
        "save",
        'lost_in is "save", "load" or "never"',
        {
            "never": "what is on disk while torch.save writes over PATH?",
            "load": "who only reads a file does not lose it",
        },
    ),
)
def snapshot(begins_with: int, should_begin_with: int, not_saved: str, lost_in: str):
    """Check what is wrong with a pattern that saves the number of a finished epoch."""


@says(f"it says where sampler and loader stand, {len(CASES)} times")
def place_after(function: Callable) -> str | None:
    """Check place_after(steps, samples, world_size, batch_size)."""
    for steps, samples, world_size, batch_size in CASES:
        numbers = -(-samples // world_size)
        batches = -(-numbers // batch_size)
        epoch, place = divmod(steps, batches)
        given = steps, samples, world_size, batch_size
        where = f"{steps} steps, {samples} samples, {world_size} ranks, batches of "
        where += f"{batch_size}:"
        said = attempt(where, function, *given, into=pair)
        if said == (epoch, place * batch_size):
            continue
        if said == (epoch, place) and batch_size > 1:
            return f"{where} you count batches, and numbers are asked for"
        if said == divmod(steps * batch_size, numbers):
            return f"{where} the last batch of an epoch may be smaller than the others"
        if said[1] >= numbers:
            return f"{where} a rank has only {numbers} numbers in an epoch"
        if said == (epoch + 1, place * batch_size):
            return f"{where} epochs count from 0"
        return f"{where} it is {epoch, place * batch_size}, not {said}"
    return None
