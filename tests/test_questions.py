"""Tests what the page of questions answers, and no lesson shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from ringside import torchrun

PAGE = Path(__file__).resolve().parents[1] / "notebooks" / "questions.ipynb"
CELLS = [cell.source for cell in nbformat.read(PAGE, 4).cells]
CPU = {"CUDA_VISIBLE_DEVICES": ""}


def test_the_other_names_lead_to_fixed_sources():
    """Each cell for a project has a link to it at a commit or release, or says no."""
    head, _, *rows = [line for line in CELLS[1].splitlines() if line.startswith("|")]
    assert head == "| | by hand | Lightning | Accelerate | Trainer |"
    homes = "Lightning-AI/pytorch-lightning", "huggingface/accelerate"
    homes += ("huggingface/transformers",)
    fixed = r"\]\(https://github\.com/{}/blob/(v\d[\d.]+|[0-9a-f]{{7,40}})/.+\.py#L\d"
    for row in rows:
        _, _, by_hand, *others, end = row.split("|")
        assert by_hand.strip() and not end and len(others) == len(homes)
        for cell, home in zip(others, homes, strict=True):
            found = re.search(fixed.format(re.escape(home)), cell)
            assert found or "no name of its own" in cell, cell
    assert len(rows) > 10


def forwards(rank, world_size, old, broadcast_buffers):
    """Run the forward twice before backward, through BatchNorm in DDP."""
    from contextlib import nullcontext

    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    if old:  # as it was: DDP's copy of the buffers counts as a change
        torch.autograd._unsafe_preserve_version_counter = lambda _: nullcontext()
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    model = DistributedDataParallel(model, broadcast_buffers=broadcast_buffers)
    first, second = model(torch.ones(2, 1)), model(torch.ones(2, 1))
    try:
        (first + second).sum().backward()
        print("well")
    except RuntimeError as error:
        print("modified by an inplace operation" in str(error))


NOW = "well" if torch.__version__ >= "2.12" else "True"  # the answer names the fix


@pytest.mark.parametrize(
    ("old", "broadcast_buffers", "said"),
    [(False, True, NOW), (True, True, "True"), (True, False, "well")],
)
def test_two_forwards_before_one_backward(old, broadcast_buffers, said):
    run = torchrun(forwards, old, broadcast_buffers, ranks=2, quiet=True, env=CPU)
    assert run.lines == {0: [said], 1: [said]}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_process_with_one_core_counts_it_and_takes_one_thread():
    """While os.cpu_count() counts those of the machine."""
    ask = f"""
import os
os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])
import torch
print(len(os.sched_getaffinity(0)), torch.get_num_threads(), os.cpu_count())"""
    env = {name: v for name, v in os.environ.items() if name != "OMP_NUM_THREADS"}
    how = {"env": env, "capture_output": True, "text": True}
    told = subprocess.run([sys.executable, "-c", ask], check=True, **how).stdout
    assert told.split() == ["1", "1", f"{os.cpu_count()}"]


def test_a_converted_model_predicts_on_a_cpu_and_its_file_fits_a_plain_one(tmp_path):
    """Without a group; so its page says `eval()`, and that the names are the same."""
    import torch
    from torch import nn

    def made():
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    plain, converted = made(), nn.SyncBatchNorm.convert_sync_batchnorm(made())
    torch.save(converted.state_dict(), tmp_path / "model.pt")
    plain.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    rows = torch.ones(4, 2)
    assert torch.equal(converted.eval()(rows), plain.eval()(rows))


def trains(rank, world_size):
    """Take ten steps with dice, and print the last bits of what came out."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(rank)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
    print([weights.double().sum().item().hex() for weights in model.parameters()])


def test_with_the_same_seeds_a_run_on_three_cpu_ranks_repeats_itself():
    first, second = (torchrun(trains, ranks=3, quiet=True, env=CPU) for _ in range(2))
    assert first.lines == second.lines
