"""Tests BatchNorm: what its script prints and records, its picture, its checkers."""

import ast
import re
import runpy
import sys
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
import torch
import torch.distributed as dist
from lesson import changed, functions_of, quoted
from ringside import Player, RankFailed, check, load, still, torchrun
from torch import nn
from torch.nn.functional import batch_norm
from torch.nn.parallel import DistributedDataParallel

NORM = "20_batch_norm"
ROOT = Path(__file__).resolve().parents[1]
PHASES = ["forward 1", "copy", "forward 2", "evaluation", "joined"]
MORE = """
    # what a test adds: three channels, unequal batches, and a loss of all outputs
    generator = torch.Generator().manual_seed(0)
    sizes = [1 + 2 * r for r in range(world_size)]
    batches = torch.randn(sum(sizes), 3, generator=generator).add(5).split(sizes)
    whole, x = torch.cat(batches).requires_grad_(), batches[rank].requires_grad_()
    alone, joined = nn.BatchNorm1d(3), JoinedNorm(3)
    for norm in (alone, joined):
        norm.weight.data, norm.bias.data = torch.tensor([[1.0, 2, 3], [4.0, 5, 6]])
    right, y = alone(whole), joined(x)
    (right**3).sum().backward()
    (y**3).sum().backward()
    for name in ("weight", "bias"):  # each rank has its part of these gradients
        dist.all_reduce(getattr(joined, name).grad)
    for what, got, due in (
        ("outputs", y, right.split(sizes)[rank]),
        ("gradients", x.grad, whole.grad.split(sizes)[rank]),
        ("of the weight", joined.weight.grad, alone.weight.grad),
        ("of the bias", joined.bias.grad, alone.bias.grad),
        ("running mean", joined.running_mean, alone.running_mean),
        ("running variance", joined.running_var, alone.running_var),
    ):
        if not torch.allclose(got, due, rtol=1e-3, atol=1e-3):
            raise ValueError(f"not equal to one process: {what}")
"""


@pytest.mark.parametrize("ranks", [1, 5])
def test_whose_samples_are_in_which_mean(ranks):
    run = torchrun(NORM, ranks=ranks, record=True, quiet=True)
    everyone = [*range(ranks)]
    for event in run.recording:
        rank, holds = event["rank"], event["holds"]
        own, both = 4 * rank + 2, sorted({0, rank})
        assert holds["samples"] == [[own - 1, rank], [own + 1, rank]]
        mean, running = {
            "forward 1": ([own, rank], [own / 10, rank]),
            "copy": (None, [0.2, 0]),
            "forward 2": ([own, rank], [0.18 + own / 10, *both]),
            "evaluation": ([0.38, 0], [0.38, 0]),
            "joined": ([2 * ranks, *everyone], [ranks / 5, *everyone]),
        }[event["phase"]]
        assert [holds[name] for name in ("mean", "running") if name in holds] == [
            [[f"{number:.3g}", *whose]]
            for number, *whose in filter(None, (mean, running))
        ]
    assert [e["phase"] for e in run.recording if e["rank"] == 0] == PHASES
    assert len(run.lines[0]) == 10


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model = DistributedDataParallel(norm)", "model = norm"),
        ("        dist.all_reduce(total)\n", ""),
        ("squares / count - mean**2", "squares / count"),
        ("self.running_mean.lerp_(mean", "self.running_mean.lerp_(2 * mean"),
    ],
)
def test_other_means_fail(old, new, tmp_path):
    with pytest.raises(RankFailed, match="AssertionError"):
        torchrun(changed(NORM, tmp_path, (old, new)), ranks=2, quiet=True)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", None),
        ("SumOverRanks.forward(ctx, gradient)", "gradient", ": gradients"),
        ("count / (count - 1)", "1", ": running variance"),
    ],
)
def test_joined_samples_are_as_good_as_one_process(old, new, says, tmp_path):
    """Forward and backward, with unequal batches, one of them a single sample."""
    rows = "    rows = save_recording("
    changes = [(rows, MORE + rows)] + ([(old, new)] if old else [])
    path = changed(NORM, tmp_path, *changes)
    if says is None:
        assert torchrun(path, ranks=3, quiet=True).lines[0][-1].startswith("ok")
    else:
        with pytest.raises(RankFailed, match=f"not equal to one process{says}"):
            torchrun(path, ranks=3, quiet=True)


