"""Share a stream among the workers of all ranks, in four ways; count who reads what.

    torchrun --standalone --nproc-per-node 4 scripts/16_workers_and_streams.py

GPUs are not used. Try --workers 3, or --samples 16, which eight workers share evenly.
With --record PATH, rank 0 keeps what every worker read, one JSON object per line. The
last line begins with "ok". The lesson: notebooks/16_workers_and_streams.ipynb
"""

import gc
from collections import Counter
from datetime import timedelta
from itertools import islice

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from shared import Parser, save_recording, start

WAYS = ("nobody", "worker", "rank", "rank and worker")


def begin_and_leap(rank, world_size, worker, workers, shared_by):
    """Return a worker's first sample, and how far it leaps from each to the next."""
    # If nobody shares, each worker begins at the first sample, and leaps over none.
    begin, leap = 0, 1
    if "rank" in shared_by:
        begin, leap = rank, world_size
    # The ranks come first: neighbouring places belong to different ranks, so a rank
    # reads at most one sample more than another.
    if "worker" in shared_by:
        begin += worker * leap
        leap *= workers
    return begin, leap


class Stream(IterableDataset):
    """Numbers that pass once, in order; each tells which worker took it."""

    def __init__(self, samples, rank, world_size, shared_by):
        self.samples = samples
        self.rank = rank
        self.world_size = world_size
        self.shared_by = shared_by

    def __iter__(self):
        # Each worker has a copy of this stream, and learns here which copy it has. A
        # main process hears None, and counts as worker 0 of one.
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        who = (self.rank, self.world_size, worker, workers)
        begin, leap = begin_and_leap(*who, self.shared_by)

        # Every copy sees all samples pass, and keeps its own.
        for number in islice(range(self.samples), begin, None, leap):
            yield worker, number


def read_stream(stream, workers):
    """Return what each worker of this rank brings."""
    reads = [[] for _ in range(workers)]
    # A forked worker is a copy of this process, which is made in no time.
    options = {"num_workers": workers, "multiprocessing_context": "fork"}
    # None asks for single samples, in place of batches.
    for worker, number in DataLoader(stream, None, **options):
        reads[worker].append(number)
    return reads


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--samples", type=int, default=11, help="in the data set")
    parser.add_argument("--workers", type=int, default=2, help="that read for a rank")
    args, rank, world_size = start(parser)
    # The picture has room for 40 samples, and for 4 workers of a rank.
    if not 0 <= args.samples <= 40:
        parser.error(f"--samples must be 0 to 40, not {args.samples}")
    if not 1 <= args.workers <= 4:
        parser.error(f"--workers must be 1 to 4, not {args.workers}")

    # A process group has threads, and a fork can fail in a process with threads. So the
    # workers read before there is a group.
    events = []
    for step, way in enumerate(WAYS):
        reads = read_stream(Stream(args.samples, rank, world_size, way), args.workers)
        event = {"step": step, "rank": rank, "phase": f"shared by {way}"}
        events.append(event | {"reads": reads})

    # From here on the ranks talk, and tell each other what their workers have read.
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    rows = save_recording(args.record, events, picture="stream", samples=args.samples)

    # A sample is due once for each who does not share: for all workers of all ranks,
    # for one worker of each rank, for all workers of one rank, for one worker.
    due = (world_size * args.workers, world_size, args.workers, 1)
    for step, (way, times) in enumerate(zip(WAYS, due)):
        by_rank = [sum(row["reads"], []) for row in rows if row["step"] == step]
        reads = Counter(sum(by_rank, []))
        if reads != dict.fromkeys(range(args.samples), times):
            raise ValueError(f"shared by {way}: not {times} of each, but {dict(reads)}")
        if rank == 0:
            row = f"{reads.total():3} reads, {times:2} of each sample; rank by rank:"
            print(f"shared by {way:16}{row}", *[f"{len(mine):2}" for mine in by_rank])
    if rank == 0:
        crew = f"{world_size} ranks with {args.workers} workers each"
        print(f"ok: {args.samples} samples for {crew}; shared by both, each comes once")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
