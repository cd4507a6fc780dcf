"""Tests Slurm: what an sbatch file starts, and which task is which rank."""

import contextlib
import io
import json
import linecache
import os
import re
import runpy
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch
import torch.distributed as dist
from ringside import Recording, check, load, still
from ringside.draw.player import animate
from ringside.launch import client
from ringside.standins import slurm as cluster
from torch.distributed.run import get_args_parser

STEM = "32_slurm"
ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / f"{STEM}.ipynb"
HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node={}\n"
AGENTS = (
    "srun torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d "
    '--rdzv-endpoint="$first:29500" train.py\n'
)
FIRST = 'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'


@pytest.fixture(scope="module")
def script():
    """The script's functions, as it has them without Slurm."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("SLURM"):
                patch.delenv(name)
        return runpy.run_path(str(ROOT / "scripts" / f"{STEM}.py"))


def test_a_task_becomes_a_rank(script, monkeypatch):
    env = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
    env |= {"SLURM_JOB_NODELIST": "node[17-18]", "SLURM_JOB_ID": "123456"}
    asked = []

    def answer(line, text):
        asked.append(line)
        return "node17\nnode18\n"

    monkeypatch.setattr(subprocess, "check_output", answer)
    script["from_slurm"](env)
    assert asked == [["scontrol", "show", "hostnames", "node[17-18]"]]
    told = {k: v for k, v in env.items() if not k.startswith("SLURM")}
    right = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert told == right | {"MASTER_ADDR": "node17", "MASTER_PORT": "23456"}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_torchrun_alone_plays_two_nodes(script, ranks):
    rows = [{"rank": rank} | script["seat"](rank, ranks) for rank in range(ranks)]
    assert [row["task"] for row in rows] == [*range(ranks)]
    assert {row["node"] for row in rows} == ({0, 1} if ranks > 1 else {0})
    assert script["flaw"](rows, ranks) is None


def test_numbers_that_cannot_be_right_are_named(script):
    rows = [{"rank": rank, "node": 0, "local": rank} for rank in range(3)]
    assert script["flaw"](rows, 4).startswith("4 processes came")
    rows[2]["rank"] = 1
    assert "[0, 1, 1]" in script["flaw"](rows, 3)
    rows[2] |= {"rank": 2, "local": 1}
    assert script["flaw"](rows, 3) == "node 0 has the local ranks [0, 1, 1]"


def test_without_slurm_the_page_prints_the_same(tmp_path, monkeypatch):
    """What is compared is the same, and every command has a recording.

    All code cells run here, in one process; what they show as a picture is left out.
    """
    fake = tmp_path / "slurm.py"
    fake.write_text("import sys\nsys.exit('slurm.py: Slurm is not here.')\n")
    line = [sys.executable, str(fake), "run", "--limit"]
    monkeypatch.setattr(cluster, "TOOL", line)
    monkeypatch.chdir(ROOT / "notebooks")
    page, lacks = ModuleType("cells_of_12c"), 0
    monkeypatch.setitem(sys.modules, page.__name__, page)  # where inspect looks
    cells = [c for c in nbformat.read(NOTEBOOK, 4).cells if c.cell_type == "code"]
    for number, cell in enumerate(cells):
        name, lines = f"<cell {number}>", cell.source.splitlines(True)
        monkeypatch.setitem(linecache.cache, name, (1, None, lines, name))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(cell.source, name, "exec"), page.__dict__)
        kept = "".join(o.text for o in cell.outputs if o.output_type == "stream")
        if "nbval-ignore-output" in cell.metadata.get("tags", []):
            lacks += "Slurm is not here" in said.getvalue()
            assert "never recorded" not in said.getvalue()
            assert "Slurm is not here" not in kept
            assert str(ROOT) not in kept and "/tmp/" not in kept
        else:
            assert said.getvalue() == kept, cell.source
    assert lacks == sum(" slurm(" in cell.source for cell in cells) > 5


def test_the_recording_that_stands_in_is_that_of_the_figure():
    kept = json.loads(cluster.KEPT.read_text())
    [rows] = [rows for _, _, rows in kept.values() if rows]
    assert rows[1:] == [*load(STEM)] and rows[0] == load(STEM).header


def test_the_picture_tells_who_starts_whom():
    events = load(STEM)
    assert "4 tasks of Slurm on 2 nodes become 4 ranks" in animate(events)
    told = repr(still(events, 3))
    assert "node 1 has task 2, which is rank 2 with local rank 0" in told
    assert "rank" not in repr(still(events, 2)).partition("nodes. ")[2]
    agents = [e | {"phase": "torchrun", "task": e["node"]} for e in events]
    told = repr(still(Recording(agents, **events.header), 3))
    assert "node 0 has task 0, which starts rank 0 with local rank 0 and rank 1" in told


@pytest.mark.parametrize(
    ("text", "spawned", "says"),
    [
        (HEAD.format(2) + "srun python t.py", 1, ["2 + 2 = 4", "ranks 2 to 3"]),
        (HEAD.format(2) + "python t.py", 1, ["processes: 1", "without srun"]),
        (HEAD.format(1) + "srun python t.py", 2, ["processes: 4, world size: 2"]),
        (HEAD.format(1) + FIRST + AGENTS, 1, ["processes: 4", "agent 1: ranks 2 to 3"]),
        (HEAD.format(2) + AGENTS, 1, ["processes: 4", "2 find no place"]),
        (HEAD.format(1) + AGENTS[5:], 1, ["one agent, and it waits"]),
        (HEAD.format(1) + AGENTS.replace("=2 ", "=3 "), 1, ["only 2 agents start"]),
        (HEAD.format(1) + AGENTS.replace('"$first', '"localhost'), 1, ["localhost is"]),
        (
            HEAD.format(1)
            + "first=$SLURM_LAUNCH_NODE_IPADDR\n"
            + AGENTS.replace("$first", "$first"),
            1,
            ["wrong: "],
        ),
        (
            HEAD.format(1) + AGENTS.replace(' --rdzv-endpoint="$first:29500"', ""),
            1,
            ["where do the agents meet"],
        ),
        (
            HEAD.format(1) + "srun torchrun --standalone --nproc-per-node=2 t.py",
            1,
            ["world size: 2", "a job of its own"],
        ),
        (
            HEAD.format(1)
            + "srun torchrun --nnodes=2 --node-rank=$SLURM_NODEID "
            + "--nproc-per-node=2 --master-addr=$first t.py",
            1,
            ["0 for all"],
        ),
        ("#!/bin/bash\n#SBATCH -N 2\nsrun -n 4 python t.py", 1, ["3 + 1 = 4"]),
        ("#!/bin/bash\necho\n#SBATCH -N2\nsrun python t.py", 1, ["reads no further"]),
        (
            HEAD.format(1) + "#SBATCH --cpus-per-task=32\n" + AGENTS,
            1,
            ["wrong: srun asks for 1 processor a task"],
        ),
        (
            HEAD.format(1) + "#SBATCH -c32\nsrun -c 32 python t.py",
            1,
            ["node 1: ranks 1 to 1"],
        ),
        (
            HEAD.format(1) + "#SBATCH -c 32\n"
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n" + AGENTS,
            1,
            ["agent 1: ranks 2 to 3"],
        ),
        ("#SBATCH --nodes=two\nsrun python t.py", 1, ["--nodes must be a number"]),
        ("#SBATCH --nodes=2 train\nsrun python t.py", 1, ["'train' is none"]),
        ("#!/bin/bash\necho done", 1, ["no line of the file starts"]),
        (
            "#SBATCH -N2 -n3 --ntasks-per-node=2\nsrun python t",
            1,
            ["are not --ntasks=3"],
        ),
    ],
)
def test_the_reader_of_sbatch_files(text, spawned, says, capsys):
    check.would_start(text, spawned=spawned)
    said = capsys.readouterr().out
    assert all(part in said for part in says), said
    assert ("wrong" in said) == (not re.search("ranks . to", said))


def test_the_file_of_monday_is_right_as_it_stands(capsys):
    """And without srun's own number of processors, the reader sees what is wrong."""
    exec(monday(), {"check": check})
    right = capsys.readouterr().out
    assert "agent 1: ranks 4 to 7" in right and "wrong" not in right
    line = ' --cpus-per-task="$SLURM_CPUS_PER_TASK"'
    assert monday().count(line) == 1
    exec(monday().replace(line, ""), {"check": check})
    assert "wrong: srun asks for 1 processor a task" in capsys.readouterr().out


