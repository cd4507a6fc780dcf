"""Let workers throw dice, seeded in four ways; one process says what they will throw.

    torchrun --standalone --nproc-per-node 4 scripts/17_dice.py

GPUs are not used. Try --workers 3. With --record PATH, rank 0 keeps what every worker
threw, and who threw the same, one JSON object per line. The last line begins with
"ok". The lesson: notebooks/17_dice.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors
from torch.utils.data import DataLoader

from shared import Parser, save_recording, start

EPOCHS = 2
WAYS = {
    "one seed": "Every rank calls torch.manual_seed(0).",
    "rank + worker": "Every worker seeds itself with the sum of rank and worker.",
    "the recipe": "Every rank has its own seed, and a loader's generator with seed 0.",
    "seed + rank": "Rank r calls torch.manual_seed(0 + r).",
}


class Dice:
    """A data set with one sample for each worker: what the worker throws."""

    def __init__(self, workers):
        self.workers = workers

    def __len__(self):
        return self.workers

    def __getitem__(self, number):
        return torch.randint(1000, ()).item()


def throw(rank, workers, way):
    """Return what the workers of this rank throw, by epoch."""
    torch.manual_seed(0 if way == "one seed" else rank)
    # A forked worker is a copy of this process, which is made in no time.
    options = {"num_workers": workers, "multiprocessing_context": "fork"}

    # A loader with a generator takes its base seeds from it, here alike on all ranks.
    if way == "the recipe":
        options["generator"] = torch.Generator().manual_seed(0)
    # A worker calls this function after the loader has seeded it. So the sum replaces
    # the loader's seed.
    if way == "rank + worker":
        options["worker_init_fn"] = lambda worker: torch.manual_seed(rank + worker)

    # None asks for single samples, and each worker gets one: so each throws once.
    loader = DataLoader(Dice(workers), None, **options)
    return [list(loader) for _ in range(EPOCHS)]


def first_throw(seed):
    """Return the first number that a generator with this seed throws."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1000, (), generator=generator).item()


def predict(seed, workers):
    """Return what the workers of a rank with this seed will throw, by epoch."""
    # Each loop over a loader begins with a new base seed, from the rank's generator.
    # The seed of a worker is base seed + worker.
    own = torch.Generator().manual_seed(seed)
    epochs = []
    for _ in range(EPOCHS):
        base_seed = torch.empty((), dtype=torch.int64).random_(generator=own).item()
        epochs.append([first_throw(base_seed + worker) for worker in range(workers)])
    return epochs


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="that throw for a rank")
    args, rank, world_size = start(parser)
    if not 1 <= args.workers <= 4:
        parser.error(f"--workers must be 1 to 4, not {args.workers}")

    # A process group has threads, and a fork can fail in a process with threads. So the
    # workers throw before there is a group.
    mine = {way: throw(rank, args.workers, way) for way in WAYS}
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    everyone = [None] * world_size
    dist.all_gather_object(everyone, mine)

    events = []
    for step, way in enumerate(WAYS):
        # One process knows all throws, because a seed decides the whole list of them.
        due = predict(rank if way == "seed + rank" else 0, args.workers)
        if way == "rank + worker":
            # The sum does not contain the epoch, so each epoch repeats the first one.
            due = [[first_throw(rank + w) for w in range(args.workers)]] * EPOCHS
        if mine[way] != due:
            raise ValueError(f"{way}: one process predicts {due}, not {mine[way]}")

        # For the picture: each number of a worker, and behind it who threw it.
        thrown = [{n for epoch in each[way] for n in epoch} for each in everyone]
        holds = {
            f"worker {worker}": [
                [n, *(r for r, numbers in enumerate(thrown) if n in numbers)]
                for n in numbers
            ]
            for worker, numbers in enumerate(zip(*mine[way]))
        }
        events.append({"step": step, "rank": rank, "phase": way, "holds": holds})
        if rank == 0:
            total = world_size * args.workers * EPOCHS
            print(f"{way:14}{len(set.union(*thrown)):3} different of {total} throws")
    save_recording(args.record, events, picture="flow", phases=WAYS, pace=3)
    if rank == 0:
        crew = f"{world_size} ranks with {args.workers} workers each"
        print(f"ok: {crew} throw what one process predicted")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
