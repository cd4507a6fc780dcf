"""Tests DDP: its script's ways and mistakes, its recordings, its checkers."""

import json
import re
from base64 import b64decode
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
import torch
from lesson import changed, quoted
from ringside import Player, RankFailed, check, torchrun
from ringside.draw.player import Picture, image, lines, spelt
from ringside.draw.timeline import alike, describe, frame, rows
from ringside.draw.timeline_layout import LANE
from ringside.recording import Recording, read
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.profiler import ProfilerActivity, profile

DDP = "04_distributed_data_parallel"
EXACT = (512 * 512 + 512) * 4 / 2**20  # MiB of a layer: such a bucket is full
ROOT = Path(__file__).resolve().parents[1]


def table(run) -> dict[str, tuple[int, int]]:
    """Return what each method did: all-reduces, and gradients ready at the first."""
    rows = [line.split() for line in run.lines[0][1:-1]]
    assert all(
        row[2:] == [row[2], *"of 12 gradients are ready".split()] for row in rows
    )
    return {row[0]: (int(row[1]), int(row[2])) for row in rows}


@pytest.mark.parametrize("ranks", [5, 8])
def test_every_way_finds_the_gradients_of_one_process(ranks):
    run = torchrun(DDP, ranks=ranks, quiet=True)
    assert table(run) == {
        "each": (12, 12),
        "flat": (1, 12),
        "hooks": (12, 1),
        "buckets": (6, 2),
        "ddp": (1, 12),
        "later": (2, 2),
    }


@pytest.mark.parametrize(
    ("mib", "calls", "ready"),
    [(0.001, 12, 1), (0.5, 6, 2), (EXACT, 6, 2), (2, 3, 4), (3, 2, 6), (1024, 1, 12)],
)
def test_given_a_cap_ours_are_the_buckets_of_ddp(mib, calls, ready):
    found = {}
    for method in ("buckets", "ddp"):
        words = ("--bucket-mb", mib, "--method", method)
        found |= table(torchrun(DDP, *words, ranks=2, quiet=True))
    assert found["buckets"] == (calls, ready)
    assert found["ddp"] == (1, 12)
    assert found.get("later", found["ddp"]) == found["buckets"]


@pytest.mark.parametrize(
    ("line", "wrong", "method"),
    [
        ("    vector_to_parameters(flat, grads)\n", "", "each"),
        ("    flat /= dist.get_world_size()\n", "", "each"),
        ("    flat /= dist.get_world_size()\n", "    flat *= float('nan')\n", "each"),
        ("            act(weights)\n", "", "hooks"),
        ("            finish(*begun.pop(0))", "            begun.pop(0)", "buckets"),
    ],
)
def test_other_gradients_than_those_of_one_process_are_caught(
    line, wrong, method, tmp_path
):
    path = changed(DDP, tmp_path, (line, wrong))
    says = f"ValueError: {method}: not the gradients of one process"
    with pytest.raises(RankFailed, match=says):
        torchrun(path, "--method", method, ranks=2, quiet=True)


