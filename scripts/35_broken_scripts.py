"""Examine a training by four checks: healthy first, then with each of five faults.

    torchrun --standalone --nproc-per-node 4 scripts/35_broken_scripts.py

GPUs are not used. On one rank no check finds any fault. With --record PATH, rank 0
keeps which checks each training has passed, as JSON lines. The last line begins with
"ok". The lesson: notebooks/35_broken_scripts.ipynb
"""

import copy
import gc
import math
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from shared import Parser, save_recording, start

# Each training, and the checks that it fails on two ranks or more.
FAULTS = {
    "healthy": "",
    "padded samples": "samples gradients loss",
    "around DDP": "gradients weights",
    "divided twice": "gradients loss",
    "rank-0 loss": "loss",
    "rank-0 momentum": "weights",
}


def make(start=0.0):
    """Return a model with one weight, which multiplies."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, start)
    return model


def numbers(count):
    """Return the samples: the numbers from 1 on."""
    return torch.arange(1.0, count + 1).reshape(count, 1)


def loss_of(model, x):
    """Return a loss whose gradient is minus the mean of the samples."""
    return -model(x).mean()


def in_one(tensors):
    """Return all numbers of some tensors in one tensor; leave out each None."""
    return torch.cat([t.detach().cpu().flatten() for t in tensors if t is not None])


def doctor(model, optimizer, sampler, loss_of, log, samples):
    """Take a step; return which parts agree with one process that has all samples."""
    # A plain copy plays one process. It has the same weights, and gets all samples.
    alone = copy.deepcopy(model.module)
    everybody, mine = list(range(samples)), list(sampler)
    whole, loss = loss_of(alone, everybody), loss_of(model, mine)
    # In this backward DDP averages the gradients of all ranks.
    torch.autograd.backward([whole, loss])
    grad, truth = (in_one(p.grad for p in m.parameters()) for m in (model, alone))
    optimizer.step()

    # All ranks see what each one has, so all come to the same verdict.
    gathered = [None] * dist.get_world_size()
    own = mine, log(loss), grad, in_one(model.parameters())
    dist.all_gather_object(gathered, own)
    reads, losses, grads, weights = zip(*gathered)
    return {
        "samples": sorted(sum(reads, [])) == everybody,
        "gradients": all((g - truth).norm() <= truth.norm() / 1000 for g in grads),
        "loss": math.isclose(losses[0], whole.item(), rel_tol=1e-3),
        "weights": all(torch.equal(weight, weights[0]) for weight in weights),
    }


def mean_of(loss):
    """Return the mean of the losses of all ranks."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def examine(fault, rank, world_size):
    """Build a training with one fault, or none, and let the doctor take a step."""
    # With one sample more, shares would be unequal, so the sampler repeats some.
    x = numbers(3 * world_size + (fault == "padded samples"))

    # The healthy training. It begins at weight 1, because at 0 each loss would be 0.
    model = DistributedDataParallel(make(1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)

    def own_loss(model, mine):
        # The inner module's forward goes around DDP, and no all-reduce begins.
        if fault == "around DDP":
            model = getattr(model, "module", model)
        # Each rank divides by the number of all samples. DDP then divides by the ranks.
        if fault == "divided twice":
            return -model(x[mine]).sum() / len(x)
        return loss_of(model, x[mine])

    # The healthy training logs the mean of all losses; here each rank logs its own.
    log = torch.Tensor.item if fault == "rank-0 loss" else mean_of
    # DDP sends rank 0's weights and buffers to all, but not its optimizer.
    if fault == "rank-0 momentum" and rank == 0:
        for weight in model.parameters():
            optimizer.state[weight]["momentum_buffer"] = torch.ones_like(weight)

    sampler = DistributedSampler(x, shuffle=False)
    return doctor(model, optimizer, sampler, own_loss, log, len(x))


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    # A terminal that cannot show a check mark prints its name.
    sys.stdout.reconfigure(errors="namereplace")
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    events = []
    caught = 0
    for fault, fails in FAULTS.items():
        checks = examine(fault, rank, world_size)
        # On one rank nothing is padded, sent or averaged, so no check finds a fault.
        wrong = [check for check, passed in checks.items() if not passed]
        if set(wrong) != set(fails.split() if world_size > 1 else ()):
            raise ValueError(f"{fault}: it fails {wrong}, and should fail {fails!r}")
        caught += bool(wrong)
        # The verdict is the same on all ranks, so rank 0 tells and records it.
        if rank == 0:
            marks = "  ".join(f"{'✓✗'[name in wrong]} {name}" for name in checks)
            print(f"{fault:15}  {marks}")
            for number, (name, passed) in enumerate(checks.items()):
                event = {"step": number, "rank": rank, "phase": fault, "what": name}
                events.append(event | {"kind": "work" if passed else "wait"})
    save_recording(args.record, events, picture="checks")
    if rank == 0:
        ranks = f"{world_size} rank{'s' * (world_size > 1)}"
        print(f"ok: on {ranks} the checks find {caught} of 5 faults")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
