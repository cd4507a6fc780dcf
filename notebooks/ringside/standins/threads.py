"""Runs a program as simulated ranks: threads that share nothing but mailboxes.

Or nothing but rows of memory, and barriers.
"""

import ctypes
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..recording import Notes, Recording

PATIENCE = 2  # seconds to wait at a barrier that somebody may never reach
LONGEST = 10  # seconds that a program may take


@dataclass
class Simulated:
    """What became of a simulation: each rank's tensor, and what passed, by rank."""

    grads: list[torch.Tensor]
    messages: list[int]
    sent: list[int]
    received: list[int]
    notes: Notes | None = None  # of a ring


def simulate(
    program: Callable, grads: list[torch.Tensor], blocking: bool = False
) -> Simulated:
    """Run program(rank, world_size, grad, send, recv) once per tensor, all at once.

    send(to, tensor) puts a copy into a mailbox and goes on, or, if blocking, waits
    until it is taken out; recv(source) waits for one.
    """
    size = len(grads)
    boxes = {(a, b): deque() for a in range(size) for b in range(size)}
    moved = threading.Condition()  # held by whoever looks into a box
    waiting: dict[int, Callable] = {}  # by rank: has come what it waits for?
    done = Simulated([g.clone() for g in grads], [0] * size, [0] * size, [0] * size)

    def wait(rank: int, comes: Callable, text: str, other: int) -> None:
        """Wait until something comes, or until no rank can bring it any more."""
        waiting[rank] = comes
        while not comes():
            if len(waiting) == size and not any(true() for true in waiting.values()):
                raise TimeoutError(text, other)
            moved.wait()
        del waiting[rank]

    def one(rank: int) -> None:
        def send(to: int, tensor: torch.Tensor) -> None:
            if not isinstance(tensor, torch.Tensor):
                raise TypeError("it is send(to, tensor): the receiver comes first")
            if to not in range(size):
                raise ValueError(f"rank {rank} sends to rank {to}, which is not there")
            done.messages[rank] += 1
            done.sent[rank] += tensor.nbytes
            box = boxes[rank, to]
            with moved:
                box.append(copy := tensor.clone())
                moved.notify_all()
                if blocking:
                    here = lambda: not any(kept is copy for kept in box)  # noqa: E731
                    wait(rank, here, f"rank {rank} sends to rank {to}", to)

        def recv(source: int, *more) -> torch.Tensor:
            if more:
                raise TypeError("it is recv(source), which returns a tensor")
            if source not in range(size):
                text = f"rank {rank} receives from rank {source}, which is not there"
                raise ValueError(text)
            box = boxes[source, rank]
            with moved:
                wait(rank, lambda: box, f"rank {rank} waits for rank {source}", source)
                tensor = box.popleft()
                moved.notify_all()
            done.received[rank] += tensor.nbytes
            return tensor

        try:
            program(rank, size, done.grads[rank], send, recv)
        finally:
            with moved:
                waiting[rank] = lambda: False  # it has ended, and moves nothing more
                moved.notify_all()

    errors = at_once(one, size)
    if errors:
        stuck = [r for r in errors if isinstance(errors[r], TimeoutError)]
        if wrong := set(errors) - set(stuck):
            raise errors[min(wrong)]
        alone = [r for r in stuck if errors[r].args[1] not in stuck]
        text = errors[min(alone or stuck)].args[0]
        does = "does not answer" if alone else "waits, too"
        raise TimeoutError(f"{text}, which {does}")
    return done


def simulate_ring(phases: list[Callable], grads: list[torch.Tensor]) -> Simulated:
    """Run the phases of a ring as simulated ranks, and keep notes of each step.

    A phase is phase(rank, world_size, exchange). exchange(send, add_to=chunk) sends a
    chunk right and adds the one from the left; with keep_in, it replaces what is there.
    """
    notes = Notes()

    def program(rank: int, world_size: int, grad: torch.Tensor, send, recv) -> None:
        chunks = grad.tensor_split(world_size)  # views: a change is one of grad

        def exchange(out: int, add_to: int | None = None, keep_in: int | None = None):
            into = keep_in if add_to is None else add_to
            phase = "allgather" if add_to is None else "scatter-reduce"
            notes.add(rank, chunks, phase, send=out, recv=into)
            send((rank + 1) % world_size, chunks[out])
            arrived = recv((rank - 1) % world_size)
            chunks[into].copy_(arrived if add_to is None else chunks[into] + arrived)

        for phase in phases:
            phase(rank, world_size, exchange)
        notes.add(rank, chunks)

    done = simulate(program, grads)
    done.notes = notes
    return done


def at_barriers(program: Callable, ranks: int) -> Recording:
    """Run program(tensor, rows, rank, world_size); keep what all hold at each barrier.

    Chunk c of rank r begins as (c + 1) * 10 ** r, and the rows begin empty.
    """
    own = [torch.arange(1, ranks + 1) * 10**rank for rank in range(ranks)]
    rows, seen = torch.zeros(ranks, ranks, dtype=torch.int64), []
    phases = iter(["begin", "lay out", "add", "fetch"])

    def note() -> None:
        phase, step = next(phases), len(seen) // ranks
        for rank in range(ranks):
            event = {"step": step, "rank": rank, "phase": phase}
            now = {"chunks": own[rank].tolist(), "row": rows[rank].tolist()}
            seen.append(event | now)

    def one(rank: int) -> None:
        dist.barrier()
        program(own[rank], rows, rank, ranks)
        dist.barrier()

    real, wait = dist.barrier, threading.Barrier(ranks, action=note).wait
    dist.barrier = lambda: wait(PATIENCE)
    try:
        if errors := at_once(one, ranks).values():
            waited = threading.BrokenBarrierError  # for the one that really failed
            raise min(errors, key=lambda error: isinstance(error, waited))
    finally:
        dist.barrier = real
    return Recording(seen, picture="rows", ranks=ranks)


def at_once(work: Callable, count: int) -> dict[int, Exception]:
    """Run work(rank) in a thread for each rank; return what they raised, by rank."""
    errors = {}

    def one(rank: int) -> None:
        try:
            work(rank)
        except Exception as error:  # noqa: BLE001 it is told to the caller
            errors[rank] = error

    threads = [
        threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(count)
    ]
    last = time.monotonic() + LONGEST
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(last - time.monotonic(), 0))
    finally:  # a loop without an end would go on in the kernel
        lines = sys._current_frames()  # of a rank that waits for others: in threading
        running = [
            rank
            for rank in range(count)
            if threads[rank].is_alive() and threads[rank].ident in lines
        ]
        at = [lines[threads[rank].ident].f_code.co_filename for rank in running]
        busy = [r for r, file in zip(running, at) if file != threading.__file__]
        running = busy or running
        for rank in running:
            end = ctypes.py_object(SystemExit)
            identity = ctypes.c_ulong(threads[rank].ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, end)
    for rank in running:
        errors[rank] = RuntimeError(
            f"rank {rank} does not end: is there an endless loop?"
        )
    return errors
