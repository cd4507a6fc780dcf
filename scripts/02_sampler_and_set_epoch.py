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

EPOCHS, BATCH = 4, 2  # a batch is what one rank takes


def deal(length, rank, world_size, epoch=0, seed=0, shuffle=True, drop_last=False):
    """Shuffle, make the number divisible, take every world_size-th from rank on."""
    order = list(range(length))
    if shuffle:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(length, generator=generator).tolist()
    left_over = length % world_size
    if left_over and drop_last:
        order = order[:-left_over]
    elif left_over:
        order += (order * world_size)[: world_size - left_over]  # often enough
    return order[rank::world_size]


def read_epochs(samples):
    """Tell the sampler the epoch, then read: return this rank's samples, by epoch."""
    sampler = DistributedSampler(range(samples))
    loader = DataLoader(range(samples), BATCH, sampler=sampler)
    epochs = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        epochs.append([number for batch in loader for number in batch.tolist()])
    return epochs


def audit(shares, samples, epoch):
    """Return what is wrong with the samples that ranks read in an epoch, or None."""
    world_size, reads = len(shares), sum(shares, [])
    if len(reads) != -(-samples // world_size) * world_size:  # rounded up
        return f"{len(reads)} reads of {samples} samples: who shares them?"
    if never := samples - len({*reads}):
        return f"{never} of {samples} are never read: who has a seed of its own?"
    if shares != [deal(samples, r, world_size, epoch) for r in range(world_size)]:
        return f"this is not the order of epoch {epoch}: who calls set_epoch, and when?"


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--samples", type=int, default=11, help="in the data set")
    args, rank, world_size = start(parser)
    if not 0 <= args.samples <= 40:  # a picture has room for no more
        parser.error(f"--samples must be 0 to 40, not {args.samples}")

    _, backend = own_device()
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    mine = read_epochs(args.samples)
    events = [{"step": e, "rank": rank, "samples": seen} for e, seen in enumerate(mine)]
    rows = save_recording(args.record, events, picture="grid", samples=args.samples)
    for epoch in range(EPOCHS):
        shares = [row["samples"] for row in rows if row["step"] == epoch]
        if rank == 0:
            dealt = ("".join(f"{number:3}" for number in mine) for mine in shares)
            print(f"epoch {epoch}:{' |'.join(dealt)}")
        if wrong := audit(shares, args.samples, epoch):
            raise ValueError(f"epoch {epoch}: {wrong}")
    if rank == 0:
        reads = f"{sum(map(len, shares))} reads an epoch by {world_size} ranks"
        print(f"ok: {args.samples} samples, {reads}")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
