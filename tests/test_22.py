"""Tests checkpoints: a resumed run is the same run, whenever the first is killed."""

import copy
import math
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from lesson import changed, quoted
from ringside import RankFailed, WrongRecording, check, load, still, torchrun
from ringside.draw.player import animate, spelt
from ringside.recording import Recording
from torch.nn.parallel import DistributedDataParallel

STEM = "22_checkpoint_and_resume"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / f"{STEM}.py"
CPU = {"CUDA_VISIBLE_DEVICES": ""}
WORKERS = f"""  # a training with a loader's workers, killed after a step or not
import os, runpy, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
sys.path[:0] = [{str(ROOT / "tests")!r}, {str(ROOT / "notebooks")!r}]
import rounds
told = rounds.told({STEM!r})
from torch.utils.data import DataLoader, DistributedSampler
told.update(DataLoader=DataLoader, DistributedSampler=DistributedSampler)
told.update(ceil=__import__('math').ceil)
workers = dict(num_workers=1, multiprocessing_context="fork")
told.update(SAMPLES=24, BATCH=2, WORKERS=workers)
sys.path.append({str(SCRIPT.parent)!r})
script = runpy.run_path({str(SCRIPT)!r})
path, kill_after = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
layers = torch.nn.Linear(1, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
training = {{"model": model, "optimizer": optimizer}}
step = script["resume"](path, training, rank, world_size) if path.exists() else 0
ddp = torch.nn.parallel.DistributedDataParallel(model)
for batch in told["batches_from"](step, told["Noisy"]()):
    if step == 12:
        break
    optimizer.zero_grad()
    (ddp(batch[:, None]) - batch[:, None]).square().mean().backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        script["save"](path, step, training, rank, world_size)
    if step == kill_after and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
print(*torch.nn.utils.parameters_to_vector(model.parameters()).tolist())
dist.destroy_process_group()
"""
SAVES = f"""  # saves again and again, until it is killed
import runpy, sys, torch, torch.distributed as dist
from pathlib import Path
sys.path.append({str(SCRIPT.parent)!r})
script = runpy.run_path({str(SCRIPT)!r})
folder = Path(sys.argv[1])
dist.init_process_group("gloo", f"file://{{folder}}/store", rank=0, world_size=1)
training = {{"model": torch.nn.Linear(1000, 1000)}}
step = 0
while True:
    step += 1
    with torch.no_grad():
        training["model"].weight.fill_(step)
    script["save"](folder / "training.pt", step, training, 0, 1)
    print(step, flush=True)
"""


def kill_and_resume(folder: Path, ranks: int, step: int) -> None:
    """Kill the script's last rank after a step; the run that goes on must agree."""
    words = STEM, "--folder", folder, "--kill-after", step
    with pytest.raises(RankFailed, match="SIGKILL"):
        torchrun(*words, ranks=ranks, quiet=True, env=CPU)
    resumed = torchrun(*words, ranks=ranks, quiet=True, env=CPU).lines[0]
    assert resumed[-1] == f"ok: on {ranks} ranks the resumed run is the same run"
    assert len(resumed[-2].split()) == 1 + 12 - step // 4 * 4


def kill_with_workers(folder: Path, ranks: int, step: int, text=WORKERS) -> None:
    """Do the same to a training with dropout, AdamW and the notebook's loader."""
    (program := folder / "workers.py").write_text(text)
    how = {"ranks": ranks, "quiet": True, "env": CPU}
    whole = torchrun(program, folder / "whole.pt", 0, **how).lines
    with pytest.raises(RankFailed, match="SIGKILL"):
        torchrun(program, folder / "killed.pt", step, **how)
    assert torchrun(program, folder / "killed.pt", 0, **how).lines == whole


