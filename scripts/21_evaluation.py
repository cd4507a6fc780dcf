"""Test a model on all ranks in four ways: only one agrees with one process.

    torchrun --standalone --nproc-per-node 4 scripts/21_evaluation.py

GPUs and NCCL are used if each rank has its own, else CPUs and gloo. Try 8 ranks, or
--samples 3. With --record PATH, rank 0 keeps who tests what in each way, one JSON
object per line. The last line begins with "ok". The lesson:
notebooks/21_evaluation.ipynb
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors
from torch.utils.data import DistributedSampler

from shared import Parser, own_device, save_recording, start

SCORES = [-5, -7, -2, 2, 3, 6, 7, -3, 8, -4, 5]  # above 0, the model says class 1
LABELS = [1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0]
WAYS = "mean of means", "padded", "drop_last", "exact"


def results(samples):
    """Return scores and labels, and for each sample 1 if the model is right, or 0."""
    scores, labels = torch.tensor([SCORES, LABELS])[:, :samples]
    return scores, labels, ((scores > 0) == labels).double()


def share(way, samples, rank, world_size):
    """Return the samples that this rank tests."""
    # The sampler fills an incomplete last round with first samples, or cuts it off.
    if way in ("padded", "drop_last"):
        options = {"shuffle": False, "drop_last": way == "drop_last"}
        return list(DistributedSampler(range(samples), world_size, rank, **options))
    # Here no sample comes twice and none is missing, but some shares may be shorter.
    return list(range(rank, samples, world_size))


def accuracy(way, mine):
    """Average the ranks' means; or add up sums and counts, and divide last."""
    # Here a sample of a short share counts more than a sample of a long one.
    if way == "mean of means":
        mean = mine.mean()
        dist.all_reduce(mean)
        return mean / dist.get_world_size()

    # Here each sample counts once, and an empty share adds 0 to both sums.
    totals = torch.stack([mine.sum(), mine.new_tensor(len(mine))])
    dist.all_reduce(totals)
    return totals[0] / totals[1]


def gather(mine, samples):
    """Fill up to the longest share; return a row for each round, a column a rank."""
    world_size = dist.get_world_size()
    longest = -(-samples // world_size)  # rounded up

    # all_gather needs equal lengths, so shorter shares are filled with 0.
    filled = torch.nn.functional.pad(mine, (0, longest - len(mine)))
    shares = [torch.empty_like(filled) for _ in range(world_size)]
    dist.all_gather(shares, filled)

    # Row by row, the table has the order of the data set, and the filling comes last.
    return torch.stack(shares, dim=1)


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--samples", type=int, default=11, help="in the test set")
    args, rank, world_size = start(parser)
    if not 1 <= args.samples <= len(SCORES):
        parser.error(f"--samples must be 1 to {len(SCORES)}, not {args.samples}")
    device, backend = own_device()
    torch.set_default_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=1))

    # What one process with all samples finds.
    scores, _, right = results(args.samples)
    truth = right.mean()
    predictions = (scores > 0).long()

    accuracies = {}
    events = []
    for step, way in enumerate(WAYS):
        tests = share(way, args.samples, rank, world_size)
        accuracies[way] = accuracy(way, right[tests])
        event = {"step": step, "rank": rank, "phase": way, "tests": tests}
        event |= {"right": right[tests].int().tolist()}
        events.append(event | {"accuracy": f"{accuracies[way]:.1%}"})
    torch.testing.assert_close(accuracies["exact"], truth)

    # The exact way came last, so tests is this rank's share of it, each sample once.
    # Round by round, and without the filling, the predictions are in order again.
    ordered = gather(predictions[tests], args.samples).flatten()[: args.samples]
    if not torch.equal(ordered, predictions):
        raise ValueError(f"gathered {ordered}, but one process has {predictions}")

    rows = save_recording(args.record, events, picture="tests")
    if rank == 0:
        print(f"one process   tests {args.samples:2}: {truth:6.1%}")
        for way in WAYS:
            tested = sum(len(row["tests"]) for row in rows if row["phase"] == way)
            off = f"{100 * (accuracies[way] - truth):+z.1f}"  # z: a zero has no minus
            print(f"{way:13} tests {tested:2}: {accuracies[way]:6.1%}, {off:>5} points")
        print("predictions", *ordered.tolist())
        print(f"ok: {world_size} ranks; exact, and in order, as in one process")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
