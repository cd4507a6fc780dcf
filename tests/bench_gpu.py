"""Prints again what the lessons say that a GPU showed: python tests/bench_gpu.py

It needs one GPU, which two or three ranks share: for NCCL each rank is a machine of its
own (see gpu.py, and the page on launchers). It takes about ten minutes; with names, as
in `python tests/bench_gpu.py irecv_first caps`, it runs these only. What is timed runs
alone, and what hangs hangs together. Each answer stands under its lesson, to be held
against the page: a newer torch or NCCL may answer differently. Without a GPU it tries
nothing. The pages' numbers come from probes with these calls, in November 2026; put
together in this file, the calls have run by gloo only.
"""

import ast
import glob
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import asked
import torch
import torch.distributed as dist
from gpu import machine
from torch import nn

DDP = nn.parallel.DistributedDataParallel
ROOT = Path(__file__).resolve().parents[1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"  # gloo, to try a fact without a GPU
LONGEST = 100  # seconds: a watchdog needs a minute after its time-out
FACTS: dict[str, tuple[Callable, str, int, bool]] = {}


def fact(lesson: str, ranks: int = 0, timed: bool = False) -> Callable:
    """Keep a function: the lesson that tells what it prints, and its ranks."""

    def keep(function):
        FACTS[function.__name__] = function, lesson, ranks, timed
        return function

    return keep


def main(names: list[str]) -> int:
    """Run some facts, or all, print what they say, and return the exit code."""
    if "RANK" in os.environ:  # a process that one of these started
        for name in names:
            FACTS[name][0]()
        return 0
    if not torch.cuda.is_available():
        print("torch finds no GPU on this machine: nothing was tried")
        return 1
    if unknown := set(names) - set(FACTS):
        print("no such fact:", *sorted(unknown), "\nknown:", *FACTS)
        return 2
    version = ".".join(map(str, torch.cuda.nccl.version()))
    where = torch.cuda.get_device_name(0)
    print(f"{where}, torch {torch.__version__}, NCCL {version}", flush=True)
    chosen = names or [name for name in FACTS if name[0] != "_"]
    for name in chosen:
        if FACTS[name][3]:
            print(run(name), flush=True)
    with ThreadPoolExecutor(6) as pool:
        for told in pool.map(run, [name for name in chosen if not FACTS[name][3]]):
            print(told, flush=True)
    return 0


def run(name: str) -> str:
    """Return what the processes of a fact print, and how they end."""
    _, lesson, ranks, _ = FACTS[name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    line, jobs = [sys.executable, __file__, name], []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for rank in range(ranks or 1):
        env = {"RANK": str(rank), "WORLD_SIZE": str(ranks or 1), "LOCAL_RANK": "0"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env |= machine(rank) if name != "refused" else {}
        jobs.append(subprocess.Popen(line, env=os.environ | env, **pipes))
    told, end = [f"== {lesson}: {name}"], time.monotonic() + LONGEST
    with ThreadPoolExecutor(len(jobs)) as pool:  # all at once: a full pipe blocks
        ended = pool.map(partial(finish, end=end), jobs)
        for rank, (out, error, how) in enumerate(ended):
            head = f"rank {rank} | " if ranks else ""
            told += [head + text for text in out.splitlines()]
            reasons = [text for text in error.splitlines() if says_why(text)]
            if how != 0:
                told += [f"{head}exit code {how}", *reasons[:4]]
    return "\n".join(told)


def finish(job: subprocess.Popen, end: float) -> tuple[str, str, object]:
    """Return what a process printed, and its exit code, or that it waits."""
    try:
        out, error = job.communicate(timeout=max(1, end - time.monotonic()))
        return out, error, job.returncode
    except subprocess.TimeoutExpired:
        job.kill()
        return *job.communicate(), f"none: it still waits after {LONGEST} s"


def says_why(line: str) -> bool:
    """Say whether a line of stderr holds the reason."""
    return any(word in line for word in ("what():", "Error: ", "Duplicate", "same GPU"))


def group(seconds: int = 20, eager: bool = False) -> tuple[int, int]:
    """Join the group of all ranks, which share the first GPU."""
    options = {}
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
        options = {"device_id": torch.device("cuda", 0)} if eager else {}
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=seconds), **options)
    return dist.get_rank(), dist.get_world_size()


def now() -> float:
    """Return the time at which all work of the GPU is done."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def median_ms(step: Callable, rounds: int = 7, warm: int = 3) -> float:
    """Return the median of what some steps take, in milliseconds."""
    times = []
    for _ in range(warm + rounds):
        begin = now()
        step()
        times.append(now() - begin)
    return 1000 * statistics.median(times[warm:])


def tell(*words: object) -> None:
    print(*words, flush=True)


def try_it(name: str, call: Callable) -> None:
    """Tell what a call returns, when the GPU has done it, or its error."""
    begin = now()
    try:
        result = call()
        tell(name, result, f"after {now() - begin:.1f} s")
    except Exception as error:
        words = str(error).splitlines() or [""]
        tell(name, type(error).__name__, words[0][:200])


def in_new_process(code: str, **variables: str) -> None:
    """Run some lines in a process of their own, and tell what they print."""
    how = {"capture_output": True, "text": True, "timeout": 60}
    line, env = [sys.executable, "-c", code], os.environ | variables
    done = subprocess.run(line, env=env, **how)
    tell(done.stdout.strip(), *done.stderr.strip().splitlines()[-1:])


# ------------------------------------------------------------------------ one process


@fact("30")
def late_variable():
    """A variable that is set too late changes a count, and not the GPUs."""
    in_new_process(
        "import os, torch\n"
        "print('GPUs:', torch.cuda.is_available() and torch.cuda.device_count())\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "print('then:', torch.cuda.device_count(), torch.ones(1, device='cuda').device)"
    )


class Product(nn.Module):
    def forward(self, x):
        return torch.mm(x, x.t())


@fact("13")
def autocast_around_dp():
    """Around DP, autocast forgets the type that was asked for."""
    ones = torch.ones(4, 4, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        tell("one process:", Product()(ones).dtype)
        tell("DP:", nn.DataParallel(Product(), device_ids=[0, 0])(ones).dtype)


@fact("05", timed=True)
def without_synchronize():
    """A call returns long before its product is there."""
    a = torch.randn(8192, 8192, device=DEVICE)
    called = []

    def multiply():
        begin = time.perf_counter()
        torch.mm(a, a)
        called.append(1000 * (time.perf_counter() - begin))

    done = median_ms(multiply)
    tell(f"returns after {statistics.median(called):.3f} ms, done after {done:.1f} ms")


def learn(model, x, y):
    nn.functional.cross_entropy(model(x), y).backward()


@fact("05", ranks=1, timed=True)
def resnet():
    """ResNet-50 with 32 images: alone, in DP and in DDP. It needs torchvision."""
    import torchvision

    group()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().to(DEVICE)
    x = torch.randn(32, 3, 224, 224, device=DEVICE)
    y = torch.randint(1000, (32,), device=DEVICE)
    ways = {"alone": model, "DP": nn.DataParallel(deepcopy(model))}
    ways["DDP"] = DDP(deepcopy(model))
    times = {name: [] for name in ways}
    for _ in range(10):  # in turns, so that a slow moment meets all
        for name, way in ways.items():
            times[name].append(median_ms(partial(learn, way, x, y), 1, 0))
    for name, each in times.items():
        tell(f"{name}: {statistics.median(each[3:]):.1f} ms")
    dist.destroy_process_group()


@fact("17")
def sums_in_any_order():
    """A GPU adds in the order in which its threads come."""
    where = torch.randint(10, (1_000_000,), device=DEVICE)
    numbers = torch.randn(1_000_000, device=DEVICE)
    for same in False, True:
        torch.use_deterministic_algorithms(same)
        start = torch.zeros(10, device=DEVICE)
        all_sums = [start.index_add(0, where, numbers) for _ in range(20)]
        sums = torch.stack(all_sums)
        spread = (sums.amax(0) - sums.amin(0)).max().item()
        different = len({tuple(row.tolist()) for row in sums})
        tell(f"deterministic {same}: {different} results of 20, spread {spread:.3f}")
    try_it("histc:", lambda: torch.histc(torch.rand(100, device=DEVICE), 10))


@fact("24", timed=True)
def pinned():
    """256 MiB go to the GPU from usual memory, and from pinned memory."""
    usual = torch.ones(64 * 2**20)
    for name, memory in {"usual": usual, "pinned": usual.pin_memory()}.items():
        for meanwhile in False, True:
            send = partial(memory.to, DEVICE, non_blocking=meanwhile)
            done, begin = median_ms(send), now()
            send()
            called = 1000 * (time.perf_counter() - begin)
            words = f"non_blocking {meanwhile}: returns after {called:.1f} ms"
            tell(f"{name}, {words}, done after {done:.1f} ms")


@fact("24", timed=True)
def fewer_bits(width: int = 4096):
    """Eight layers of 4096 x 4096 weights, with 4096 samples, in four ways."""
    ways = {"float32": None, "TF32": None, "float16": torch.float16}
    for name, kind in (ways | {"bfloat16": torch.bfloat16}).items():
        torch.set_float32_matmul_precision("high" if name == "TF32" else "highest")
        layers = [
            layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())
        ]
        model = nn.Sequential(*layers).to(DEVICE)
        tell(f"{name}: {median_ms(step_of(model, width, kind)):.1f} ms")


def step_of(model, width, kind):
    """Return one step of training, under autocast if there is a kind of number."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(DEVICE, enabled=kind == torch.float16)
    x = torch.randn(width, width, device=DEVICE)

    def step():
        with torch.autocast(DEVICE, kind, enabled=kind is not None):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


@fact("30")
def fork():
    """Which question spoils a fork?"""
    for question in "device_count", "is_available":
        in_new_process(
            "import multiprocessing as mp, torch\n"
            f"print('{question}:', torch.cuda.{question}(), flush=True)\n"
            "def use():\n"
            "    try: print(torch.ones(1).cuda())\n"
            "    except RuntimeError as error: print(str(error)[:60])\n"
            "p = mp.get_context('fork').Process(target=use)\n"
            "p.start(); p.join()"
        )


@fact("30")
def a_gpu_too_many():
    """A device that is not there."""
    in_new_process(
        "import torch\ntorch.ones(1, device=f'cuda:{torch.cuda.device_count()}')"
    )


# --------------------------------------------------------------------- several ranks


@fact("30, 33", ranks=2)
def refused():
    """Two ranks on one GPU of one machine."""
    group()
    try:
        dist.all_reduce(torch.ones(1, device=DEVICE))
        tell("a sum")
    except RuntimeError as error:
        tell(*[line for line in str(error).splitlines() if "GPU" in line])
    leave()


def leave():
    """End at once: a group that has failed cannot be destroyed."""
    sys.stdout.flush()
    os._exit(0)


def talk(first: str, eager: bool, numel: int = 4) -> None:
    """Exchange with the other rank, `first` before the other call."""
    rank, _ = group(10, eager)
    other, given = 1 - rank, torch.full((numel,), rank + 1.0, device=DEVICE)
    came = torch.zeros(numel, device=DEVICE)
    if eager:  # the ranks have met before
        calls = [(dist.isend, given), (dist.irecv, came)]
        batch = [dist.P2POp(call, tensor, other) for call, tensor in calls]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        came.zero_()

    def exchange():
        calls = [lambda: dist.isend(given, other), lambda: dist.irecv(came, other)]
        for work in [call() for call in (calls if first == "isend" else calls[::-1])]:
            work.wait()
        return came[:4].tolist()

    tell(f"{first} first, device_id {eager}, {numel} numbers")
    try_it("came:", exchange)
    leave()


for _first in "irecv", "isend":
    for _eager in True, False:
        _name = f"{_first}_first" + "_without_device_id" * (not _eager)
        FACTS[_name] = partial(talk, _first, _eager), "10", 2, False
FACTS["isend_of_64_mib_first"] = partial(talk, "isend", True, 2**24), "10", 2, False


@fact("10", ranks=2)
def kinds():
    """The page's own table: which numbers does NCCL carry, with which calls?"""
    page = json.loads((ROOT / "notebooks/10_ranks_and_messages.ipynb").read_text())
    names = {"torch": torch, "dist": dist}
    for cell in page["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code" and "def " in text:
            wanted = ("exchange", "every_call", "carry")
            kept = [n for n in ast.parse(text).body if getattr(n, "name", 0) in wanted]
            exec(compile(ast.Module(kept, []), "<page>", "exec"), names)
    rank, world_size = group()
    names["carry"](rank, world_size, BACKEND, DEVICE)
    leave()


@fact("10", ranks=2)
def mean_of_integers():
    """The mean of 1 and 2."""
    rank, _ = group()
    number = torch.tensor([rank + 1], device=DEVICE)
    try_it("mean:", lambda: dist.all_reduce(number, dist.ReduceOp.AVG) or number.item())
    leave()


@fact("10", ranks=2)
def gloo_with_tensors_of_a_gpu():
    """gloo takes them, except in send and recv."""
    rank, world_size = group()
    slow = dist.new_group(backend="gloo")
    own = torch.ones(1, device=DEVICE)
    each = [torch.zeros(1, device=DEVICE) for _ in range(world_size)]
    row = torch.cat(each)
    mine = each if rank == 0 else None
    try_it("broadcast", lambda: dist.broadcast(own, 0, slow))
    try_it("all_reduce", lambda: dist.all_reduce(own, group=slow))
    try_it("all_gather", lambda: dist.all_gather(each, own, slow))
    try_it("reduce", lambda: dist.reduce(own, 0, group=slow))
    try_it("gather", lambda: dist.gather(own, mine, 0, slow))
    try_it("scatter", lambda: dist.scatter(own, mine, 0, slow))
    try_it("all_to_all", lambda: dist.all_to_all_single(0 * row, row, group=slow))
    try_it("reduce_scatter", lambda: dist.reduce_scatter(own, each, group=slow))
    one_way = dist.recv if rank else dist.send
    try_it("send, recv", lambda: one_way(own, 1 - rank, slow))
    leave()


def differ(make: Callable) -> None:
    """Let the ranks make calls that do not fit."""
    rank, world_size = group(10)
    try_it("after the call:", lambda: make(rank, world_size))
    leave()


def add_up(make: Callable) -> None:
    """Let the ranks add up tensors that do not fit."""

    def call(rank, _):
        numbers = make(rank)
        dist.all_reduce(numbers)
        return numbers.tolist()

    differ(call)


@fact("11", ranks=2)
def other_lengths():
    """Four numbers meet eight."""
    add_up(lambda rank: torch.ones(4 + 4 * rank, device=DEVICE))


@fact("11", ranks=2)
def other_kinds():
    """float64 meets float32."""
    kinds = torch.float64, torch.float32
    add_up(lambda rank: torch.ones(4, device=DEVICE, dtype=kinds[rank]))


@fact("11", ranks=2)
def other_calls():
    """An all_reduce meets a broadcast."""

    def call(rank, _):
        numbers = torch.full((4,), rank + 1.0, device=DEVICE)
        calls = [lambda: dist.all_reduce(numbers), lambda: dist.broadcast(numbers, 0)]
        for each in calls[::-1] if rank else calls:
            each()
        return numbers.tolist()

    differ(call)


@fact("11", ranks=2)
def other_lengths_in_all_gather():
    """Each row has its length: one number from rank 0, two from rank 1."""

    def call(rank, world_size):
        rows = [torch.zeros(of + 1, device=DEVICE) for of in range(world_size)]
        dist.all_gather(rows, torch.full((rank + 1,), rank + 1.0, device=DEVICE))
        return [row.tolist() for row in rows]

    differ(call)


@fact("11, 33", ranks=2)
def a_call_too_few():
    """Rank 1 leaves a call out: what returns, what ends the ranks, and when?"""
    begin = time.monotonic()
    rank, _ = group(8)
    one = torch.ones(1, device=DEVICE)
    dist.all_reduce(one)
    tell("met:", one.item())
    if rank == 0:
        dist.all_reduce(one)
        tell("all_reduce returned", since(begin))
    dist.broadcast(one, 0)
    tell("broadcast returned", since(begin))
    tell(one.item(), since(begin))


def since(begin: float) -> str:
    return f"after {time.monotonic() - begin:.0f} s"


@fact("33", ranks=2)
def a_rank_is_gone():
    """Rank 1 ends before a call."""
    rank, _ = group(8)
    one = torch.ones(1, device=DEVICE)
    dist.all_reduce(one)
    tell("met:", one.item())
    if rank == 1:
        os._exit(1)
    time.sleep(1)
    dist.all_reduce(one)
    tell("all_reduce returned")
    tell(one.item())


@fact("33", ranks=2)
def busy_but_idle():
    """Rank 0 waits for 8 s in NCCL: what does nvidia-smi say of its GPU?"""
    rank, _ = group(60)
    one = torch.ones(1, device=DEVICE)
    dist.all_reduce(one)
    tell("met:", one.item())
    if rank == 1:
        time.sleep(8)
    dist.all_reduce(one)
    line = "nvidia-smi --query-gpu=utilization.gpu,power.draw,power.limit --format=csv"
    for _ in range(4 * (rank == 0)):
        time.sleep(1.5)
        done = subprocess.run(line.split(), capture_output=True, text=True)
        tell(done.stdout.splitlines()[-1])
    tell("sum:", one.item())
    dist.destroy_process_group()


@fact("33")
def boxes():
    """Rank 1 leaves out the third of five calls: whom does torchfrtrace name?"""
    with TemporaryDirectory() as folder:
        tell(run_with("_skips_the_third", TORCH_FR_DUMP_TEMP_FILE=f"{folder}/rank_"))
        tell(*sorted(Path(path).name for path in glob.glob(f"{folder}/*")))
        line = ["torchfrtrace", "--prefix", "rank_", folder]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        tell(done.stdout + done.stderr)


def run_with(name: str, **variables: str) -> str:
    """Run a fact with more variables in its environment."""
    for variable in "RANK", "WORLD_SIZE":
        os.environ.pop(variable)
    os.environ |= variables
    return run(name)


@fact("33", ranks=2)
def _skips_the_third():
    """What `boxes` is made of."""
    rank, _ = group(8)
    one = torch.ones(1, device=DEVICE)
    for step in range(5):
        if not (rank == 1 and step == 2):
            dist.all_reduce(one)
    tell("five calls begun")
    tell(one.item())
    time.sleep(60)


@fact("04", ranks=2)
def backward_returns_early():
    """The other rank is two seconds late: when does `backward` return?"""
    rank, _ = group()
    model = DDP(nn.Linear(1000, 1000).to(DEVICE))
    x = torch.ones(8, 1000, device=DEVICE)
    for _ in range(3):
        model(x).sum().backward()
    loss = model(x).sum()
    now()
    if rank == 1:
        time.sleep(2)
    begin = time.perf_counter()
    loss.backward()
    returned = time.perf_counter() - begin
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    there = time.perf_counter() - begin
    tell(f"returns after {returned:.3f} s; its norm, {norm:.0f}, after {there:.3f} s")
    del model, loss
    dist.destroy_process_group()


@fact("04", ranks=2, timed=True)
def caps(width: int = 1024, rows: int = 8192):
    """A step of DDP with four sizes of bucket; without messages; and one all-reduce."""
    rank, _ = group(60)
    torch.set_float32_matmul_precision("high")
    x = torch.randn(rows, width, device=DEVICE)

    def make(**options):
        layers = [
            layer for _ in range(16) for layer in (nn.Linear(width, width), nn.ReLU())
        ]
        return DDP(nn.Sequential(*layers).to(DEVICE), **options)

    def step(model):
        model.zero_grad()
        model(x).sum().backward()

    def alone(model):
        with model.no_sync():
            step(model)

    flat = torch.ones(16 * width * (width + 1), device=DEVICE)
    ways = {"no messages": partial(alone, make())}
    for cap in 1, 5, 25, 1000:
        ways[f"cap {cap} MiB"] = partial(step, make(bucket_cap_mb=cap))
    ways[f"all-reduce of {4 * flat.numel() / 1e6:.0f} MB"] = partial(
        dist.all_reduce, flat
    )
    times = {name: [] for name in ways}
    for _ in range(8):  # in turns
        for name, way in ways.items():
            now()
            dist.barrier()
            times[name].append(median_ms(way, 1, 0))
    if rank == 0:
        for name, each in times.items():
            tell(f"{name}: {statistics.median(each[2:]):.1f} ms")
    ways.clear()
    dist.destroy_process_group()


@fact("20", ranks=2)
def sync_batch_norm():
    """Two ranks against one process, in float64."""
    rank, world_size = group()
    torch.manual_seed(0)
    kind = {"device": DEVICE, "dtype": torch.float64}
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    whole = nn.Sequential(*layers, nn.Linear(144, 2)).to(**kind)
    x, y = torch.randn(8, 1, 8, 8).to(**kind), torch.randn(8, 2).to(**kind)
    shared = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(deepcopy(whole)))
    loss = nn.functional.mse_loss
    loss(shared(x.chunk(world_size)[rank]), y.chunk(world_size)[rank]).backward()
    loss(whole(x), y).backward()
    pairs = zip(shared.parameters(), whole.parameters(), strict=True)
    worst = max((one.grad - two.grad).abs().max().item() for one, two in pairs)
    moved = (shared.module[1].running_var - whole[1].running_var).abs().max().item()
    tell(f"gradients differ by {worst:.0e}, running variances by {moved:.0e}")
    try_it("a batch on the CPU:", lambda: nn.SyncBatchNorm(2)(torch.ones(4, 2)))
    leave()


def broken(loop: Callable) -> None:
    """Run a loop of broken scripts with its model of one weight."""
    rank, world_size = group(8)
    model = nn.Linear(1, 1, bias=False).to(DEVICE)
    nn.init.zeros_(model.weight)
    if loop is tests_on_rank_0:
        model.register_buffer("average", torch.zeros(1, device=DEVICE))
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def learn(batch):
        optimizer.zero_grad()
        loss = -model(batch).mean()
        loss.backward()
        optimizer.step()
        return loss

    loop(model, learn, rank, world_size)
    tell("weight", model.module.weight.item())
    dist.destroy_process_group()


def samples(count: int) -> torch.Tensor:
    return torch.arange(1.0, count + 1, device=DEVICE).reshape(count, 1)


def tests_on_rank_0(model, learn, rank, world_size):
    for _ in range(2):
        learn(samples(12)[rank::world_size])
        if rank == 0:
            with torch.no_grad():
                tell("test", -model(samples(4)).mean().item())


def one_batch_more(model, learn, rank, world_size):
    for batch in samples(13)[rank::world_size].split(2):
        learn(batch)
    tell("the loop has ended")
    dist.barrier()


def stops_by_its_own_loss(model, learn, rank, world_size):
    for step in range(1, 10):
        if learn(samples(12)[rank::world_size]).item() < -180:
            tell("stops after", step)
            break
    dist.barrier()


for _number, _loop in enumerate(
    (tests_on_rank_0, one_batch_more, stops_by_its_own_loss), 3
):
    FACTS[f"script_{_number}"] = partial(broken, _loop), "35", 2, False


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the answers are what counts
    sys.exit(main(asked.WORDS.name))
