"""Runs a learner's function on ranks, and tells what each rank did, or who waits."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ..launch import RankFailed, RankTimeout, torchrun
from ..launch.failure import Refused
from ..launch.script import file_of, script_of
from .verdict import Mistake

SIGN, LIMIT = "what this rank did: ", 20  # seconds
WAITED = ("by peer", "Timed out", "pair closure")
PROBE = '''
def watched(call, rank, world_size):
    """Make the call; then tell what this rank did, also if it raises."""
    import json
    from torch._C import _distributed_c10d
    from torch.nn.modules.module import register_module_forward_pre_hook as ahead
    from torch.optim.optimizer import register_optimizer_step_pre_hook as before

    told = {"seen": [], "grads": [], "error": "", "done": False}

    def forward(module, given):
        if isinstance(module, torch.nn.Linear):
            told["seen"] += given[0].flatten().tolist()

    def step(optimizer, *_):
        weights = [w for group in optimizer.param_groups for w in group["params"]]
        given = [w.grad for w in weights if w.grad is not None]
        told["grads"].append([grad.sum().item() for grad in given])

    hooks = [ahead(forward), before(step)]
    dist.barrier()  # all are here: from now on a hang ends soon
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
    try:
        call(rank, world_size)
        told["done"] = True
    except BaseException as error:
        told["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        for hook in hooks:
            hook.remove()
        box = json.loads(_distributed_c10d._dump_fr_trace_json())
        names = [e["profiling_name"].rpartition(":")[2] for e in box.get("entries", [])]
        sys.stdout.write("SIGN" + json.dumps(told | {"calls": names}) + "\\n")
'''


@dataclass
class Rank:
    """What one rank printed and did: samples, gradients, calls, its own error."""

    lines: list[str]
    seen: list[float] = field(default_factory=list)
    grads: list[list[float]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    error: str = ""
    done: bool = False
    known: bool = False

    def said(self, pattern: str) -> list[float]:
        """Return the numbers that stand in its lines behind some words."""
        found = [re.search(rf"{pattern} (-?[\d.]+)", line) for line in self.lines]
        return [float(match[1]) for match in found if match]


def launch(script: Callable, size: int) -> list[Rank]:
    """Run a script under watch; raise the mistake if it does not end well."""
    failure = None
    with TemporaryDirectory(prefix="run-") as folder:
        try:
            head, main = script_of(script).rsplit("\ndef main():\n", 1)
            path = Path(folder, file_of(script))
        except Refused as error:
            raise Mistake(str(error)) from None
        name = script.__name__
        call, under = f"{name}(rank, ", f"watched({name}, rank, "
        main = main.replace(f"    {call}", f"    {under}")
        probe = PROBE.replace("SIGN", SIGN)
        path.write_text(f"{head}{probe}\n\ndef main():\n{main}", encoding="utf-8")
        how = {"ranks": size, "timeout": LIMIT, "env": {"CUDA_VISIBLE_DEVICES": ""}}
        try:
            run = torchrun(path, quiet=True, **how)
        except RankFailed as error:
            run, failure = error.run, error
    ranks = []
    for lines in run.lines.values():
        parts = [line.partition(SIGN) for line in lines]
        own = [printed for printed, sign, _ in parts if printed or not sign]
        told = [json.loads(text) for _, sign, text in parts if sign]
        ranks.append(Rank(own, known=bool(told), **(told[-1] if told else {})))
    if failure:
        raise Mistake(why(ranks, run.exit_codes, failure))
    return ranks


def why(ranks: list[Rank], codes: dict[int, int], failure: RankFailed) -> str:
    """Return why a run did not end well: an error of its own, or who waits for whom."""
    if isinstance(failure, RankTimeout):
        return f"{failure}: {', '.join(failure.details.splitlines())}"
    for number, rank in enumerate(ranks):
        if rank.error and not any(word in rank.error for word in WAITED):
            return f"rank {number} raises {' '.join(rank.error.split())[:150]}"
    for number, rank in enumerate(ranks):
        if not rank.known and codes.get(number) == -6:
            told = f"rank {number} is killed by SIGABRT: it got numbers of another call"
            return f"{told}, for the ranks do not make the same calls"
    known = {n: rank for n, rank in enumerate(ranks) if rank.known}
    waiting = [n for n in known if known[n].error]
    if len(known) < 2 or not waiting:
        return f"{failure}".partition(": ")[0]
    for calls in zip(*(rank.calls for rank in known.values())):
        if len({*calls}) > 1:  # here they part
            told = " and ".join(f"rank {n} in {call}" for n, call in zip(known, calls))
            return f"the ranks wait for each other: {told}"
    least = min(known, key=lambda n: len(known[n].calls))
    most = max(waiting, key=lambda n: len(known[n].calls))
    extra = known[most].calls[len(known[least].calls) :]
    if not extra:
        return f"{failure}".partition(": ")[0]
    told = f"rank {most} waits in {extra[0]}: rank {least} never makes that call"
    return told + ", and ends" * known[least].done
