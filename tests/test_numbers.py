"""Compares numbers that pages tell with what was measured or printed.

In a page's text such a number is followed by its key, in a comment that no reader sees:
`two ranks finish 1.77<!--ddp_1--> times the samples`. So a sentence may be written
anew, and the number in it stays true.
"""

import json
import math
import re
import runpy
import statistics
from collections import defaultdict
from functools import cache

import nbformat
import pytest
import rounds
from lesson import NOTEBOOKS, code_with
from ringside import load
from ringside.draw import race

FIGURES, SCRIPTS = (NOTEBOOKS.parent / room for room in ("figures", "scripts"))
KEYED = re.compile(r"([^\s(\[|*<>]+)<!--(\w+)-->")
SPEED = "05_dp_vs_ddp"
HOW_FAST = "12_how_fast_can_it_get"


@cache
def prose(stem):
    """Return the text of a page."""
    page = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", 4)
    return "\n\n".join(c.source for c in page.cells if c.cell_type == "markdown")


def measured(stem):
    """Return what a page's own benchmark has kept."""
    return json.loads((FIGURES / f"{stem}_measured.json").read_text("utf-8"))


def printed(stem, begin):
    """Return what a cell of measured times has printed on the page."""
    return "".join(o.get("text", "") for o in code_with(stem, begin).outputs)


def the_race():
    """Times and megabytes of the two models, from the recording."""
    events, found = load(SPEED), {}
    task = runpy.run_path(str(SCRIPTS / f"{SPEED}.py"))["task"]
    prices = []
    for place, workload in enumerate(events.header["samples"], 1):
        ms, (model, *_) = race.medians(events, workload), task(workload, 1)
        numel = sum(weight.numel() for weight in model.parameters())
        mb, alone = numel * 4 / 1e6, ms["one process"]
        lost = ms["DDP"] - alone
        prices.append(lost / mb)
        found |= {
            f"ddp_{place}": f"{2 * alone / ms['DDP']:.2f}",
            f"dp_{place}": f"{2 * alone / ms['DP']:.2f}",
            f"alone_{place}": f"{alone:.0f}",
            f"lost_{place}": f"{lost:.1f}",
            f"about_lost_{place}": f"{lost:.0f}",
            f"weights_{place}": f"{numel:,}",
            f"mb_{place}": f"{mb:.2f}",
            f"work_{place}": f"{alone / round(mb, 3):.1f}",
        }
    found["price"] = f"{prices[1]:.2f}"
    found["cheap"] = f"{0.075 * prices[1]:.2f}"
    found["about_work_1"] = f"{float(found['work_1']):.0f}"
    found["about_mb_2"], found["exact_alone_2"] = f"{mb:.0f}", f"{alone:.1f}"
    return found


def the_sweep():
    """Times of a step by its samples, as the page's cell has printed them."""
    row = r"(\d+) samples: alone +(\S+) ms, sending +(\S+), lost +(\S+), (\S+)"
    rows = re.findall(row, printed(SPEED, "run = torchrun(will_it_pay, [16"))
    sizes, alone, sent, lost, speed = zip(*(map(float, each) for each in rows))
    assert sizes == (16, 32, 64, 128)
    pays = next(number for number, times in enumerate(speed) if times >= 1)
    each = round((alone[-1] - alone[0]) / (128 - 16), 2)
    loss, sending = round(statistics.median(lost)), statistics.median(sent)
    return {
        "too_few": f"{sizes[pays - 1]:.0f}",
        "enough": f"{sizes[pays]:.0f}",
        "sweep_lost": f"{loss}",
        "sent": f"{sending:.0f}",
        "sent_mb": f"{sending / 16.83:.1f}",
        "alone_16": f"{alone[0]}",
        "alone_32": f"{alone[1]}",
        "alone_128": f"{alone[-1]}",
        "by_share": f"{32 * loss / alone[1]:.0f}",
        "eightfold": f"{alone[-1] / alone[0]:.1f}",
        "each_sample": f"{each}",
        "by_line": f"{16 + (loss - alone[0]) / each:.0f}",
    }


def the_adder():
    """What the first station's network computes and sends: size, and printed times."""
    weights = runpy.run_path(str(SCRIPTS / "train_alone.py"))["Adder"](32).parameters()
    numel = sum(weight.numel() for weight in weights)
    row = r"(\d+) samples: alone +(\S+) ms, .*, (\S+) times"
    rows = re.findall(row, printed(SPEED, 'def mine(samples):\n    """Return the net'))
    found = {samples: (alone, times) for samples, alone, times in rows}
    mb, alone = numel * 4 / 1e6, found["240"][0]
    return {
        "adder_weights": f"{numel:,}",
        "adder_mb": f"{mb:.3f}",
        "adder_price": f"{mb * float(the_race()['price']):.1f}",
        "adder_15": found["15"][1],
        "adder_240": alone,
        "adder_work": f"{float(alone) / mb:.0f}",
    }


