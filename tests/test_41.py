"""Tests parameter servers: what one carries, and how old its gradients are."""

import inspect
import json
import math
from pathlib import Path

import nbformat
import pytest
import torch
from lesson import changed, functions_of, quoted
from ringside import RankFailed, check, load, simulate, still, torchrun

STEM = "41_parameter_server"
ROOT = Path(__file__).resolve().parents[1]
PAGE = nbformat.read(ROOT / "notebooks" / f"{STEM}.ipynb", 4)
MEASURED = json.loads((ROOT / "figures" / f"{STEM}_measured.json").read_text())
CPU = {"CUDA_VISIBLE_DEVICES": ""}
ALL_REDUCE = """
def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data, weights = share(rank, world_size), torch.zeros(4, dtype=torch.float64)
    for _ in range(20):
        dist.all_reduce(grad := slope(weights, *data))
        weights -= 0.1 * grad / world_size
    print(weights.tolist())

main()
gc.collect()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return functions_of(STEM, tmp_path_factory.mktemp("cells"))


def said() -> str:
    """Return all text of the notebook, and what its cells have printed."""
    found = "\n".join(cell.source for cell in PAGE.cells)
    outputs = [o for cell in PAGE.cells for o in cell.get("outputs", [])]
    return found + "\n".join("".join(o.get("text", "")) for o in outputs)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_busiest_rank_carries_what_the_formulas_say(workers, cells):
    """Server and ring as real ranks, and a worker who adds up for all."""
    run = torchrun(STEM, ranks=workers + 1, quiet=True)
    star, ring = (list(map(float, line.split()[1:])) for line in run.lines[0][1:3])
    size = 8 * 840
    assert star == [workers * size, workers * size, workers, 2 * workers]
    carried = 2 * (workers - 1) / workers
    both = carried * size
    messages = workers * 2 * (workers - 1)
    assert ring == [both, both, round(carried, 2), messages]
    done = simulate(cells.through_first, [torch.ones(10)] * workers)
    assert max(done.sent) == 40 * (workers - 1)
    assert f"{workers} workers: the server sends {workers:.2f} M" in said()
    assert f"{workers} workers: the first sends {workers - 1} M" in said()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('note("gradients", [(0, grad)])', 'note("gradients")', "star"),
        ("range(2 * size - 2)", "range(2 * size - 3)", "not equal"),
        ("grad = star(weights, workers)", "grad = star(weights, [1])", "not equal"),
    ],
)
def test_a_script_that_forgets_a_message_does_not_say_ok(old, new, told, tmp_path):
    path = changed(STEM, tmp_path, (old, new))
    with pytest.raises(RankFailed, match=told):
        torchrun(path, ranks=3, quiet=True, timeout=20)


def test_the_server_trains_as_all_reduce_does(cells, tmp_path):
    """To 1e-12, on three workers; the page compares both with one process."""
    parts = [inspect.getsource(f) for f in (cells.share, cells.slope)]
    head = "import gc, torch, torch.distributed as dist\n"
    (tmp_path / "script.py").write_text(head + "\n".join(parts) + ALL_REDUCE)
    runs = torchrun(tmp_path / "script.py", ranks=3, quiet=True, env=CPU).lines
    server = torchrun(cells.with_server, ranks=4, quiet=True, env=CPU).lines
    numbers = (json.loads(lines[0][0]) for lines in (server, runs))
    found, right = (torch.tensor(n, dtype=torch.float64) for n in numbers)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    assert found.abs().max() > 0.1


NETWORK = """
torch.manual_seed(0)
layers = torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
model = torch.nn.Sequential(*layers).double()


def slope(weights, x, y):
    return gradient_of(model, weights, x, y[:, None])

