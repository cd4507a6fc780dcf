"""Do restarts work, and what does a cut link cost? Run by hand, as root:

    python tests/bench_elastic.py [PATH]

Twenty jobs of four ranks lose one, with a store for all crews and with one for each.
Then two nodes train, and their link is cut: for less, and for more than a time-out.
Last, a node joins a job with one store, and scripts/train.py loses a rank. PATH, a
JSON file, then has how many jobs ended well, and what the ranks said.
"""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import redirect_stdout
from datetime import date
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import asked
import psutil
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "notebooks")]

import test_34  # noqa: E402
from ringside import agents, elastic, two_nodes  # noqa: E402
from ringside.launch.client import environment  # noqa: E402
from ringside.standins.agents import LINE, SCRIPT  # noqa: E402

JOBS, WAIT = 20, 10  # jobs of each kind; the time-out of the nodes' group, in seconds
LINK = f"""
import os, signal, time
from datetime import timedelta
import torch, torch.distributed as dist

signal.alarm(200)
dist.init_process_group("gloo", timeout=timedelta(seconds={WAIT}))
restart, size = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_world_size()
if dist.get_rank() == 0:
    print(f"restart {{restart}}: world size {{size}}", flush=True)
until, longest, go = time.monotonic() + 15, 0, True
while go:  # rank 0 knows when it is over
    begin, left = time.monotonic(), torch.tensor([float(time.monotonic() < until)])
    dist.broadcast(left, 0)
    dist.all_reduce(torch.ones(1))
    longest, go = max(longest, time.monotonic() - begin), bool(left)
    time.sleep(0.1)
if dist.get_rank() == 0:
    print(f"ended, longest step {{longest:.1f}} s", flush=True)
dist.destroy_process_group()
"""
FLAGS = "--nnodes 1:2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d "
FLAGS += "--rdzv-endpoint node0:29500 --rdzv-conf last_call_timeout=5"


def ended_well(own_store: bool) -> int:
    """Return how many jobs ended bit-equal after one of four ranks was killed."""
    cell, well = test_34.own(), 0
    text = cell["KILL"] + cell["LOOP"].replace("seconds=60", "seconds=5")
    env = cell["OWN_STORE"] if own_store else {}
    for number in range(JOBS):
        with redirect_stdout(StringIO()):
            job = elastic(text, "--nproc-per-node 4 --max-restarts 1", **env)
        well += job.code == 0
        why = {*re.findall("Connect timeout|Connection refused", job.log)}
        print("own store" if own_store else "one store", number, job.code, *why)
    return well


def cut(nodes, seconds: float) -> list[str]:
    """Cut the link of two nodes for some seconds; return what their ranks 0 said."""
    with TemporaryDirectory() as folder:
        Path(folder, SCRIPT).write_text(LINK)
        env = environment(TMPDIR=folder, **test_34.own()["OWN_STORE"])
        env = {k: v for k, v in env.items() if "_SOCKET_IFNAME" not in k}
        outs = [Path(folder, f"node{number}") for number in range(2)]
        agents = []
        for out in outs:
            line = [out.name if word == "here" else word for word in LINE]
            how = {"cwd": folder, "env": env, "stderr": subprocess.DEVNULL}
            with out.open("w") as file:
                words = [*line, *FLAGS.split(), SCRIPT]
                agents.append(subprocess.Popen(words, stdout=file, **how))
        while "world size 2" not in outs[0].read_text():
            time.sleep(0.1)
        time.sleep(1)
        nodes.do("cut", "node1")
        time.sleep(seconds)
        nodes.do("mend", "node1")
        codes = [agent.wait(200) for agent in agents]
        said = [line for out in outs for line in out.read_text().splitlines()]
        print(f"cut for {seconds} s:", *codes, *said, sep="\n  ")
        return said if codes == [0, 0] else [*said, f"exit codes {codes}"]


def joins(own_store: bool) -> list[str]:
    """Lose a node, and let another one join, as on the page; return the end of it."""
    cell = test_34.own()
    env = cell["OWN_STORE"] if own_store else {}
    with agents(cell["STAND"] + cell["LOOP"]) as begin:
        b = begin(f"{cell['BOTH']}0", NODE="b", **env)
        a = begin(f"{cell['BOTH']}1", NODE="a", **env)
        b.until("b stands")
        b.lose()
        a.until("world size 1")
        c = begin(f"{cell['BOTH']}0", NODE="c", **env)
        codes = f"exit codes {a.wait()} {c.wait()}"
    why = {*re.findall(r"wait timeout after \d+ms", a.log + c.log)}
    return [codes, *sorted(why)]


def trained(kill: bool, folder: Path) -> tuple[list[str], dict]:
    """Run scripts/train.py, and kill a rank after the third epoch, or none."""
    script, env = str(ROOT / "scripts" / "train.py"), environment(TMPDIR=str(folder))
    line = [*LINE, "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    line += ["--max-restarts", "3", script, "--folder", str(folder)]
    env |= test_34.own()["OWN_STORE"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    said = []
    with subprocess.Popen(line, env=env, **how) as agent:
        for text in agent.stdout:
            said += [text.strip()] if "steps are done" in text else []
            if kill and text.startswith("epoch 3"):
                kill = psutil.Process(agent.pid).children()[1].kill()
    return said, torch.load(folder / "training.pt", weights_only=True)["model"]


def train_twice() -> dict:
    """Return what the killed training went on from, and whether it ended bit-equal."""
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        _, whole = trained(False, Path(one))
        said, model = trained(True, Path(other))
    equal = all(torch.equal(whole[name], model[name]) for name in whole)
    return {"said": said, "bit-equal": equal}


def main() -> None:
    kept = {"machine": f"{os.cpu_count()} CPU cores, gloo"}
    kept |= {"torch": torch.__version__.partition("+")[0], "date": f"{date.today()}"}
    with two_nodes() as nodes:
        if not nodes.real:
            sys.exit("there is no link to cut")
        kept["time-out"] = WAIT
        kept["cut"] = {seconds: cut(nodes, seconds) for seconds in (5, 20)}
    kept |= {"jobs": JOBS, "one store": ended_well(False)}
    kept["own stores"] = ended_well(True)
    kept["joins, one store"] = joins(False)
    kept["train.py"] = train_twice()
    if path := asked.WORDS.path:
        path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