def four_ranks():
    """Return the class of the notebook that plays four ranks."""
    for cell in nbformat.read(ROOT / "notebooks" / f"{NORM}.ipynb", 4).cells:
        for node in ast.parse(cell.source).body if cell.cell_type == "code" else []:
            if getattr(node, "name", "") == "FourRanks":
                found = {"nn": nn, "torch": torch, "batch_norm": batch_norm}
                exec(ast.get_source_segment(cell.source, node), found)
                return found["FourRanks"]
    raise LookupError("the notebook has no FourRanks")


def ten_steps(model, part):
    """Train on some of the same samples; return outputs and running statistics."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        x = torch.randn(12, 3, generator=generator).double()[part]
        model.zero_grad()
        (model(x) ** 3).mean().backward()
        for weight in model.parameters():  # an optimizer takes long to import
            weight.data -= 0.1 * weight.grad
    return model


def on_ranks(rank, world_size):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), norm).double())
    ten_steps(model, slice(3 * rank, 3 * rank + 3))
    print(*model.module[0].weight.flatten().tolist(), *norm.running_var.tolist())


def test_four_ranks_in_one_process_are_four_ranks():
    torch.manual_seed(0)
    norm = four_ranks()(4)
    model = ten_steps(nn.Sequential(nn.Linear(3, 4), norm).double(), slice(None))
    due = [*model[0].weight.flatten().tolist(), *norm.running_var.tolist()]
    [line] = torchrun(on_ranks, ranks=4, quiet=True).lines[0]
    assert [*map(float, line.split())] == pytest.approx(due, rel=1e-6)
    torch.manual_seed(0)  # and the test can tell them from one rank
    alone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    found = ten_steps(alone, slice(None))[1].running_var.tolist()
    assert found != pytest.approx(due[-4:], rel=1e-3)


def on_one_side(points):
    """Return the classes that a line through the middle divides."""
    return (points.sum(1) > 0).long()


def test_with_two_samples_the_model_guesses_in_training_too(tmp_path, one_thread):
    cells = functions_of(NORM, tmp_path)
    points = torch.randn(2000, 2, generator=torch.Generator().manual_seed(1))
    wrong = []
    for seed in range(3):
        model = cells.network(four_ranks(), seed)
        cells.train(model, 8)
        with torch.no_grad():
            outputs = [model.train()(part) for part in points.split(8)]
        found = torch.cat(outputs).argmax(1) != cells.far(points)
        wrong.append(100 * found.float().mean().item())
    assert 40 < sum(wrong) / 3 < 60
    cells.far = on_one_side  # another task, to which two samples do less harm
    wrong = [cells.train(cells.network(four_ranks(), seed), 8) for seed in range(3)]
    assert sum(wrong) / 3 < 30


def with_kinds(cells, norm, shuffle):
    """Train on points that lie further right on each rank; return two percents."""
    model, generator = cells.network(norm, 0), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    def batch(samples):
        points = torch.randn(4 * samples, 2, generator=generator)
        moved = points + torch.arange(4.0).repeat_interleave(samples)[:, None]
        order = torch.arange(len(points))
        if shuffle:
            order = torch.randperm(len(points), generator=generator)
        return moved[order], cells.far(points)[order]

    def wrong(points, kinds):
        return 100 * (model(points).argmax(1) != kinds).float().mean().item()

    for _ in range(100):
        points, kinds = batch(32)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), kinds).backward()
        optimizer.step()
    model.eval()
    evaluation = wrong(*batch(500))
    model.train()
    return sum(wrong(*batch(32)) for _ in range(10)) / 10, evaluation


def test_good_in_training_and_poor_in_evaluation(tmp_path, one_thread):
    cells, mixed = functions_of(NORM, tmp_path), four_ranks()
    training, evaluation = with_kinds(cells, mixed, shuffle=False)
    assert 5 < training < 15 and 33 < evaluation < 43
    for norm, shuffle in ((mixed, True), (nn.BatchNorm1d, False)):
        both = with_kinds(cells, norm, shuffle)
        assert 18 < min(both) <= max(both) < 30, norm


@pytest.fixture
def one_thread():
    """As on the page: with more, small models are many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A group of one, in this process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_real_module_keeps_weights_and_names_and_refuses_a_cpu(group):
    plain = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4))
    weight, names = plain[1].weight, [*plain.state_dict()]
    model, x = nn.SyncBatchNorm.convert_sync_batchnorm(plain), torch.ones(2, 1)
    assert type(model[1]) is nn.SyncBatchNorm and model[1].weight is weight
    assert [*model.state_dict()] == names
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU"):
        DistributedDataParallel(model)
    with pytest.raises(ValueError, match="expected input tensor to be on GPU"):
        model(x)
    assert model.eval()(x).shape == (2, 4)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm1d(4)(torch.ones(1, 4))


