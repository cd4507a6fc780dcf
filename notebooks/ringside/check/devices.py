"""Holds a run that left the number of ranks to the machine against the machine."""

from ..launch import Run


def all_devices(run: Run) -> None:
    """Say that a run had the ranks and the devices that it should have had, or raise.

    What it prints is the same on each machine, so that pages can be compared.
    """
    import torch

    gpus = torch.cuda.device_count()
    ranks = gpus if gpus > 1 else 4
    if len(run.lines) != ranks:
        raise AssertionError(f"{len(run.lines)} ranks, and {gpus} GPUs: want {ranks}")
    last = run.lines[0][-1]
    if not last.startswith("ok"):
        raise AssertionError(f"no ok, but {last!r}")
    # If GPUs are too few for all ranks, a script says so, or on what it has run.
    too_few, on_cpu = "too few GPUs" in run.stderr[0], last.endswith("on cpu")
    wrong = {0: too_few, 1: not (too_few or on_cpu)}.get(gpus, too_few or on_cpu)
    if wrong:
        raise AssertionError(f"{gpus} GPUs, but rank 0 says: {run.stderr[0] or last}")
    print("ok: a rank for each GPU if there are several, else four on the CPU")
