"""Do by hand what nn.DataParallel does on every step; compare with one process.

    torchrun --standalone --nproc-per-node 4 scripts/02_data_parallel.py
    torchrun --standalone --nproc-per-node gpu scripts/02_data_parallel.py

Rank 0 drives N devices made of threads, rank 1 drives N - 1, and so on. With several
GPUs, rank 0 runs the real one too. What differs each time goes to stderr. Then try:

    --rows 10                a batch that four devices cannot share evenly
    --record parallel.jsonl  keep what was copied in a step, one JSON object per line
    --wrong lost             broken: only device 0's gradients reach the weights
    --wrong stale            broken: copies the weights once, and never again
    --wrong inside           broken: averages losses that unequal shares have found

The last line begins with "ok". The lesson: notebooks/02_data_parallel.ipynb
"""

import argparse
import copy
import gc
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # here: once there is a group, this would keep it alive
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.functional import mse_loss

TRAFFIC = Counter()  # bytes that were copied, by (phase, from, to)
BACK = {"scatter": "scatter back", "replicate": "add up", "gather": "gather back"}
PHASES = {
    "scatter": "Device 0 cuts the batch, and sends every other device its rows.",
    "replicate": "It sends them the weights too: all of them, on every step.",
    "forward": "All devices run at once, in threads: each its copy, on its own rows.",
    "gather": "The outputs travel to device 0.",
    "loss": "Device 0 finds the loss of the whole batch; the others wait.",
    "gather back": "Device 0 sends every device the gradient of its outputs.",
    "backward": "Each device finds the gradient of its copy's weights.",
    "add up": "The gradients travel to device 0, which adds them up.",
    "update": "Device 0 takes the step. The others still hold the old weights.",
}


def move(tensor, phase, source, target):
    """Copy a tensor to another device; its gradient is copied the same way back."""
    if source == target:
        return tensor
    TRAFFIC[phase, source, target] += tensor.nbytes
    moved = tensor.clone()
    if moved.requires_grad:
        moved.register_hook(lambda grad: move(grad, BACK[phase], target, source))
    return moved


def scatter(batch, devices):
    """Cut the batch into pieces of rows, and move one to each device."""
    pieces = batch.chunk(devices)
    return [move(piece, "scatter", 0, d) for d, piece in enumerate(pieces)]


def replicate(module, device):
    """Move what is a tensor; of a module, copy the shell, and replicate its parts."""
    if isinstance(module, torch.Tensor):
        return move(module, "replicate", 0, device)
    replica = copy.copy(module)
    for kind in ("_parameters", "_buffers", "_modules"):
        parts = getattr(module, kind).items()
        setattr(replica, kind, {name: replicate(part, device) for name, part in parts})
    return replica


def parallel_apply(replicas, pieces):
    """Run every replica on its own piece, all at once, in threads."""
    with ThreadPoolExecutor(len(pieces)) as threads:
        return list(threads.map(lambda run, piece: run(piece), replicas, pieces))


def gather(outputs):
    """Move every output to device 0, and join them in order."""
    return torch.cat([move(out, "gather", d, 0) for d, out in enumerate(outputs)])


