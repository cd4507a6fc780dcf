"""Deal a data set to ranks, epoch after epoch; check who read which sample, and when.

    torchrun --standalone --nproc-per-node 4 scripts/02_sampler_and_set_epoch.py

Samples are dealt on the CPU; on GPUs, NCCL gathers the shares. Try --samples 12, which
four ranks can share evenly. With --record PATH, rank 0 keeps what every rank read, one
JSON object per line. The last line begins with "ok". The lesson:
notebooks/02_sampler_and_set_epoch.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors
from torch.utils.data import DataLoader, DistributedSampler

from shared import Parser, own_device, save_recording, start

EPOCHS = 4
BATCH = 2  # samples that one rank takes in a step


def deal(length, rank, world_size, epoch=0, seed=0, shuffle=True, drop_last=False):
    """Shuffle, make the number divisible, take every world_size-th from rank on."""
    order = list(range(length))
    if shuffle:
        # Equal seeds give equal orders on all ranks, so no rank asks another.
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(length, generator=generator).tolist()

    # Shares must be equally long, so some samples stay out, or some come twice.
    left_over = length % world_size
    if left_over and drop_last:
        order = order[:-left_over]
    elif left_over:
        # The order begins again, several times if samples are few.
        order += (order * world_size)[: world_size - left_over]

    # As cards are dealt: a rank has every world_size-th place, from its own number on.
    return order[rank::world_size]


def read_epochs(samples):
    """Tell the sampler the epoch, then read: return this rank's samples, by epoch."""
    sampler = DistributedSampler(range(samples))
    loader = DataLoader(range(samples), BATCH, sampler=sampler)

    epochs = []
    for epoch in range(EPOCHS):
        # Without this call, each epoch has the order of the first.
        sampler.set_epoch(epoch)
        # A sample is its own number here, so a batch tells what was read.
        epochs.append([number for batch in loader for number in batch.tolist()])

    return epochs


def audit(shares, samples, epoch):
    """Return what is wrong with the samples that ranks read in an epoch, or None."""
    world_size, reads = len(shares), sum(shares, [])

    # Without a sampler, every rank reads all samples: too many reads.
    if len(reads) != -(-samples // world_size) * world_size:  # rounded up
        return f"{len(reads)} reads of {samples} samples: who shares them?"

    # If each rank has a seed of its own, some samples come too often, others never.
    if never := samples - len({*reads}):
        return f"{never} of {samples} are never read: who has a seed of its own?"

    # If set_epoch is not called, or called late, this is the order of another epoch.
    if shares != [deal(samples, r, world_size, epoch) for r in range(world_size)]:
        return f"this is not the order of epoch {epoch}: who calls set_epoch, and when?"


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--samples", type=int, default=11, help="in the data set")
    args, rank, world_size = start(parser)
    if not 0 <= args.samples <= 40:  # a picture has room for no more
        parser.error(f"--samples must be 0 to 40, not {args.samples}")

    # Samples are dealt on the CPU. The backend only gathers what the ranks have read.
    _, backend = own_device()
    dist.init_process_group(backend, timeout=timedelta(minutes=1))

    # The recording is kept before the audit, so it shows what an audit complains of.
    epochs = read_epochs(args.samples)
    events = [
        {"step": epoch, "rank": rank, "samples": seen}
        for epoch, seen in enumerate(epochs)
    ]
    rows = save_recording(args.record, events, picture="grid", samples=args.samples)

    # Every rank has the shares of all ranks now, and holds them against the deal.
    for epoch in range(EPOCHS):
        shares = [row["samples"] for row in rows if row["step"] == epoch]
        if rank == 0:
            dealt = ("".join(f"{number:3}" for number in seen) for seen in shares)
            print(f"epoch {epoch}:{' |'.join(dealt)}")
        if wrong := audit(shares, args.samples, epoch):
            raise ValueError(f"epoch {epoch}: {wrong}")

    # Here shares are those of the last epoch; all epochs have as many reads.
    if rank == 0:
        reads = f"{sum(map(len, shares))} reads an epoch by {world_size} ranks"
        print(f"ok: {args.samples} samples, {reads}")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
