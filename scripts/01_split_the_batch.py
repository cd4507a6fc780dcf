"""Split a batch among ranks, average their gradients; compare with one process.

    torchrun --standalone --nproc-per-node 4 scripts/01_split_the_batch.py
    torchrun --standalone --nproc-per-node gpu scripts/01_split_the_batch.py

The first line needs no GPU; the second gives each GPU a rank. Then try:

    --samples 10             a batch that four ranks cannot share evenly
    --record split.jsonl     keep what every rank held, one JSON object per line
    --wrong sum              broken: adds the gradients, and forgets to divide
    --wrong means            broken: averages means over unequal numbers of samples
    --wrong reduced-loss     broken: averages the loss, and then runs backward
    --wrong norm             unequal: BatchNorm sees a share, not the batch
    --wrong dropout          unequal: each rank draws other numbers to drop

The last line begins with "ok". The lesson: notebooks/01_split_the_batch.ipynb
"""

import argparse
import gc
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors

X = [1.0, 2.0, 1.0, 2.0, 3.0, 2.0, 2.0, 3.0]  # eight samples for a model of one weight
Y = [0.0, 0.0, 1.0, -3.0, 2.0, -1.0, 1.0, 1.0]
STEPS, RATE = 3, 0.1
WRONG = ["sum", "means", "reduced-loss", "norm", "dropout"]
PHASES = {
    "start": "The same weight everywhere; in the middle, all samples, each with its slope.",
    "split": "Each rank takes every N-th sample, from its own place on.",
    "backward": "Each rank finds the mean of its own slopes, and one process that of all.",
    "all-reduce": "Add up over all ranks, divide by their number: the mean of the means.",
    "step": "The same weight and the same gradient make the same new weight.",
}


def share(samples, rank, world_size):
    """Each rank takes every world_size-th sample, from its own number on."""
    return samples[rank::world_size]


def gradient(w, x, y):
    """Return the slope of the mean of (w * x - y)**2 / 2 at w."""
    w = w.clone().requires_grad_()
    loss = ((w * x - y) ** 2 / 2).mean()
    loss.backward()
    return w.grad


def average_gradients(model, samples):
    """Add up over all ranks the gradients of sums, and divide by all samples."""
    count = torch.tensor(float(samples))
    dist.all_reduce(count)
    for weight in model.parameters():
        dist.all_reduce(weight.grad)
        weight.grad /= count


