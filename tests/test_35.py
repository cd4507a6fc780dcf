"""Tests broken scripts: ten broken scripts, right cures and wrong ones, four checks."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import nbformat
import pytest
from lesson import NOTEBOOKS, changed, functions_of
from ringside import RankFailed, check, torchrun
from ringside.check import watched

STEM = "35_broken_scripts"
ROOT = Path(__file__).resolve().parents[1]
CPU = {"CUDA_VISIBLE_DEVICES": ""}
SCRIPTS = {  # by number: the function, and what it prints on one rank
    1: ("around", "weight 6.5"),
    2: ("export", "weight 6.5"),
    3: ("test_between", "test -16.25 test -32.5 weight 13"),
    4: ("one_epoch", "weight 52"),
    5: ("stop_early", "stops after step 6"),
    6: ("log_loss", "loss -6.5"),
    7: ("evaluate", "right 5 of 7"),
    8: ("shuffle", ""),  # at random
    9: ("whole_mean", "weight 6.5"),
    10: ("go_on", "weight 16.25"),
}
BROKEN = {  # what the checker says of the scripts as they stand
    1: "on 2 ranks, the ranks' gradients differ in step 1: -6 and -7",
    2: "on 2 ranks, rank . raises RuntimeError: .*Missing key",
    3: "on 2 ranks, rank 1 is killed by SIGABRT: it got numbers of another call",
    4: "wait for each other: rank 0 in all_reduce and rank 1 in barrier",
    5: "wait for each other: rank 0 in all_reduce and rank 1 in barrier",
    6: "on 2 ranks, rank 0 tells -6: that is the loss of its own samples",
    7: "on 2 ranks, rank 0 tells 6 of 8: there are 7 samples, and some are tested",
    8: "on 2 ranks, epoch 1 has the order of epoch 0",
    9: "on 2 ranks, the weight is 3.25, and with one process 6.5",
    10: "on 2 ranks, the ranks end with unequal weights: 16.25 and 13",
}
STEP = "    optimizer.step()\n"
SUM = "    for w in model.parameters():\n        dist.all_reduce(w.grad)\n"
SAVE = "torch.save(model.state_dict()"
LOSS = '    if rank == 0:\n        print(f"loss {loss'
COPY = "    total = loss.detach().clone()\n"
TEST = "        if rank == 0:\n            with torch.no_grad():\n"
LOOP = "    for epoch in range(3):\n"
MADE = "        sampler = DistributedSampler(data) if world_size > 1 else None\n"
SHARE = "numbers(13)[rank::world_size]"
SWALLOW = {
    "        loss_of(model, batch).backward()": "        try:\n"
    "            loss_of(model, batch).backward()\n"
    "        except RuntimeError:\n            break"
}
STOP = "        if loss.item() < -180"
MINE = "        total = loss.detach().clone()\n"
FILE = "    if rank == 0:  # it alone has the file\n"
READ = '        optimizer.state[model.weight] = checkpoint["momentum"]\n'
CURES = [  # of which script, what is said of it, and what stands in place of what
    (1, "right", {STEP: SUM + "        w.grad /= world_size\n" + STEP}),
    (1, "computed all 12 .*nothing is shared", {"(12)[rank::world_size]": "(12)"}),
    (1, "is 13, and with one process 6.5", {STEP: SUM + STEP}),
    (
        2,
        "right",
        {
            "    plain = make()": "    from torch.nn.modules import utils\n"
            '    utils.consume_prefix_in_state_dict_if_present(loaded, "module.")\n'
            "    plain = make()"
        },
    ),
    (
        2,
        "no weight has found its place",
        {"_dict(loaded)": "_dict(loaded, strict=False)"},
    ),
    (
        2,
        "on 1 rank, .*no attribute 'module'",
        {SAVE: "torch.save(model.module.state_dict()"},
    ),
    (
        2,
        "gradients differ",
        {"DistributedDataParallel(make()) if world_size > 1 else ": ""},
    ),
    (
        3,
        "right",
        {"Parallel(plain)": "Parallel(plain, broadcast_buffers=False)"},
    ),
    (
        3,
        "SIGABRT",
        {"        if rank == 0:": "        dist.barrier()\n        if rank == 0:"},
    ),
    (3, "rank 0 tells nothing", {"if rank == 0": "if rank < 0"}),
    (3, "right", {"        if rank == 0:\n": "        if True:\n"}),
    (4, "right", {SHARE: SHARE + "[: 13 // world_size]"}),
    (4, "right", {SHARE: "numbers(13)[list(DistributedSampler(range(13)))]"}),
    (
        4,
        "right",
        {
            "        loss_of": "        if len(batch) < 2:\n"
            "            continue\n        loss_of"
        },
    ),
    (4, "on 3 ranks, the ranks wait for each other", {".split(2)": ".split(2)[:3]"}),
    (4, "wait for each other: rank 0 in all_reduce and rank 1 in barr", SWALLOW),
    (
        4,
        "all end, but with unequal weights",
        {"loss_of(model,": "loss_of(model.module,"},
    ),
    (
        5,
        "right",
        {
            STOP: MINE + "        every = [None] * world_size\n        "
            "dist.all_gather_object(every, total.item())\n"
            "        if sum(every) < -180 * world_size"
        },
    ),
    (
        5,
        "on 3 ranks, all stop after step 7",
        {STOP: MINE + "        dist.broadcast(total, 0)\n        if total < -180"},
    ),
    (
        5,
        "on 2 ranks, all stop after step 5",
        {
            STOP: MINE
            + "        dist.all_reduce(total, dist.ReduceOp.MIN)\n"
            + "        if total < -180"
        },
    ),
    (
        5,
        "rank 0 waits in all_reduce: rank 1 never makes that call, and ends",
        {"    dist.barrier()": "    pass"},
    ),
    (
        6,
        "right",
        {
            LOSS: COPY + "    dist.reduce(total, 0)\n" + LOSS,
            "loss.item()": "total.item() / world_size",
        },
    ),
    (
        6,
        "rank 0 waits in all_reduce: rank 1 never",
        {
            LOSS: "    if rank == 0:\n        dist.all_reduce(loss.detach())\n"
            '        print(f"loss {loss'
        },
    ),
    (
        6,
        "that is a sum over 2 ranks",
        {
            LOSS: COPY + "    dist.all_reduce(total)\n" + LOSS,
            "loss.item()": "total.item()",
        },
    ),
    (
        6,
        "the gradient is .*it was -6.5",
        {"    loss.backward()": "    (loss / world_size).backward()"},
    ),
    (
        7,
        "right",
        {
            "in sampler]": "in sampler]\n"
            "    if rank >= 7 % world_size > 0:\n        mine = mine[:-1]"
        },
    ),
    (7, "4 of 6: some of the 7", {"shuffle=False": "shuffle=False, drop_last=True"}),
    (
        7,
        "6 of 7: one process has 5",
        {"    if rank == 0": "    counts[1] = 7\n    if rank == 0"},
    ),
    (8, "right", {"DistributedSampler(data)": "DistributedSampler(data, seed=epoch)"}),
    (8, "epoch 1 has the order of epoch 0", {LOOP + MADE: MADE[4:] + LOOP}),
    (
        8,
        "read by nobody.*shuffle differently",
        {"Sampler(data)": "Sampler(data, seed=3 * rank + epoch)"},
    ),
    (
        8,
        "every rank reads all 12",
        {"DistributedSampler(data) if world_size > 1 else None": "None"},
    ),
    (8, "epoch 0 is not shuffled", {"Sampler(data)": "Sampler(data, shuffle=False)"}),
    (9, "right", {"/ 12 ": "/ 12 * world_size "}),
    (9, "on 3 ranks, the weight is 4.33333", {"/ 12 ": "/ 12 * 2 "}),
    (9, "on 2 ranks, the weight is 39", {" / 12 ": ""}),
    (10, "right", {FILE: "    if True:\n"}),
    (10, "none goes on with the momentum", {READ: ""}),
    (
        10,
        "the weight is 6.5, and with one process 16.25",
        {"if rank == 0:": "if rank < 0:"},
    ),
]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return functions_of(STEM, tmp_path_factory.mktemp("cells"))


def mended(folder, number, code):
    """Return a script's function, from the page's functions and other code."""
    name = SCRIPTS[number][0]
    page = Path(functions_of(STEM, folder).__file__).read_text()
    path = folder / f"mended_{number}.py"
    path.write_text(f"{page}\n\n{code}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where inspect looks for its text
    spec.loader.exec_module(module)
    return getattr(module, name)


def source(number):
    """Return the text of a script as it stands in its cell."""
    name = SCRIPTS[number][0]
    page = nbformat.read(NOTEBOOKS / f"{STEM}.ipynb", 4).cells
    [found] = [c.source for c in page if c.source.startswith(f"def {name}(")]
    return found.partition("\n\n\n")[0] + "\n"


@pytest.mark.parametrize("number", SCRIPTS)
def test_all_ten_are_right_on_one_rank(number, cells):
    name, told = SCRIPTS[number]
    run = torchrun(getattr(cells, name), ranks=1, quiet=True, env=CPU)
    said = run.lines[0]
    if told:
        assert " ".join(said) == told
    else:
        orders = [line.partition(":")[2].split() for line in said]
        assert all(sorted(map(int, order)) == [*range(12)] for order in orders)
        assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("number", SCRIPTS)
def test_the_checker_says_what_is_wrong_with_each(number, cells, capsys):
    getattr(check, f"script_{number}")(getattr(cells, SCRIPTS[number][0]))
    assert re.match(f"not yet: .*{BROKEN[number]}", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("number", "told", "changes"),
    CURES,
    ids=[f"{n}-{told[:30]}" for n, told, _ in CURES],
)
def test_a_cure_is_right_or_gets_the_name_of_its_mistake(
    number, told, changes, tmp_path, capsys
):
    code = source(number)
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    getattr(check, f"script_{number}")(mended(tmp_path, number, code))
    start = "right: on 1, 2 and 3 ranks" if told == "right" else f"not yet: .*{told}"
    assert re.match(start, capsys.readouterr().out)


def test_each_script_has_two_right_cures_and_two_wrong_ones():
    for number in SCRIPTS:  # one right one stands on the page
        said = [told for n, told, _ in CURES if n == number]
        assert "right" in said and len({*said}) >= 3


@pytest.mark.parametrize("number", [n for n in SCRIPTS if n > 1])
def test_the_folded_solution_is_right(number, tmp_path, capsys):
    page = nbformat.read(NOTEBOOKS / f"{STEM}.ipynb", 4).cells
    text = "\n".join(c.source for c in page if c.cell_type == "markdown")
    codes = re.findall(r"Solution</summary>\s+```python\n(.*?)```", text, re.DOTALL)
    name = SCRIPTS[number][0]
    [code] = [c for c in codes if c.endswith(f"check.script_{number}({name})\n")]
    getattr(check, f"script_{number}")(
        mended(tmp_path, number, code.rpartition("check")[0])
    )
    assert capsys.readouterr().out.startswith("right: ")


@pytest.mark.parametrize("answer", [7, len, lambda rank, world_size: None])
def test_what_is_no_function_with_a_text_is_refused_in_words(answer, capsys):
    check.script_1(answer)
    assert re.match("not yet: .*name a script, or a function", capsys.readouterr().out)


def endless(rank, world_size):
    while world_size:
        pass


def mumbles(rank, world_size):
    print("weight", 2.5, end="")


def test_the_checker_never_hangs_and_says_where_ranks_stood(monkeypatch, capsys):
    monkeypatch.setattr(watched, "LIMIT", 2)
    check.script_1(endless)
    told = r"2 of 2 ranks still ran after 2 s, and were ended: ranks? 0 .*in endless: "
    assert re.match(f"not yet: on 2 ranks, {told}", capsys.readouterr().out)


def test_a_line_without_an_end_is_read():
    ranks = watched.launch(mumbles, 2)
    assert [rank.lines for rank in ranks] == [["weight 2.5"]] * 2
    assert all(rank.known and rank.done for rank in ranks)


def test_a_doctor_who_overlooks_a_fault_is_found(tmp_path):
    """The script then raises, and never says ok: with each check, left out in turn."""
    text = (ROOT / "scripts" / f"{STEM}.py").read_text()
    for name in ("samples", "gradients", "loss", "weights"):
        [check] = re.findall(rf'        "{name}": .*,\n', text)
        path = changed(STEM, tmp_path, (check, f'        "{name}": True,\n'))
        with pytest.raises(RankFailed, match="it fails .*, and should fail"):
            torchrun(path, ranks=3, quiet=True)


def test_where_no_check_mark_can_be_printed_its_name_is():
    env = CPU | {"PYTHONIOENCODING": "latin-1"}
    lines = torchrun(STEM, ranks=1, quiet=True, warm=False, env=env).lines[0]
    assert "\\N{CHECK MARK} samples" in lines[0] and lines[-1].startswith("ok")


def test_no_two_faults_have_one_pattern():
    lines = (ROOT / "figures" / f"{STEM}.jsonl").read_text().splitlines()[1:]
    events, rows = [json.loads(line) for line in lines], {}
    assert {key for e in events for key in e} == {
        "step",
        "rank",
        "phase",
        "what",
        "kind",
    }
    for event in events:
        rows.setdefault(event["phase"], []).append(event["kind"])
    assert len({tuple(row) for row in rows.values()}) == len(rows) == 6
    assert rows["healthy"] == ["work"] * 4
