"""Deal a data set to ranks, epoch after epoch; check who read which sample, and when.

    torchrun --standalone --nproc-per-node 4 scripts/07_sampler_and_set_epoch.py
    torchrun --standalone --nproc-per-node gpu scripts/07_sampler_and_set_epoch.py

The first line needs no GPU; the second gives each GPU a rank. Then try:

    --samples 12           a data set that four ranks can share evenly
    --record deal.jsonl    keep what every rank read, one JSON object per line
    --case drop-last       makes the shares equal by leaving samples out
    --case in-order        shuffles nothing
    --case workers         asks who hears of the epoch: loader workers, too
    --case stream-shared   an iterable data set, shared by all workers of all ranks
    --case forgotten       broken: nobody calls set_epoch
    --case late            broken: calls set_epoch when the loop has begun
    --case no-sampler      broken: every rank reads all
    --case own-seeds       broken: each rank shuffles with a seed of its own
    --case stream          broken: every worker of every rank reads all

The last line begins with "ok". The lesson: notebooks/07_sampler_and_set_epoch.ipynb
"""

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from datetime import timedelta
from itertools import chain, zip_longest
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

EPOCHS, BATCH, WORKERS = 4, 2, 2  # a batch and the workers are those of one rank
MOST = 40  # samples that a picture has room for
FORK = {"num_workers": WORKERS, "multiprocessing_context": "fork"}  # no GPU yet
CASES = ["right", "drop-last", "in-order", "workers", "stream-shared", "forgotten"]
CASES += ["late", "no-sampler", "own-seeds", "stream"]


def deal(length, rank, world_size, epoch=0, seed=0, shuffle=True, drop_last=False):
    """Shuffle, make the number divide, take every world_size-th from rank on."""
    order = list(range(length))
    if shuffle:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(length, generator=generator).tolist()
    over = length % world_size
    if over and drop_last:
        order = order[:-over]
    elif over:
        order += (order * world_size)[: world_size - over]
    return order[rank::world_size]


class Numbers(Dataset):
    """Samples that are numbers; each comes with the epochs that its reader knows."""

    def __init__(self, length):
        self.length = length
        self.epoch = 0
        self.shared = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        return number, self.epoch, int(self.shared)

    def set_epoch(self, epoch):
        """Note the epoch twice: in this process, and in memory that forks share."""
        self.epoch = epoch
        self.shared.fill_(epoch)


def places(length, rank, world_size, worker, workers):
    """Every worker of every rank begins elsewhere, and goes on in equal leaps."""
    return range(worker * world_size + rank, length, workers * world_size)


class Stream(IterableDataset):
    """Samples that come one after the other; nobody can ask for number 7."""

    def __init__(self, length, rank, world_size, shared):
        self.rank, self.world_size = rank, world_size
        self.length, self.shared = length, shared

    def __iter__(self):
        here = get_worker_info()
        where = self.rank, self.world_size, here.id, here.num_workers
        return iter(places(self.length, *(where if self.shared else (0, 1, 0, 1))))


def all_epochs(loader, sampler, case):
    """Return the samples that this rank reads, for each epoch."""
    epochs = []
    for epoch in range(EPOCHS):
        if sampler and case not in ("forgotten", "late"):
            sampler.set_epoch(epoch)
        seen = []
        for batch in loader:
            if case == "late":
                sampler.set_epoch(epoch)
            seen += batch.tolist()
        epochs.append(seen)
    return epochs


def run_case(case, samples, rank, world_size):
    """Read with a real loader, and with a real sampler if the case has one."""
    if case in ("stream", "stream-shared"):
        stream = Stream(samples, rank, world_size, case == "stream-shared")
        loader = DataLoader(stream, BATCH, persistent_workers=True, **FORK)
        return all_epochs(loader, None, case)
    if case == "no-sampler":
        torch.manual_seed(0)  # as most scripts do, on every rank
        return all_epochs(DataLoader(range(samples), BATCH, samples > 0), None, case)
    how = {"shuffle": case != "in-order", "drop_last": case == "drop-last"}
    how["seed"] = rank if case == "own-seeds" else 0
    sampler = DistributedSampler(range(samples), world_size, rank, **how)
    return all_epochs(DataLoader(range(samples), BATCH, sampler=sampler), sampler, case)


def ask_workers(samples, rank, world_size):
    """Return what a rank reads with workers, and a table of the epochs they know."""
    lines = ["workers          the data set's epoch in them   the shared epoch"]
    for name, keep in (("new each epoch", False), ("persistent", True)):
        numbers = Numbers(samples)
        sampler = DistributedSampler(numbers, world_size, rank)
        how = FORK | {"sampler": sampler, "persistent_workers": keep}
        loader, epochs, known = DataLoader(numbers, BATCH, **how), [], []
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            numbers.set_epoch(epoch)
            rows = [row for batch in loader for row in torch.stack(batch, 1).tolist()]
            epochs.append([number for number, *_ in rows])
            known.append([" ".join(map(str, {row[i] for row in rows})) for i in (1, 2)])
        own, shared = (" ".join(column) for column in zip(*known))
        lines.append(f"{name:17}{own:31}{shared}")
        if epochs != [deal(samples, rank, world_size, e) for e in range(EPOCHS)]:
            raise ValueError(f"workers, {name}: the sampler's epoch did not arrive")
        told = " ".join(map(str, range(EPOCHS)))
        if samples and (own == told, shared == told) != (not keep, True):
            raise ValueError(f"workers, {name}: they know {own}, and {shared}")
        del loader  # ends its workers
    return epochs, lines