def one_weight(rank, world_size, note):
    """Take one step with numbers for the head; return a table of what each rank had."""
    times = -(-world_size // len(X))  # with more than eight ranks, repeat the samples
    x, y = (torch.tensor(values * times) for values in (X, Y))
    numbers, everyone = range(len(x)), range(world_size)
    w = torch.ones(())
    slopes = [short(slope) for slope in x * (w * x - y)]
    batch = [[slopes[number], number % world_size] for number in numbers]
    mine = [[slopes[number], rank] for number in share(numbers, rank, world_size)]
    alone = gradient(w, x, y)
    note("start", {"w": [[1]]}, {"w": [[1]], "slopes": batch})

    sends = [[r, "slopes"] for r in everyone]
    now, one = {"w": [[1]], "slopes": mine}, {"w": [[1]], "slopes": batch}
    note("split", now, one, sends)

    grad = gradient(w, share(x, rank, world_size), share(y, rank, world_size))
    now, one = now | {"grad": [[short(grad), rank]]}, one | {"grad": [[short(alone)]]}
    note("backward", now, one)

    row = torch.stack([torch.tensor(float(len(mine))), grad])
    rows = [torch.empty_like(row) for _ in everyone]
    dist.all_gather(rows, row)
    dist.all_reduce(grad)
    grad /= world_size
    now = now | {"grad": [[short(grad), *everyone]]}
    note("all-reduce", now, one, call="all_reduce")

    after, best = short(w - 0.25 * grad), short(w - 0.25 * alone)
    note("step", now | {"w": [[after]]}, one | {"w": [[best]]})
    if len(x) % world_size == 0 and not torch.allclose(grad, alone):
        raise ValueError(f"the mean of equal shares is {grad}, not {alone}")
    by_count = sum(count * mean for count, mean in rows) / len(x)
    if not torch.allclose(by_count, alone):
        raise ValueError(f"the mean by count is {by_count}, not {alone}")
    lines = ["rank  samples  mean gradient"]
    lines += [f"{r:4}  {int(row[0]):7}  {row[1]:13.3f}" for r, row in enumerate(rows)]
    lines += [f"mean of the means        {grad:.3f}"]
    lines += [f"mean by count            {by_count:.3f}"]
    return [*lines, f"one process              {alone:.3f}"]


def short(value):
    """Return a number for a recording: whole if it is whole."""
    value = round(float(value), 2)
    return int(value) if value == int(value) else value


def network(wrong):
    """Return the same small network on every rank."""
    torch.manual_seed(0)
    more = {"norm": [nn.BatchNorm1d(8)], "dropout": [nn.Dropout()]}.get(wrong, [])
    with torch.device("cpu"):  # where all machines draw the same numbers
        layers = nn.Linear(4, 8), *more, nn.Tanh(), nn.Linear(8, 1)
    return nn.Sequential(*layers).double().to(torch.get_default_device())


def train(model, x, y, average):
    """Take a few steps down the slope."""
    for _ in range(STEPS):
        model.zero_grad()
        average(model, (model(x) - y) ** 2)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= RATE * weight.grad
    return torch.cat([weight.flatten() for weight in model.parameters()]).detach()


def compare(rank, world_size, samples, wrong):
    """Train on shares and on the whole batch; raise ValueError if the ends differ."""

    def backward(model, losses):
        if wrong in ("sum", "means"):
            losses.mean().backward()
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
                weight.grad /= world_size if wrong == "means" else 1
        elif wrong == "reduced-loss":
            loss = losses.mean()
            dist.all_reduce(loss)
            (loss / world_size).backward()
        else:
            losses.sum().backward()
            average_gradients(model, len(losses))

    torch.manual_seed(1)
    batch = torch.randn(samples, 5, device="cpu").to(torch.get_default_device())
    x, y = batch.double().split([4, 1], dim=1)
    alone = train(network(wrong), x, y, lambda model, losses: losses.mean().backward())
    model = network(wrong)
    torch.manual_seed(rank)
    mine = (share(values, rank, world_size) for values in (x, y))
    weights = train(model, *mine, backward)
    ends = [torch.empty_like(weights) for _ in range(world_size)]
    dist.all_gather(ends, weights)
    for other, end in enumerate(ends):
        if not torch.equal(end, ends[0]):
            apart = (end - ends[0]).abs().max()
            raise ValueError(f"ranks 0 and {other} end {apart:.3f} apart")
    if not torch.allclose(weights, alone):
        apart = (weights - alone).abs().max()
        raise ValueError(f"the ranks agree, but end {apart:.3f} from one process")


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
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--wrong", choices=WRONG)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.samples < world_size:
        stop(f"--samples must be {world_size} or more, one for each rank")
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))
    events = []

    def note(phase, mine, alone, sends=(), call=None):
        event = {"step": len(events) // (1 + (rank == 0)), "rank": rank, "phase": phase}
        more = {"call": call} if call else {}
        if rank == 0:  # beside the ranks, what one process would have
            first = {"rank": -1, "holds": alone} | ({"sends": sends} if sends else {})
            events.append(event | first)
        events.append(event | {"holds": mine} | more)

    lines = one_weight(rank, world_size, note)
    compare(rank, world_size, args.samples, args.wrong)
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "flow"}
    save_recording(args.record, header | {"phases": PHASES}, events)
    if rank == 0:
        for line in lines:
            print(line)
        print(f"ok: {world_size} ranks end {STEPS} steps where one process ends them")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