def monday():
    """Return the cell with Monday's file."""
    cells = [c.source for c in nbformat.read(NOTEBOOK, 4).cells]
    [cell] = [source for source in cells if source.startswith("MONDAY = ")]
    return cell


def mine(nodes=3, on_each=1, agents=3, ranks=4, where='"$first:29500"', srun="srun "):
    """Return the file of exercise 2."""
    header = f"#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node={on_each}\n"
    line = f"{srun}torchrun --nnodes={agents} --nproc-per-node={ranks} "
    return f"#!/bin/bash\n{header}\n{FIRST}{line}--rdzv-backend=c10d " + (
        f"\\\n    --rdzv-endpoint={where} train.py\n"
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (mine(), "right: 12 ranks"),
        (mine(agents="$SLURM_NNODES"), "right: 12 ranks"),
        (mine(nodes="..."), "still dots"),
        (mine(on_each=4), "9 find no place"),
        (mine(ranks=3), "4 GPUs"),
        (mine(nodes=2, agents=2), "it asks for 2 nodes, not 3"),
        (mine(agents=2), "1 find no place"),
        (mine(where="localhost:29500"), "localhost is another machine"),
        (mine(srun=""), "without srun"),
        (HEAD.format(2) + "srun python train.py", "one agent on each node"),
    ],
)
def test_batch_file(answer, says, capsys):
    check.batch_file(answer)
    assert says in capsys.readouterr().out


