"""Let ranks hang, and ask each rank's flight recorder: who is at fault?

    torchrun --standalone --nproc-per-node 4 scripts/33_when_it_breaks.py

Try --timeout 5, the seconds that a call may wait. With --record PATH, rank 0 keeps
which call each rank made or waited in, as JSON lines. The last line begins with "ok".
The lesson: notebooks/33_when_it_breaks.ipynb
"""

import gc
import json
from datetime import timedelta
from statistics import multimode

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

from shared import Parser, save_recording, start

FAULTS = ("no fault", "a step too few", "a call too many")


def plan(fault, rank, world_size):
    """Return the calls of a loop of four steps; a fault changes those of one rank."""
    calls = [f"step {step}" for step in (1, 2, 3, 4)]
    if fault == "a step too few" and rank == world_size - 1:
        calls.remove("step 3")  # its batch was empty, so it went on to the next
    if fault == "a call too many" and rank == 0:
        calls.insert(2, "barrier")  # it stands inside of `if rank == 0:`
    return calls


def make(calls, group):
    """Make the calls; return how many ended, and the error of the next one."""
    # A call that failed is the last one: its group is of no use any more.
    for ended, call in enumerate(calls):
        try:
            if call == "barrier":
                dist.barrier(group)
            else:
                dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            return ended, str(error)
    return len(calls), None


def begun(group):
    """Return the calls that this rank has begun in a group: its flight recorder."""
    box = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    # The box has the calls of all groups. Only those of this one are compared.
    own = [e for e in box["entries"] if e["process_group"][0] == group.group_name]
    return [entry["profiling_name"].removeprefix("gloo:") for entry in own]


def at_fault(boxes):
    """Return which ranks are unlike most others, and in what."""
    counts, last_calls = [len(box) for box in boxes], [box[-1] for box in boxes]

    # First compare how many calls were begun. If that is equal, compare the last calls.
    for what, values in (("number of calls", counts), ("last call", last_calls)):
        # The most frequent value, or several: of two ranks, neither is in the majority.
        usual = multimode(values)
        unlike = [rank for rank, value in enumerate(values) if [value] != usual]
        if unlike:
            return unlike, what
    return [], "nothing"


@errors.record  # torchrun hears of an exception in here
def main():
    parser = Parser(__doc__)
    parser.add_argument("--timeout", type=float, default=1, metavar="SECONDS")
    args, rank, world_size = start(parser)
    if not 0.1 <= args.timeout <= 30:
        parser.error(f"--timeout must be 0.1 to 30, not {args.timeout:g}")

    dist.init_process_group("gloo", timeout=timedelta(minutes=1))
    events = []
    boxes = [None] * world_size
    rank_at_fault = {"a step too few": world_size - 1, "a call too many": 0}
    for fault in FAULTS:
        # After a time-out a group is of no use any more: each fault gets a new one.
        group = dist.new_group(timeout=timedelta(seconds=args.timeout))
        # All begin together, so nobody's time-out runs while another one is still late.
        dist.barrier()
        calls = plan(fault, rank, world_size)
        ended, error = make(calls, group)

        # The boxes come together over the world's group: it has failed nowhere, and
        # waits longer than --timeout.
        dist.all_gather_object(boxes, begun(group))

        # After the calls that ended comes the one that the rank still waited in.
        for number, call in enumerate(calls[: ended + 1]):
            kind = "work" if number < ended else "wait"
            event = {"step": number, "rank": rank, "phase": fault}
            events.append(event | {"what": call, "kind": kind})

        # The boxes must point at the rank that is at fault, or at nobody if none is.
        # (One rank alone waits for nobody.)
        ranks, what = at_fault(boxes)
        odd_one = rank_at_fault.get(fault)
        right = odd_one in ranks if fault in rank_at_fault else not ranks
        if world_size > 1 and not right:
            raise ValueError(f"{fault}: the boxes point at {ranks}")
        if rank == 0:
            verdict = f"unlike in its {what}: {ranks}" if ranks else "all alike"
            counts = " ".join(str(len(box)) for box in boxes)
            print(f"{fault:15}  calls begun {counts}  {verdict}")

    save_recording(args.record, events, picture="waits")
    if rank == 0:
        print(f"ok: on {world_size} ranks the recorders point at the rank at fault")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    if dist.is_initialized():
        dist.destroy_process_group()