def kill_while_saving(folder: Path, program: str, seconds: float) -> int:
    """Kill a process that does nothing but save; return the step that then loads."""
    (folder / "saves.py").write_text(program)
    command = [sys.executable, folder / "saves.py", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read()
    state = torch.load(folder / "training.pt", weights_only=True)
    assert state["step"] in (last := int(said.split()[-1]), last + 1)
    assert state["model"]["weight"].eq(state["step"]).all()
    return state["step"]


def means(rank, world_size, text):
    """Print a running mean of weights that begins after wrapping, and the weights."""
    torch.manual_seed(rank)
    layers = torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1)
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
    names = {"torch": torch, "copy": copy, "ddp": ddp}
    exec(text, names)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randn(4, 2)).square().mean().backward()
        optimizer.step()
        names["follow"](names["mean"], ddp.module)
    print([weight.tolist() for weight in names["mean"].parameters()])
    print([weight.tolist() for weight in ddp.module.parameters()])
    assert names["mean"][1].running_mean.equal(ddp.module[1].running_mean)
    assert ddp.module[1].running_mean.any()


def test_all_ranks_keep_the_same_running_mean_of_the_weights():
    run = torchrun(means, quoted(STEM, "def follow"), ranks=2, quiet=True, env=CPU)
    assert run.lines[0] == run.lines[1]
    assert run.lines[0][0] != run.lines[0][1]


def keeps_best(rank, world_size, script, text, path):
    """Keep the best of three accuracies, and print which one that is."""
    sys.path.append(os.path.dirname(script))
    names = runpy.run_path(script)
    exec(text, names)
    training, best = {"model": torch.nn.Linear(1, 1)}, 0.0
    for step, accuracy in enumerate([0.5, 0.75, 0.25]):
        how = path, best, accuracy, step, training, rank, world_size
        best = names["keep_best"](*how)
    print(best)


def test_the_best_model_is_kept_by_all_ranks_together(tmp_path):
    text, path = quoted(STEM, "def keep_best"), tmp_path / "best.pt"
    run = torchrun(
        keeps_best, str(SCRIPT), text, str(path), ranks=2, quiet=True, env=CPU
    )
    assert run.lines == {0: ["0.75"], 1: ["0.75"]}
    assert torch.load(path, weights_only=True)["step"] == 1
    alone = text.replace("if accuracy", "if rank == 0 and accuracy")
    with pytest.raises(RankFailed):  # rank 1 has ended, or the time is up
        how = {"ranks": 2, "quiet": True, "env": CPU, "timeout": 20}
        torchrun(keeps_best, str(SCRIPT), alone, str(path), **how)


@pytest.mark.parametrize(("ranks", "step"), [(2, 5), (5, 9), (1, 11), (4, 2)])
def test_a_killed_run_goes_on_as_the_same_run(ranks, step, tmp_path):
    kill_and_resume(tmp_path, ranks, step)


def test_a_killed_run_with_workers_goes_on_as_the_same_run(tmp_path):
    kill_with_workers(tmp_path, 2, 5)


def test_a_loader_that_draws_from_the_dice_of_the_rank_is_found(tmp_path):
    """A run that goes on in mid-epoch begins one loop over a loader more."""
    old = 'told["batches_from"]('
    new = "told.update(DataLoader=lambda *a, generator, **o: DataLoader(*a, **o))\n"
    program = WORKERS.replace("for batch in told", f"{new}for batch in told")
    assert program.count(old) == 1 and program.count(new) == 1
    with pytest.raises(AssertionError):
        kill_with_workers(tmp_path, 2, 5, program)


def test_a_process_killed_while_it_saves_leaves_a_file_that_loads(tmp_path):
    kill_while_saving(tmp_path, SAVES, random.Random(0).uniform(0, 0.3))


