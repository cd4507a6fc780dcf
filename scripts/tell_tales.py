"""Say what all ranks of a training have read and hold, whatever the training is.

Copy this file beside your script, and put three lines into it:

    from tell_tales import Watched, tell_tales

    watched = Watched(loader)  # before the first epoch
    tell_tales(watched, model)  # after the last; on every rank, and rank 0 speaks

The lesson: notebooks/00_four_ranks_tonight.ipynb
"""

import json
from collections import Counter
from itertools import chain, pairwise

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


class Watched:
    """Stands in for a loader's batch_sampler, and keeps the batches of each epoch."""

    def __init__(self, loader):
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise TypeError("only a loader of batches of numbered samples is watched")
        self.batch_sampler = loader.batch_sampler
        self.epochs = []
        self.samples = len(loader.dataset)

        # A loader refuses a plain assignment once it is made.
        vars(loader)["batch_sampler"] = self

    def __getattr__(self, name):
        # Whatever else is asked of a batch_sampler, the loader's own one answers.
        return getattr(self.batch_sampler, name)

    def __len__(self):
        return len(self.batch_sampler)

    def __iter__(self):
        # A loader begins a new loop over its batch_sampler in each epoch.
        self.epochs.append([])
        for batch in self.batch_sampler:
            self.epochs[-1].append(batch)
            yield batch


def tell_tales(watched, model):
    """Return on every rank what all ranks have read and hold; rank 0 says it, too."""
    # On the CPU, because tensors on two GPUs cannot be compared.
    own = torch.cat([p.detach().cpu().flatten() for p in model.parameters()])
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (watched.epochs, own))
    all_epochs, weights = zip(*everyone)

    # For each rank and each epoch, the numbers of its samples in the order of reading.
    orders = [[[*chain(*epoch)] for epoch in epochs] for epochs in all_epochs]
    # How many ranks read a sample is asked of the first epoch. But a sample that it
    # leaves out may come in a later one, so for "never read" all epochs count.
    readers = Counter(number for mine in orders for number in {*mine[0]})
    read = {number for mine in orders for order in mine for number in order}
    # Two epochs in the same order, one after the other, were not shuffled anew.
    pairs = [pair for mine in orders for pair in pairwise(mine)]

    told = {
        "steps": len(watched.epochs[0]),
        "samples": len(readers),
        "read by several": sum(ranks > 1 for ranks in readers.values()),
        "never read": watched.samples - len(read),
        "new order": all(a != b for a, b in pairs) if pairs else "one epoch",
        "equal weights": all(torch.equal(w, weights[0]) for w in weights),
    }
    if dist.get_rank() == 0:
        print(json.dumps(told))
    return told
