"""Watch what DDP does unasked: what it copies from rank 0, what it averages, and when.

    torchrun --standalone --nproc-per-node 4 scripts/14_ddp_habits.py
    torchrun --standalone --nproc-per-node gpu scripts/14_ddp_habits.py

The first line needs no GPU; the second gives each GPU a rank. With --record PATH,
rank 0 keeps what every rank held, one JSON object per line.
The last line begins with "ok". The lesson: notebooks/14_ddp_habits.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

from shared import Parser, own_device, save_recording, start


class Layer(nn.Module):
    """One weight and one buffer, with other numbers on each rank."""

    def __init__(self, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([rank + 1.0]))
        self.register_buffer("seen", 10 * torch.tensor([rank + 1.0]))

    def forward(self, x):
        """Return a loss whose gradient is x."""
        return (self.weight * x).sum()


def wrap(rank, note):
    """Wrap a model, change it by hand, take a step; note whose numbers it then has."""
    model = Layer(rank)
    note("made", model, weight_of=rank, buffer_of=rank)

    # Wrapping writes rank 0's weight and buffer into the tensors of all ranks.
    wrapped = DistributedDataParallel(model)
    note("wrapped", model, weight_of=0, buffer_of=0)

    # wrapped holds this same model, so now the ranks differ again.
    model.load_state_dict(Layer(rank).state_dict())
    note("changed", model, weight_of=rank, buffer_of=rank)

    # A forward copies rank 0's buffer once more, but no weight.
    loss = wrapped(torch.tensor([rank + 1.0]))
    note("forward", model, weight_of=rank, buffer_of=0)

    # backward averages the gradients, and nothing mends the weights.
    loss.backward()
    note("backward", model, weight_of=rank, buffer_of=0)


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    args, rank, world_size = start(parser)
    # Models and inputs are made on the rank's device, so no line has to move them.
    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    events = []

    def note(phase, model, weight_of, buffer_of):
        has = {"weight": model.weight.item(), "buffer": model.seen.item()}
        right = {"weight": weight_of + 1, "buffer": 10 * (buffer_of + 1)}
        if phase == "backward":
            # The gradients of the ranks are 1, 2, 3 and so on, and this is their mean.
            has["grad"] = round(model.weight.grad.item(), 2)
            right["grad"] = (1 + world_size) / 2

        # If DDP loses one of its habits, the script stops.
        if has != right:
            raise ValueError(f"{phase}: rank {rank} has {has}, not {right}")
        event = {"step": len(events), "rank": rank, "phase": phase}
        events.append(event | {"has": has})

    wrap(rank, note)

    # All ranks hand over what they noted; rank 0 prints a column for each of them.
    rows = save_recording(args.record, events, picture="habits")
    if rank == 0:
        for phase in dict.fromkeys(row["phase"] for row in rows):
            held = [row["has"] for row in rows if row["phase"] == phase]
            for name in held[0]:
                print(f"{phase:10}{name:8}", *[f"{has[name]:5g}" for has in held])
        print(f"ok: {world_size} ranks; DDP copied and averaged as this script says")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
