"""Tests four ranks tonight: one training, alone and on ranks, and what watches it."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
from lesson import changed
from ringside import RankFailed, still, torchrun
from ringside.draw import answers as drawn
from ringside.recording import load
from torch.utils.data import DataLoader, IterableDataset

import tell_tales

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "00_four_ranks_tonight"
CPU = {"CUDA_VISIBLE_DEVICES": ""}
HOW = {"quiet": True, "env": CPU, "timeout": 600}  # for machines that are busy
ALONE = (ROOT / "scripts" / "train_alone.py").read_text("utf-8")
TOGETHER = (ROOT / "scripts" / f"{SCRIPT}.py").read_text("utf-8")
PAGE = json.loads((ROOT / "notebooks" / f"{SCRIPT}.ipynb").read_text("utf-8"))


def test_the_picture_is_what_the_first_cell_prints():
    """The cell runs train_alone.py; that it prints what it has printed is tested."""
    first = next(cell for cell in PAGE["cells"] if cell["cell_type"] == "code")
    assert 'torchrun("train_alone", ranks=1' in "".join(first["source"])
    [printed] = first["outputs"]
    lines = re.findall(r"(?m)^rank 0 \| (.*)", "".join(printed["text"]))
    assert list(drawn.as_printed(lines)) == list(load(SCRIPT))


def test_it_asks_for_a_sum_that_it_has_not_seen_nor_its_mirror():
    found = {}
    exec(ALONE.partition("def main")[0], found)
    training = found["make_sums"]()[:8400]
    [asked] = re.findall(r"asked = torch.tensor\(\[(\[.*?\])\]", ALONE)
    asked = ast.literal_eval(asked)
    for question in (asked[:6], [*asked[3:5], 10, *asked[:2], 11]):
        assert not (training[:, :6] == torch.tensor(question)).all(1).any()


def test_alone_knows_of_no_other_process_and_shares_its_functions():
    assert not re.search(r"dist\b|rank|world|Distributed", ALONE)
    trees = []
    for text in (ALONE, TOGETHER):
        kinds = ast.FunctionDef | ast.ClassDef
        tops = [part for part in ast.parse(text).body if isinstance(part, kinds)]
        trees.append({top.name: ast.dump(top) for top in tops if top.name != "main"})
    assert trees[0] == trees[1] and len(trees[0]) == 4


def test_any_number_of_ranks_says_the_same(tmp_path):
    """Of those that can share a batch; the losses of the first step have one mean."""
    fewer = "sums[:8400], sums[8400:]", "sums[:960], sums[960:1200]"
    script, runs = changed(SCRIPT, tmp_path, fewer), {}
    for ranks in (1, 2, 3, 8):
        how = HOW | {"ranks": ranks}
        runs[ranks] = torchrun(script, "--epochs", 1, **how).lines
        firsts = [lines[0].split()[-1] for lines in runs[ranks].values()]
        assert len({*firsts}) == ranks
        assert runs[ranks][0][1] == runs[1][0][1]
        mean, one = sum(map(float, firsts)) / ranks, float(runs[1][0][0].split()[-1])
        assert mean == pytest.approx(one, abs=2e-6)
        assert runs[ranks][0][2:] == [f"ok: {ranks} ranks on cpu"]
        assert all(len(lines) == 1 for r, lines in runs[ranks].items() if r)


def test_ranks_that_cannot_share_a_batch_are_refused():
    with pytest.raises(RankFailed, match="7 ranks cannot share 240 samples"):
        torchrun(SCRIPT, ranks=7, quiet=True, env=CPU)


GPUS = """
    torch.cuda.device_count = lambda: {gpus}
    torch.cuda.set_device = lambda gpu: print("takes", gpu)
    torch.device = lambda name: print("on", name) or sys.exit()
    # 8. On"""