@pytest.mark.parametrize("method", ["each", "flat", "hooks", "buckets", "ddp"])
def test_a_recording_has_every_layer_and_every_message(method, tmp_path):
    path = tmp_path / "times.jsonl"
    words = ("--method", method, "--bucket-mb", 1, "--record", path)
    found = table(torchrun(DDP, *words, ranks=2, quiet=True))
    calls = found["later" if method == "ddp" else method][0]
    events = spelt(read(path))
    for rank in range(2):
        mine = [event for event in events if event["rank"] == rank]
        marks = [event for event in mine if event["kind"] == "mark"]
        layers = [f"layer {number}" for number in (6, 5, 4, 3, 2, 1)]
        assert [event["what"] for event in marks] == layers
        messages = [event for event in mine if event["kind"] == "message"]
        assert len(messages) == calls
        over = next(event["end"] for event in mine if event["what"] == "backward")
        [waits] = [event for event in mine if event["what"] == "waits"]
        assert over == waits["begin"] == marks[-1]["begin"]
        assert over < waits["end"] and waits["kind"] == "wait"
        if method in ("each", "flat"):
            assert min(event["begin"] for event in messages) >= over
        elif method == "hooks":  # the others' could begin late on a busy machine
            assert min(event["begin"] for event in messages) < over
        stops = [event for event in mine if event["what"] == "stops"]
        assert len(stops) == (12 if method == "hooks" else 0)
        for bias, mark, weight in zip(stops[::2], marks, stops[1::2]):
            assert bias["end"] <= mark["begin"] <= weight["begin"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_line_that_the_notebook_quotes_keeps_the_whole_trace(tmp_path):
    notebook = (ROOT / "notebooks" / f"{DDP}.ipynb").read_text()
    [line] = re.findall(r"trace\.export_chrome_trace.*json", notebook)
    line = line.replace('f\\"', f'f"{tmp_path}/') + '")\n'
    path = changed(DDP, tmp_path)
    text = (tmp_path / "timing.py").read_text()
    assert text.count(last := "    return parameters") == 1
    (tmp_path / "timing.py").write_text(text.replace(last, f"    {line}{last}"))
    torchrun(path, "--method", "buckets", ranks=2, quiet=True)
    for rank in range(2):
        trace = json.loads((tmp_path / f"rank{rank}.json").read_text())["traceEvents"]
        names = [event.get("name") for event in trace]
        assert names.count("gloo:all_reduce") >= 6
        assert {"backward", "torch::autograd::AccumulateGrad"} <= {*names}


def lane(*spans, kind="message") -> Recording:
    """Return a timeline of one lane, with bars from begin to end."""
    events = [
        {"lane": 0, "rank": 0, "kind": kind, "what": "x", "begin": a, "end": b}
        for a, b in spans
    ]
    return Recording(
        events, lesson="x", picture="timeline", lanes=["rank 0"], unit="ms"
    )


def test_messages_that_overlap_get_rows_of_their_own():
    events = lane((0, 4), (2, 6), (4, 8), (9, 10))
    row, of = rows(events)
    assert [row[id(event)] for event in events] == [0, 1, 0, 0]
    assert of == {0: 2}


def test_timelines_beside_each_other_have_one_scale():
    short, long = lane((0, 10), kind="work"), lane((0, 40), kind="work")
    both = alike({"short": short, "long": long})
    assert frame(both["short"]).count(">40</text>") == 1
    assert frame(both["short"]) != frame(short)
    assert frame(both["long"]) == frame(long)


def test_a_player_of_several_timelines_chooses_among_them():
    three = {"a": lane((0, 1)), "b": lane((0, 2)), "c": lane((0, 3))}
    player = Player(three)
    assert repr(player) == "Player: 4 states"
    assert [label for label, *_ in player.scenes] == ["all", "a", "b", "c"]
    assert player.frames[1:] == [frame(events) for events in alike(three).values()]
    assert image(player.frames[0]) == player.fallback
    kept = b64decode(re.search('base64,([^"]*)', player.fallback)[1]).decode()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", kept)
    assert [word for word in words if word in three] == ["a", "b", "c"]
    assert words.count("rank 0") == 3
    bars = re.search(r'<path fill="url\(#h0\)" d="([^"]*)"', kept)[1]
    tops = [float(top) for top in re.findall(r"M[\d.]+ ([\d.]+)", bars)]
    assert tops == [tops[0], tops[0] + LANE, tops[0] + 2 * LANE]


def test_labels_with_signs_of_svg_are_drawn_as_they_are():
    events = lane((0, 9), kind="work")
    events[0]["what"] = "a<b"
    events.append(events[0] | {"to": 1, "kind": "message", "what": "&c"})
    events = Recording(events, **events.header | {"lanes": ["x", "y"]})
    for svg in Player({'"a" & b': events, "c": events}).frames[:2]:
        told = "".join(ElementTree.fromstring(svg).itertext())
        assert {"a<b", "&c"} <= set(re.findall(r"a<b|&c", told))
        assert "a<b" in repr(Picture(svg)) and "&lt;" not in repr(Picture(svg))
        said = re.search('alt="([^"]*)" style', image(svg))[1]
        assert unescape(said) == repr(Picture(svg))


def test_words_are_a_caption_and_a_line_for_each_rank():
    events = spelt(read(ROOT / "figures" / f"{DDP}.jsonl"))
    assert frame(events).count(">layer 6</text>") == 4, "the first one, too"
    caption, *lanes = lines(describe(events, 0))
    assert caption.startswith("Solid: backward") and caption.endswith(".")
    names = [lane.partition(":")[0] for lane in lanes]
    assert names == [f"{way}, rank {r}" for way in ("flat", "buckets") for r in (0, 1)]
    assert re.search(r"layer 6 done at \d+\.\d ms, layer 5 done at", lanes[0])
    assert re.search(r"backward from 0\.0 to \d+\.\d ms", lanes[0])
    short = lines("start. All begin. rank 0: sum 1; rank 1: sum 2")
    assert short == ["start. All begin.", "rank 0: sum 1", "rank 1: sum 2"]
    assert lines("All is said.") == ["All is said."]


def sums(weight, all_reduce, world_size):
    all_reduce(weight.grad)


def new_name(weight, all_reduce, world_size):
    grad = weight.grad
    all_reduce(grad)
    grad = grad / world_size  # another tensor


def a_copy(weight, all_reduce, world_size):
    grad = weight.grad.clone()
    all_reduce(grad)
    grad /= world_size


def another_grad(weight, all_reduce, world_size):
    all_reduce(weight.grad)
    weight.grad = weight.grad / world_size


def steps_too(weight, all_reduce, world_size):
    all_reduce(weight.grad)
    weight.grad /= world_size
    weight -= 0.1 * weight.grad


def divides_twice(weight, all_reduce, world_size):
    weight.grad /= world_size
    all_reduce(weight.grad)
    weight.grad /= world_size


def halves(weight, all_reduce, world_size):
    all_reduce(weight.grad)
    weight.grad /= 2


def halves_at_most(weight, all_reduce, world_size):
    all_reduce(weight.grad)
    weight.grad /= min(world_size, 2)


def divides_first(weight, all_reduce, world_size):
    weight.grad /= world_size
    all_reduce(weight.grad)


def both(weight, all_reduce, world_size):
    sums(weight, all_reduce, world_size)
    weight.grad /= world_size
    famous(weight, all_reduce, world_size)


def famous(weight, all_reduce, world_size):
    all_reduce(weight.data)
    weight.data /= world_size


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (lambda *args: ..., "your turn"),
        (lambda *args: None, "with 2 ranks, it adds nothing up"),
        (both, "with 2 ranks, the weight changes"),
        (divides_first, "right: "),
        (famous, "it averages the weights"),
        (sums, "with 2 ranks, weight.grad becomes 16, a sum: divide it in place"),
        (new_name, "a sum: divide it in place"),
        (a_copy, "not put into weight.grad"),
        (steps_too, "that is the optimizer's work"),
        (divides_twice, "not 8"),
        (halves, "with 1 rank, the gradient becomes 3, not 6"),
        (halves_at_most, "with 3 ranks, the gradient becomes 13, not 8.66667"),
        (None, "TypeError"),
        (another_grad, "right: "),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_fixed_hook(hook, says, capsys):
    check.fixed_hook(hook)
    assert says in capsys.readouterr().out


def right_order(full):
    ready, begun = set(), []
    for bucket in full:
        ready.add(bucket)
        done = sum(begun, [])
        row = []
        while len(done) + len(row) in ready:
            row.append(len(done) + len(row))
        begun.append(row)
    return begun


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        (lambda full: ..., "your turn"),
        (lambda full: full.clear(), "gave None: a list of lists"),
        (lambda full: full, "launch([0, 1, 2]) gave [0, 1, 2]: a list of lists"),
        (lambda full: [[bucket] for bucket in full], "begins [1, 0, 2]"),
        (lambda full: [[]] * (len(full) - 1) + [sorted(full)], "could begin [0]"),
        (lambda full: [[i] for i in range(len(full))], "bucket 0 before it is full"),
        (lambda full: [[] for _ in full], "never begins bucket 0"),
        (lambda full: [sorted(full[: i + 1]) for i in range(len(full))], "twice"),
        (lambda full: [sorted(full)], "gave 1 lists"),
        (lambda full: 1 / 0, "ZeroDivisionError"),
        (lambda full: 3, "gave 3: a list of lists"),
        (right_order, "right: "),
    ],
)
def test_launch_order(launch, says, capsys):
    check.launch_order(launch)
    assert says in capsys.readouterr().out


