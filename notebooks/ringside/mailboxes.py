"""Runs a program as several simulated ranks: threads that share nothing but mailboxes."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch

PATIENCE = 2  # seconds to wait for a message that nobody may ever send


@dataclass
class Simulated:
    """What became of a simulation: each rank's tensor, and what passed, by rank."""

    grads: list[torch.Tensor]
    messages: list[int]
    sent: list[int]
    received: list[int]


def simulate(program: Callable, grads: list[torch.Tensor]) -> Simulated:
    """Run program(rank, world_size, grad, send, recv) once per tensor, all at once.

    send(to, tensor) puts a copy into a mailbox and goes on; recv(source) waits for one.
    """
    size = len(grads)
    boxes = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    done = Simulated([g.clone() for g in grads], [0] * size, [0] * size, [0] * size)
    errors = {}

    def one(rank: int) -> None:
        def send(to: int, tensor: torch.Tensor) -> None:
            if to not in range(size):
                raise ValueError(f"rank {rank} sends to rank {to}, which is not there")
            done.messages[rank] += 1
            done.sent[rank] += tensor.nbytes
            boxes[rank, to].put(tensor.clone())

        def recv(source: int) -> torch.Tensor:
            try:
                tensor = boxes[source, rank].get(timeout=PATIENCE)
            except queue.Empty:
                raise TimeoutError(
                    f"rank {rank} waits for rank {source}, which never sends"
                ) from None
            done.received[rank] += tensor.nbytes
            return tensor

        try:
            program(rank, size, done.grads[rank], send, recv)
        except Exception as error:  # noqa: BLE001 the first one is raised below
            errors[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        waiting = [r for r in errors if isinstance(errors[r], TimeoutError)]
        cause = min(set(errors) - set(waiting) or waiting)
        raise errors[cause]
    return done


def loopback() -> int:
    """Return how many bytes this machine has sent to itself since it started."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(counters[name].bytes_sent for name in ("lo", "lo0") if name in counters)
