"""Tests scripts/train.py: trained, killed, resumed, evaluated, and given a new seam."""

import ast
import json
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
    return Ring(607, True), Ring(203, False)


def make_model():
    layers = nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)
    return nn.Sequential(*layers, nn.Linear(32, 2))


def judge(model, batch, device):
    x, y = (part.to(device) for part in batch)
    out = model(x)
    return nn.functional.cross_entropy(out, y, reduction="none"), out.argmax(1) == y


LOADER = {"num_workers": 2, "multiprocessing_context": "fork"}
"""
OWN = {  # an epoch has three steps, and the last one is short
    SEAM: STRANGER,
    "BATCH = 128": "BATCH = 64",
    "SAVE_EVERY = 20": "SAVE_EVERY = 2",
    "test {test:.3f}, right {right:.1%}": "test {test:.9f}, right {right:.9f}",
}
QUIET = OWN | {'{"num_workers": 2, "multiprocessing_context": "fork"}': "{}"}
SHORT = {"sums[:8400], sums[8400:]": "sums[:420], sums[9900:]"}
TOLD = {"step += 1": "step += 1\n            rank or print(f'step {loss:.9f}')"}
# Steps whose weights show all that went into them; one process can take them, too.
PLAIN = SHORT | {
    "return losses, ": "return losses[wanted > 4], ",  # not as many on each rank
    "torch.optim.AdamW(": "torch.optim.SGD(",
    "LR = 1.5e-2": "LR = 1.0",
    "AMP = torch.bfloat16": "AMP = torch.float32",
    "BATCH = 128": "BATCH = 50",
}
# Faults: what stands in the script, and what is put in its place.
STEPS = [
    ("    dist.all_reduce(totals)\n    for weight", "    for weight"),
    (" * dist.get_world_size()", ""),
    ("if place == len(batches) else", "if place == 1 else"),
    ("    optimizer.zero_grad()\n", ""),
    ("max_norm=1.0", "max_norm=100.0"),
    ("sampler.set_epoch(epoch)", "sampler.set_epoch(0)"),
    ("rate(step / steps)", "rate(epoch / args.epochs)"),
]
PADDED = "mine = DistributedSampler(dataset, shuffle=False)"
WORKERS = [
    ("SEED + step * world_size + rank)", "SEED + step * world_size)"),
    ("SEED + step * world_size + rank)", "SEED + rank)"),
]
RANKS = [
    ("SEED + 1 + rank)", "SEED + 1)"),
    ("dist.broadcast(buffer, 0)", "pass"),
    ("    model.eval()\n", ""),
    ("mine = range(rank, len(dataset), world_size)", PADDED),
    ("    dist.all_reduce(totals)\n    return", "    return"),
]
RESUMED = [
    ("for dice, module in zip(", "for dice, module in () and zip("),
    ("in parts.items():\n        part", "in [*parts.items()][:1]:\n        part"),
    ("place * share : until", ": until"),
    ("    model.train()\n", ""),
    (", generator=own_dice", ""),
]
# Lines that a page gives for Monday: the same in train.py, or what they change there.
DDP = "ddp = DistributedDataParallel(model)"
CONVERT = "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)"
CLIP = "nn.utils.clip_grad_norm_({}.parameters(), max_norm=1.0)"
AUTOCAST = "with torch.autocast({}, enabled={} torch.float32):"
NO_SYNC = "with nullcontext() if {} else ddp.no_sync():"
SEEDED = "torch.Generator().manual_seed({})"
SAVED = "torch.save(state | {'step': step, 'dice': dice}, file)"
LOADED = "state = torch.load(path, map_location='cpu', weights_only=True)"
MONDAY = {
    "01": [
        "dist.all_reduce(totals)",
        "weight.grad /= totals[1]",
        (
            "(loss * world_size).backward()",
            "loss = losses.sum() * dist.get_world_size()",
        ),
        ("model = DistributedDataParallel(nn.Linear(1, 1))", DDP),
    ],
    "02": [
        "sampler.set_epoch(epoch)",
        (
            "sampler = DistributedSampler(training)",
            "sampler = DistributedSampler(training, seed=SEED)",
        ),
    ],
    "04": [
        ("model = DistributedDataParallel(nn.Linear(4, 1).to(device))", DDP),
        (CLIP.format("model"), CLIP.format("ddp")),
    ],
    "05": [
        (
            "models = {'alone': model, 'DDP': "
            "DistributedDataParallel(copy.deepcopy(model))}",
            DDP,
        ),
    ],
    "20": [CONVERT, ("model = DistributedDataParallel(model)", DDP)],
    "21": [
        "for buffer in model.buffers():",
        "dist.broadcast(buffer, 0)",
        "mine = range(rank, len(dataset), world_size)",
        (
            f"own_dice = {SEEDED}".format("rank"),
            f"own_dice = {SEEDED}".format("SEED + rank"),
        ),
        "dist.all_reduce(totals)",
    ],
    "22": [
        SAVED,
        "os.fsync(file.fileno())",
        "os.replace(f'{path}.part', path)",
        LOADED,
        "part.load_state_dict(state[name])",
        (
            "rest = [*sampler][place * BATCH:]",
            "mine = [*sampler][place * share:until * share]",
        ),
        (
            f"own = {SEEDED}".format("step * sampler.num_replicas + sampler.rank"),
            f"dice = {SEEDED}".format("SEED + step * world_size + rank"),
        ),
    ],
    "23": [
        ("dist.broadcast_object_list(newest)", "dist.broadcast_object_list(there)"),
        ("dcp.load(state, checkpoint_id=newest[0])", LOADED),
        ("dcp.save(state, checkpoint_id=f'{folder}/{stop}')", SAVED),
    ],
    "24": [
        "optimizer.zero_grad()",
        (
            NO_SYNC.format("number == len(pieces)"),
            NO_SYNC.format("place == len(batches)"),
        ),
        (
            AUTOCAST.format("image.device.type, kind", "kind !="),
            AUTOCAST.format("device.type, AMP", "AMP is not"),
        ),
        "scaler.unscale_(optimizer)",
        CLIP.format("ddp"),
        "scaler.step(optimizer)",
        "scaler.update()",
    ],
    "25": [
        ("torch.manual_seed(0 + rank)", "torch.manual_seed(SEED + 1 + rank)"),
        "sampler.set_epoch(epoch)",
        ("warm_up.step()", "group['lr'] = rate(step / steps)"),
    ],
}


# A launch costs more than such a training: several take turns in one.
IN_TURN = """
import runpy
import sys
import torch.distributed as dist