def right(env):
    for ours, theirs in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE")):
        env[ours] = env[f"OMPI_COMM_WORLD_{theirs}"]
    env["LOCAL_RANK"] = env["OMPI_COMM_WORLD_LOCAL_RANK"]


def no_local_rank(env):
    right(env)
    del env["LOCAL_RANK"]


def as_numbers(env):
    right(env)
    env["RANK"] = int(env["RANK"])


def rank_for_local(env):
    right(env)
    env["LOCAL_RANK"] = env["RANK"]


def with_address(env):
    right(env)
    env["MASTER_ADDR"] = env["HOSTNAME"]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (right, "right: rank, world size and local rank"),
        (no_local_rank, "LOCAL_RANK is not in the environment"),
        (as_numbers, "variables are texts"),
        (rank_for_local, "LOCAL_RANK is 5, not 1"),
        (with_address, "leave MASTER_ADDR"),
    ],
)
def test_from_mpirun(function, says, capsys):
    check.from_mpirun(function)
    assert says in capsys.readouterr().out


def test_what_the_lesson_says_of_torch(monkeypatch):
    """torchrun reads PET_ variables; the barrier after init is off by itself."""
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    args = get_args_parser().parse_args(["train.py"])
    assert (args.nnodes, args.nproc_per_node) == ("2", "4")
    monkeypatch.delenv("TORCH_DIST_INIT_BARRIER", raising=False)
    assert dist.distributed_c10d._is_barrier_after_init() == 0


def test_without_rank_0_nobody_has_opened_the_port():
    """As a fold of the page says, word for word."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = NOTEBOOK.read_text()
    with pytest.raises(dist.DistNetworkError) as error:
        dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=1))
    said = re.search(r"\*(The client socket .*?)\*", page)[1]
    assert str(error.value).startswith(said)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="older torch: port 29500")
def test_two_agents_that_name_no_nodes_are_two_jobs(tmp_path):
    """Each with a port and ranks of its own, as the page says of srun's tasks."""
    path = tmp_path / "who.py"
    path.write_text(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "own = [os.environ[n] for n in ('WORLD_SIZE', 'RANK', 'MASTER_PORT')]\n"
        "print(' '.join(own) + '\\n', end='', flush=True)  # in one piece\n"
        "dist.destroy_process_group()\n"
    )
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    line += ["--local-addr", "127.0.0.1"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    how["env"] = client.environment()
    agents = [subprocess.Popen([*line, str(path)], **how) for _ in range(2)]
    said = [agent.communicate(timeout=300)[0].split() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0]
    assert all(sorted(words[1::3]) == ["0", "1"] for words in said)
    assert all(words[::3] == ["2", "2"] for words in said)
    assert len({words[2] for words in said}) == 2, "two ports"
