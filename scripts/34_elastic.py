"""Kill a worker, lose a node, get it back: does the training end as if undisturbed?

    torchrun --standalone --nproc-per-node 4 scripts/34_elastic.py

Rank 0 plays the agent, and forks the workers. With --record PATH, it keeps what all
did, as JSON lines. The last line begins with "ok": notebooks/34_elastic.ipynb
"""

import gc
import json
import multiprocessing
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
        state["weight"] = state["weight"] + pull / BATCH / 2
        state["step"] += 1
        if rank == 0 and state["step"] % EVERY == 0:
            torch.save(state, f"{path}.part")
            os.replace(f"{path}.part", path)
        after_step(state["step"])
    return state["weight"].item()


def live(crew, rank, world_size, doomed, last, newcomer, folder):
    """Be a worker of a crew: note each step, and die when fate wants it."""
    signal.alarm(60)  # whatever happens, this process ends
    meet = f"file://{folder}/crew{crew}"
    dist.init_process_group("gloo", meet, rank=rank, world_size=world_size)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if rank in doomed else signal.SIG_DFL)

    def after_step(step):
        event = {"step": step, "rank": rank, "phase": f"crew {crew}"}
        with (folder / f"{crew}-{rank}").open("a") as file:
            file.write(json.dumps(event) + "\n")
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
        working = any(worker.is_alive() for worker in workers)
        failed = any(worker.exitcode for worker in workers)
        if failed or newcomer.is_set() or not working:
            break
        time.sleep(0.02)
    for worker in workers:
        worker.terminate()
        worker.join()
    well = "a node joined" if working else "all ended well"
    return "a worker failed" if failed else well


def agent(story, folder, budget=3):
    """Start crew after crew, while there are restarts; return what all of them did."""
    fork, events = multiprocessing.get_context("fork"), []
    for crew, (size, doomed, last) in enumerate(story):
        newcomer, first = fork.Event(), len(events)
        rest = size, doomed, last, newcomer, folder
        each = [(crew, rank, *rest) for rank in range(size)]
        workers = [fork.Process(target=live, args=args) for args in each]
        for worker in workers:
            worker.start()
        why = watch(workers, newcomer)
        if len([*folder.glob(f"{crew}-*")]) < size:
            raise RuntimeError(f"a worker of crew {crew} ended before its first step")
        for rank, worker in enumerate(workers):
            lines = (folder / f"{crew}-{rank}").read_text().splitlines()
            events += map(json.loads, lines)
            events[-1]["ends"] = {-9: "SIGKILL", -15: "SIGTERM"}.get(worker.exitcode)
        budget -= why == "a worker failed"  # a node that joins costs nothing
        if budget < 0 or last is None and why != "all ended well":
            raise RuntimeError("no crew has ended well")
        steps = f"steps {events[first]['step']} to {events[-1]['step']}"
        print(f"crew {crew}: {size} ranks, {steps}: {why}, restarts left: {budget}")
    return events


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    events, n = [], world_size
    if rank == 0:  # here, while no thread of a group is there yet
        story = [(n, [n - 1], 5), (n, [*range(n // 2, n)], 6)]
        story += [(max(1, n // 2), [], 9), (n, [], None)]
        with TemporaryDirectory() as folder:
            events = agent(story, Path(folder))
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    save_recording(args.record, events, picture="crews", every=EVERY)
    if rank == 0:
        print(f"ok: on {n} ranks the last crew ends as one undisturbed process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