words = sys.argv[1:]
dist.init_process_group("gloo")
for folder, epochs in zip(words[::2], words[1::2]):
    sys.argv[:] = f"{folder}/train.py", "--folder", folder, "--epochs", epochs
    runpy.run_path(sys.argv[0])["main"]()
dist.destroy_process_group()
"""
GROUPED = {'dist.init_process_group("nccl" if on_gpus else "gloo")': "pass"}


def script_with(swaps, folder):
    """Write a copy of the script into a folder, some texts swapped; return its path."""
    text = SCRIPT.read_text("utf-8")
    for old, new in swaps.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (script := folder / "train.py").write_text(text)
    return script


def train(room, *runs, ranks=2, files=()):
    """Train with each of some (swaps, epochs); return (lines, file, folder) of each."""
    folders = [room / f"{ranks} ranks, {place}" for place in range(len(runs))]
    for place, folder in enumerate(folders):
        folder.mkdir()
        script_with(runs[place][0] | GROUPED, folder)
        if files:
            shutil.copy(files[place], folder / "training.pt")
    (driver := room / "in_turn.py").write_text(IN_TURN)
    words = [word for pair in zip(folders, runs) for word in (pair[0], pair[1][1])]
    run = torchrun(driver, *words, ranks=ranks, quiet=True, env=CPU)
    told = "\n".join(run.lines[0]).split(f"{ranks} ranks on ")[1:]
    lines = [said.splitlines() for said in told]
    states = [torch.load(f / "training.pt", weights_only=True) for f in folders]
    return [*zip(lines, states, folders, strict=True)]


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
    """A stranger's run that nobody disturbs, and two that stop after 4 and 6 steps."""
    stops = [{"while step < steps": f"while step < {step}"} for step in (4, 6)]
    runs = [(OWN, 3), *[(OWN | stop, 3) for stop in stops]]
    runs += [(QUIET, 3), (QUIET | stops[0], 3)]
    runs = train(tmp_path_factory.mktemp("own"), *runs)
    assert [state["step"] for _, state, _ in runs] == [9, 4, 6, 9, 4]
    return runs


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The adder's first steps: as they stand, as of one process, and with faults."""
    room = tmp_path_factory.mktemp("steps")
    faults = [(PLAIN | TOLD | {old: new}, 2) for old, new in STEPS]
    runs = {2: train(room, (SHORT | TOLD, 2), (PLAIN | TOLD, 2), *faults)}
    for ranks in (1, 3):
        runs[ranks] = train(room, (SHORT | TOLD, 2), (PLAIN | TOLD, 2), ranks=ranks)
    return runs


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A stranger's runs with faults in dice and evaluation."""
    runs = [(OWN | {old: new}, 2) for old, new in WORKERS]
    runs += [(QUIET | {old: new}, 2) for old, new in RANKS]
    return train(tmp_path_factory.mktemp("faulty"), *runs)


