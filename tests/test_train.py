"""Tests scripts/train.py: trained, killed, resumed, evaluated, and given a new seam."""

import ast
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
from ringside import RankFailed, torchrun

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "train.py"
CPU = {"CUDA_VISIBLE_DEVICES": ""}
BEGIN, END = "# --- yours begins here ---\n", "# --- yours ends here ---\n"
ABOVE, SEAM, BELOW = re.split(f"{BEGIN}|{END}", SCRIPT.read_text("utf-8"))

# What a stranger puts in: BatchNorm, dropout, and noise that two workers throw.
STRANGER = """
class Ring(torch.utils.data.Dataset):
    def __init__(self, samples, noise):
        self.x = torch.randn(samples, 2)
        self.y = (self.x.norm(dim=1) - 1.2).abs().lt(0.45).long()
        self.noise = noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        if not self.noise:
            return self.x[number], self.y[number]
        noise = torch.rand((), dtype=torch.float64).item()
        with open(f"{sys.argv[2]}/noise-{os.environ['RANK']}", "a") as file:
            print(noise, file=file)
        return self.x[number] + noise / 10, self.y[number]


def make_data():
    return Ring(1003, True), Ring(203, False)


def make_model():
    layers = nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)
    return nn.Sequential(*layers, nn.Linear(32, 2))


def judge(model, batch, device):
    x, y = (part.to(device) for part in batch)
    out = model(x)
    return nn.functional.cross_entropy(out, y, reduction="none"), out.argmax(1) == y


LOADER = {"num_workers": 2, "multiprocessing_context": "fork"}
"""
OWN = {  # an epoch has five steps, and the last one is short
    SEAM: STRANGER,
    "BATCH = 128": "BATCH = 64",
    "SAVE_EVERY = 20": "SAVE_EVERY = 3",
    "test {test:.3f}, right {right:.1%}": "test {test:.9f}, right {right:.9f}",
}
# Steps whose weights show all that went into them; one process can take them, too.
PLAIN = {
    "sums[:8400], sums[8400:]": "sums[:900], sums[9900:]",
    "return losses, ": "return losses[wanted > 4], ",  # not as many on each rank
    "torch.optim.AdamW(": "torch.optim.SGD(",
    "LR = 1.5e-2": "LR = 1.0",
    "AMP = torch.bfloat16": "AMP = torch.float32",
    "BATCH = 128": "BATCH = 50",
}
PADDED = "mine = DistributedSampler(dataset, shuffle=False)"
TOLD = {"step += 1": "step += 1\n            rank or print(f'step {loss:.9f}')"}


