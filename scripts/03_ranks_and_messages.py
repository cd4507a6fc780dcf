"""Let processes that share nothing meet, and agree on a sum by messages alone.

    torchrun --standalone --nproc-per-node 4 scripts/03_ranks_and_messages.py
    torchrun --standalone --nproc-per-node gpu scripts/03_ranks_and_messages.py

The first line needs no GPU; the second gives each GPU a rank. Then try:

    --show meet           one experiment: meet, carry, bits, swap, groups; or a
                          broken one: blocked, absent, own_group
    --record flow.jsonl   keep what every rank had and gave, one JSON object per line

The last line begins with "ok". The lesson: notebooks/03_ranks_and_messages.ipynb
"""

import argparse
import gc
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import errors

PHASES = {
    "numbers": "Each rank has one number: its rank + 1.",
    "there": "Chain: each adds its own to what comes from the left.",
    "back": "Chain: the last one has the sum, and it is passed back.",
    "circle": "Circle: all pass on, to the right, what came last, and add it.",
}
KINDS = [torch.int64, torch.float32, torch.bfloat16, torch.int16, torch.complex64]


def chain(rank, size, number, see):
    """Add up to the right, one rank after another, and pass the sum back."""
    came = torch.zeros_like(number)
    for giver in range(size - 1):
        if rank == giver:
            dist.send(number, giver + 1)
        elif rank == giver + 1:
            dist.recv(came, giver)
            number += came
        see("there", number, giver, giver + 1)
    for giver in range(size - 1, 0, -1):
        if rank == giver:
            dist.send(number, giver - 1)
        elif rank == giver - 1:
            dist.recv(number, giver)
        see("back", number, giver, giver - 1)


def circle(rank, size, number, see):
    """All at once, pass on to the right what came last from the left, and add it."""
    right, left = (rank + 1) % size, (rank - 1) % size
    given, came = number.clone(), torch.zeros_like(number)
    for _ in range(size - 1):
        exchange(given, right, came, left)
        number += came
        see("circle", number, rank, right, given)
        given = came.clone()


def exchange(given, to, came, source, group=None):
    """Begin to send and to receive, both at once, and only then wait for both."""
    both = [dist.P2POp(dist.isend, given, to, group)]
    both += [dist.P2POp(dist.irecv, came, source, group)]
    for request in dist.batch_isend_irecv(both):
        request.wait()


def swap(rank, size):
    """Begin to send right, begin to receive from the left, and then wait for both."""
    own, came = torch.tensor([[rank + 1], [0]])
    if size > 1 and dist.get_backend() == "gloo":  # nccl wants both at once
        requests = [dist.isend(own, (rank + 1) % size)]
        requests += [dist.irecv(came, (rank - 1) % size)]
        for request in requests:
            request.wait()
        yield columns("isend, irecv", from_all(came.item()))
    if size > 1:
        exchange(own, (rank + 1) % size, came, (rank - 1) % size)
        yield columns("batch", from_all(came.item()))


def bits(rank, size):
    """Agree on a sum of fractions by chain and by circle, and see if all have it."""
    for way in (chain, circle):
        number = torch.tensor([(rank + 1) / 10], dtype=torch.float64)
        way(rank, size, number, lambda *_: None)
        yield columns(way.__name__, from_all(number.item()), 20)


def blocked(rank, size):
    """Broken: everyone sends right before it receives, if only a message of 0 bytes."""
    nothing = torch.zeros(0)
    dist.send(nothing, (rank + 1) % size)
    dist.recv(nothing, (rank - 1) % size)


def absent(rank, size):
    """Broken: the last rank is busy elsewhere, and the others are in the chain."""
    if rank == size - 1:
        time.sleep(20)
    chain(rank, size, labelled(rank + 1), lambda *_: None)