def real(rank, world_size, sizes):
    """Compare torch's own module with one process; on GPUs."""
    whole = torch.arange(1.0, 16, 2)[:, None].requires_grad_()
    x = whole.detach().split(sizes)[rank].requires_grad_()
    right, y = nn.BatchNorm1d(1)(whole), nn.SyncBatchNorm(1)(x)
    (right * whole.detach() ** 2).sum().backward()
    (y * x.detach() ** 2).sum().backward()
    torch.testing.assert_close(y, right.split(sizes)[rank], rtol=1e-3, atol=1e-3)
    due = whole.grad.split(sizes)[rank]
    torch.testing.assert_close(x.grad, due, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_real_module_is_as_good_as_one_process():
    assert torchrun(real, [3, 5], ranks=2, quiet=True).exit_codes == {0: 0, 1: 0}


def test_a_picture_shows_whose_samples_are_in_a_mean():
    recording, found = load(NORM), []
    for step in range(5):
        svg = still(recording, step).svgs[0]
        ElementTree.fromstring(svg)
        events = [e["holds"] for e in recording if e["step"] == step]
        shown = sum(len(cells) for holds in events for cells in holds.values())
        assert len(re.findall(r">[\d.]+</text>", svg)) == shown
        found.append([len(holds["running"][0]) - 1 for holds in events])
    assert found == [[1] * 4, [1] * 4, [1, 2, 2, 2], [1] * 4, [4] * 4]
    assert repr(Player(recording)) == "Player: 5 states"


def test_the_layer_of_the_lesson_is_a_batch_norm_in_evaluation():
    kinds = runpy.run_path(str(ROOT / "scripts" / f"{NORM}.py"))
    joined, x = kinds["JoinedNorm"](2).eval(), torch.randn(3, 2)
    assert torch.equal(joined(x), nn.BatchNorm1d(2).eval()(x))


def joined(counts, means, variances):
    total = sum(counts)
    mean = sum(n * m for n, m in zip(counts, means)) / total
    inside = sum(n * v for n, v in zip(counts, variances)) / total
    return mean, inside, sum(n * (m - mean) ** 2 for n, m in zip(counts, means)) / total


def alike(counts, means, variances):
    return sum(means) / len(means), joined(counts, means, variances)[1]


def without_between(counts, means, variances):
    return joined(counts, means, variances)[:2]


def without_inside(counts, means, variances):
    return joined(counts, means, variances)[::2]


def one_less(counts, means, variances):
    mean, inside, apart = joined(counts, means, variances)
    return mean, (inside + apart) * sum(counts) / (sum(counts) - 1)


def right(counts, means, variances):
    mean, inside, apart = joined(counts, means, variances)
    return torch.tensor([mean, inside + apart], dtype=torch.float64)


def divides(counts, means, variances):
    return [right(counts, means, variances)[0], sum(1 / n for n in counts)]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda *given: ..., "your turn"),
        (lambda *given: print(end=""), "it returned None"),
        (lambda *given: 8, "return a mean and a variance, not 8"),
        (lambda *given: (8, "x"), "return a mean and a variance, not (8, 'x')"),
        (lambda *given: (8, 1, 2), "return a mean and a variance, not (8, 1, 2)"),
        (
            lambda *given: (9, 21),
            "with 2 and 2 and 2 and 2 samples, the mean is 8, not",
        ),
        (without_between, "1 leaves out how far the ranks' means lie apart"),
        (without_inside, "20 is how far the means lie apart"),
        (one_less, "the variance is 21, not 24"),
        (lambda c, m, v: (8, float("nan")), "the variance is not a number"),
        (
            lambda c, m, v: (sum(m) / len(m), right(c, m, v)[1]),
            "with 1 and 1 and 1 and 5 samples, each rank's mean counts alike",
        ),
        (alike, "leaves out how far"),
        (divides, "the variance is 21, not 2"),
        (right, "right: "),
        (lambda c, m, v: list(right(c, m, v)), "right: "),
        (None, "TypeError"),
    ],
)
def test_join(function, says, capsys):
    check.join(function)
    assert says in capsys.readouterr().out


