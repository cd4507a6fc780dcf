"""Tests scripts/train.py: trained, killed, resumed and evaluated, as in the README."""

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from ringside import torchrun

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "train.py"
CPU = {"CUDA_VISIBLE_DEVICES": ""}
NOISY = """class Noisy(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, number):
        noise = torch.rand((), dtype=torch.float64).item()
        with open(f"{sys.argv[2]}/noise-{os.environ['RANK']}", "a") as file:
            print(noise, file=file)
        x, y = self.data[number]
        return x + noise / 10, y


@errors.record"""
OWN = {  # what somebody puts in: BatchNorm, and noise that two workers throw
    "@errors.record": NOISY,
    "= make_data(4096, SEED),": "= Noisy(make_data(4096, SEED)),",
    "sampler=share, generator=dice": "sampler=share, generator=dice, num_workers=2, "
    'multiprocessing_context="fork"',  # the others start slower
    "nn.Linear(2, 64), nn.ReLU()": "nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU()",
}


def train(folder, ranks=2, epochs=2, script=SCRIPT):
    """Run the training, and return what rank 0 says and what the file then holds."""
    words = "--folder", folder, "--epochs", epochs
    run = torchrun(script, *words, ranks=ranks, quiet=True, env=CPU)
    state = torch.load(folder / "training.pt", weights_only=True)
    return run.lines[0], state


def changed(folder, swaps):
    """Return a copy of the script in which some texts stand for others."""
    text = SCRIPT.read_text()
    for old, new in swaps.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (script := folder / "train.py").write_text(text)
    return script


