"""Kill a worker, lose a node, get it back: does the training end as if undisturbed?

    torchrun --standalone --nproc-per-node 4 scripts/34_elastic.py

Rank 0 plays the agent, and forks the workers. With --record PATH, it keeps what all
did, as JSON lines. The last line begins with "ok": notebooks/34_elastic.ipynb
"""

import gc
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, save_recording, start

SAMPLES, BATCH, STEPS, EVERY = 24, 8, 12, 4


def share(step, rank, world_size):
    """Return a rank's samples of a step; all ranks together have the whole batch."""
    # The step chooses the batch, and nothing else does: neither rank nor world size.
    epoch, place = divmod(step, SAMPLES // BATCH)
    dice = torch.Generator().manual_seed(epoch)
    batch = torch.randperm(SAMPLES, generator=dice)[place * BATCH :][:BATCH]
    return batch[rank::world_size].double()


def train(path, rank, world_size, after_step):
    """Go on from the file to the last step, and save now and then."""
    state = {"step": 0, "weight": torch.zeros((), dtype=torch.float64)}
    if path.exists():
        state = torch.load(path, weights_only=True)
    while state["step"] < STEPS:
        pull = (share(state["step"], rank, world_size) - state["weight"]).sum()
        dist.all_reduce(pull)
        # The batch is the same for any number of ranks, so its size divides.
        state["weight"] = state["weight"] + pull / BATCH / 2
        state["step"] += 1
        # Written aside and then put in place: a kill leaves a whole file behind.
        if rank == 0 and state["step"] % EVERY == 0:
            torch.save(state, f"{path}.part")
            os.replace(f"{path}.part", path)
        after_step(state["step"])
    return state["weight"].item()


def live(rank, crew, world_size, doomed, last, newcomer, folder):
    """Be a worker of a crew: note each step, and die when fate wants it."""
    signal.alarm(60)  # whatever happens, this process ends
    meet = f"file://{folder}/crew{crew}"  # a new place, without old addresses
    dist.init_process_group("gloo", meet, rank=rank, world_size=world_size)
    # The agent may be quicker than fate: who is doomed waits for SIGKILL all the same.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if rank in doomed else signal.SIG_DFL)

    def after_step(step):
        with (folder / f"{crew}-{rank}").open("a") as file:
            file.write(f"{step}\n")
        if step == last:
            with suppress(RuntimeError):  # another one may be dead already
                dist.barrier()  # all have noted this step
            if rank in doomed:
                os.kill(os.getpid(), signal.SIGKILL)
            newcomer.set() if not doomed else None
            signal.pause()  # until the agent ends this worker

    weight, alone = train(folder / "file", rank, world_size, after_step), 0.0
    for step in range(STEPS):  # the oracle: one process that nobody disturbs
        alone += (share(step, 0, 1) - alone).sum().item() / BATCH / 2
    if weight != alone:
        raise ValueError(f"rank {rank} ends with {weight}, not {alone}")


def watch(workers, newcomer):
    """Look at the workers until they must end, or have ended; return why."""
    while True:
        # An exit code is None while a worker works, and 0 if it ended well.
        working = any(worker.is_alive() for worker in workers)
        failed = any(worker.exitcode for worker in workers)
        if failed or newcomer.is_set() or not working:
            break
        time.sleep(0.02)
    # The whole crew ends, also its healthy workers: the next crew is all new.
    for worker in workers:
        worker.terminate()
        worker.join()
    well = "a node joined" if working else "all ended well"
    return "a worker failed" if failed else well


def agent(story, folder, budget=3):
    """Start crew after crew, while there are restarts; return what all of them did."""
    fork, events = torch.multiprocessing.get_context("fork"), []
    for crew, (size, doomed, last) in enumerate(story):
        newcomer = fork.Event()
        job = crew, size, doomed, last, newcomer, folder
        workers = [fork.Process(target=live, args=(rank, *job)) for rank in range(size)]
        for worker in workers:
            worker.start()
        why = watch(workers, newcomer)
        # What a worker noted is on disk, and survives it.
        for rank, worker in enumerate(workers):
            steps = [*map(int, (folder / f"{crew}-{rank}").read_text().split())]
            own = {"rank": rank, "phase": f"crew {crew}"}
            events += [{"step": step} | own for step in steps]
            events[-1]["ends"] = {-9: "SIGKILL", -15: "SIGTERM"}.get(worker.exitcode)
        budget -= why == "a worker failed"  # a node that joins costs nothing
        # The last crew has no accident in its story, and must end well.
        if budget < 0 or last is None and why != "all ended well":
            raise RuntimeError("no crew has ended well")
        told = f"{size} ranks, steps {steps[0]} to {steps[-1]}: {why}"
        print(f"crew {crew}: {told}, restarts left: {budget}")
    return events


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    # The agent forks here, while there is no group yet: a fork would lose its threads.
    events = []
    if rank == 0:
        # How many workers a crew has, which of them are killed, and after which step.
        story = [
            (world_size, [world_size - 1], 5),
            (world_size, [*range(world_size // 2, world_size)], 6),  # a node is lost
            (max(1, world_size // 2), [], 9),  # then a node joins
            (world_size, [], None),
        ]
        with TemporaryDirectory() as folder:
            events = agent(story, Path(folder))
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    save_recording(args.record, events, picture="crews", every=EVERY)
    if rank == 0:
        ranks = f"{world_size} ranks"
        print(f"ok: on {ranks} the last crew ends as one undisturbed process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