def in_turn(shares):
    """Return the first sample of each rank, then the second of each, and so on."""
    turns = zip_longest(*shares)
    return [number for turn in turns for number in turn if number is not None]


def whose_order(row, orders, epoch):
    """Return the epoch in whose order one process reads like this, or None."""
    for other in [epoch, *range(len(orders))]:
        whole = orders[other]
        if all(number == whole[i % len(whole)] for i, number in enumerate(row)):
            return other
    return None


def audit_counts(epoch, shares, samples, total):
    """Raise ValueError unless all samples are read alike, and as many as should be."""
    times = Counter(chain(*shares))
    counts = [times[number] for number in range(samples)] or [0]
    more, never = sum(count > 1 for count in counts), counts.count(0)
    if sum(counts) == total and max(counts) - min(counts) <= 1:
        return
    says = f"{more} samples are read more than once, {never} never: one seed for all?"
    if min(counts) == max(counts):
        says = f"each sample is read {counts[0]} times: who shares them out?"
    raise ValueError(f"epoch {epoch}: {says}")


def audit_orders(epochs, orders):
    """Raise ValueError unless each epoch has the order that is its own."""
    rows = [in_turn(shares) for shares in epochs]
    found = [whose_order(row, orders, epoch) for epoch, row in enumerate(rows)]
    wrong = [epoch for epoch, other in enumerate(found) if other != epoch]
    if wrong and rows == rows[:1] * len(rows):
        raise ValueError("every epoch has the order of epoch 0: who calls set_epoch?")
    if wrong:
        says = f"epoch {wrong[0]} has the order of epoch {found[wrong[0]]}"
        raise ValueError(f"{says}: set_epoch comes too late")


def audit(epochs, samples, case):
    """Raise ValueError, with the likely mistake, unless all is dealt as it should be."""
    over = samples % len(epochs[0])
    total = samples + (len(epochs[0]) - over if over else 0)
    total = {"drop-last": samples - over, "stream-shared": samples}.get(case, total)
    for epoch, shares in enumerate(epochs):
        audit_counts(epoch, shares, samples, total)
    if case not in ("no-sampler", "stream-shared"):  # which have orders of their own
        shuffle = case != "in-order"
        orders = [deal(samples, 0, 1, epoch, 0, shuffle) for epoch in range(EPOCHS)]
        audit_orders(epochs, orders)
    return total


def lines_of(epochs, samples):
    """Give a line for each epoch: who reads what, how many come twice, or never."""
    for epoch, shares in enumerate(epochs):
        dealt = " |".join("".join(f"{n:3}" for n in mine) for mine in shares)
        if samples > MOST:
            dealt = f" {[len(mine) for mine in shares]} samples"
        times = Counter(chain(*shares))
        more = sum(times[n] > 1 for n in range(samples))
        never = sum(times[n] == 0 for n in range(samples))
        said = f"   {more} more than once" if more else ""
        said += f"   {never} never" if never else ""
        yield f"epoch {epoch}:{dealt}{said}"


def save_recording(path, header, events):
    """Return all ranks' events by step and rank; rank 0 writes them, one a line."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, events)
    rows = sorted(sum(gathered, []), key=lambda event: (event["step"], event["rank"]))
    if path and dist.get_rank() == 0:
        part = Path(f"{path}.part")
        part.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
        part.replace(path)
    return rows


def stop(message):
    """End with one line, from rank 0, and exit code 2."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"{Path(__file__).name}: {message}\n")
    else:
        time.sleep(1)  # the first rank to leave ends the others
    sys.exit(2)


@errors.record
def main():
    parser = argparse.ArgumentParser(usage="see the top of this script")
    parser.add_argument("--case", choices=CASES, default="right")
    parser.add_argument("--samples", type=int, default=11)
    parser.add_argument("--record", type=Path)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.samples < 0:
        stop(f"--samples must be 0 or more, not {args.samples}")
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")
    if args.record and args.samples > MOST:
        stop(f"--record draws up to {MOST} samples, not {args.samples}")

    if args.case == "workers":  # all workers are gone before the group's threads come
        mine, lines = ask_workers(args.samples, rank, world_size)
    else:
        mine, lines = run_case(args.case, args.samples, rank, world_size), []
    backend = "gloo"  # and no default device: samplers shuffle on the CPU
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "nccl"
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    events = [{"step": e, "rank": rank, "samples": seen} for e, seen in enumerate(mine)]
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "grid"}
    rows = save_recording(args.record, header | {"samples": args.samples}, events)
    epochs = [[r["samples"] for r in rows if r["step"] == e] for e in range(EPOCHS)]
    if rank == 0:
        for line in lines or lines_of(epochs, args.samples):
            print(line)
    total = audit(epochs, args.samples, args.case)
    if rank == 0:
        print(
            f"ok: {args.samples} samples, {total} reads an epoch by {world_size} ranks"
        )


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
