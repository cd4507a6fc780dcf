"""Checks the answers of checkpoints."""

from collections.abc import Callable
from itertools import product

from .verdict import attempt, read, says

CASES = list(product((0, 1, 7, 23), (24, 10, 1), (1, 4), (2, 3)))
pair = read("an epoch and a number", int, int)


@says("14, 4, and epoch 2, place 4: 14 is 2 times 5, and 4", like="place=2")
def after_kill(steps_done: int, taken_twice: int, epoch: int, place: int) -> str | None:
    """Check where a run goes on that saves after every 7 steps, killed after 18."""
    if steps_done == 18:
        return "steps 15 to 18 were in memory only: which step was in the file?"
    if steps_done != 14:
        return f"it does not go on from {steps_done}: 18 steps have two times 7 in them"
    if taken_twice != 4:
        return f"not {taken_twice} steps are taken twice, but those after 14, up to 18"
    if (epoch, place) == (0, 14):
        return "a rank has 25 samples, and 5 in a batch: how long is an epoch?"
    if (epoch, place) == (3, 4) or epoch == 3:
        return "epochs count from 0: after 10 steps, epochs 0 and 1 are over"
    if epoch != 2:
        return f"not epoch {epoch}: an epoch has 25 / 5 = 5 steps"
    if place == 5:
        return "places count from 0: steps 10 to 14 have the places 0 to 4"
    if place != 4:
        return f"not place {place}: divmod(14, 5) says both"
    return None


@says("it trains epoch 4 twice, forgets the momentum, and writes over its only file")
def snapshot(
    begins_with: int, should_begin_with: int, not_saved: str, lost_in: str
) -> str | None:
    """Check what is wrong with a pattern that saves the number of a finished epoch."""
    if any(type(answer) is not int for answer in (begins_with, should_begin_with)):
        return "an epoch is a whole number, such as begins_with=3"
    if begins_with == 5:
        return "the file says 4, and range begins with what the file says"
    if begins_with != 4:
        return f"it does not begin with {begins_with}: what did the last save say?"
    if should_begin_with != 5:
        return "epoch 4 was over when it was saved: which one is next?"
    if not_saved == "sampler":
        return "the sampler makes its order from the epoch: nothing is lost"
    if not_saved == "rank":
        return "torchrun tells each process its rank, in each run"
    if not_saved != "optimizer":
        return 'not_saved is "optimizer", "sampler" or "rank"'
    if lost_in == "never":
        return "what is on disk while torch.save writes over PATH?"
    if lost_in == "load":
        return "who only reads a file does not lose it"
    if lost_in != "save":
        return 'lost_in is "save", "load" or "never"'
    return None


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