class Six(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def compiled(rank, world_size):
    """Say of each way how torch cut the model, and when the first all-reduce begins."""
    from torch._dynamo.testing import CompileCounterWithBackend  # takes its time

    grads = []
    for way, cuts in [
        ("plain", True),
        ("model.compile", True),
        ("wrapped first", True),
        ("model.compile", False),
        ("wrapped first", False),
    ]:
        torch._dynamo.reset()
        torch._dynamo.config.optimize_ddp = cuts
        pieces = CompileCounterWithBackend("aot_eager")  # needs no compiler of C++
        torch.manual_seed(0)
        model = Six()
        if way == "model.compile":
            model.compile(backend=pieces)
        ddp = nn.parallel.DistributedDataParallel(model)
        if way == "wrapped first":
            ddp = torch.compile(ddp, backend=pieces)
        for _ in range(3):
            ddp.zero_grad()
            with profile(activities=[ProfilerActivity.CPU]) as trace:
                ddp(torch.full((8, 512), rank + 1.0)).square().mean().backward()
        events = sorted(trace.events(), key=lambda event: event.time_range.start)
        names = [event.name for event in events]
        first = names[: names.index("c10d::allreduce_")].count("aten::mm")
        cut = pieces.frame_count or "–"
        print(way, cuts, f"| {cut} | {first} of {names.count('aten::mm')} |", sep="; ")
        print(next(iter(ddp.state_dict())))
        grads.append(model.layers[0].weight.grad.clone())
    print(all(torch.allclose(grad, grads[0]) for grad in grads))


def test_what_the_page_says_of_a_compiled_model():
    run = torchrun(compiled, ranks=2, quiet=True)
    cells = nbformat.read(ROOT / "notebooks" / f"{DDP}.ipynb", 4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert quoted(DDP, "model.compile()").splitlines() == [
        "model.compile()",
        "ddp = DistributedDataParallel(model)",
    ]
    said = [line for line in run.lines[0] if ";" in line]
    rows = {tuple(line.split("; ")[:2]): line.split("; ")[2] for line in said}
    assert f"| not compiled {rows['plain', 'True']}\n" in text
    for way in ("model.compile", "wrapped first"):
        assert f"| compiled {rows[way, 'True']}\n" in text
        without = "compiled, with `torch._dynamo.config.optimize_ddp = False`"
        assert f"| {without} {rows[way, 'False']}\n" in text
    names = [line for line in run.lines[0] if "weight" in line]
    assert names[1] == names[0] == "module.layers.0.weight"
    assert names[2] == "_orig_mod." + names[0]
    assert run.lines[0][-1] == "True"


def in_16_bits(rank, world_size, text):
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    exec(text, {"model": model})
    for number in (1 + 1 / 4096, 65504.0, 70_000.0):  # 16 bits have only the second
        model.zero_grad()
        model(torch.tensor([number])).backward()
        grad = model.module.weight.grad
        print(grad.item(), grad.dtype, model.module.weight.dtype)


def test_the_ready_hook_sends_16_bits():
    text = quoted(DDP, "fp16_compress_hook")
    run = torchrun(in_16_bits, text, ranks=2, quiet=True)
    kinds = "torch.float32 torch.float32"
    assert run.lines[0] == [f"{number} {kinds}" for number in (1.0, 65504.0, "inf")]


BARE = 0 if torch.__version__ < "2.14" else 1  # pieces of a forward of torch's own


@pytest.mark.parametrize(
    ("model", "pieces"),
    [(nn.Linear(512, 512), BARE), (nn.Sequential(nn.ReLU()), BARE), (Six(), 1)],
)
def test_a_forward_of_your_own_always_compiles_itself(model, pieces):
    from torch._dynamo.testing import CompileCounterWithBackend

    seen = CompileCounterWithBackend("aot_eager")
    model.compile(backend=seen)
    model(torch.ones(1, 512))
    assert seen.frame_count == pieces


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.up = nn.Linear(1024, 1024), nn.Linear(8, 1024, bias=False)
        self.down = nn.Linear(1024, 8, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def travels(rank, world_size, frozen):
    model, sent = Adapted(), []
    model.layer.requires_grad_(not frozen)
    ddp = nn.parallel.DistributedDataParallel(model)

    def hook(_, bucket):
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, hook)
    ddp(torch.ones(1, 1024)).sum().backward()
    print(f"{sum(sent):,}")


@pytest.mark.parametrize(("frozen", "said"), [(False, "4,263,936"), (True, "65,536")])
def test_frozen_weights_do_not_travel(frozen, said):
    run = torchrun(travels, frozen, ranks=2, quiet=True)
    assert run.lines == {0: [said], 1: [said]}
    cells = nbformat.read(ROOT / "notebooks" / f"{DDP}.ipynb", 4).cells
    assert any(said in cell.source for cell in cells)