def meet(rank, size):
    """Meet by environment, then at an address, then through a file."""
    where, backend = os.environ["MASTER_ADDR"], dist.get_backend()
    port = int(os.environ["MASTER_PORT"])
    yield columns("env://", from_all(rank)) + f"   open to {callers(port)}"
    place = [0, ""]
    if rank == 0:
        with socket.socket() as free:
            free.bind((where, 0))  # any port that is free
            place = [free.getsockname()[1], tempfile.mkdtemp()]
    dist.broadcast_object_list(place, 0)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # rank 0 listens, not torchrun
    for method in (f"tcp://{where}:{place[0]}", f"file://{place[1]}/meeting"):
        dist.destroy_process_group()
        how = {"init_method": method, "rank": rank, "world_size": size}
        dist.init_process_group(backend, timeout=timedelta(minutes=1), **how)
        who = f"   open to {callers(place[0])}" * method.startswith("tcp")
        yield columns(method.partition("//")[0] + "//", from_all(rank)) + who
    if rank == 0:
        shutil.rmtree(place[1])


def callers(port):
    """Return who may call at a port of this machine, where Linux tells."""
    for table in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            _, here, _, state, *_ = line.split()
            address, _, number = here.partition(":")
            if state == "0A" and int(number, 16) == port:  # it listens there
                return "any machine" if set(address) == {"0"} else "this machine"
    return "I can't tell whom"


def carry(rank, size):
    """Try every call with every kind of number, on each backend there is here."""
    ways, said = [("gloo", "cpu")] + [("gloo", "cuda")] * torch.cuda.is_available(), []
    if dist.get_backend() == "nccl":
        ways += [("nccl", "cuda"), ("nccl", "cpu")]
    for backend, device in ways:
        group = dist.new_group(backend=backend, timeout=timedelta(seconds=20))
        yield columns(f"{backend}, {device}", [str(kind)[6:] for kind in KINDS], 11)
        for name in calls(rank, size, KINDS[0], device, group):
            found = ["yes"] * len(KINDS)
            for i, kind in enumerate(KINDS):
                error = refusal(calls(rank, size, kind, device, group)[name])
                same = {bool(e) for e in from_all(error)} == {bool(error)}
                must(same, f"{name} of {kind}: not on all ranks: {error}")
                if error:
                    said += [error] * (error not in said)
                    found[i] = f"no({said.index(error) + 1})"
            yield columns(name, found, 11)
    yield from (f"({i}) {error}" for i, error in enumerate(said, 1))


def calls(rank, size, kind, device, group):
    """Return every call, ready to be made with numbers of a kind."""
    own, other = torch.ones(2, 1, dtype=kind, device=device)
    each = list(torch.ones(size, 1, dtype=kind, device=device))
    given, mean = torch.ones(2, size, dtype=kind, device=device)[0], dist.ReduceOp.AVG
    right, left, mine = (rank + 1) % size, (rank - 1) % size, rank == 0
    found = {
        "broadcast": lambda: dist.broadcast(own, 0, group),
        "scatter": lambda: dist.scatter(own, each if mine else None, 0, group),
        "gather": lambda: dist.gather(own, each if mine else None, 0, group),
        "reduce": lambda: dist.reduce(own, 0, group=group),
        "all_gather": lambda: dist.all_gather(each, own, group),
        "all_to_all": lambda: dist.all_to_all_single(given.clone(), given, group=group),
        "all_reduce": lambda: dist.all_reduce(own, group=group),
        "all_reduce, mean": lambda: dist.all_reduce(own, mean, group),
        "reduce_scatter": lambda: dist.reduce_scatter(own, each, group=group),
    }
    message = {"send, recv": lambda: exchange(own, right, other, left, group)}
    return message | found if size > 1 else found


def refusal(call):
    """Make a call; return the first line of its error, or an empty text."""
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{error}".partition("\n")[0]
    return ""


def groups(rank, size):
    """Add up among even ranks and among odd ones: every rank helps to make both."""
    even, odd = (dist.new_group(list(range(size))[i::2] or [0]) for i in (0, 1))
    total = torch.tensor([rank + 1])
    dist.all_reduce(total, group=odd if rank % 2 else even)
    yield columns("sum", from_all(total.item()))