def test_another_number_of_ranks_is_refused(tmp_path):
    words = STEM, "--folder", tmp_path, "--kill-after", 5
    with pytest.raises(RankFailed, match="SIGKILL"):
        torchrun(*words, ranks=2, quiet=True)
    with pytest.raises(RankFailed, match="is of 2 ranks, not 3"):
        torchrun(*words, ranks=3, quiet=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "in training.items():\n        part.load",
            "in [*training.items()][:1]:\n        part.load",
        ),
        (
            "in training.items():\n        part.load",
            "in [*training.items()][1:]:\n        part.load",
        ),
        (
            "in training.items():\n        part.load",
            "in [*training.items()][:2]:\n        part.load",
        ),
        ('    torch.set_rng_state(state["dice"][rank])\n', ""),
        ('state["dice"][rank]', 'state["dice"][0]'),
        ("step(step, ddp, *others)", "step(len(events) % 12, ddp, *others)"),
        ('return state["step"]', 'return state["step"] + 1'),
    ],
)
def test_whatever_is_forgotten_is_found(old, new, tmp_path):
    path = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed, match="whole"):
        torchrun(path, ranks=4, quiet=True)


def test_the_picture_has_each_weight_and_the_steps_that_are_taken_twice():
    events = load(STEM)
    bars = spelt(events)
    for lane, (life, steps) in enumerate(
        {"whole": (1, 12), "stopped": (1, 10), "resumed": (9, 12)}.items()
    ):
        own = [bar for bar in bars if bar["lane"] == lane]
        work = [bar for bar in own if bar["kind"] == "work"]
        assert [bar["end"] for bar in work] == [*range(steps[0], steps[1] + 1)]
        told = [event["weight"] for event in events if event["phase"] == life]
        assert [bar["what"] for bar in work] == told
        saved = [bar["end"] for bar in own if bar["what"] == "save"]
        assert saved == {"whole": [], "stopped": [4, 8], "resumed": [12]}[life]
    assert [bar["what"] for bar in bars if bar["kind"] == "wait"] == [
        "loads step 8",
        "gone",
    ]
    for svg in (still(events, 0).svgs[0], animate(events)):
        ElementTree.fromstring(svg)


def test_a_recording_that_lacks_a_weight_is_refused():
    with pytest.raises(WrongRecording, match="no 'weight', as lives needs it"):
        spelt(Recording([{"step": 1, "rank": 0, "phase": "whole"}], picture="lives"))


def right(steps, samples, world_size, batch_size):
    """Return what exercise 3 asks for."""
    numbers = math.ceil(samples / world_size)
    epoch, batches = divmod(steps, math.ceil(numbers / batch_size))
    return epoch, batches * batch_size


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *given: ..., "your turn"),
        (lambda *given: print(end=""), "it returned None"),
        (lambda *given: 1 / 0, "ZeroDivisionError"),
        (lambda *given: 3, "return an epoch and a number, not 3"),
        (lambda *given: ("a", 1), "return an epoch and a number"),
        (
            lambda s, n, w, b: divmod(s, math.ceil(math.ceil(n / w) / b)),
            "you count batches",
        ),
        (lambda s, n, w, b: divmod(s * b, math.ceil(n / w)), "may be smaller"),
        (lambda s, n, w, b: (0, s * b), "a rank has only"),
        (lambda *g: (right(*g)[0] + 1, right(*g)[1]), "epochs count from 0"),
        (lambda *given: (9, 0), "it is (0, 0), not (9, 0)"),
        (right, "right: "),
    ],
)
def test_place_after(function, says, capsys):
    check.place_after(function)
    assert says in capsys.readouterr().out


def test_the_exercise_means_what_sampler_and_loader_do():
    for steps, samples, world_size, batch in [
        (7, 24, 4, 2),
        (23, 10, 4, 2),
        (9, 10, 3, 3),
    ]:
        own = torch.utils.data.DistributedSampler(range(samples), world_size, 0)
        epochs = []
        while sum(map(len, epochs)) <= steps:
            epochs.append([*torch.utils.data.BatchSampler(own, batch, False)])
        before = sum(map(len, epochs[:-1]))
        numbers = sum(map(len, epochs[-1][: steps - before]))
        assert right(steps, samples, world_size, batch) == (len(epochs) - 1, numbers)
