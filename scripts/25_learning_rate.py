"""Train at several learning rates: more ranks take fewer steps for the same samples.

    torchrun --standalone --nproc-per-node 4 scripts/25_learning_rate.py

Try --size 1, or --lr 0.1. With --record PATH, rank 0 keeps what it did, as JSON lines.
The last line begins with "ok". The lesson: notebooks/25_learning_rate.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors
from torch.nn.parallel import DistributedDataParallel

from shared import Parser, save_recording, start

TRAIN, TEST = 2048, 1000  # samples
BATCH = 16  # samples of a rank in a step
EPOCHS = 2
EVERY = 256  # samples from one score to the next
SEEDS = range(5)
RULES = ("as before", "linear", "warm-up", "square root")

# Near which of ten middles does a sample lie? One seed gives all ranks the same task.
DICE = torch.Generator().manual_seed(0)
MIDDLES = torch.randn(10, 16, generator=DICE, dtype=torch.float64)
LABELS = torch.randint(10, (TRAIN + TEST,), generator=DICE)
INPUTS = torch.normal(MIDDLES[LABELS], 1, generator=DICE)
WANTED = nn.functional.one_hot(LABELS).double()


class Nets(nn.Module):
    """Small networks side by side: the first index of every weight is the seed."""

    def __init__(self, size):
        super().__init__()
        made = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            layers = nn.Linear(16, 32), nn.Linear(32, 10)
            pairs = [(layer.weight.T, layer.bias[None]) for layer in layers]
            made.append([weight for pair in pairs for weight in pair])

        # Larger weights make the task steeper: a small change of a layer does more.
        weights = (size * torch.stack(same).detach().double() for same in zip(*made))
        self.weights = nn.ParameterList(weights)

    def forward(self, inputs):
        w1, b1, w2, b2 = self.weights
        return (inputs @ w1 + b1).relu() @ w2 + b2


def loss(nets, numbers):
    """Return the sum over the networks of how far they miss these samples."""
    misses = nets(INPUTS[numbers]) - WANTED[numbers]
    return misses.square().sum() / numbers.shape[1]


def score(nets):
    """Return of each network how many of 100 test samples it gets right."""
    with torch.no_grad():
        answers = nets(INPUTS[TRAIN:]).argmax(2)
    return (answers == LABELS[TRAIN:]).sum(1) * 100 / TEST


def shuffled(epoch):
    """Return an order of the training samples for each network."""
    dice = [torch.Generator().manual_seed(100 * s + epoch) for s in SEEDS]
    return torch.stack([torch.randperm(TRAIN, generator=die) for die in dice])


def rate(rule, lr, times, epochs):
    """Return the learning rate for a batch that is so many times as large."""
    # Warm-up begins with one rank's rate, and after an epoch it is the linear rule.
    if rule == "warm-up":
        times = 1 + (times - 1) * min(1, epochs)
    factors = {"as before": 1, "square root": times**0.5}
    return lr * factors.get(rule, times)


def train(nets, rule, lr, batch, ranks=(0,), world_size=1):
    """Train on the shares that some ranks have of each batch; return the scores."""
    scores, seen = [score(nets)], 0
    for epoch in range(EPOCHS):
        for numbers in shuffled(epoch).split(batch, dim=1):
            # The rate depends on the samples that all have seen, so the ranks agree.
            now = rate(rule, lr, batch // BATCH, seen / TRAIN)

            # DDP averages. One process that plays all ranks divides by their number.
            nets.zero_grad()
            for rank in ranks:
                share = numbers[:, rank::world_size]
                (loss(nets, share) / len(ranks)).backward()
            with torch.no_grad():
                for weight in nets.parameters():
                    weight -= now * weight.grad
            seen += numbers.shape[1]
            if seen // EVERY >= len(scores):
                scores.append(score(nets))
    return scores


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--size", type=float, default=2.5, help="of first weights")
    parser.add_argument("--lr", type=float, default=0.03, help="of one rank")
    args, rank, world_size = start(parser)
    if not (0 < args.size <= 10 and 0 < args.lr <= 10):
        parser.error("--size and --lr are above 0, 10 at most")
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    batch = BATCH * world_size
    ways = {}
    for rule in RULES:
        setting = (rule, args.lr, batch)
        ddp = DistributedDataParallel(Nets(args.size))
        ways[rule] = train(ddp, *setting, [rank], world_size)

        # One process with all shares gets the same, up to rounding; nan if it diverges.
        if rank == 0:
            one = Nets(args.size)
            train(one, *setting, range(world_size), world_size)
            both = [[*nets.parameters()] for nets in (ddp, one)]
            torch.testing.assert_close(*both, rtol=0, atol=1e-9, equal_nan=True)

    # In the picture one rank, with its own batch and learning rate, comes first.
    events = []
    if rank == 0:
        ways = {"1 rank": train(Nets(args.size), "linear", args.lr, BATCH)} | ways
        for way, scores in ways.items():
            for step, each in enumerate(scores):
                event = {"step": step, "rank": 0, "phase": way}
                events.append(event | {"score": round(each.sum().item() * TEST / 100)})
            row = f"{each.mean():5.1f} right, {each.min():4.1f} to {each.max():.1f}"
            print(f"{way:12}{row}")

    header = {"every": EVERY, "tests": TEST * len(SEEDS)}
    save_recording(args.record, events, picture="paths", **header)
    if rank == 0:
        print(f"ok: {world_size} ranks train as one process that adds gradients up")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