def own_group(rank, size):
    """Broken: each rank makes its own group only, and two of them come late."""
    time.sleep(rank % 4 in (1, 2))
    team = list(range(size))[rank % 2 :: 2]
    own = labelled(rank + 1)
    dist.all_reduce(own, group=dist.new_group(team))
    found = unlabelled(own)[1:]
    if rank == 0:
        must(found == team, f"rank 0 of the group {team} added up ranks {found}")


def labelled(value):
    """Return a number that says whose it is: zeros, but for this rank's place."""
    places = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    places[dist.get_rank()] = value
    return places


def unlabelled(places):
    """Return a number, and the ranks that are in it."""
    return [int(places.sum()), *places.nonzero().flatten().tolist()]


def from_all(value):
    """Return what each rank has."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def columns(what, values, width=8):
    """Return a line of a table, with a column for each rank."""
    return f"{what:16}" + "".join(f"{value!s:>{width}}" for value in values)


def must(true, message):
    """Raise ValueError if torch does not behave as this script says."""
    if not true:
        raise ValueError(message)


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


EXPERIMENTS = {each.__name__: each for each in [meet, carry, bits, swap, groups]}
BROKEN = {each.__name__: each for each in [blocked, absent, own_group]}


@errors.record
def main():
    parser = argparse.ArgumentParser(usage="see the top of this script")
    parser.add_argument("--show", choices=[*EXPERIMENTS, *BROKEN], metavar="NAME")
    parser.add_argument("--record", type=Path)
    parser.error = stop
    args = parser.parse_args()
    if "RANK" not in os.environ:
        stop(f"try torchrun --standalone --nproc-per-node 4 {sys.argv[0]}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.show in BROKEN and world_size == 1:
        stop(f"--show {args.show} breaks nothing on one rank: take two or more")
    if args.show == "own_group" and world_size != 4:
        stop(f"--show own_group tells of four ranks, not of {world_size}")
    if args.record and args.show:
        stop(f"--record keeps the chain and the circle, not {args.show}")
    if args.record and not args.record.absolute().parent.is_dir():
        stop(f"--record: there is no folder {args.record.parent}")

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    torch.set_default_device(device)
    limit = timedelta(seconds=5 if args.show == "absent" else 60)
    dist.init_process_group(backend, timeout=limit)
    events, lines = [], []

    def see(phase, number, giver=None, taker=None, given=None):
        event = {"step": len(events), "rank": rank, "phase": phase}
        event["holds"] = {"sum": [unlabelled(number)]}
        sent = unlabelled(number if given is None else given)
        event["sends"] = [[taker, "sum", [sent]]] if rank == giver else []
        events.append(event)

    if args.show in EXPERIMENTS:
        lines += EXPERIMENTS[args.show](rank, world_size)
    elif args.show in BROKEN:
        BROKEN[args.show](rank, world_size)
        dist.barrier()  # the next call of those who came through
        must(False, f"{args.show} did not fail on {world_size} ranks")
    else:
        for way in (chain, circle):
            number, first = labelled(rank + 1), len(events)
            see("numbers", number)
            way(rank, world_size, number, see)
            total = world_size * (world_size + 1) // 2
            must(number.sum() == total, f"{way.__name__}: {number}, not {total}")
            steps = len(events) - first - 1
            sent = sum(from_all(sum(len(e["sends"]) for e in events[first:])))
            lines.append(columns(way.__name__, from_all(int(number.sum())), 5))
            lines[-1] += f"   {sent} messages in {steps} step{'s' * (steps != 1)}"
    header = {"lesson": Path(__file__).stem, "ranks": world_size, "picture": "flow"}
    save_recording(args.record, header | {"phases": PHASES, "pace": 2}, events)
    if rank == 0:
        for line in lines:
            print(line)
        print(f"ok: {world_size} ranks, and torch does what this script says")


if __name__ == "__main__":
    main()
    gc.collect()  # what main leaves behind can keep the group alive
    dist.destroy_process_group()