@pytest.fixture(scope="module")
def resumed(own, tmp_path_factory):
    """What goes on from the 4th step and the 6th; then from the 4th with faults."""
    runs = [(OWN, 3), (OWN, 3), *[(QUIET | {old: new}, 3) for old, new in RESUMED]]
    files = [own[place][2] / "training.pt" for place in (1, 2, *[4] * len(RESUMED))]
    return train(tmp_path_factory.mktemp("resumed"), *runs, files=files)


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
    found = 100 * (answers == alone["as_number"](new[:, 6:])).double().mean()
    assert f"{found:.1f}" == f"{right[-1]}"


def test_data_and_network_are_those_of_the_course():
    """The same syntax trees in the training alone, on four ranks, and in train.py."""
    names = "train_alone", "00_four_ranks_tonight", "train"
    trees = [
        {part.name: ast.dump(part) for part in ast.parse(text).body if is_named(part)}
        for text in [(ROOT / f"scripts/{name}.py").read_text("utf-8") for name in names]
    ]
    for part in ("make_sums", "Adder", "as_number"):
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
    training, model = seam["make_sums"]()[:420], seam["make_model"]()
    sampler = torch.utils.data.DistributedSampler(training, 1, 0)
    optimizer, losses = torch.optim.SGD(model.parameters()), []
    for step in range(4):
        sampler.set_epoch(step // 2)
        text = training[[*sampler][step % 2 * 240 :][:240]]
        single, wanted = seam["judge"](model, text, "cpu")[0], text[:, 6:]
        loss = single[wanted > 4].mean()
        losses.append(loss.item())
        done = step / 4
        optimizer.param_groups[0]["lr"] = min(1, 0.01 + 10 * done) * (1 - done)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses, model.state_dict()


def losses_of(run):
    """Return the losses that a run told, step by step."""
    return [float(line.split()[1]) for line in run[0] if line.startswith("step")]


def as_one_process(run):
    """Say whether a run took the same steps as one process without all this."""
    losses, weights = oracle()
    pairs = zip(losses_of(run), losses, strict=True)
    model = run[1]["model"]
    return all(abs(told - loss) < 1e-4 for told, loss in pairs) and all(
        torch.allclose(model[name], weights[name], atol=1e-4) for name in weights
    )


def changed(faults):
    """Return a name for each fault: what the line is turned into."""
    return [new.split("\n")[0].strip() or f"no {old.strip()}" for old, new in faults]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_takes_the_steps_of_one_process(ranks, steps):
    """Of the adder: BatchNorm and dropout make other steps on other numbers of ranks.

    In the last step of an epoch each rank has 60 of 180 samples, or 90, or 180.
    """
    assert as_one_process(steps[ranks][1])


def test_as_it_stands_too_it_takes_the_same_first_steps(steps):
    """In 16 bits, with AdamW: to some digits."""
    told = [losses_of(steps[ranks][0]) for ranks in (1, 2, 3)]
    assert [*map(len, told)] == [4, 4, 4]
    for losses in zip(*told, strict=True):
        assert max(losses) - min(losses) < 0.02


def dice_are_new(run):
    """Say whether two ranks have other dice, and their workers threw nothing twice."""
    _, state, folder = run
    noise = [(folder / f"noise-{rank}").read_text().split() for rank in range(2)]
    new = len({*noise[0], *noise[1]}) == 2 * len(noise[0]) == 2 * len(noise[1])
    return new and not equal(*state["dice"])


def is_what_was_tested(run):
    """Say whether the saved model has the loss and the accuracy that were printed."""
    lines, state, _ = run
    seam = of_seam(STRANGER)
    torch.manual_seed(0)
    _, testing = seam["make_data"]()
    model = seam["make_model"]().eval()
    model.load_state_dict(state["model"])
    with torch.no_grad():
        losses, right = seam["judge"](model, [testing.x, testing.y], "cpu")
    said = [float(number) for number in re.findall(r"[\d.]+", lines[-2])]
    off = abs(said[2] - losses.mean()), abs(said[3] - right.double().mean())
    return bool(max(off) < 1e-6)


def same_end(run, other):
    """Say whether two runs tell the same of their last epoch, and leave the same."""
    return run[0][-2] == other[0][-2] and equal(run[1], other[1])


def test_workers_throw_other_dice_on_each_rank_and_in_each_epoch(own):
    """Dice of a loader that nobody seeds are the same everywhere, and again."""
    assert dice_are_new(own[0])


def test_the_model_that_is_tested_is_the_one_that_is_saved(own):
    """Each rank has BatchNorm buffers of its own, and rank 0's are in the file."""
    assert is_what_was_tested(own[0])


def test_a_stopped_run_goes_on_as_the_same_run_within_an_epoch(own, resumed):
    assert resumed[0][0][0] == "cpu: 4 of 9 steps are done"
    assert same_end(resumed[0], own[0])


def test_testing_leaves_the_dice_of_the_ranks_alone(own, resumed):
    """The file was written after an epoch, before its test: this run skips the test."""
    assert resumed[1][0][0] == "cpu: 6 of 9 steps are done"
    assert same_end(resumed[1], own[0])


@pytest.mark.parametrize("place", range(len(STEPS)), ids=changed(STEPS))
def test_a_fault_in_a_step_makes_it_another_step(place, steps):
    assert not as_one_process(steps[2][2 + place])


@pytest.mark.parametrize(
    "place", range(len(WORKERS + RANKS)), ids=changed(WORKERS + RANKS)
)
def test_a_fault_in_dice_or_evaluation_is_found(place, faulty):
    of_dice = "SEED" in (WORKERS + RANKS)[place][0]
    assert dice_are_new(faulty[place]) is not of_dice
    assert is_what_was_tested(faulty[place]) is of_dice


@pytest.mark.parametrize("place", range(len(RESUMED)), ids=changed(RESUMED))
def test_what_is_forgotten_makes_it_another_run(place, own, resumed):
    assert not same_end(resumed[2 + place], own[3])


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_numbers_of_ranks_go_on_too(ranks, own, tmp_path):
    """From the same step, as a step has as many samples on any number of ranks."""
    file = own[4][2] / "training.pt"
    [(lines, _, _)] = train(tmp_path, (QUIET, 3), ranks=ranks, files=[file])
    assert lines[0] == "cpu: 4 of 9 steps are done"
    assert lines[-1].startswith("ok: the model of 9 steps is in ")


def test_a_file_of_more_epochs_is_told_as_what_it_is(own, tmp_path):
    file = own[0][2] / "training.pt"
    [(lines, _, _)] = train(tmp_path, (QUIET, 1), files=[file])
    assert lines[-1].startswith("ok: the model of 9 steps is in ")


def lines_of(code):
    """Return the lines of some code as ast writes them, without their indents."""
    return [line.strip() for line in ast.unparse(ast.parse(code)).splitlines()]


@pytest.mark.parametrize("number", MONDAY)
def test_what_a_page_gives_for_monday_stands_in_it_or_changes_a_line_of_it(number):
    [path] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    heads = re.compile("(?m)^## (What you write on Mon|Two lines, and where they go)")
    [begin] = [i for i, text in enumerate(texts) if heads.search(text)]
    if number == "22":  # this page says: take save and resume, which stand above
        begin = 0
    code = [c["cell_type"] == "code" and text for c, text in zip(cells, texts)]
    page = [line for text in code[begin:] if text for line in lines_of(text)]
    page += [line.strip() for line in re.findall(r"(?m)^\+(.+)", texts[begin])]
    script = SCRIPT.read_text("utf-8")
    # One line stands there as a comment: GPUs with BatchNorm want it.
    assert f"    # {CONVERT}\n" in script
    script = [CONVERT, *lines_of(script)]
    for row in MONDAY[number]:
        given, changed = (row, row) if isinstance(row, str) else row
        assert given in page, given
        assert changed in script, changed


def test_no_epochs_are_refused(tmp_path, monkeypatch, capfd):
    main = runpy.run_path(str(SCRIPT))["main"]
    words = ["train.py", "--folder", str(tmp_path), "--epochs", "0"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--epochs must be 1 or more, not 0" in capfd.readouterr().err


def test_a_group_that_the_ranks_cannot_share_is_refused(tmp_path):
    swaps = {"GROUP = 240": "GROUP = 242", "BATCH = 128": "BATCH = 64"}
    script = script_with(swaps, tmp_path)
    said = "2 ranks cannot share GROUP=242 with BATCH=64"
    with pytest.raises(RankFailed, match=said):
        torchrun(script, "--folder", tmp_path, ranks=2, quiet=True, env=CPU)
    assert not (tmp_path / "training.pt").exists()


def test_a_mean_of_losses_is_refused(tmp_path):
    """Means of batches of several sizes would weigh their samples differently."""
    script = script_with({'reduction="none"': 'reduction="mean"'}, tmp_path)
    with pytest.raises(RankFailed, match="judge returns each loss, not their mean"):
        torchrun(script, "--folder", tmp_path, ranks=1, quiet=True, env=CPU)


def test_without_torchrun_it_says_what_to_type(tmp_path):
    words = [sys.executable, SCRIPT, "--folder", "a b"]
    run = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    path = shlex.quote(str(SCRIPT))
    said = f"try torchrun --standalone --nproc-per-node 2 {path} --folder 'a b'\n"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", said)
    assert [*tmp_path.iterdir()] == []


def test_the_script_stays_one_that_a_person_reads():
    assert len(SCRIPT.read_text().splitlines()) <= 285


def test_what_the_readme_tries_runs_as_it_stands(tmp_path):
    """Its kills end this run's own processes, and it ends as if there were no kill."""
    readme = (ROOT / "README.md").read_text("utf-8")
    [lines] = [part for part in readme.split("```") if "kill -KILL $!" in part]
    assert lines.count("scripts/train.py --folder run") == 2
    # Sixty short steps, with a rest after each: a kill comes soon after the first 20.
    rest = "step += 1\n            __import__('time').sleep(0.04)"
    fewer = {"sums[:8400], sums[8400:]": "sums[:240], sums[9900:]", "step += 1": rest}
    fewer |= {"GROUP = 240": "GROUP = 24", "torch.bfloat16": "torch.float32"}
    [(_, whole, _)] = train(tmp_path, (fewer, 6))
    (room := tmp_path / "a room").mkdir()
    script = script_with(fewer, room).rename(room / "train it.py")
    lines = lines.replace("scripts/train.py", f"{shlex.quote(str(script))} --epochs 6")
    lines = lines.replace("--standalone", "--standalone --local-addr 127.0.0.1")
    lines = lines.replace("sleep 1", "sleep 0.2")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    how = {"cwd": room, "env": os.environ | CPU | {"PATH": path}, "timeout": 300}
    run = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, **how)
    begun = re.findall(r"2 ranks on cpu: (\d+) of 60 steps", run.stdout)
    assert len(begun) == 2 and int(begun[1]) in (20, 40)
    assert run.stdout.count("ok: ") == 1
    assert "ok: the model of 60 steps is in run/training.pt" in run.stdout
    assert equal(torch.load(room / "run/training.pt", weights_only=True), whole)
    left = psutil.process_iter(["cwd", "status"])
    assert not [p for p in left if p.info["cwd"] == str(room)]