def equal(one, other):
    """Say whether two states are equal, to the last bit of each tensor."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return one == other


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run of two ranks says and leaves that nobody disturbed."""
    return train(tmp_path_factory.mktemp("whole"), epochs=8)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The file of a run of two ranks that is stopped before its last save."""
    folder = tmp_path_factory.mktemp("stopped")
    text = SCRIPT.read_text().replace("or step == steps", "")
    (script := folder / "train.py").write_text(text)
    torchrun(script, "--folder", folder, ranks=2, quiet=True, env=CPU)
    file = folder / "training.pt"
    assert torch.load(file, weights_only=True)["epochs"] == 240 / 32
    return file


def test_it_learns_and_tests_exactly(whole):
    lines, state = whole
    assert lines[-1].startswith("ok: the model of 256 steps is in ")
    right = [float(line.rpartition(" ")[2][:-1]) for line in lines[1:-1]]
    assert len(right) == 8 and right[-1] > 95
    assert state["epochs"] == 8 and len(state["dice"]) == 2


def test_killed_at_any_moment_it_goes_on_as_the_same_run(whole, tmp_path):
    """As by the README, all its processes are killed when a file is there."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2", SCRIPT]
    command += ["--folder", tmp_path]
    with subprocess.Popen(command, stdout=-3, stderr=-3) as agent:
        while not (tmp_path / "training.pt").exists():
            assert agent.poll() is None
            time.sleep(0.02)
        for process in [*psutil.Process(agent.pid).children(recursive=True), agent]:
            process.send_signal(signal.SIGKILL)
    epochs = torch.load(tmp_path / "training.pt", weights_only=True)["epochs"]
    done = round(32 * epochs)
    assert 20 <= done < 256 and done % 20 == 0
    lines, state = train(tmp_path, epochs=8)
    assert lines[0] == f"2 ranks on cpu: {done} of 256 steps are done"
    assert lines[1:-1] == whole[0][1 + done // 32 : -1]
    assert equal(state, whole[1])


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_numbers_of_ranks_go_on_too(ranks, tmp_path):
    train(tmp_path, ranks=2, epochs=1)
    lines, _ = train(tmp_path, ranks=ranks, epochs=2)
    done = int(re.search(r": (\d+) of", lines[0])[1])
    assert done == -(-4096 // (64 * ranks))  # an epoch
    assert lines[-1].startswith("ok: ")


def test_all_epochs_on_three_ranks_are_all_epochs_on_two(tmp_path):
    """Also where the last step of an epoch is a short one."""
    train(tmp_path, ranks=3, epochs=1)
    lines, _ = train(tmp_path, ranks=2, epochs=1)
    assert lines[0] == "2 ranks on cpu: 32 of 32 steps are done"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for dice, module in zip(", "for dice, module in () and zip("),
        ("place * GROUP : until", ": until"),
        (
            "in parts.items():\n        part.load",
            "in [*parts.items()][:1]:\n        part.load",
        ),
    ],
)
def test_what_is_forgotten_makes_it_another_run(old, new, whole, stopped, tmp_path):
    shutil.copy(stopped, tmp_path / "training.pt")
    text = SCRIPT.read_text()
    assert text.count(old) == 1
    (script := tmp_path / "train.py").write_text(text.replace(old, new))
    assert not equal(train(tmp_path, epochs=8, script=script)[1], whole[1])


def test_a_file_of_more_epochs_is_told_as_what_it_is(tmp_path):
    train(tmp_path, ranks=1, epochs=2)
    lines, _ = train(tmp_path, ranks=1, epochs=1)
    assert lines[-1].startswith("ok: the model of 128 steps is in ")


def test_no_epochs_are_refused(tmp_path, monkeypatch, capfd):
    main = runpy.run_path(str(SCRIPT))["main"]
    words = ["train.py", "--folder", str(tmp_path), "--epochs", "0"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--epochs must be 1 or more, not 0" in capfd.readouterr().err


def test_batches_that_do_not_make_up_a_group_are_refused(tmp_path):
    text = SCRIPT.read_text().replace("= 32, 64, 20, 0,", "= 48, 64, 20, 0,")
    (script := tmp_path / "train.py").write_text(text)
    with pytest.raises(AssertionError, match="GROUP is a multiple of BATCH"):
        runpy.run_path(str(script))


def test_a_save_at_the_end_of_an_epoch_holds_the_same_dice(whole, tmp_path):
    """An evaluation that throws the ranks' dice would make it another run."""
    text = SCRIPT.read_text().replace("or step == steps", "")
    assert text.count("= 32, 64, 20, 0,") == 1
    script = tmp_path / "train.py"
    script.write_text(text.replace("= 32, 64, 20, 0,", "= 32, 64, 160, 0,"))
    torchrun(script, "--folder", tmp_path, ranks=2, quiet=True, env=CPU)
    assert torch.load(tmp_path / "training.pt")["epochs"] == 5
    assert equal(train(tmp_path, epochs=8)[1], whole[1])


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The folder, lines and state of two ranks with a net and data of one's own."""
    folder = tmp_path_factory.mktemp("own")
    return folder, *train(folder, script=changed(folder, OWN))


def test_workers_throw_other_dice_on_each_rank_and_in_each_epoch(own):
    """Dice of a loader that nobody seeds are the same everywhere, and again."""
    folder, _, state = own
    noise = [(folder / f"noise-{rank}").read_text().split() for rank in range(2)]
    assert [*map(len, noise)] == [4096, 4096] and state["epochs"] == 2
    assert len({*noise[0], *noise[1]}) == 8192


def test_the_model_that_is_tested_is_the_one_that_is_saved(own):
    """Each rank has BatchNorm buffers of its own, and rank 0's are in the file."""
    _, lines, state = own
    norm, relu = torch.nn.BatchNorm1d(64), torch.nn.ReLU()
    layers = [torch.nn.Linear(2, 64), norm, relu, torch.nn.Dropout(0.1)]
    layers += [torch.nn.Linear(64, 64), relu, torch.nn.Linear(64, 2)]
    (model := torch.nn.Sequential(*layers)).load_state_dict(state["model"])
    x, y = runpy.run_path(str(SCRIPT))["make_data"](1003, 1).tensors
    with torch.no_grad():
        out = model.eval()(x)
    loss, right = torch.nn.functional.cross_entropy(out, y), out.argmax(1) == y
    told = f"test {loss:.3f}, right {right.double().mean():.1%}"
    assert lines[-2].endswith(told)


def test_dice_of_workers_are_the_same_again_after_a_resume(own, tmp_path):
    """Stopped at its last save but one, within the second epoch."""
    shortened = OWN | {" or step == steps:": ":"}
    script = changed(tmp_path, shortened)
    torchrun(script, "--folder", tmp_path, "--epochs", 2, ranks=2, quiet=True, env=CPU)
    assert torch.load(tmp_path / "training.pt")["epochs"] == 60 / 32
    assert equal(train(tmp_path, script=changed(tmp_path, OWN))[1], own[2])


def test_without_torchrun_it_says_what_to_type(tmp_path):
    words = [sys.executable, SCRIPT, "--folder", "a b"]
    run = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    path = shlex.quote(str(SCRIPT))
    said = f"try torchrun --standalone --nproc-per-node 2 {path} --folder 'a b'\n"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", said)
    assert [*tmp_path.iterdir()] == []


def test_the_script_stays_one_that_a_person_reads():
    assert len(SCRIPT.read_text().splitlines()) <= 200


def test_what_the_readme_tries_runs_as_it_stands(tmp_path):
    """Also its kills, which end this run's own processes and nobody else's."""
    readme = (ROOT / "README.md").read_text("utf-8")
    [lines] = [part for part in readme.split("```") if "kill -KILL $!" in part]
    assert lines.count("scripts/train.py --folder run --epochs 40") == 2
    lines = lines.replace("scripts/train.py", shlex.quote(str(SCRIPT))).replace(
        "40", "8"
    )
    lines = lines.replace("--standalone", "--standalone --local-addr 127.0.0.1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    how = {"cwd": tmp_path, "env": os.environ | CPU | {"PATH": path}, "timeout": 300}
    run = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, **how)
    done, steps = re.findall(r"2 ranks on cpu: (\d+) of (\d+) steps", run.stdout)[-1]
    assert int(done) >= 20 and run.stdout.count("ok: ") == 1
    assert f"ok: the model of {steps} steps is in run/training.pt" in run.stdout
    left = psutil.process_iter(["cwd", "status"])
    assert not [p for p in left if p.info["cwd"] == str(tmp_path)]
