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
        return SumOverRanks.forward(ctx, gradient)


class JoinedNorm(nn.BatchNorm1d):
    """A BatchNorm1d that trains with the samples of all ranks."""

    def add_up(self, own):
        return SumOverRanks.apply(own)

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        wide = x.double()
        own = torch.stack([torch.ones_like(wide), wide, wide**2]).sum(1)  # per channel
        count, total, squares = self.add_up(own)
        mean = total / count
        var = squares / count - mean**2
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
    numbers = torch.arange(1.0, 4 * world_size, 2)[:, None]  # 1 and 3, 5 and 7 ...
    marks = torch.eye(world_size).repeat_interleave(2, 0)  # 1 in the column of its rank
    whole, tenth = torch.cat([numbers, marks], 1), (4 * rank + 2) / 10
    x, events = whole.chunk(world_size)[rank], []

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

    norm, joined = nn.BatchNorm1d(1 + world_size), JoinedNorm(1 + world_size)
    alone, together = (torch.var_mean(part, 0, correction=0) for part in (x, whole))
    model = DistributedDataParallel(norm)
    note("forward 1", norm, None, model(x), *alone)
    hook = norm.register_forward_pre_hook(lambda *_: note("copy", norm, "broadcast"))
    y = model(x)
    hook.remove()
    note("forward 2", norm, None, y, *alone)
    y = model.eval()(x)
    note("evaluation", norm, "broadcast", y, norm.running_var, norm.running_mean)
    note("joined", joined, "all_reduce", joined(x), *together)
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
