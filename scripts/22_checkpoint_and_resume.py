"""Train, be stopped or killed, and go on from a file: is it the same run?

    torchrun --standalone --nproc-per-node 4 scripts/22_checkpoint_and_resume.py

Try --folder PATH --kill-after 10, twice: the last rank is killed, and the second run
goes on. With --record PATH, rank 0 keeps what it did, as JSON lines. The last line
begins with "ok". The lesson: notebooks/22_checkpoint_and_resume.ipynb
"""

import gc
import os
import signal
from datetime import timedelta
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from shared import Parser, save_recording, start

SAMPLES, BATCH, STEPS, EVERY = 24, 2, 12, 4


def make(rank):
    """Return what a training remembers, by name; seed the rank's dice."""
    torch.manual_seed(rank)
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def take_step(step, ddp, optimizer, scheduler):
    """Move the weight towards the rank's next samples, each with some noise."""
    # The count of steps says where the sampler stands, in the middle of an epoch, too.
    sampler = DistributedSampler(range(SAMPLES))
    epoch, place = divmod(step, ceil(len(sampler) / BATCH))
    sampler.set_epoch(epoch)
    batch = torch.tensor([*sampler][place * BATCH :][:BATCH])

    # Each rank throws its own dice, so a resumed run needs the dice of all ranks.
    wanted = batch + torch.randint(-4, 5, batch.shape) / 4
    optimizer.zero_grad()
    (ddp(torch.ones(1, dtype=torch.float64)) - wanted).square().mean().backward()
    optimizer.step()
    scheduler.step()


def save(path, step, training, rank, world_size):
    """Let rank 0 write what all ranks remember: to path.part, and then to path."""
    # Only the dice differ from rank to rank. All ranks make this call: no if before it.
    dice = [None] * world_size if rank == 0 else None
    dist.gather_object(torch.get_rng_state(), dice)

    # A kill leaves a whole file under path, the old one or the new one.
    if rank == 0:
        state = {name: part.state_dict() for name, part in training.items()}
        with open(f"{path}.part", "wb") as file:
            torch.save(state | {"step": step, "dice": dice}, file)
            file.flush()
            os.fsync(file.fileno())  # else a power cut could still lose it
        os.replace(f"{path}.part", path)


def resume(path, training, rank, world_size):
    """Give each rank what was saved; return how many steps are done."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    if len(state["dice"]) != world_size:
        raise ValueError(f"{path} is of {len(state['dice'])} ranks, not {world_size}")
    for name, part in training.items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["dice"][rank])
    return state["step"]


def train(life, path, until, rank, world_size, events, kill=False):
    """Train, from the file's step on, if there is a file; return what is remembered."""
    training, step = make(rank), 0
    there = [bool(path) and path.exists()]
    dist.broadcast_object_list(there)  # all do as rank 0 says: all load, or none does
    if there[0]:
        step = resume(path, training, rank, world_size)
    elif path:  # a kill before the first steps are saved must leave a file, too
        save(path, 0, training, rank, world_size)

    # Loading comes before wrapping, and model stays the bare one, which is saved.
    model, *others = training.values()
    ddp = DistributedDataParallel(model)
    while step < until:
        take_step(step, ddp, *others)
        step += 1
        event = {"step": step, "rank": rank, "phase": life}
        events.append(event | {"weight": f"{model.weight.item():.2f}"})
        if path and step % EVERY == 0:
            save(path, step, training, rank, world_size)
    if kill and rank == world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)  # no time to tidy up, or to save

    # Weight, momentum, learning rate and dice: if one differs, it is another run.
    moved = others[0].state_dict()["state"][0]["momentum_buffer"].item()
    dice = torch.get_rng_state().tolist()
    return [model.weight.item(), moved, *others[1].get_last_lr(), *dice]


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--folder", type=Path, help="where the file is kept")
    parser.add_argument("--kill-after", type=int, choices=range(STEPS + 1), metavar="N")
    args, rank, world_size = start(parser)
    if args.folder and not args.folder.is_dir():
        parser.error(f"--folder must be a folder, not {args.folder}")
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    events = []
    common = (rank, world_size, events)
    with TemporaryDirectory() as folder:
        names = [str(args.folder or folder)]
        dist.broadcast_object_list(names)  # all take rank 0's folder
        path = Path(names[0], "training.pt")

        # The whole run is never stopped, and shows how the resumed run must end. If
        # an earlier run has left a file, no run is stopped: this file is resumed.
        whole = train("whole", None, STEPS, *common)
        if not path.exists():
            train("stopped", path, args.kill_after or 10, *common, kill=args.kill_after)
        resumed = train("resumed", path, STEPS, *common)
    # Only exact equality shows that nothing was forgotten.
    assert resumed == whole, f"rank {rank}: {resumed[:3]} resumed, {whole[:3]} whole"

    # The weights are equal on all ranks, so rank 0's are enough to record.
    save_recording(args.record, [] if rank else events, picture="lives", every=EVERY)
    if rank == 0:
        for life in dict.fromkeys(event["phase"] for event in events):
            weights = [e["weight"] for e in events if e["phase"] == life]
            print(f"{life:8}", *(f"{weight:>5}" for weight in weights))
        print(f"ok: on {world_size} ranks the resumed run is the same run")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
