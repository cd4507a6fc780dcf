"""Split eight samples among ranks, average their gradients; compare with one process.

    torchrun --standalone --nproc-per-node 4 scripts/01_split_the_batch.py
    torchrun --standalone --nproc-per-node gpu scripts/01_split_the_batch.py

The first line needs no GPU; the second gives each GPU a rank. With three ranks, the
shares are unequal. With --record PATH, rank 0 keeps what every rank had, one JSON
object per line. The last line begins with "ok".
The lesson: notebooks/01_split_the_batch.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, own_device, save_recording, start

X = [1.0, 2.0, 1.0, 2.0, 3.0, 2.0, 2.0, 3.0]  # eight samples for a model of one weight
Y = [0.0, 0.0, 1.0, -3.0, 2.0, -1.0, 1.0, 1.0]
RATE = 0.25  # the learning rate


def share(samples, rank, world_size):
    """Begin with the sample of the rank's own number, take every world_size-th."""
    return samples[rank::world_size]


def gradient(w, x, y):
    """Return the slope of the mean of (w * x - y)**2 / 2 at w."""
    w = w.clone().requires_grad_()
    loss = ((w * x - y) ** 2 / 2).mean()
    loss.backward()
    return w.grad


def short(value):
    """Return a number with three decimals at most, whole if it is whole."""
    value = round(value.item(), 3)
    return int(value) if value.is_integer() else value


def told(rank, w, x, y, grad, mean):
    """Return what a rank had, found and got, as one event; rank -1 is one process."""
    slopes = [short(slope) for slope in x * (w * x - y)]

    # Nobody sends the weight: equal weights that take equal steps stay equal.
    weights = [short(w), short(w - RATE * mean)]  # before the step, and after it
    numbers = {"slopes": slopes, "grad": short(grad), "mean": short(mean), "w": weights}
    return {"step": 0, "rank": rank} | numbers


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)

    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))

    # With more than eight ranks, the samples are repeated, so that each rank has some.
    times = -(-world_size // len(X))
    x = torch.tensor(X * times)
    y = torch.tensor(Y * times)
    w = torch.tensor(1.0)

    # Each rank finds the mean gradient of its own samples alone.
    own_x = share(x, rank, world_size)
    own_y = share(y, rank, world_size)
    grad = gradient(w, own_x, own_y)
    count = len(own_x)

    # What one process finds for the whole batch is right, and all else is held against
    # it: ranks that only compare with each other can agree on a wrong gradient.
    alone = gradient(w, x, y)

    # One all-reduce leaves three sums over all ranks on every rank.
    sums = torch.tensor([grad, grad * count, count])
    dist.all_reduce(sums)
    means, slopes, samples = sums

    # The mean of the means needs equal shares. The mean by count divides only once, at
    # the end, so in it every sample counts as much as in one process.
    mean = means / world_size
    by_count = slopes / samples
    if not torch.allclose(by_count, alone):
        raise ValueError(f"the mean by count is {by_count}, not {alone}")
    # With equal shares every sample counts as much in the mean of the means, too. The
    # eight slopes are whole numbers, so it is right to the last bit.
    same = torch.equal if times == 1 else torch.allclose
    if len(x) % world_size == 0 and not same(mean, alone):
        raise ValueError(f"the mean of equal shares is {mean}, not {alone}")

    # Rank 0 also keeps what one process has: the middle of the picture.
    events = [told(rank, w, own_x, own_y, grad, mean)]
    if rank == 0:
        events.append(told(-1, w, x, y, alone, alone))
    rows = save_recording(args.record, events, picture="shares")

    if rank == 0:
        print("rank  samples  mean gradient")
        for row in rows[1:]:  # the first is one process
            print(f"{row['rank']:4}  {len(row['slopes']):7}  {row['grad']:13.3f}")
        print(f"mean of the means        {mean:.3f}")
        print(f"mean by count            {by_count:.3f}")
        print(f"one process              {alone:.3f}")
        print(f"ok: by count, {world_size} ranks find the gradient of one process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
