"""Tests the sampler: torch's rebuilt, the script's audit, the grid, the checkers."""

import functools
import importlib.util
import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import bench_sampler
import pytest
import torch
import torch.distributed as dist
from lesson import changed, functions_of, quoted
from ringside import Player, RankFailed, Recording, check, film, still, torchrun
from ringside.draw import grid
from ringside.draw.grid_layout import Layout
from ringside.draw.player import animate, last
from torch.utils.data import DataLoader, DistributedSampler

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "02_sampler_and_set_epoch"
MEASURED = ROOT / "figures" / f"{SCRIPT}_measured.json"
NOBODY = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def script():
    """The script, imported: its functions need no rank."""
    path = ROOT / "scripts" / f"{SCRIPT}.py"
    spec = importlib.util.spec_from_file_location("sampler_script", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_quoted_sampler_deals_one_weighted_order_and_no_sample_of_weight_0(
    monkeypatch,
):
    names = {"torch": torch, "dist": dist}
    exec(quoted(SCRIPT, "class WeightedShare"), names)
    weights, shares = [0, 1, 3] * 3 + [1, 1], {}
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    for rank, epoch in itertools.product(range(3), range(200)):
        monkeypatch.setattr(dist, "get_rank", lambda own=rank: own)
        sampler = names["WeightedShare"](weights, seed=5)
        sampler.set_epoch(epoch)
        shares[rank, epoch] = [*DataLoader(range(11), sampler=sampler, batch_size=None)]
        assert len(shares[rank, epoch]) == len(sampler) == 3
    for epoch in (0, 7):
        generator = torch.Generator().manual_seed(5 + epoch)
        heavy = torch.tensor(weights).float()
        order = torch.multinomial(heavy, 9, True, generator=generator)
        dealt = itertools.chain(*zip(*(shares[rank, epoch] for rank in range(3))))
        assert [*dealt] == order.tolist()
    drawn = Counter(itertools.chain(*shares.values()))
    assert drawn[0] == drawn[3] == drawn[6] == 0
    heavy, light = sum(map(drawn.get, (2, 5, 8))), sum(map(drawn.get, (1, 4, 7)))
    assert 2.5 < heavy / light < 3.5


def test_the_sampler_rebuilt_is_torch_s_own(script):
    """For every length, number of ranks and option, and some seeds and epochs."""
    options = itertools.product((False, True), (False, True), ((0, 3), (7, 1), (2, -5)))
    for shuffle, drop_last, (seed, epoch) in options:
        for length, ranks in itertools.product(range(41), range(1, 9)):
            for rank in range(ranks):
                how = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
                sampler = DistributedSampler(range(length), ranks, rank, **how)
                sampler.set_epoch(epoch)
                mine = script.deal(length, rank, ranks, epoch, **how)
                assert mine == list(sampler), (length, ranks, rank, epoch, how)


def shares(run, epoch):
    return [e["samples"] for e in run.recording if e["step"] == epoch]


@pytest.mark.parametrize(
    ("ranks", "samples"), [(5, 11), (8, 20), (8, 3), (4, 0), (1, 5), (3, 40)]
)
def test_any_ranks_and_samples(ranks, samples):
    """Each sample is read, and none more than once more than another."""
    how = {"ranks": ranks, "record": True, "quiet": True}
    run = torchrun(SCRIPT, "--samples", samples, **how)
    reads = -(-samples // ranks) * ranks
    assert run.lines[0][-1] == (
        f"ok: {samples} samples, {reads} reads an epoch by {ranks} ranks"
    )
    for epoch in range(4):
        times = Counter(itertools.chain(*shares(run, epoch)))
        assert sorted(times) == list(range(samples))
        assert sum(times.values()) == reads
        assert max(times.values(), default=0) - min(times.values(), default=0) <= 1


def rows(world_size, samples, epochs=(0, 1, 2, 3), seeds=None, **options):
    """Return what real samplers give, as the script gathers it."""
    found = []
    for step, epoch in enumerate(epochs):
        for rank in range(world_size):
            how = options | {"seed": seeds[rank] if seeds else 0}
            sampler = DistributedSampler(range(samples), world_size, rank, **how)
            sampler.set_epoch(epoch)
            found.append({"step": step, "rank": rank, "samples": list(sampler)})
    return found


def audits(script, found, world_size, samples):
    """Return what the audit says of each epoch."""
    steps = range(found[-1]["step"] + 1)
    dealt = [[e["samples"] for e in found if e["step"] == step] for step in steps]
    assert all(len(shares) == world_size for shares in dealt)
    return [script.audit(shares, samples, step) for step, shares in enumerate(dealt)]


@pytest.mark.parametrize(
    ("epochs", "late"),
    [((0, 0, 0, 0), [1, 2, 3]), ((0, 0, 1, 2), [1, 2, 3]), ((0, 1, 3, 3), [2])],
)
def test_the_audit_names_an_order_at_the_wrong_time(script, epochs, late):
    said = audits(script, rows(3, 11, epochs), 3, 11)
    assert [step for step in range(4) if said[step]] == late
    for step in late:
        assert said[step].startswith(
            f"this is not the order of epoch {step}: who calls"
        )


def test_the_audit_counts(script):
    """And does so first: a count says more than an order."""
    each_its_own = audits(script, rows(4, 11, seeds=range(4)), 4, 11)[0]
    assert each_its_own == "6 of 11 are never read: who has a seed of its own?"
    dropped = audits(script, rows(4, 11, drop_last=True), 4, 11)[0]
    assert dropped == "8 reads of 11 samples: who shares them?"
    late = rows(4, 11)
    late[5]["samples"][0] = late[4]["samples"][0]  # twice in epoch 1
    first, second, *_ = audits(script, late, 4, 11)
    assert first is None
    assert second.startswith("1 of 11 are never read")


@pytest.mark.parametrize(("world_size", "samples"), [(1, 0), (1, 5), (8, 3), (5, 10)])
def test_the_audit_finds_nothing_where_all_is_well(script, world_size, samples):
    assert audits(script, rows(world_size, samples), world_size, samples) == [None] * 4


def test_an_audit_that_finds_something_fails_the_script(tmp_path):
    """Without the call, in a copy of the script, there is no ok."""
    path = changed(SCRIPT, tmp_path, ("        sampler.set_epoch(epoch)\n", ""))
    with pytest.raises(
        RankFailed, match="epoch 1: this is not the order of epoch 1: who calls"
    ) as caught:
        torchrun(path, ranks=2, record=True, quiet=True)
    assert len(caught.value.run.recording) == 8, "it is recorded all the same"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The functions of the page, as a module."""
    sys.path.append(str(ROOT / "scripts"))  # as the page does
    return functions_of(SCRIPT, tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("no sampler", "reads of 8400 samples: who shares them?"),
        ("never called", "this is not the order of epoch 1"),
        ("called late", "this is not the order of epoch 1"),
        ("seed=rank", "are never read: who has a seed of its own?"),
        ("no fault", "all is well"),
    ],
)
def test_a_watched_loop_names_its_fault(cells, fault, says, ranks):
    """On one rank, a sampler and a seed cannot be missed."""
    run = torchrun(cells.your_loop, fault, ranks=ranks, env=NOBODY, quiet=True)
    if ranks == 1 and fault == "no sampler":
        says = "this is not the order of epoch"
    if ranks == 1 and fault == "seed=rank":
        says = "all is well"
    for lines in run.lines.values():
        assert says in lines[1]
        if fault in ("never called", "called late", "no fault"):
            assert lines[0] == "all is well", "epoch 0 is right in any case"


def test_a_watched_loop_gets_its_batches(cells, monkeypatch):
    """Whole, in order, without the numbers."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    gather = "all_gather_object"
    monkeypatch.setattr(dist, gather, lambda all, own: all.__setitem__(0, own))
    loader = DataLoader([*enumerate("abcde")], 2)
    assert [*cells.audited(loader, 0)] == [("a", "b"), ("c", "d"), ("e",)]


def test_the_quoted_data_set_gives_each_sample_its_number():
    exec(quoted(SCRIPT, "class Numbered"), names := {"torch": torch})
    assert [*names["Numbered"]("abc")] == [(0, "a"), (1, "b"), (2, "c")]


def test_the_two_lines_are_those_of_the_first_station():
    text = "\n".join(
        "".join(cell["source"])
        for cell in json.loads((ROOT / "notebooks" / f"{SCRIPT}.ipynb").read_text())[
            "cells"
        ]
    )
    [shown] = re.findall(r"(?s)```diff\n(.*?)```", text)
    alone = (ROOT / "scripts" / "train_alone.py").read_text()
    many = (ROOT / "scripts" / "00_four_ranks_tonight.py").read_text()
    for line in filter(None, shown.splitlines()):
        for text, signs in ((alone, "- "), (many, "+ ")):
            assert (line[1:] in text) == (line[0] in signs), line


def test_what_forgetting_costs_the_first_station_is_what_its_tool_finds():
    """The first epochs of one run of sixteen; the page has the others from a file."""
    kept = json.loads(MEASURED.read_text())
    assert {how: len(runs) for how, runs in kept.items()} == {
        "called": 8,
        "forgotten": 8,
    }
    told = bench_sampler.right(seed=0, called=False, last=3)
    assert told == kept["forgotten"][0][:3] != kept["called"][0][:3]
    last = zip(*([run[-1] for run in kept[how]] for how in kept))
    assert sum(called > forgot for called, forgot in last) == 4, "half of them, it says"


def made(ranks=4, samples=11, called=True, **options) -> Recording:
    """Return what real samplers give to each rank, in four epochs."""
    events = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(samples), ranks, rank, **options)
        for epoch in range(4):
            sampler.set_epoch(epoch * called)
            events.append({"step": epoch, "rank": rank, "samples": list(sampler)})
    return Recording(events, picture="grid", ranks=ranks, samples=samples)


SHAPES = [(1, 5), (2, 9), (4, 11), (8, 20), (8, 3), (4, 0), (3, 40), (12, 30)]


@pytest.mark.parametrize(("ranks", "samples"), SHAPES)
def test_a_grid_holds_every_read_and_is_pure(ranks, samples):
    events = made(ranks, samples)
    for step in range(1 + last(events)):
        svg, words = grid.frame(events, step), grid.describe(events, step)
        ElementTree.fromstring(svg)
        assert svg == grid.frame(Recording(reversed(events), **events.header), step)
        for rank in range(ranks):
            mine = next(
                e["samples"] for e in events if (e["step"], e["rank"]) == (step, rank)
            )
            assert f"rank {rank}: {' '.join(map(str, mine))}" in words
        reads = sum(len(e["samples"]) for e in events if e["step"] <= step)
        over = sum(len(Layout(events).again(epoch)) for epoch in range(step + 1))
        assert len(re.findall(r">\d+</text>", svg)) == samples + reads + over
    for svg in (grid.sheet(events), animate(events)):
        ElementTree.fromstring(svg)
    assert animate(events) == animate(made(ranks, samples))


@pytest.mark.parametrize(("ranks", "samples"), SHAPES)
def test_no_two_cells_of_a_grid_overlap(ranks, samples):
    layout = Layout(made(ranks, samples, drop_last=samples > 20))
    placed = [(*layout.home(i), i, []) for i in range(layout.samples)]
    for epoch in range(4):
        for k in range(layout.longest):
            placed += layout.turn(epoch, k)
        placed += layout.left_out(epoch)
    for (x, y, *_), (u, v, *_) in itertools.combinations(placed, 2):
        assert abs(x - u) >= layout.wide - 0.01 or abs(y - v) >= 29
    assert all(0 < x < layout.width - layout.wide for x, *_ in placed)
    assert all(60 < y < layout.height - 60 for _, y, *_ in placed)


def test_a_forgotten_set_epoch_is_seen():
    right, wrong = grid.sheet(made()), grid.sheet(made(called=False))
    assert wrong.count(">= epoch 0</text>") == 3
    assert ">= epoch" not in right
    assert "epoch 2 · the order of epoch 0" in grid.describe(made(called=False), 2)
    assert "epoch 2 · a new order" in grid.describe(made(), 2)


def test_a_sample_read_again_or_by_nobody_is_marked():
    layout = Layout(made())
    assert [[cell[2] for cell in layout.again(e)] for e in range(4)] == [
        [10],
        [0],
        [3],
        [9],
    ]
    assert layout.never == [[]] * 4
    assert "Sample 10 is read more than once, the others once." in grid.describe(
        made(), 0
    )
    dropped = made(drop_last=True)
    assert [len(some) for some in Layout(dropped).never] == [3] * 4
    assert "Samples 6, 7 and 9 are not read, the others once." in grid.describe(
        dropped, 0
    )
    assert "read again" in grid.sheet(made())
    assert "read again" not in grid.sheet(dropped)
    assert "not read in this epoch" in grid.sheet(dropped)
    crossed = grid.sheet(dropped).count('stroke-dasharray="3 2"')
    assert crossed == 4 + 1, "each epoch, and what the mark means"


def test_a_moving_grid_is_small_where_it_is_committed():
    svg = animate(made())
    assert len(svg) < 30_000
    assert svg.count("<use ") == 4 * 12, "every read flies"
    assert "prefers-reduced-motion" in svg
    assert "<use " not in animate(made(4, 40)), "too many to follow"


@pytest.mark.parametrize(
    ("turns", "epochs", "seconds", "fly"),
    [
        (2, 4, "11.6", True),
        (2, 6, "12", True),
        (8, 3, "9.4", True),
        (8, 4, "11.6", False),
        (9, 1, "5", False),
        (8, 1, "5", True),
    ],
)
def test_a_moving_grid_ends_in_time_and_what_flies_can_be_followed(
    turns, epochs, seconds, fly
):
    events = [
        {"step": epoch, "rank": rank, "samples": [*range(rank, 2 * turns, 2)]}
        for epoch in range(epochs)
        for rank in range(2)
    ]
    svg = animate(Recording(events, picture="grid", ranks=2, samples=2 * turns))
    assert {*re.findall(r" ([\d.]+)s [a-z-]+ 3}", svg)} == {seconds}
    assert svg.count("<use ") == (2 * turns * epochs if fly else 0)


def test_a_player_shows_grids_by_epoch_and_by_name():
    assert repr(Player(made())) == "Player: 4 states"
    assert repr(Player({"a": made(), "b": made(seed=1)})) == "Player: 2 states"
    assert "epoch 3" in still(made(), 3).svgs[0]
    assert "11 samples, 4 ranks" in film(made()).svgs[0]
    with pytest.raises(ValueError, match="step is a number from 0 to 3, not 4"):
        still(made(), 4)


def test_a_player_has_a_slider_over_the_values_of_a_knob():
    deals = {f"{n}": made(samples=n) for n in (4, 5, 6)}
    turned = Player(deals, knob="Samples")._repr_html_()
    assert '"stepped":true' in turned and 'stepped ? "Samples" : "Show"' in turned
    chosen = Player(deals)._repr_html_()
    assert '"stepped":false' in chosen and 'stepped ? "Step" : "Show"' in chosen


def test_the_six_runs_are_what_they_are_said_to_be():
    runs = {name: Layout(run) for name, run in check.six_runs().items()}
    assert "".join(runs) == "abcdef"
    same = {
        name: [run.same(e) for e in range(len(run.epochs))]
        for name, run in runs.items()
    }
    assert same["e"] == same["c"] == [None, 0, 0, 0]
    assert same["b"] == [None, 0, None, None]
    assert same["a"] == same["f"] == same["d"] == [None] * 4
    assert runs["e"].epochs[0][0] == [0, 4, 8]
    assert {*runs["d"].times[0].values()} == {4}
    assert [len(run.never[0]) for run in runs.values()] == [3, 0, 0, 0, 0, 0]


def order(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(length, generator=generator).tolist()


def full(length, world_size, seed):
    total = -(-length // world_size) * world_size
    return (order(length, seed) * world_size)[:total]


def always_more(n, r, w, s, e):
    found = order(n, s + e)
    while len(found) % w or len(found) == n:
        found += order(n, s + e)[: w - len(found) % w]
    return found[r::w]


def sorted_alone(n, r, w, s, e):
    return list(range(n)) if w == 1 else full(n, w, s + e)[r::w]


def last_again(n, r, w, s, e):
    found = order(n, s + e)
    return (found + found[::-1][: -n % w])[r::w]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *case: ..., "your turn"),
        (lambda *case: print(end=""), "it returned None"),
        (lambda *case: 1 / 0, "ZeroDivisionError"),
        (lambda n, r, w, s, e: order(n, s + e), "this rank reads all samples"),
        (lambda n, r, w, s, e: order(n, s + e)[r::w], "others have one more"),
        (
            lambda n, r, w, s, e: full(n, w, s + e)[
                r * -(-n // w) : (r + 1) * -(-n // w)
            ],
            "that is a block",
        ),
        (lambda n, r, w, s, e: full(n, w, s + e + r)[r::w], "a seed of its own"),
        (lambda n, r, w, s, e: full(n, w, s)[r::w], "the order of epoch 0"),
        (lambda n, r, w, s, e: full(n, w, e)[r::w], "the order of seed 0"),
        (lambda n, r, w, s, e: list(range(n))[r::w], "nobody has shuffled"),
        (
            lambda n, r, w, s, e: order(n, s + e)[: n // w * w][r::w],
            "the end of the order is cut",
        ),
        (last_again, "it ends with 6, not 8: the order starts over"),
        (sorted_alone, "12 samples, rank 0 of 1, seed 0, epoch 0: nobody has shuffled"),
        (always_more, "so nothing is to come twice"),
        (lambda n, r, w, s, e: full(n, w, 1000 * s + e)[r::w], "from seed + epoch?"),
        (lambda n, r, w, s, e: full(n, w, s + e)[r::w], "right: "),
        (
            lambda n, r, w, s, e: (
                DataLoader(torch.tensor(full(n, w, s + e)[r::w])).dataset
            ),
            "right: ",
        ),
        (None, "TypeError"),
    ],
)
def test_my_share(function, says, capsys):
    check.my_share(function)
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_the_quoted_batches_have_room_and_like_lengths_and_leave_nobody_alone(
    world_size,
):
    exec(quoted(SCRIPT, "def deal_batches"), names := {"torch": torch})
    lengths = torch.randint(5, 100, (400,)).tolist()
    deal = functools.partial(names["deal_batches"], lengths, 512)
    shares = [deal(rank, world_size, epoch=3) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    batches = [batch for share in shares for batch in share]
    seen = Counter(itertools.chain(*batches))
    assert set(seen) == set(range(400)), "nobody is left out"
    assert all(max(map(lengths.__getitem__, b)) * len(b) <= 512 for b in batches)
    for together in zip(*shares):
        longest = [max(map(lengths.__getitem__, batch)) for batch in together]
        assert world_size == 1 or max(longest) - min(longest) < 40
    assert deal(0, world_size, epoch=4) != shares[0]