def network():
    """Return the same small network everywhere: 212 numbers, 848 bytes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def train(x, y, devices, wrong=None):
    """Take a few steps like one process; return rows, copies, gradient of the first."""
    model, first = network(), None
    weights = list(model.parameters())
    for step in (1, 2, 3):
        TRAFFIC.clear()
        model.zero_grad()
        pieces = scatter(x, devices)
        if wrong != "stale" or step == 1:
            replicas = [replicate(model, d) for d in range(len(pieces))]
        outputs = parallel_apply(replicas, pieces)
        if wrong == "lost":
            outputs[1:] = [output.detach() for output in outputs[1:]]
        if wrong == "inside":
            outputs = [mse_loss(*p).view(1) for p in zip(outputs, y.chunk(devices))]
        output = gather(outputs)
        (output.mean() if wrong == "inside" else mse_loss(output, y)).backward()
        rows, grad = [len(piece) for piece in pieces], flat(w.grad for w in weights)
        apart = grad - flat(torch.autograd.grad(mse_loss(model(x), y), weights))
        if apart.abs().max() > 1e-5:
            why = f"in step {step}, one process finds another gradient; rows {rows}"
            held = [flat(replica.parameters()) for replica in replicas]
            old = [d for d, w in enumerate(held) if not w.equal(flat(weights))]
            home = [d for d in range(devices) if ("add up", d, 0) in TRAFFIC]
            raise ValueError(f"{why}, old weights on {old}, gradients from {home}")
        first = first or (rows, TRAFFIC.copy(), grad)
        torch.optim.SGD(weights, lr=0.1).step()
    return first


def real(x, y, devices, expected):
    """Let the real nn.DataParallel do it on GPUs; compare, and tell their memory."""
    model = nn.DataParallel(network().to("cuda:0"), list(range(devices)))
    mse_loss(model(x.to("cuda:0")), y.to("cuda:0")).backward()
    grad = flat(weight.grad for weight in model.parameters()).cpu()
    if not torch.allclose(grad, expected, atol=1e-5):
        raise ValueError("nn.DataParallel finds another gradient than the one by hand")
    most = [torch.cuda.max_memory_allocated(d) for d in range(devices)]
    sys.stderr.write(f"nn.DataParallel agrees; most bytes on each GPU: {most}\n")


def race(rank, world_size, device):
    """Run a forward that is all Python in N threads, then in N processes."""
    slow = [lambda rows: sum(i % 7 for i in range(500_000))] * world_size
    for who, mine in ("threads", [id] if rank else slow), ("processes", slow[:1]):
        dist.barrier()
        begin, used = time.perf_counter(), time.process_time()
        parallel_apply(mine, mine)
        busy = torch.tensor(time.process_time() - used, device=device)
        dist.all_reduce(busy)
        cores = busy.item() / (time.perf_counter() - begin)
        if rank == 0:
            sys.stderr.write(f"{world_size} {who} kept {cores:.1f} cores busy\n")


def tell(traffic, rows, devices):
    """Return one step as events: what each device does, and what it sends."""
    events = []
    work = {"forward": len(rows), "loss": 1, "backward": len(rows), "update": 1}
    for step, phase in enumerate(PHASES):
        moving = {device for way in traffic if way[0] == phase for device in way[1:]}
        for lane in range(devices):
            kind = "work" if phase in work else "message"
            busy = lane in moving or lane < work.get(phase, 0)
            event = {"step": step, "rank": lane, "lane": lane, "begin": step}
            named = kind == "work" or lane == 0  # elsewhere stands how many bytes
            event |= {"end": step + 1, "kind": kind, "what": phase if named else ""}
            events.append(event if busy else event | {"kind": "wait", "what": "idle"})
            for to in range(devices):
                if size := traffic[phase, lane, to]:
                    events.append(event | {"to": to, "what": f"{size} B"})
    return events


def save_recording(path, header, events):
    """Return all ranks' events by step and rank; rank 0 writes them, one a line."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, events)
    rows = sorted(sum(gathered, []), key=lambda event: (event["step"], event["rank"]))
    if path and dist.get_rank() == 0:
        part = Path(f"{path}.part")
        part.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
        part.replace(path)
    return rows


def stop(message):
    """End with one line, from rank 0, and exit code 2."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"{Path(__file__).name}: {message}\n")
    else:
        time.sleep(1)  # the first rank to leave ends the others
    sys.exit(2)


@errors.record
def main():
    parser = argparse.ArgumentParser(usage="see the top of this script")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--wrong", choices=["lost", "stale", "inside"])
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.rows < 1:
        stop(f"--rows must be 1 or more, not {args.rows}")
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    torch.manual_seed(1)
    x, y = torch.randn(args.rows, 12).split([8, 4], dim=1)
    rows, traffic, grad = train(x, y, world_size - rank, None if rank else args.wrong)
    if min(world_size, torch.cuda.device_count()) > 1 and rank == 0:
        real(x, y, min(world_size, torch.cuda.device_count()), grad)  # before all meet
    expected = grad.to(device, copy=True)
    dist.broadcast(expected, src=0)
    if not torch.allclose(grad, expected.cpu(), atol=1e-5):
        raise ValueError(f"{world_size - rank} devices find another gradient")
    race(rank, world_size, device)
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "timeline"}
    header |= {"title": "One step of nn.DataParallel", "phases": PHASES}
    header |= {"lanes": [f"device {d}" for d in range(world_size)]}
    save_recording(args.record, header, [] if rank else tell(traffic, rows, world_size))
    if rank == 0:
        print("device  rows  bytes sent  bytes received")
        for d, count in enumerate(rows + [0] * (world_size - len(rows))):
            sent = sum(size for way, size in traffic.items() if way[1] == d)
            came = sum(size for way, size in traffic.items() if way[2] == d)
            print(f"{d:6}  {count:4}  {sent:10}  {came:14}")
        print(f"ok: {world_size} devices find the gradient of one process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
