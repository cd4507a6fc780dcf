"""Show whose samples are in the means of every rank's BatchNorm, alone and joined.

    torchrun --standalone --nproc-per-node 4 scripts/20_batch_norm.py

GPUs are not used. With --record PATH, rank 0 keeps the means, one JSON object per line.
The last line begins with "ok". The lesson: notebooks/20_batch_norm.ipynb
"""

import gc
from datetime import timedelta
from itertools import product

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

from shared import Parser, save_recording, start

PHASES = {
    "forward 1": "Each BatchNorm subtracts the mean of its own two samples.",
    "copy": "Forward 2 begins: DDP copies the running mean of rank 0.",
    "forward 2": "Each BatchNorm mixes the mean of its own samples into the copy.",
    "evaluation": "DDP copies again. All ranks subtract rank 0's running mean.",
    "joined": "All samples are added up, so all ranks have the same means.",
}


class SumOverRanks(torch.autograd.Function):
    """Add up over all ranks; in backward, add up the gradients over all ranks."""

    @staticmethod
    def forward(ctx, own):
        total = own.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        # A sample is in the sums of all ranks, so it changes the losses of all ranks.
        return SumOverRanks.forward(ctx, gradient)


class JoinedNorm(nn.BatchNorm1d):
    """A BatchNorm1d that trains with the samples of all ranks."""

    def add_up(self, own):
        return SumOverRanks.apply(own)

    def forward(self, x):
        if not self.training:
            return super().forward(x)

        # Of each channel, the count of samples, their sum and the sum of their squares
        # are enough for mean and variance. Squares need many digits, hence double.
        wide = x.double()
        own = torch.stack([torch.ones_like(wide), wide, wide**2]).sum(1)  # per channel
        count, total, squares = self.add_up(own)

        # The variance is the mean of the squares, minus the square of the mean.
        mean = total / count
        var = squares / count - mean**2

        # As in BatchNorm1d, the variance that is kept divides by one sample less.
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(x), self.momentum)  # 0.9 old + 0.1 new
            self.running_var.lerp_((var * count / (count - 1)).to(x), self.momentum)

        y = (x - mean) / (var + self.eps).sqrt()
        return self.weight * y.to(x) + self.bias


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))

    # Each rank has two samples: 1 and 3, 5 and 7, and so on. Behind its number, each
    # sample has a mark, a 1 in the column of its rank. In a mean of some samples, only
    # the columns of their ranks are not 0.
    numbers = torch.arange(1.0, 4 * world_size, 2)[:, None]
    marks = torch.eye(world_size).repeat_interleave(2, 0)
    whole = torch.cat([numbers, marks], 1)
    x = whole.chunk(world_size)[rank]
    events = []

    def note(phase, norm, call=None, y=None, var=None, mean=None):
        """Keep both means and whose samples are in them, if y comes from the first."""
        if y is not None:
            torch.testing.assert_close(y, (x - mean) / (var + norm.eps).sqrt())
        holds = {"samples": [[int(number), rank] for number in x[:, 0]]}
        for name, means in (("mean", mean), ("running", norm.running_mean)):
            if means is not None:
                holds[name] = [[f"{means[0]:.3g}", *means[1:].nonzero()[:, 0].tolist()]]
        event = {"step": len(events), "rank": rank, "phase": phase, "call": call}
        events.append(event | {"holds": holds})

    norm = nn.BatchNorm1d(1 + world_size)
    joined = JoinedNorm(1 + world_size)
    alone = torch.var_mean(x, 0, correction=0)
    together = torch.var_mean(whole, 0, correction=0)

    # Each rank's layer subtracts the mean of its own samples, under DDP, too.
    model = DistributedDataParallel(norm)
    note("forward 1", norm, None, model(x), *alone)

    # The layer's hook runs when DDP has copied, and before the layer computes.
    hook = norm.register_forward_pre_hook(lambda *_: note("copy", norm, "broadcast"))
    y = model(x)
    hook.remove()
    note("forward 2", norm, None, y, *alone)

    # In evaluation DDP copies, too, so all ranks subtract the running mean of rank 0.
    y = model.eval()(x)
    note("evaluation", norm, "broadcast", y, norm.running_var, norm.running_mean)

    # This layer is not wrapped: its own all-reduce makes the means equal.
    note("joined", joined, "all_reduce", joined(x), *together)

    # By hand: running means begin as 0, and each forward in training takes 0.9 of the
    # old one and 0.1 of the batch's. Rank 0's batch has the mean 2.
    tenth = (4 * rank + 2) / 10
    kept = [float(event["holds"]["running"][0][0]) for event in events]
    torch.testing.assert_close(kept, [tenth, 0.2, 0.18 + tenth, 0.38, world_size / 5])

    rows = save_recording(args.record, events, picture="flow", phases=PHASES, pace=3)
    if rank == 0:
        for phase, name in product(PHASES, ("mean", "running")):
            held = [row["holds"].get(name) for row in rows if row["phase"] == phase]
            if held[0]:
                print(f"{phase:11}{name:8}", *[f"{cell[0]:>5}" for [cell] in held])
        print(f"ok: {world_size} ranks, joined, normalise as one process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
