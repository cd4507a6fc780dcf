"""Do by hand what nn.DataParallel does on every step; compare with one process.

    torchrun --standalone --nproc-per-node 4 scripts/13_data_parallel.py

Rank 0 drives N devices made of threads, rank 1 drives N - 1, and so on. GPUs are not
used. Try --rows 10, which four devices cannot share evenly. With --record PATH, rank 0
keeps what was copied in a step. The last line begins with "ok".
The lesson: notebooks/13_data_parallel.ipynb
"""

import copy
import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, save_recording, start

TRAFFIC = Counter()  # bytes that were copied, by (phase, from, to)
BACK = {"scatter": "scatter back", "replicate": "add up", "gather": "gather back"}


def move(tensor, phase, source, target):
    """Copy a tensor to another device; its gradient is copied the same way back."""
    if source == target:
        return tensor
    TRAFFIC[phase, source, target] += tensor.nbytes
    moved = tensor.clone()

    # In backward, the gradient of the copy goes back to the device that sent it.
    if moved.requires_grad:
        moved.register_hook(lambda grad: move(grad, BACK[phase], target, source))
    return moved


def scatter(batch, devices):
    """Cut the batch into pieces of rows, and move one to each device."""
    return [move(rows, "scatter", 0, d) for d, rows in enumerate(batch.chunk(devices))]


def replicate(module, device):
    """Move the tensors of a module, and copy the shell around them."""
    tensors = [*module.parameters(), *module.buffers()]
    moved = {id(tensor): move(tensor, "replicate", 0, device) for tensor in tensors}
    # In place of each tensor, deepcopy takes the one in moved; it copies all else.
    return copy.deepcopy(module, moved)


def parallel_apply(replicas, pieces):
    """Run every replica on its own piece, all at once, in threads."""
    with ThreadPoolExecutor(len(pieces)) as threads:
        return list(threads.map(lambda run, piece: run(piece), replicas, pieces))


def gather(outputs):
    """Move every output to device 0, and join them in order."""
    return torch.cat([move(out, "gather", d, 0) for d, out in enumerate(outputs)])


def data_parallel(module, batch, devices):
    """Make the four movements: scatter, replicate, parallel apply, gather."""
    pieces = scatter(batch, devices)
    replicas = [replicate(module, device) for device in range(len(pieces))]
    return gather(parallel_apply(replicas, pieces))


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--rows", type=int, default=64, help="in the batch")
    args, rank, world_size = start(parser)
    if args.rows < 1:
        parser.error(f"--rows must be 1 or more, not {args.rows}")

    dist.init_process_group("gloo", timeout=timedelta(minutes=1))

    # All ranks have the same network and samples, and do not talk: each one tests DP
    # with another number of devices.
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x, y = torch.randn(args.rows, 12).split([8, 4], dim=1)
    weights = list(net.parameters())
    devices = world_size - rank

    for _ in range(3):
        TRAFFIC.clear()  # each step copies the same; the last one is told

        # DP must find the gradient that is found without it. No device divides the sum:
        # the division is in the loss already, a mean over all rows.
        outputs = net(x), data_parallel(net, x, devices)
        losses = [nn.functional.mse_loss(output, y) for output in outputs]
        alone, by_hand = (torch.autograd.grad(loss, weights) for loss in losses)
        torch.testing.assert_close(by_hand, alone, msg="threads find another gradient")

        # Only the module on device 0 steps. The next forward copies its new weights.
        with torch.no_grad():
            for weight, grad in zip(weights, by_hand):
                weight -= 0.1 * grad

    # The phases stand in the order in which they came.
    phases = [*dict.fromkeys(phase for phase, *_ in TRAFFIC)]
    events = []
    for (phase, source, target), size in sorted(TRAFFIC.items()):
        event = {"step": phases.index(phase), "phase": phase, "rank": source}
        events.append(event | {"to": target, "bytes": size})
    save_recording(args.record, [] if rank else events, picture="copies")

    if rank == 0:
        print("device  rows  bytes sent  bytes received")
        # chunk rounds up, so the last devices may get fewer rows, or none.
        rows = [len(piece) for piece in x.chunk(world_size)] + [0] * world_size
        for d in range(world_size):
            sent = sum(event["bytes"] for event in events if event["rank"] == d)
            came = sum(event["bytes"] for event in events if event["to"] == d)
            print(f"{d:6}  {rows[d]:4}  {sent:10}  {came:14}")
        print(f"ok: {world_size} devices find the gradient of one process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