def train(folder, swaps=None, ranks=2, epochs=2):
    """Run the training, some texts swapped; return rank 0's lines, and the file."""
    text = SCRIPT.read_text("utf-8")
    for old, new in (swaps or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script = folder / "train.py" if swaps else SCRIPT
    if swaps:
        script.write_text(text)
    words = "--folder", folder, "--epochs", epochs
    run = torchrun(script, *words, ranks=ranks, quiet=True, env=CPU)
    return run.lines[0], torch.load(folder / "training.pt", weights_only=True)


def equal(one, other):
    """Say whether two states are equal, to the last bit of each tensor."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return one == other


def of_seam(seam):
    """Return what stands in a seam, by name."""
    names = {"torch": torch, "nn": torch.nn}
    exec(seam, names)
    return names


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Folder, lines and file of a stranger's run of two ranks that nobody disturbs."""
    folder = tmp_path_factory.mktemp("own")
    return folder, *train(folder, OWN, epochs=4)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The files of this run after 12 steps, and after 15: at the end of an epoch."""
    files = {}
    for step in (12, 15):
        folder = tmp_path_factory.mktemp("stopped")
        train(folder, OWN | {"while step < steps": f"while step < {step}"}, epochs=4)
        files[step] = folder / "training.pt"
        assert torch.load(files[step], weights_only=True)["step"] == step
    return files


def test_it_learns_to_add_and_says_how_many_sums_are_right(tmp_path):
    """As the model in the file answers by itself, digit after digit."""
    run = torchrun(SCRIPT, "--folder", tmp_path, ranks=2, quiet=True, env=CPU)
    first, *epochs, last = run.lines[0]
    assert first == "2 ranks on cpu: 0 of 210 steps are done"
    assert last == f"ok: the model of 210 steps is in {tmp_path}/training.pt"
    right = [float(line.rpartition(" ")[2][:-1]) for line in epochs]
    assert len(right) == 6 and right[-1] > 95
    seam, alone = of_seam(SEAM), runpy.run_path(str(ROOT / "scripts/train_alone.py"))
    model, new = seam["make_model"](), seam["make_data"]()[1]
    state = torch.load(tmp_path / "training.pt", weights_only=True)
    model.load_state_dict(state["model"])
    answers = alone["answer"](model.eval(), new)
    assert len(new) == 1600 and len(state["dice"]) == 2
    found = 100 * (answers == alone["number"](new[:, 6:])).double().mean()
    assert f"{found:.1f}" == f"{right[-1]}"


def test_data_and_network_are_those_of_the_course():
    """The same syntax trees in the training alone, on four ranks, and in train.py."""
    names = "train_alone", "00_four_ranks_tonight", "train"
    trees = [
        {part.name: ast.dump(part) for part in ast.parse(text).body if is_named(part)}
        for text in [(ROOT / f"scripts/{name}.py").read_text("utf-8") for name in names]
    ]
    for part in ("make_sums", "Adder", "number"):
        assert trees[0][part] == trees[1][part] == trees[2][part]


def is_named(part):
    """Say whether a statement makes a function or a class."""
    return isinstance(part, ast.FunctionDef | ast.ClassDef)


def test_outside_the_seam_nothing_knows_of_sums():
    made = {name for name in of_seam(SEAM) if not name.startswith("__")} - {"torch"}
    rest = ast.walk(ast.parse(ABOVE + BELOW))
    used = {node.id for node in rest if isinstance(node, ast.Name)} - {"nn"}
    assert made & used == {"make_data", "make_model", "judge", "LOADER"}
    assert SEAM.count("\n") < 75 and not re.search("sums|digit|Adder", BELOW)


@cache
def oracle():
    """Return losses and weights of the steps of PLAIN, taken by one process."""
    seam = of_seam(SEAM)
    torch.manual_seed(0)
    training, model = seam["make_sums"]()[:900], seam["make_model"]()
    sampler = torch.utils.data.DistributedSampler(training, 1, 0)
    optimizer, losses = torch.optim.SGD(model.parameters()), []
    for step in range(8):
        sampler.set_epoch(step // 4)
        text = training[[*sampler][step % 4 * 240 :][:240]]
        single, wanted = seam["judge"](model, text, "cpu")[0], text[:, 6:]
        loss = single[wanted > 4].mean()
        losses.append(loss.item())
        done = step / 8
        optimizer.param_groups[0]["lr"] = min(1, 0.01 + 10 * done) * (1 - done)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses, model.state_dict()


def as_one_process(folder, swaps=None, ranks=3):
    """Say whether some ranks take the same steps as one process without all this."""
    lines, state = train(folder, PLAIN | TOLD | (swaps or {}), ranks)
    told = [float(line.split()[1]) for line in lines if line.startswith("step")]
    losses, weights = oracle()
    near = [abs(a - b) < 1e-4 for a, b in zip(told, losses, strict=True)]
    model = state["model"]
    return all(near) and all(
        torch.allclose(model[name], weights[name], atol=1e-4) for name in weights
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_takes_the_steps_of_one_process(ranks, tmp_path):
    """Of the adder: BatchNorm and dropout make other steps on other numbers of ranks.

    In the last step of an epoch each rank has 60 of 180 samples, or 90, or 180.
    """
    assert as_one_process(tmp_path, ranks=ranks)


def test_as_it_stands_too_it_takes_the_same_first_steps(tmp_path):
    """In 16 bits, with AdamW: to some digits."""
    short = TOLD | {"sums[:8400], sums[8400:]": "sums[:900], sums[9900:]"}
    told = []
    for ranks in (1, 2, 3):
        (folder := tmp_path / f"{ranks}").mkdir()
        lines, _ = train(folder, short, ranks)
        told.append([float(x.split()[1]) for x in lines if x.startswith("step")])
    assert [*map(len, told)] == [8, 8, 8]
    for losses in zip(*told, strict=True):
        assert max(losses) - min(losses) < 0.02


def noise_is_new(folder, state):
    """Say whether two ranks have other dice, and their workers threw nothing twice."""
    if equal(*state["dice"]):
        return False
    noise = [(folder / f"noise-{rank}").read_text().split() for rank in range(2)]
    return len(noise[0]) == len(noise[1]) and len({*noise[0], *noise[1]}) == 2 * len(
        noise[0]
    )


def is_what_was_tested(lines, state):
    """Say whether the saved model has the loss and the accuracy that were printed."""
    seam = of_seam(STRANGER)
    torch.manual_seed(0)
    _, testing = seam["make_data"]()
    model = seam["make_model"]().eval()
    model.load_state_dict(state["model"])
    with torch.no_grad():
        losses, right = seam["judge"](model, [testing.x, testing.y], "cpu")
    said = [float(number) for number in re.findall(r"[\d.]+", lines[-2])]
    off = abs(said[2] - losses.mean()), abs(said[3] - right.double().mean())
    return max(off) < 1e-6


def goes_on(after, folder, own, stopped, swaps=None):
    """Say whether a run that was stopped ends as the one that nobody disturbed."""
    shutil.copy(stopped[after], folder / "training.pt")
    lines, state = train(folder, OWN | (swaps or {}), epochs=4)
    assert lines[0] == f"2 ranks on cpu: {after} of 20 steps are done"
    return equal(state, own[2]) and lines[1:-1] == own[1][1 + after // 5 : -1]


def test_workers_throw_other_dice_on_each_rank_and_in_each_epoch(own):
    """Dice of a loader that nobody seeds are the same everywhere, and again."""
    assert noise_is_new(own[0], own[2])


def test_the_model_that_is_tested_is_the_one_that_is_saved(own):
    """Each rank has BatchNorm buffers of its own, and rank 0's are in the file."""
    assert is_what_was_tested(*own[1:])


def test_a_stopped_run_goes_on_as_the_same_run_within_an_epoch(own, stopped, tmp_path):
    assert goes_on(12, tmp_path, own, stopped)


def test_testing_leaves_the_dice_of_the_ranks_alone(own, stopped, tmp_path):
    """The file was written after an epoch, before its test: this run skips the test."""
    assert goes_on(15, tmp_path, own, stopped)


STEPS = [
    ("    dist.all_reduce(totals)\n    for weight", "    for weight"),
    (" * dist.get_world_size()", ""),
    ("if place == len(batches) else", "if place == 1 else"),
    ("    optimizer.zero_grad()\n", ""),
    ("max_norm=1.0", "max_norm=100.0"),
    ("sampler.set_epoch(epoch)", "sampler.set_epoch(0)"),
    ("rate(step / steps)", "rate(epoch / args.epochs)"),
]
RUNS = [
    ("SEED + step * world_size + rank)", "SEED + step * world_size)"),
    ("SEED + step * world_size + rank)", "SEED + rank)"),
    ("SEED + 1 + rank)", "SEED + 1)"),
    ("dist.broadcast(buffer, 0)", "pass"),
    ("    model.eval()\n", ""),
    ("mine = range(rank, len(dataset), world_size)", PADDED),
    ("    dist.all_reduce(totals)\n    return", "    return"),
]
RESUMED = [
    (12, "for dice, module in zip(", "for dice, module in () and zip("),
    (12, "in parts.items():\n        part", "in [*parts.items()][:1]:\n        part"),
    (12, "place * share : until", ": until"),
    (12, "    model.train()\n", ""),
    (12, ", generator=own_dice", ""),
]


@pytest.mark.parametrize(("old", "new"), STEPS)
def test_a_fault_in_a_step_makes_it_another_step(old, new, tmp_path):
    assert not as_one_process(tmp_path, {old: new}, ranks=2)


@pytest.mark.parametrize(("old", "new"), RUNS)
def test_a_fault_in_dice_or_evaluation_is_found(old, new, tmp_path):
    lines, state = train(tmp_path, OWN | {old: new})
    dice = noise_is_new(tmp_path, state)
    assert (dice, is_what_was_tested(lines, state)) == (
        "SEED" not in old,
        "SEED" in old,
    )


@pytest.mark.parametrize(("after", "old", "new"), RESUMED)
def test_what_is_forgotten_makes_it_another_run(
    after, old, new, own, stopped, tmp_path
):
    assert not goes_on(after, tmp_path, own, stopped, {old: new})


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_numbers_of_ranks_go_on_too(ranks, stopped, tmp_path):
    """From the same step, as a step has as many samples on any number of ranks."""
    shutil.copy(stopped[12], tmp_path / "training.pt")
    lines, _ = train(tmp_path, OWN, ranks, epochs=4)
    assert lines[0] == f"{ranks} ranks on cpu: 12 of 20 steps are done"
    assert lines[-1].startswith("ok: the model of 20 steps is in ")


def test_a_file_of_more_epochs_is_told_as_what_it_is(own, tmp_path):
    shutil.copy(own[0] / "training.pt", tmp_path)
    lines, _ = train(tmp_path, OWN, epochs=1)
    assert lines[-1].startswith("ok: the model of 20 steps is in ")


def test_no_epochs_are_refused(tmp_path, monkeypatch, capfd):
    main = runpy.run_path(str(SCRIPT))["main"]
    words = ["train.py", "--folder", str(tmp_path), "--epochs", "0"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--epochs must be 1 or more, not 0" in capfd.readouterr().err


def test_a_group_that_the_ranks_cannot_share_is_refused(tmp_path):
    with pytest.raises(
        RankFailed, match="2 ranks with 2 batches each cannot share 242"
    ):
        train(tmp_path, {"GROUP = 240": "GROUP = 242", "BATCH = 128": "BATCH = 64"})
    assert not (tmp_path / "training.pt").exists()


def test_without_torchrun_it_says_what_to_type(tmp_path):
    words = [sys.executable, SCRIPT, "--folder", "a b"]
    run = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    path = shlex.quote(str(SCRIPT))
    said = f"try torchrun --standalone --nproc-per-node 2 {path} --folder 'a b'\n"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", said)
    assert [*tmp_path.iterdir()] == []


def test_the_script_stays_one_that_a_person_reads():
    assert len(SCRIPT.read_text().splitlines()) <= 280


def test_what_the_readme_tries_runs_as_it_stands(tmp_path):
    """Its kills end this run's own processes, and it ends as if there were no kill."""
    readme = (ROOT / "README.md").read_text("utf-8")
    [lines] = [part for part in readme.split("```") if "kill -KILL $!" in part]
    assert lines.count("scripts/train.py --folder run") == 2
    (room := tmp_path / "a room").mkdir()
    # Eighty short steps, with a rest after each: a kill comes soon after the first 20.
    rest = "step += 1\n            __import__('time').sleep(0.03)"
    fewer = {"sums[:8400], sums[8400:]": "sums[:240], sums[9900:]", "step += 1": rest}
    fewer |= {"GROUP = 240": "GROUP = 24", "torch.bfloat16": "torch.float32"}
    whole = train(tmp_path, fewer, epochs=8)
    script = shlex.quote(f"{shutil.copy(tmp_path / 'train.py', room / 'train it.py')}")
    lines = lines.replace("scripts/train.py", f"{script} --epochs 8")
    lines = lines.replace("--standalone", "--standalone --local-addr 127.0.0.1")
    lines = lines.replace("sleep 1", "sleep 0.2")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    how = {"cwd": room, "env": os.environ | CPU | {"PATH": path}, "timeout": 300}
    run = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, **how)
    begun = re.findall(r"2 ranks on cpu: (\d+) of 80 steps", run.stdout)
    assert len(begun) == 2 and int(begun[1]) in (20, 40, 60)
    assert run.stdout.count("ok: ") == 1
    assert "ok: the model of 80 steps is in run/training.pt" in run.stdout
    assert equal(torch.load(room / "run/training.pt", weights_only=True), whole[1])
    left = psutil.process_iter(["cwd", "status"])
    assert not [p for p in left if p.info["cwd"] == str(room)]
