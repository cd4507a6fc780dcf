"""Train with 32 bits, with 16, and with 16 and a scaled loss: which steps are lost?

    torchrun --standalone --nproc-per-node 4 scripts/24_precision.py

On GPUs: --nproc-per-node gpu. Try --exponent 26, a scale that is too large at first.
With --record PATH, rank 0 keeps each step, as JSON lines. The last line begins with
"ok". The lesson: notebooks/24_precision.ipynb
"""

import gc
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

from shared import Parser, own_device, save_recording, start

WAYS, STEPS = ("32 bits", "16 bits", "16 bits, scaled"), 8


def photo(rank):
    """Return a photo of a million pixels, and how bright each one should become."""
    pixels = torch.ones(1, 1, 1024, 1024)
    return pixels, (1 + rank % 8) / 1000 * pixels


def take_step(ddp, pieces, optimizer, scaler, kind):
    """Take a step with a batch in pieces: scale; then unscale, clip, step, update."""
    optimizer.zero_grad()
    for number, (image, wanted) in enumerate(pieces, 1):
        # The last piece sends the gradients, also those of the pieces before.
        with nullcontext() if number == len(pieces) else ddp.no_sync():
            # Only the forward and the loss stand in autocast: backward takes its types
            # from the forward.
            with torch.autocast(image.device.type, kind, enabled=kind != torch.float32):
                loss = nn.functional.mse_loss(ddp(image), wanted)
            scaler.scale(loss / len(pieces)).backward()

    # Clipping wants gradients in their real length, so unscaling comes first.
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)

    # The step is skipped if a gradient is infinite, and then the scale is halved.
    scaler.step(optimizer)
    scaler.update()


def note_and_average(seen, bucket):
    """Note whether this rank's own gradient is finite; then average, as DDP does."""
    seen.append(bool(bucket.buffer().isfinite().all()))
    return allreduce_hook(None, bucket)


def train(way, exponent, rank, device, events):
    """Take all steps in one way; note the weight, the scale, and who had an inf."""
    model = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    # The first scale is too large by default. After two good steps it doubles.
    scaler = torch.amp.GradScaler(device.type, 2.0**exponent, growth_interval=2)
    scaler = scaler if way == WAYS[2] else torch.amp.GradScaler(enabled=False)

    # The hook sees the rank's own gradient. After the average, an inf of one rank is in
    # the gradients of all.
    ddp = DistributedDataParallel(model)
    seen = []
    ddp.register_comm_hook(seen, note_and_average)
    kind = torch.float32 if way == WAYS[0] else torch.float16
    before = 0.0
    for step in range(1, STEPS + 1):
        event = {"step": step, "rank": rank, "phase": way}
        event["exponent"] = int(scaler.get_scale()).bit_length() - 1
        take_step(ddp, [photo(rank)], optimizer, scaler, kind)

        # If one gradient is infinite, all ranks must skip the step: they compare.
        weight = 1000 * model.weight.item()
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, (weight, scaler.get_scale(), seen[-1]))
        infs = [other for other, state in enumerate(states) if not state[2]]
        if infs and weight != before:
            raise ValueError(f"{way}, step {step} is taken, with an inf on {infs}")
        if len({state[:2] for state in states}) > 1:
            raise ValueError(f"{way}, step {step}: the ranks disagree: {states}")
        before = weight
        event["exact"] = weight
        events.append(event | {"weight": f"{weight:.1f}", "infs": infs})


def compare(events):
    """Check that 16 bits lose each step, and that scaling keeps all that it takes."""
    right, lost, scaled = ([e for e in events if e["phase"] == way] for way in WAYS)
    # The gradient of each pixel is rounded to 0 in 16 bits, so the weight stays at 0.
    if any(event["exact"] for event in lost):
        raise ValueError("16 bits have kept something without a scale")

    # The steps that are taken, one after the other, are those of 32 bits.
    kept = [event["exact"] for event in scaled if not event["infs"]]
    for weight, event in zip(kept, right):
        if abs(weight - event["exact"]) > 0.01 * event["exact"]:
            raise ValueError(f"the weight is {weight}, in 32 bits {event['exact']}")
    return len(kept)


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--exponent", type=int, default=23, help="first scale: 2 ** it")
    args, rank, world_size = start(parser)
    if not 16 <= args.exponent <= 30:
        parser.error(f"--exponent must be 16 to 30, not {args.exponent}")
    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))

    events = []
    for way in WAYS:
        train(way, args.exponent, rank, device, events)
    kept = compare(events)
    for event in events:
        del event["exact"]

    # compare needed all digits of a weight; the picture shows one.
    save_recording(args.record, [] if rank else events, picture="bits")
    if rank == 0:
        print(f"{'thousandths, after step':23}", *(f"{s:5}" for s in range(1, 9)))
        for way in WAYS:
            own = [event for event in events if event["phase"] == way]
            marks = ["skip" if e["infs"] else e["weight"] for e in own]
            print(f"{way:23}", *(f"{mark:>5}" for mark in marks))

        # own is now the way that came last, the one with a scale.
        print(f"{'scale: 2 to the power':23}", *(f"{e['exponent']:5}" for e in own))
        infs = [",".join(map(str, e["infs"])) or "-" for e in own]
        print(f"{'inf on rank':23}", *(f"{ranks:>5}" for ranks in infs))
        print(
            f"ok: on {world_size} ranks 16 bits lose 8 steps, and a scale keeps {kept}"
        )


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
