"""Train, evaluate, save and go on: a whole training, to copy into a project of yours.

    torchrun --standalone --nproc-per-node 2 scripts/train.py --folder run

It teaches a small transformer to add. Start it again, and it goes on. To train another
network, replace what stands between the two marks; all the rest may stay as it is.
"""

import gc
import math
import os
import shlex
import sys
from argparse import ArgumentParser
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: imported later, it keeps the group alive
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

# Settings to try out; but leave GROUP alone in a run that is to go on.
GROUP = 240  # samples of a step, those of all ranks together
BATCH = 128  # as many of them go through a rank's network at once, or fewer
LR = 1.5e-2  # the highest learning rate
AMP = torch.bfloat16  # or float16; float32 switches it off
SAVE_EVERY = 20  # steps
SEED = 0

# --- yours begins here ---
# Put your own in place of all this, up to the second mark. What comes after uses four
# names of it, and no others: make_data, make_model, judge and LOADER.


def make_sums():
    """Return all sums as digits, shuffled: 39 + 49 = 88 is 3 9 + 4 9 = 8 8 0."""
    n = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    a, b = n // 100, n % 100
    plus, equals = torch.full_like(n, 10), torch.full_like(n, 11)
    text = [a // 10, a % 10, plus, b // 10, b % 10, equals]
    # The answer begins with the units, as when you add on paper.
    text += [(a + b) // place % 10 for place in (1, 10, 100)]
    return torch.stack(text, dim=1)


class Adder(nn.Module):
    """A transformer that guesses each digit of an answer from what stands before it."""

    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(12, width)
        self.place = nn.Parameter(torch.zeros(8, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, text):
        x = self.embed(text[:, :8]) + self.place
        mask = nn.Transformer.generate_square_subsequent_mask(8, x.device)
        return self.head(self.body(x, mask, is_causal=True))[:, 5:]


def number(digits):
    """Return the numbers that digits stand for, from the units on."""
    return digits[:, 0] + 10 * digits[:, 1] + 100 * digits[:, 2]


def make_data():
    """Return the samples to train on, and those to test with, the same on all ranks."""
    sums = make_sums()
    return sums[:8400], sums[8400:]


def make_model():
    """Return the network that is to be trained."""
    return Adder(width=32)


def judge(model, batch, device):
    """Return each single loss of a batch, no mean, and which answers are right."""
    text = batch.to(device, non_blocking=True)
    guess = model(text)
    wanted = text[:, 6:]
    losses = nn.functional.cross_entropy(guess.mT, wanted, reduction="none")
    return losses, number(guess.argmax(2)) == number(wanted)


# What DataLoader is to hear besides: collate_fn, or on GPUs pin_memory.
LOADER = {"num_workers": 0}

# --- yours ends here ---


def rate(done):
    """Return the learning rate when a part of all steps is done: up, then down."""
    return LR * min(1, 0.01 + 10 * done) * (1 - done)


def take_step(ddp, batches, optimizer, scaler, device):
    """Take a step with the batches of all ranks; return the mean of all losses."""
    totals = torch.zeros(2, dtype=torch.float64, device=device)  # losses, their number

    optimizer.zero_grad()
    for place, batch in enumerate(batches, 1):
        # The last batch sends the gradients, also those of the batches before.
        with nullcontext() if place == len(batches) else ddp.no_sync():
            with torch.autocast(device.type, AMP, enabled=AMP is not torch.float32):
                losses, _ = judge(ddp, batch, device)
            assert losses.dim() > 0, "judge returns each loss, not their mean"
            # DDP divides by the number of ranks: this makes it a sum over all ranks.
            loss = losses.sum() * dist.get_world_size()
            scaler.scale(loss).backward()
        totals[0] += losses.detach().sum()
        totals[1] += losses.numel()
    scaler.unscale_(optimizer)

    # The mean counts each loss once, also where a rank has more of them than others.
    dist.all_reduce(totals)
    for weight in ddp.parameters():
        if weight.grad is not None:
            weight.grad /= totals[1]

    # Clipping wants the whole gradient: summed up, unscaled and divided.
    nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    return totals[0] / totals[1]


@torch.no_grad()
def evaluate(model, dataset, rank, world_size, device):
    """Return the exact mean loss and accuracy over all samples, on every rank."""
    # Rank 0's BatchNorm buffers are saved, so all ranks test with these.
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)

    # Each rank tests a share. No sample comes twice, and some shares may be larger.
    mine = range(rank, len(dataset), world_size)
    # The loader throws no dice of the rank: testing leaves the training as it is.
    own_dice = torch.Generator().manual_seed(SEED + rank)
    loader = DataLoader(dataset, BATCH, sampler=mine, generator=own_dice, **LOADER)

    totals = torch.zeros(4, dtype=torch.float64, device=device)
    model.eval()
    for batch in loader:
        losses, right = judge(model, batch, device)
        totals[0] += losses.sum()
        totals[1] += losses.numel()
        totals[2] += right.sum()
        totals[3] += right.numel()
    model.train()

    # First the totals of all ranks, and the division last.
    dist.all_reduce(totals)
    return totals[0] / totals[1], totals[2] / totals[3]


def save(path, step, parts, rank, world_size, device):
    """Let rank 0 write what all ranks remember: to path.part, and then to path."""
    # Each rank's dice, for dropout and the like, are a part of the run.
    modules = [torch, torch.cuda] if device.type == "cuda" else [torch]
    dice = [None] * world_size
    dist.all_gather_object(dice, [module.get_rng_state() for module in modules])

    # A kill leaves a whole file behind, the old or the new one.
    if rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        with open(f"{path}.part", "wb") as file:
            torch.save(state | {"step": step, "dice": dice}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.part", path)


def resume(path, parts, rank, world_size):
    """Give each rank what was saved, if anything was; return the steps it has done."""
    there = [os.path.exists(path)]
    dist.broadcast_object_list(there)  # rank 0 decides
    if not there[0]:
        return 0

    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    if len(state["dice"]) == world_size:  # on other ranks the dice are new
        for dice, module in zip(state["dice"][rank], (torch, torch.cuda)):
            module.set_rng_state(dice)
    return state["step"]


@errors.record  # torchrun hears of an exception in here
def main():
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="for checkpoints")
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error(f"--epochs must be 1 or more, not {args.epochs}")
    if "RANK" not in os.environ:
        words = shlex.join(sys.argv)
        parser.exit(2, f"try torchrun --standalone --nproc-per-node 2 {words}\n")

    # A GPU for each rank of this machine, or if they are too few, the CPU for all.
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda" if on_gpus else "cpu")
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # In a step each rank takes a share of GROUP, in as few pieces as BATCH allows.
    share = GROUP // world_size
    pieces = math.ceil(GROUP / world_size / BATCH)
    if GROUP % (world_size * pieces):
        raise ValueError(f"{world_size} ranks cannot share {GROUP=} with {BATCH=}")

    # With one seed, all ranks make the same data and the same weights.
    torch.manual_seed(SEED)
    training, testing = make_data()
    model = make_model().to(device)
    # If it has BatchNorm, and a batch of one rank is small, then on GPUs write here:
    # model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = torch.optim.AdamW(model.parameters())
    # A sum of losses is larger than their mean, so the scale for float16 is smaller.
    fp16 = AMP is torch.float16
    scaler = torch.amp.GradScaler(device.type, 2.0**16 / GROUP, enabled=fp16)
    sampler = DistributedSampler(training, seed=SEED)
    in_epoch = math.ceil(len(sampler) / share)
    steps = args.epochs * in_epoch

    # From here on each rank throws dice of its own, for dropout: new or saved ones.
    torch.manual_seed(SEED + 1 + rank)
    os.makedirs(args.folder, exist_ok=True)
    path = f"{args.folder}/training.pt"
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    step = resume(path, parts, rank, world_size)
    if rank == 0:
        print(f"{world_size} ranks on {device.type}: {step} of {steps} steps are done")

    ddp = DistributedDataParallel(model)
    while step < steps:
        # This rank's samples up to the next save, or to the end of the epoch.
        epoch, place = divmod(step, in_epoch)
        sampler.set_epoch(epoch)
        until = place + SAVE_EVERY - step % SAVE_EVERY
        mine = [*sampler][place * share : until * share]

        # Workers throw dice, too: others on each rank, and the same after a resume, as
        # a loader lives from save to save. The rank's own dice stay as they are.
        dice = torch.Generator().manual_seed(SEED + step * world_size + rank)
        size = share // pieces
        loader = DataLoader(training, size, sampler=mine, generator=dice, **LOADER)
        batches = iter(loader)
        while some := [*islice(batches, pieces)]:
            for group in optimizer.param_groups:
                group["lr"] = rate(step / steps)
            loss = take_step(ddp, some, optimizer, scaler, device)
            step += 1

        if step % SAVE_EVERY == 0 or step == steps:
            save(path, step, parts, rank, world_size, device)
        if step % in_epoch == 0:
            test, right = evaluate(model, testing, rank, world_size, device)
            if rank == 0:
                told = f"loss {loss:.3f}, test {test:.3f}, right {right:.1%}"
                print(f"epoch {epoch + 1}: {told}", flush=True)

    if rank == 0:
        print(f"ok: the model of {step} steps is in {path}")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
