"""Train, evaluate, save and go on: a whole training, to copy into a project of yours.

    torchrun --standalone --nproc-per-node 2 scripts/train.py --folder run

Put your own data and network in place of these. Start it again, and it goes on.
"""

import gc
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# A batch goes through the network at once; a rank adds up a group of samples in a step.
BATCH, GROUP, SAVE_EVERY, SEED, AMP = 32, 64, 20, 0, torch.bfloat16  # or float32: off
assert GROUP % BATCH == 0, "GROUP is a multiple of BATCH"


def make_data(samples, seed):
    """Return points in a plane, and for each point whether it lies on a ring."""
    points = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (points.norm(dim=1) - 1.2).abs().lt(0.45).long())


def rate(done):
    """Return the learning rate when a part of all steps is done: up, then down."""
    return 0.02 * min(1, 0.01 + 10 * done) * (1 - done)


def take_step(ddp, batches, optimizer, scaler, device):
    """Add up the gradients of some batches, and step; return the rank's mean loss."""
    answers, total = sum(y.numel() for _, y in batches), torch.zeros((), device=device)

    optimizer.zero_grad()
    for number, (x, y) in enumerate(batches, 1):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        # The last batch sends the gradients, also those of the batches before.
        with ddp.no_sync() if number < len(batches) else nullcontext():
            with torch.autocast(device.type, AMP, enabled=torch.float32 != AMP):
                loss = nn.functional.cross_entropy(ddp(x), y, reduction="sum") / answers
            scaler.scale(loss).backward()
        total += loss.detach()

    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return total


@torch.no_grad()
def evaluate(model, data, rank, world_size, device):
    """Return the exact mean loss and accuracy over all samples, on every rank."""
    # Rank 0's BatchNorm buffers are saved, so all ranks test with these.
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)

    sums = torch.zeros(3, dtype=torch.float64, device=device)
    share = range(rank, len(data), world_size)
    own_dice = torch.Generator().manual_seed(SEED + rank)
    model.eval()
    for x, y in DataLoader(data, 256, sampler=share, generator=own_dice):
        out, y = model(x.to(device)), y.to(device)
        loss = nn.functional.cross_entropy(out, y, reduction="sum")
        right = (out.argmax(1) == y).sum()
        sums += torch.stack([loss, right, loss.new_tensor(y.numel())])
    model.train()

    # First the sums and counts of all ranks, and the division last.
    dist.all_reduce(sums)
    return (sums[:2] / sums[2]).tolist()


def save(path, epochs, parts, rank, world_size, device):
    """Let rank 0 write what all ranks remember: to path.part, and then to path."""
    modules = [torch, torch.cuda] if device.type == "cuda" else [torch]
    dice = [None] * world_size
    dist.all_gather_object(dice, [module.get_rng_state() for module in modules])

    if rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        with open(f"{path}.part", "wb") as file:
            torch.save(state | {"epochs": epochs, "dice": dice}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.part", path)


def resume(path, parts, rank, world_size):
    """Give each rank what was saved, if anything was; return the epochs it has seen."""
    dist.broadcast_object_list(there := [os.path.exists(path)])  # rank 0 decides
    if not there[0]:
        return 0

    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    if len(state["dice"]) == world_size:  # on other ranks the dice are new
        for dice, module in zip(state["dice"][rank], (torch, torch.cuda)):
            module.set_rng_state(dice)
    return state["epochs"]


@errors.record  # torchrun hears of an exception in here
def main():
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="for checkpoints")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error(f"--epochs must be 1 or more, not {args.epochs}")
    if "RANK" not in os.environ:
        words = shlex.join(sys.argv)
        parser.exit(2, f"try torchrun --standalone --nproc-per-node 2 {words}\n")

    # A GPU for each rank of this machine, or if they are too few, the CPU for all.
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if on_gpus else "cpu")
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank, world_size = own = dist.get_rank(), dist.get_world_size()

    # What is trained, and on what; with one seed, all ranks make the same weights.
    torch.manual_seed(SEED)
    training, testing = make_data(4096, SEED), make_data(1003, SEED + 1)
    layers = nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(64, 2)).to(device)
    sampler = DistributedSampler(training, seed=SEED)
    of_epoch = -(-len(sampler) // GROUP)  # steps, rounded up
    steps = args.epochs * of_epoch
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=torch.float16 == AMP)

    # From here on each rank throws dice of its own, for dropout: new or saved ones.
    torch.manual_seed(SEED + 1 + rank)
    os.makedirs(args.folder, exist_ok=True)
    path = f"{args.folder}/training.pt"
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    step = round(of_epoch * resume(path, parts, *own))
    if rank == 0:
        print(f"{world_size} ranks on {device.type}: {step} of {steps} steps are done")

    ddp = DistributedDataParallel(model)
    while step < steps:
        # This rank's samples up to the next save, or to the end of the epoch.
        epoch, place = divmod(step, of_epoch)
        sampler.set_epoch(epoch)
        until = place + SAVE_EVERY - step % SAVE_EVERY
        share = [*sampler][place * GROUP : until * GROUP]

        # Workers throw dice, too: others on each rank, and the same after a resume, as
        # a loader lives from save to save. Its seed is no throw of the rank's own dice.
        dice = torch.Generator().manual_seed(SEED + step * world_size + rank)
        batches = iter(DataLoader(training, BATCH, sampler=share, generator=dice))
        while some := [*islice(batches, GROUP // BATCH)]:
            optimizer.param_groups[0]["lr"] = rate(step / steps)
            loss = take_step(ddp, some, optimizer, scaler, device) / world_size
            step += 1

        if step % SAVE_EVERY == 0 or step == steps:
            save(path, step / of_epoch, parts, *own, device)
        if step % of_epoch == 0:
            dist.all_reduce(loss)  # the last step's mean over all ranks
            test, right = evaluate(model, testing, *own, device)
            told = f"loss {loss:.3f}, test {test:.3f}, right {right:.1%}"
            if rank == 0:
                print(f"epoch {epoch + 1}: {told}", flush=True)

    if rank == 0:
        print(f"ok: the model of {step} steps is in {path}")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