def contrast(rank, world_size, text):
    """Print the gradient of own output × mean of all, by how the outputs come."""
    exec(text, names := {"torch": torch, "dist": dist})

    def plain(own):
        rows = [torch.empty_like(own) for _ in range(world_size)]
        dist.all_gather(rows, own)
        return rows

    def own_in_its_place(own):
        rows = plain(own)
        rows[rank] = own
        return torch.cat(rows)

    gathers = lambda own: torch.cat(plain(own)), own_in_its_place
    for gather in (*gathers, names["Gather"].apply):
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        ddp = DistributedDataParallel(model)
        own = ddp(torch.tensor([1.0 + 2 * rank]))
        (own * gather(own).mean()).backward()
        print(f"{model.weight.grad.item():.1f}")


def test_what_the_page_says_of_a_loss_over_all_ranks():
    run = torchrun(contrast, quoted(NORM, "class Gather"), ranks=2, quiet=True)
    assert run.lines[0] == run.lines[1]
    page = nbformat.read(ROOT / "notebooks" / f"{NORM}.ipynb", 4).cells
    text = "\n".join(cell.source for cell in page if cell.cell_type == "markdown")
    _, table = text.split("| how the outputs come | gradient with DDP |\n|---|---|\n")
    rows = table.split("\n\n")[0].splitlines()
    assert [row.split("|")[2].strip() for row in rows] == run.lines[0]
    assert run.lines[0][-1] == "8.0", "the square of the mean, (1 + 3) / 2, and 2 × it"


def of_images(rank, world_size, text, script):
    """Hold a net with joined layers, as a fold gives it, against one process."""
    sys.path.append(str(Path(script).parent))
    kinds = runpy.run_path(script)
    exec(text, names := {"nn": nn, "JoinedNorm": kinds["JoinedNorm"]})
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    alone = nn.Sequential(*layers, nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2))
    whole, sizes = torch.randn(3 + 2 * world_size, 3, 7, 7), [5, 2]
    alone(whole + 1)  # so that there are running statistics to take over
    joined = deepcopy(alone)
    names["join_all"](joined)
    assert [type(m).__name__ for m in joined.modules()].count("JoinedNorm2d") == 2
    assert [*joined.state_dict()] == [*alone.state_dict()]
    model = DistributedDataParallel(joined)
    (alone(whole) ** 3).sum().backward()
    (model(whole.split(sizes)[rank]) ** 3).sum().backward()
    for (name, got), due in zip(joined.named_parameters(), alone.parameters()):
        torch.testing.assert_close(
            world_size * got.grad, due.grad, rtol=1e-3, atol=1e-3, msg=name
        )
    for got, due in zip(joined.buffers(), alone.buffers()):
        if got.is_floating_point():
            torch.testing.assert_close(got, due, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(joined.eval()(whole), alone.eval()(whole))


def test_a_net_for_images_can_be_joined():
    script = str(ROOT / "scripts" / f"{NORM}.py")
    words = quoted(NORM, "def join_all"), script
    assert torchrun(of_images, *words, ranks=2, quiet=True).exit_codes == {0: 0, 1: 0}


def in_pieces(rank, world_size):
    model, means = DistributedDataParallel(nn.BatchNorm1d(1)), []
    x = torch.tensor([[9.0], [11.0]]) * (1 + rank)  # means 10 and 20
    for number in range(5):
        with model.no_sync() if number % 4 < 3 else nullcontext():
            model(x).sum().backward()
        means.append(round(model.module.running_mean.item(), 2))
    print(means)


def test_after_a_forward_in_no_sync_no_copy_comes():
    """Rank 1 goes on from its own: 0.9 of what it had, and a tenth of 20."""
    run = torchrun(in_pieces, ranks=2, quiet=True)
    assert run.lines[0] == ["[1.0, 1.9, 2.71, 3.44, 4.1]"]
    assert run.lines[1] == ["[2.0, 3.8, 5.42, 6.88, 5.1]"]  # 0.9 of 3.44, and 2