@pytest.mark.parametrize(("gpus", "says"), [(1, "on cpu"), (2, "takes {rank}")])
def test_each_rank_takes_its_own_gpu_or_none_does(gpus, says, tmp_path):
    """With GPUs that are made up."""
    moves = [("import os\n", "import os\nimport sys\n")]
    moves += [("    # 8. On", GPUS.format(gpus=gpus).lstrip("\n"))]
    moves += [("    device = torch.device", "    pass  # ")] * (gpus > 1)
    moves += [
        (
            '        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n',
            '        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
            "    sys.exit()\n",
        )
    ]
    script = changed(SCRIPT, tmp_path, *moves)
    run = torchrun(script, ranks=2, quiet=True)
    assert run.lines == {rank: [says.format(rank=rank)] for rank in range(2)}


@pytest.mark.parametrize("own", [False, True])
def test_tell_tales_watch_any_loader_that_deals_numbers(own):
    """With workers, and with a batch_sampler of one's own."""
    data = torch.arange(10.0)
    how = {"num_workers": 1, "multiprocessing_context": "fork"}
    how |= {"batch_sampler": [[3, 1], [2]]} if own else {"batch_size": 4}
    how |= {} if own else {"shuffle": True, "drop_last": True}
    loader = DataLoader(data, **how)
    watched = tell_tales.Watched(loader)
    for _ in range(2):
        read = [batch.tolist() for batch in loader]
        assert read == watched.epochs[-1] and len(loader) == len(read) == 2
    assert len(watched.epochs) == 2
    assert own or watched.drop_last and watched.batch_size == 4


def test_tell_tales_refuse_a_loader_without_numbers():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1.0])

    for other in (DataLoader(Stream()), DataLoader(torch.ones(3), batch_size=None)):
        with pytest.raises(TypeError, match="only a loader of batches"):
            tell_tales.Watched(other)


def test_tell_tales_count_a_sample_that_two_of_three_ranks_read(monkeypatch, capsys):
    weights = torch.zeros(2)
    ranks = [([[[0, 1]]], weights), ([[[1, 2]]], weights), ([[[3]]], weights + 1)]
    alone = {"get_world_size": lambda: 3, "get_rank": lambda: 1}
    alone["all_gather_object"] = lambda found, own: found.__setitem__(slice(3), ranks)
    for name, answer in alone.items():
        monkeypatch.setattr(torch.distributed, name, answer)
    watched = tell_tales.Watched(DataLoader(torch.arange(5), 2))
    watched.epochs = ranks[1][0]
    told = tell_tales.tell_tales(watched, torch.nn.Linear(1, 1))
    assert [*told.values()] == [1, 4, 1, 1, "one epoch", False]
    assert capsys.readouterr().out == ""


def test_tell_tales_see_what_is_never_read(monkeypatch, capsys):
    """What a loader's drop_last leaves out of every epoch, if the order is one."""
    alone = {"get_world_size": lambda: 1, "get_rank": lambda: 0}
    alone["all_gather_object"] = lambda found, own: found.__setitem__(0, own)
    for name, answer in alone.items():
        monkeypatch.setattr(torch.distributed, name, answer)
    loader = DataLoader(torch.arange(10), 4, drop_last=True)
    watched = tell_tales.Watched(loader)
    assert [len([*loader]) for _ in range(2)] == [2, 2]
    told = tell_tales.tell_tales(watched, torch.nn.Linear(1, 1))
    assert told == json.loads(capsys.readouterr().out)
    assert told == {
        "steps": 2,
        "samples": 8,
        "read by several": 0,
        "never read": 2,
        "new order": False,
        "equal weights": True,
    }


@pytest.mark.parametrize("step", range(8))
def test_a_column_is_as_high_as_its_counts_and_the_words_say_them(step):
    recording = load(SCRIPT)
    event, svg = recording[step], drawn.frame(recording, step)
    parts = re.findall(r"h44v([\d.]+)", svg.split('url(#ten)" d="')[-1])
    assert event["ten"] == pytest.approx(float(parts[0]) / drawn.TALL * 1600, abs=1)
    assert f"{event['score']} of 1600 new sums are right" in svg
    assert f"39 + 49 = {event['said']} " in svg
    assert ("ten too few" in svg) == (event["said"] == 78)
    assert repr(still(recording, step)) in svg
