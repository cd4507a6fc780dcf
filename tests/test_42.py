"""Tests the page on a model that nobody holds whole: what ranks hold, call and send."""

import json
import re
import warnings

import pytest
import torch
from lesson import NOTEBOOKS, SCRIPTS, changed, code_with, functions_of
from ringside import RankFailed, check, load, torchrun
from ringside.recording import table

STEM = "42_nobody_holds_it_all"
CPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return the functions of the page."""
    with warnings.catch_warnings(action="ignore"):  # of a part of torch that it imports
        return functions_of(STEM, tmp_path_factory.mktemp("told"))


def printed(text):
    """Return the lines that the cell with some text has printed."""
    outputs = code_with(STEM, text).outputs
    return "".join(o.text for o in outputs if o.output_type == "stream").splitlines()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("own.grad = total / world_size", "own.grad = total"),
        ("        optimizer.step()\n\n    def step", "        pass\n\n    def step"),
        ("    ring.allgather(rank", "    (lambda *_: None)(rank"),
        ("    ring.scatter_reduce(", "    (lambda *_: None)("),
        ("for unit in [*model.body.layers, model]", "for unit in model.body.layers"),
    ],
)
def test_a_way_that_is_not_as_one_process_is_noticed(old, new, tmp_path):
    broken = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed):
        torchrun(broken, ranks=2, quiet=True)


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_ranks_share_what_adamw_remembers(ranks):
    lines = torchrun(STEM, ranks=ranks, quiet=True).lines[0]
    alone, hand, torchs = (
        [int(n) for n in re.findall(r"\d+", row.replace(",", ""))] for row in lines[:3]
    )
    own = torch.arange(alone[0]).tensor_split(ranks)[1 % ranks]
    assert alone == [26378, 26378, 2 * 26378]
    assert hand == [26378, 26378, 2 * len(own)]
    assert torchs[0] == torchs[1] == torchs[2] // 2 >= 26378 / ranks


def test_more_ranks_than_digits_are_refused(tmp_path):
    with pytest.raises(RankFailed, match="9 ranks at most"):
        torchrun(STEM, "--record", tmp_path / "r", ranks=10, quiet=True)


def test_between_the_halves_nothing_is_sent_and_each_rank_has_one_sum():
    rows = table(load(STEM))
    ranks = len(rows[0])
    complete = [(10**ranks - 1) // 9 * (chunk + 1) for chunk in range(ranks)]
    assert [row[0]["phase"] for row in rows].index("update") == ranks - 1
    for rank, (before, after) in enumerate(zip(rows[ranks - 1], rows[ranks])):
        own = (rank + 1) % ranks
        assert before["send"] is before["recv"] is None
        assert before["chunks"][own] == complete[own]
        assert after["chunks"] == [n * (i == own) for i, n in enumerate(complete)]
    assert all(event["chunks"] == complete for event in rows[-1])


def test_a_rank_of_ddp_holds_five_numbers_for_a_weight_or_four():
    (weights, *more), (_, *fewer) = (
        [int(n.replace(",", "")) for n in line.split()]
        for line in printed("weigh, view")
    )
    assert more == [weights, weights, 2 * weights]
    assert fewer == [weights, 0, 2 * weights]


def test_all_ways_print_one_loss_and_the_calls_of_the_table():
    rows = printed("one_way, way")[1:]
    assert len({re.search(r"\d\.\d{6}", row)[0] for row in rows}) == 1
    kept, plain = rows[-2:]
    assert kept.endswith("3 allgather, 3 reduce_scatter")
    assert plain.endswith("5 allgather, 3 reduce_scatter")


def test_a_rank_never_holds_two_whole_layers(told):
    lines = torchrun(told.arrive, ranks=3, env=CPU, quiet=True).lines[1]
    for phase, holds in map(json.loads, lines):
        whole = [name for name, rows in holds.items() if len(rows) == 3]
        assert len(whole) == (phase.startswith(("forward", "backward")))


@pytest.mark.parametrize("ranks", [5, 7])
def test_rows_are_dealt_out_as_the_exercise_says(ranks, told, capsys):
    run = torchrun(told.rows_of, ranks=ranks, env=CPU, quiet=True)
    shares = [json.loads(line) for [line] in run.lines.values()]

    def own_rows(rows, rank, world_size):
        pieces = torch.arange(rows).chunk(world_size)
        return pieces[rank].tolist() if rank < len(pieces) else []

    assert shares == [own_rows(8, rank, ranks) for rank in range(ranks)]
    check.own_rows(own_rows)
    assert "as torch does" in capsys.readouterr().out


def trainings(folder):
    """Return train.py, and as the page changes it: hunks of a diff, each found once.

    With fewer sums: an epoch has three steps.
    """
    text = (SCRIPTS / "train.py").read_text("utf-8")
    text = text.replace("sums[:8400], sums[8400:]", "sums[:720], sums[9600:]")
    (plain := folder / "plain.py").write_text(text, encoding="utf-8")
    page = (NOTEBOOKS / f"{STEM}.ipynb").read_text("utf-8")
    cells = ["".join(cell["source"]) for cell in json.loads(page)["cells"]]
    [diff] = re.findall(r"(?s)```diff\n(.*?)```", "\n".join(cells))
    for hunk in re.split(r"(?m)^@@.*\n", diff):
        rows = hunk.splitlines(keepends=True)
        old = "".join(row[1:] for row in rows if row[0] in " -")
        assert text.count(old) == 1, old
        text = text.replace(old, "".join(row[1:] for row in rows if row[0] in " +"))
    (cut := folder / "cut.py").write_text(text, encoding="utf-8")
    return plain, cut


def test_what_the_page_makes_of_train_py_trains_alike_and_goes_on(tmp_path):
    (plain, cut), place = trainings(tmp_path), tmp_path / "saved"
    run = torchrun(plain, "--folder", tmp_path, "--epochs", 1, ranks=2, quiet=True)
    words = [cut, "--folder", place, "--epochs"]
    assert torchrun(*words, 1, ranks=2, quiet=True).lines[0][:2] == run.lines[0][:2]
    more = torchrun(*words, 2, ranks=3, quiet=True).lines[0]
    assert more[0].endswith("3 of 6 steps are done") and more[1][:8] == "epoch 2:"


def test_on_one_to_eight_ranks_a_test_of_train_py_has_equally_many_batches():
    for ranks in range(1, 9):
        shares = [len(range(rank, 1600, ranks)) for rank in range(ranks)]
        assert len({-(-share // 128) for share in shares}) == 1


def recommended(rank, world_size, everywhere):
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (world_size,))
    half = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    fully_shard(model[0], mesh=mesh, **half)
    fully_shard(model, mesh=mesh, **half if everywhere else {})
    model(torch.ones(2, 4)).float().sum().backward()
    print(model[0].weight.dtype)
    norm = nn.BatchNorm1d(4)
    fully_shard(norm, mesh=mesh)
    norm(torch.arange(8.0).view(2, 4) * (rank + 1))
    print(norm.running_mean[0].item())


def test_a_policy_is_for_each_call_and_buffers_are_nobody_s():
    lines = torchrun(recommended, True, ranks=2, env=CPU, quiet=True).lines
    assert {rank: line[0] for rank, line in lines.items()} == dict.fromkeys(
        (0, 1), "torch.float32"
    )
    assert lines[0][1] != lines[1][1]
    with pytest.raises(RankFailed, match="same dtype"):
        torchrun(recommended, False, ranks=2, env=CPU, quiet=True)