"""


def test_the_weights_may_be_those_of_a_network(cells, tmp_path):
    """As a fold says: with one worker, twenty steps are those of plain SGD."""
    parts = [inspect.getsource(f) for f in (cells.share, cells.Server, cells.work)]
    lead = inspect.getsource(cells.lead)
    for old, new in (
        ("torch.zeros(4, dtype=torch.float64)", "weights_of(model)"),
        ("local_value().version", "local_value().weights.tolist()"),
    ):
        assert lead.count(old) == 1
        lead = lead.replace(old, new)
    head = "import signal, threading, time, torch, torch.distributed as dist\n"
    head += "from torch.distributed import rpc"
    main = "dist.init_process_group('gloo')\nlead(dist.get_rank(), 2, [1])\n"
    main += "dist.destroy_process_group()"
    parts = [head, *parts, quoted(STEM, "def gradient_of"), NETWORK, lead, main]
    (tmp_path / "script.py").write_text("\n\n".join(parts))
    run = torchrun(tmp_path / "script.py", ranks=2, quiet=True, env=CPU)
    exec(NETWORK, names := {"torch": torch})
    model, (x, y) = names["model"], cells.share(0, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = torch.cat([w.detach().flatten() for w in model.parameters()])
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y[:, None]).backward()
        optimizer.step()
    after = torch.cat([w.detach().flatten() for w in model.parameters()])
    found = torch.tensor(json.loads(run.lines[0][-1]), dtype=torch.float64)
    torch.testing.assert_close(found, after, rtol=0, atol=1e-12)
    assert (after - before).abs().max() > 0.1


def test_the_server_goes_on_with_the_last_worker(cells):
    run = None
    try:
        torchrun(cells.lead, [None, 1, None], ranks=4, quiet=True, env=CPU)
    except RankFailed as failure:
        run = failure.run
    assert run.lines[0][-1] == "26", "3 + 20 + 3 updates"
    assert [run.exit_codes[rank] for rank in range(4)] == [0, -9, 0, -9]
    assert sum("is lost" in line for line in run.lines[0]) == 2


def test_ages_by_hand(cells):
    assert cells.delayed(0, 0.5, float, 8.0, 3) == [8, 4, 2, 1]
    assert cells.delayed(1, 0.5, float, 8.0, 5) == [8, 4, 0, -2, -2, -1]
    assert "[8.0, 8.0, 4.0, 0.0, -2.0, -2.0, -1.0, 0.0]" in said()


def test_an_update_ages_one_gradient_of_each_other_worker(cells):
    """Or that worker has not begun, or is through: each update is accounted for."""
    run = torchrun(cells.lead, [2, 2, 10], ranks=4, quiet=True, env=CPU)
    *found, updates = map(json.loads, run.lines[0])
    assert updates == 60
    for spans in found:
        assert all(a[1] == b[0] for a, b in zip(spans, spans[1:])), "they touch"
    ages = sum(made - 1 - seen for spans in found for seen, made in spans)
    unseen = sum(spans[0][0] + updates - spans[-1][1] for spans in found)
    assert ages + unseen == 2 * updates
    assert sorted(made for spans in found for _, made in spans) == [*range(1, 61)]


@pytest.mark.parametrize("age", [0, 1, 3, 7])
def test_the_ceiling_falls_with_age(age, cells):
    """Found by halving, and known in closed form."""
    low, high = 0.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        settles = abs(cells.delayed(age, middle, float, 1.0, 2000)[-1]) < 1
        low, high = (middle, high) if settles else (low, middle)
    ceiling = 2 * math.sin(math.pi / (4 * age + 2))
    assert abs(low / ceiling - 1) < 0.02


def test_what_the_page_says_of_age_and_loss(cells):
    """For the median of five seeds: 0.05 bears age 7, 0.2 doesn't, 0.4 not even 3."""

    def loss(age, lr):
        return sorted(cells.final_loss(age, lr, seed) for seed in range(5))[2]

    assert loss(7, 0.05) - loss(0, 0.05) < 0.02
    assert loss(3, 0.2) < 0.3 < 10 < loss(7, 0.2)
    assert loss(1, 0.4) < 0.4 < 10 < loss(3, 0.4)


def test_what_the_page_says_of_the_slow_link():
    size, link = MEASURED["megabytes"], MEASURED["links"]["100"]
    for way, models in (("star", 4), ("ring", 1.5)):
        for found in MEASURED["links"].values():  # the kernel counted a tenth more
            assert 1 <= found[f"{way} bytes"] / 1e6 / (models * size) < 1.1
    assert abs(link["star"] / (2 * 4 * size / 12.5 * 1000) - 1) < 0.02
    assert abs(link["ring"] / (1.5 * size / 12.5 * 1000) - 1) < 0.1


def test_the_picture_shows_a_star_and_then_a_ring():
    recording = load(STEM)
    star = [send[0] for e in recording if e["step"] == 1 for send in e["sends"]]
    back = [send[0] for e in recording if e["step"] == 2 for send in e["sends"]]
    assert (star, back) == ([1, 2, 3], [0, 0, 0])
    ring = {(e["rank"], s[0]) for e in recording if e["step"] > 3 for s in e["sends"]}
    assert ring == {(1, 2), (2, 3), (3, 1)}, "rank 0 rests"
    assert "20160" in still(recording, 2).svgs[0]
    assert still(recording, 7).svgs[0].count(">8960<") == 3
    words = PAGE.cells[0].source
    assert "20160 bytes" in words and "8960 bytes" in words


def rightly(log):
    seen, found = {}, []
    for what, worker in log:
        if what == "read":
            seen[worker] = len(found)
        else:
            found.append(len(found) - seen[worker])
    return found


def from_any_read(log):
    found, seen = [], 0
    for what, _ in log:
        if what == "read":
            seen = len(found)
        else:
            found.append(len(found) - seen)
    return found


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (rightly, "right: the ages of all gradients in 5 logs"),
        (lambda log: [age + 1 for age in rightly(log)], "its own write"),
        (from_any_read, "the ages are"),
        (lambda log: rightly(log)[:1], "gradients were written"),
        (lambda log: 3, "return a list"),
        (lambda log: None, "it returned None"),
        (lambda log: log[0][2], "raised IndexError"),
    ],
)
def test_ages(function, told, capsys):
    check.ages(function)
    assert told in capsys.readouterr().out


def living(futures, catch=RuntimeError, by=None, empty=True):
    came, gone = [], []
    for rank, future in futures.items():
        try:
            came.append(future.wait())
        except catch:
            gone.append(rank)
    if not came and empty:
        raise RuntimeError("none is left")
    return sum(came) / (by or len(came)), gone


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (living, "right: it goes on"),
        (lambda futures: living(futures, by=len(futures)), "you divide by all"),
        (lambda futures: living(futures, by=2), "the mean is 3, not 4.5"),
        (lambda futures: (living(futures)[0], []), "the ranks that are gone are [2]"),
        (lambda futures: living(futures, catch=KeyError), "it raised RuntimeError"),
        (lambda futures: living(futures, empty=None), "not by a division by 0"),
        (lambda futures: living(futures, empty=None, by=1), "the mean is 3"),
        (lambda futures: living(futures)[0], "return two things"),
        (lambda futures: (3.0, []), "a tensor like the gradients"),
        (lambda futures: None, "it returned None"),
    ],
)
def test_mean_of_the_living(function, told, capsys):
    check.mean_of_the_living(function)
    assert told in capsys.readouterr().out