def the_messages():
    """Milliseconds lost with and without messages, as the page's cell has printed."""
    row = r"(\w+) +alone ([\d.]+) ms, no messages ([\d.]+) ms, messages ([\d.]+) ms"
    rows = re.findall(row, printed(SPEED, "for workload, samples in"))
    assert [name for name, *_ in rows] == ["computes", "communicates"]
    found = {}
    for place, (_, alone, quiet, loud) in enumerate(rows, 1):
        sending = float(loud) - float(quiet)
        found[f"quiet_{place}"] = f"{float(quiet) - float(alone):.1f}"
        found[f"loud_{place}"] = f"{sending:.1f}"
    found |= {"all_quiet": rows[1][2], "all_loud": rows[1][3]}
    return found | {"bytes_1": f"{sending / 16.83 * 0.075:.1f}"}


def the_tables():
    """What was published, as the page's cell works it out; and our own, with Horovod.

    Each row's medians. DDP's and Horovod's middle halves overlap.
    """
    table = printed(SPEED, "for gpus, together in")
    [price] = re.findall(r"lost on a MB, at most: (\S+) ms", table)
    [work] = re.findall(r"work for each MB: (\S+) ms", table)
    [(alone, times)] = re.findall(r"16 GPUs: (\d+) ms, .* kept, (\S+) times", table)
    found = {"v100_price": price, "v100_work": work, "v100_times": times}
    found |= {"v100_16": alone, "v100_mb": f"{4 * 25_557_032 / 1e6:.1f}"}
    speed = measured("40_horovod")["speed"]
    for place, name in enumerate(load(SPEED).header["samples"], 1):
        (low, _, high), (other_low, _, other_high) = (
            speed[name][method] for method in ("DDP", "Horovod")
        )
        assert low < other_high
        assert other_low < high
        for method in ("DP", "DDP", "Horovod"):
            kept = f"{speed[name][method][1]:.2f}"
            found[f"kept_{method.lower()}_{place}"] = kept
    slower = speed["computes"]["DDP"][1] / speed["computes"]["DP"][1]
    return found | {"equal_readers": f"{slower:.1f}"}


def crossing(one, other):
    """Return the size at which two lines cross, straight where both axes are logs."""
    sizes = list(one)
    for left, right in zip(sizes, sizes[1:]):
        a, b = (math.log(one[size] / other[size]) for size in (left, right))
        if a < 0 <= b:
            return left * (right / left) ** (-a / (b - a))
    raise ValueError("the lines do not cross")


def off(one, other):
    """Return how many times one number is the other, or the other the one."""
    return max(one / other, other / one)


def four_ranks():
    """Where the formula is right and wrong, on four ranks."""
    told = rounds.told(HOW_FAST)
    predict, kept = told["predict"], measured(HOW_FAST)
    four = {w: dict(zip(kept["bytes"], ms)) for w, ms in kept["4 ranks"].items()}
    swaps, root = four["swap_all"], four["through rank 0"]
    delay, bandwidth = told["two_numbers"](swaps[64] / 1000, swaps[2**22] / 1000)
    worst, later = 1, {}
    for way, steps in {
        "halving": (4, 1.5),
        "swap_all": (2, 2),
        "ring": (6, 1.5),
    }.items():
        for size, ms in four[way].items():
            worst = max(worst, off(ms, predict(*steps, size, delay, bandwidth)))
        later[way] = [size for size in swaps if four[way][size] < swaps[size]]
    assert later["halving"] == later["ring"] == [2**22, 2**24, 2**26]
    first, second = (k * delay * bandwidth / 2**20 for k in (4, 8))
    met = [crossing(swaps, four[way]) / 2**20 for way in ("halving", "ring")]
    return {
        "factor": f"{math.ceil(worst * 10) / 10:.1f}",
        "halving_formula": f"{first:.1f}",
        "halving_race": f"{met[0]:.1f}",
        "ring_formula": f"{second:.1f}",
        "ring_race": f"{met[1]:.1f}",
        "off": f"{max(off(first, met[0]), off(second, met[1])):.1f}",
        "a_step": f"{1000 * delay:.2f}",
        "bandwidth": f"{bandwidth / 1e9:.2f}",
        "six_steps": f"{6000 * delay:.1f}",
        "root_64": f"{root[64]:.1f}",
        "root_64_mib": f"{root[2**26]:.0f}",
        "root_formula": f"{predict(6, 6, 2**26, delay, bandwidth):.0f}",
    }


