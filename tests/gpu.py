"""Runs scripts and lessons on the GPUs of this machine: python tests/gpu.py [FOLDER]

It needs the packages of requirements.txt, torch 2.13 (or a cell about BatchNorm fails),
no network, and half an hour. Every script runs with a rank for each GPU, which talk by
NCCL, and with one more than there are GPUs, which must fall back to gloo and say so.
One that uses GPUs, except the one that times DP, also runs on two nodes and on three,
which this machine plays with its first GPU: NCCL refuses two ranks on one GPU of a
machine, but NCCL_HOSTID says that these are several machines. There the first script
must begin as on one rank: the mean of the first losses is equal to four digits.
Every cell of the lessons runs once, so that all branches for GPUs do. FOLDER,
test-results/gpu if none is named, then has report.txt, what failed in full, and the
recordings of times measured here. The exit code is 0 if all went well; without a GPU
nothing is tried, and it is 1.
"""

import json
import linecache
import os
import re
import socket
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from types import ModuleType

import asked
import torch

ROOT = Path(__file__).resolve().parents[1]
MEASURED = "05_dp_vs_ddp"  # it records times; the page on DDP does so on CPUs only
FIRST = "00_four_ranks_tonight"  # it leans on nothing that the others share
LONGEST = 120  # seconds that a script may take
TOO_FEW = "too few GPUs"


def main(folder: Path) -> int:
    """Run everything, write the report, and return the exit code."""
    gpus = torch.cuda.device_count()
    if not gpus:
        print("torch finds no GPU on this machine: nothing was tried")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    names = ", ".join(torch.cuda.get_device_name(gpu) for gpu in range(gpus))
    report = [f"{gpus} GPUs ({names}), torch {torch.__version__}"]
    failed = 0
    for name, work in trials(gpus, folder).items():
        begin = time.monotonic()
        try:
            told, fault = work(), ""
            told = told if isinstance(told, str) else "ok"
        except Exception:  # it is told, and the next one has its turn
            told, fault = "FAILED", traceback.format_exc()
            failed += 1
            (folder / f"{name.replace(' ', '_')}.txt").write_text(fault)
        report.append(f"{name:48} {time.monotonic() - begin:6.1f} s  {told}")
        print(report[-1], fault, sep="\n" if fault else "", flush=True)
    report.append(f"{failed} of {len(report) - 1} failed")
    print(report[-1])
    (folder / "report.txt").write_text("\n".join(report) + "\n")
    return 1 if failed else 0


def trials(gpus: int, folder: Path) -> dict:
    """Return what is to be tried: a function for each name."""
    found = {}
    for path in sorted(ROOT.glob("scripts/[0-9]*.py")):
        words = ["--record", folder / f"{path.stem}.jsonl"] * (path.stem == MEASURED)
        found[f"{path.stem}, {gpus} ranks"] = partial(run_script, path, gpus, *words)
        found[f"{path.stem}, {gpus + 1} ranks"] = partial(run_script, path, gpus + 1)
        if uses_gpus(path) and path.stem != MEASURED:  # which times DP, in one machine
            for nodes in 2, 3:
                found[f"{path.stem}, {nodes} nodes"] = partial(run_nodes, path, nodes)
    for path in sorted(ROOT.glob("notebooks/[0-9]*.ipynb")):
        line = [sys.executable, __file__, path]
        found[f"{path.stem}, cells"] = partial(run, line, os.environ)
    return found


def run(line: list, env: dict) -> subprocess.CompletedProcess:
    """Return what became of a command that must end well, and soon."""
    how = {"capture_output": True, "text": True, "timeout": LONGEST, "env": env}
    done = subprocess.run(line, cwd=ROOT, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def uses_gpus(path: Path) -> bool:
    """Say whether a script takes a GPU for each rank if there are enough."""
    return path.stem == FIRST or "own_device()" in path.read_text("utf-8")


def run_nodes(path: Path, nodes: int) -> str:
    """Let each node, all of them this machine, start a rank on the first GPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jobs = []
    with TemporaryDirectory() as folder, ThreadPoolExecutor(nodes) as pool:
        for node in range(nodes):
            line = [sys.executable, "-m", "torch.distributed.run"]
            line += ["--nnodes", f"{nodes}", "--node-rank", f"{node}"]
            line += ["--master-addr", "127.0.0.1", "--master-port", f"{port}"]
            line += ["--local-addr", "127.0.0.1", "--nproc-per-node", "1", path]
            env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{folder}/nccl.%p"}
            env |= machine(node)
            jobs.append(pool.submit(run, line, os.environ | env))
        faults = [job.exception() for job in jobs if job.exception()]
        told = "".join(log.read_text() for log in Path(folder).iterdir())
    # a node whose partner fails waits: the one that fails says why
    if faults:
        raise min(faults, key=lambda fault: isinstance(fault, TimeoutExpired))
    said = jobs[0].result().stdout
    assert said.rstrip().rpartition("\n")[2].startswith("ok"), said
    assert "via NET/Socket" in told, told or "no NCCL"
    if path.stem == FIRST:
        begins_as_one(path, [job.result().stdout for job in jobs])
    return "NCCL, by a socket"


def begins_as_one(path: Path, outputs: list[str]) -> None:
    """Compare the first losses of several ranks with that of one, on a GPU."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += [
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "1",
        path,
        "--epochs",
        "1",
    ]
    alone = first_losses(run(line, os.environ).stdout)
    several = first_losses("".join(outputs))
    assert len(several) == len(outputs) and len(alone) == 1, (several, alone)
    assert abs(mean(several) - alone[0]) < 5e-5, (several, alone)


def first_losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"first loss ([\d.]+)", output)]


def machine(node: int) -> dict[str, str]:
    """Return the variables that make NCCL take the first GPU for one of this node."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    names = {"CUDA_VISIBLE_DEVICES": gpu, "NCCL_HOSTID": f"node{node}"}
    return names | {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}


def run_script(path: Path, ranks: int, *words: object) -> str:
    """Launch a script as a person would, and say what carried its messages."""
    enough = ranks <= torch.cuda.device_count()
    asks = uses_gpus(path)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += ["--local-addr", "127.0.0.1", "--nproc-per-node", f"{ranks}", path, *words]
    with TemporaryDirectory() as folder:
        env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{folder}/nccl.%p"}
        done = run(line, os.environ | env)
        told = "".join(log.read_text() for log in Path(folder).iterdir())
    assert done.stdout.splitlines()[-1].startswith("ok"), done.stdout
    version = re.search(r"NCCL version \S+", told)
    assert bool(told) == (asks and enough), told or "no NCCL"
    tells = asks and path.stem != FIRST
    assert (TOO_FEW in done.stderr) == (tells and not enough), done.stderr
    return version[0] if version else "NCCL" if told else "gloo"


def run_cells(path: Path) -> None:
    """Run the cells of a lesson one after another, as a kernel would."""
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    lesson = sys.modules["lesson"] = ModuleType("lesson")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    for number, text in enumerate(sources):
        place = f"<cell {number}>"
        lines = f"{text}\n".splitlines(keepends=True)  # as IPython ends a cell
        linecache.cache[place] = (len(text), None, lines, place)  # for inspect
        exec(compile(text, place, "exec"), vars(lesson))


if __name__ == "__main__":
    where = (asked.WORDS.folder or ROOT / "test-results/gpu").resolve()
    sys.exit(run_cells(where) if where.suffix == ".ipynb" else main(where))