def eight_ranks():
    """Where lines meet on eight ranks: by the formula and in the race."""
    kept = measured(HOW_FAST)
    eight = {w: dict(zip(kept["bytes"], ms)) for w, ms in kept["8 ranks"].items()}
    delay = eight["swap_all"][64] / 3000
    bandwidth = 3 * 2**22 / (eight["swap_all"][2**22] / 1000 - 3 * delay)
    steps = {"halving": (6, 1.75), "ring": (14, 1.75)}  # swap_all: 3 steps, 3 tensors
    found, worst = {}, 1
    for way, (more, fewer) in steps.items():
        model = (more - 3) / (3 - fewer) * delay * bandwidth / 2**20
        met = crossing(eight["swap_all"], eight[way]) / 2**20
        worst = max(worst, off(model, met))
        found[f"{way}_formula_8"] = f"{model:.1f}"
        found[f"{way}_race_8"] = f"{met:.1f}"
    return found | {"off_8": f"{worst:.1f}"}


def of_torchs_time():
    """The share of torch's time that two ways take, with 16 and 64 MiB."""
    kept, found = measured(HOW_FAST), {}
    assert kept["bytes"][-2:] == [2**24, 2**26]
    for way in ("segments", "ring"):
        runs = [kept[f"{ranks} ranks"] for ranks in (2, 4)]
        pairs = [
            pair for run in runs for pair in list(zip(run[way], run["torch"]))[-2:]
        ]
        shares = [ms / of_torch for ms, of_torch in pairs]
        found[f"{way}_share"] = f"{min(shares):.2f}–{max(shares):.2f}"
    return found


def lost_ranks():
    """Jobs with one lost rank and one restart, with one store and with own ones."""
    kept = measured("34_elastic")
    assert kept["one store"] == 0, "none, it says"
    return {"jobs": f"{kept['jobs']}", "own_stores": f"{kept['own stores']}"}


def speed_of_horovod():
    """What DDP and Horovod keep on the model that computes, and on the other."""
    return {k: v for k, v in the_tables().items() if re.match("kept_(ddp|horovod)", k)}


def two_losses():
    """What rank 0 would log, and the loss of all, as the page's cell has printed."""
    said = printed("21_evaluation", "run = torchrun(train")
    loss, mean = re.search(r"loss ([\d.]+), of all ([\d.]+), test", said).groups()
    assert float(loss) > 1.5 * float(mean), "rank 0 has wrong labels only"
    return {"of_rank_0": loss, "of_all": mean}


def slow_link():
    """A step over a slow link, with a server and in a ring: as it was and should be."""
    kept = measured("41_parameter_server")
    size, link = kept["megabytes"], kept["links"]["100"]
    return {
        "star": f"{link['star'] / 1000:.2f}",
        "ring": f"{link['ring'] / 1000:.2f}",
        "star_formula": f"{8 * size / 12.5:.2f}",
        "ring_formula": f"{1.5 * size / 12.5:.2f}",
        "torch": kept["torch"],
        "date": kept["date"],
    }


def ceilings():
    """The largest learning rate that works, by age: test_41 finds it by halving."""
    found = {age: 2 * math.sin(math.pi / (4 * age + 2)) for age in (0, 1, 3, 7)}
    return {f"ceiling_{age}": f"{round(rate, 2):g}" for age, rate in found.items()}


NUMBERS = {
    SPEED: [the_race, the_sweep, the_adder, the_messages, the_tables],
    HOW_FAST: [four_ranks, eight_ranks, of_torchs_time],
    "21_evaluation": [two_losses],
    "34_elastic": [lost_ranks],
    "40_horovod": [speed_of_horovod],
    "41_parameter_server": [slow_link, ceilings],
}


@pytest.mark.parametrize("stem", NUMBERS)
def test_a_page_tells_what_was_measured(stem):
    told = defaultdict(set)
    for number, key in KEYED.findall(prose(stem)):
        told[key].add(number)
    found = {key: text for of in NUMBERS[stem] for key, text in of().items()}
    assert told == {key: {found.get(key)} for key in told}
    assert told.keys() == found.keys(), "a number that no sentence tells"


def test_keys_stand_where_no_reader_sees_them():
    """In a heading or a picture's words they could. Other pages have none."""
    for path in NOTEBOOKS.glob("*.ipynb"):
        text = prose(path.stem)
        assert not re.search(r"(?m)^#.*<!--\w|!\[[^]]*<!--\w", text), path.stem
        assert path.stem in NUMBERS or not KEYED.search(text), path.stem
