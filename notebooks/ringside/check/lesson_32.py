"""Checks the answers of Slurm, and reads the file that sbatch is given."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from .table import asks
from .verdict import Mistake, attempt, for_learners, says

SHORT = {"-N": "--nodes", "-n": "--ntasks", "-K": "--kill-on-bad-exit"}
SHORT["-c"] = "--cpus-per-task"
COUNTS = ("--nodes", "--ntasks", "--ntasks-per-node")
BARE = {"--label", "-l", "--kill-on-bad-exit", "--standalone", "--no-python", "-m"}
LOCAL = r"localhost|127\.0\.0\.1|\$\{?SLURM_LAUNCH_NODE_IPADDR"
MPI = {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_RANK": "LOCAL_RANK"}


@dataclass
class Plan:
    """What an sbatch file starts: the tasks of each node, and what each task starts."""

    dealt: list[int]
    asked: int
    srun: bool
    torchrun: bool
    each: int
    world: int
    wrong: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> int:
        return sum(self.dealt)

    @property
    def processes(self) -> int:
        agents = min(self.tasks, max(self.world // self.each, 1))
        return (agents if self.torchrun else self.tasks) * self.each


def options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options that a command begins with, and the words behind them."""
    found, words = {}, list(words)
    while words and words[0].startswith("-"):
        name, is_there, value = words.pop(0).partition("=")
        glued = re.fullmatch(r"(-[Nnc])(\d+)", name)
        if glued:
            name, value = glued.groups()
        elif not is_there and name not in BARE and words:
            value = words.pop(0)
        found[SHORT.get(name, name).replace("_", "-")] = value
    return found, words


def number(found: dict[str, str], name: str, known: dict[str, int]) -> int | None:
    """Return an option that is a count, given as a number or as a known variable."""
    value = found.get(name)
    if value is None:
        return None
    variable = re.fullmatch(r"\$\{?(\w+)\}?", value)
    if variable and variable[1] in known:
        return known[variable[1]]
    if not value.isdigit() or not int(value):
        raise Mistake(f"{name} must be a number of 1 or more, not {value!r}")
    return int(value)


def read(text: str, spawned: int = 1) -> Plan:
    """Return what would start, if the script itself spawns so many in each task."""
    if not isinstance(text, str):
        raise Mistake("the file is a text")
    header, commands, late = [], [], False
    for line in re.sub(r"\\\n", " ", text).strip().splitlines():
        if line.startswith("#SBATCH"):
            late |= bool(commands)
            header += [] if commands else shlex.split(line, comments=False)[1:]
        elif line.strip() and not line.startswith("#"):
            commands.append(line)
    job, rest = options(header)
    if rest:
        raise Mistake(f"#SBATCH takes options, and {rest[0]!r} is none")
    runs = [c for c in commands if re.search(r"(^|[\s/])(python3?|torchrun)\s", c)]
    if not runs:
        raise Mistake("no line of the file starts python or torchrun")
    values = dict(re.findall(r"(?m)^\s*(?:export )?(\w+)=(.+)$", "\n".join(commands)))
    words = shlex.split(re.sub(r"\$\((.*?)\)", r"'$(\1)'", runs[-1]))
    while "=" in words[0]:  # variables in front of the command
        words.pop(0)
    srun = words[0] == "srun"
    step, words = options(words[1:]) if srun else ({}, words)
    counts = [number(job | step, name, {}) for name in COUNTS]
    nodes, tasks, per_node = counts[0] or 1, counts[1], counts[2]
    dealt = [per_node or 1] * nodes
    if (
        tasks and not per_node
    ):  # at least one on each node, the rest where there is room
        dealt = [tasks - nodes + 1, *[1] * (nodes - 1)]
    if tasks and per_node and tasks != nodes * per_node:
        raise Mistake(f"{nodes} nodes x {per_node} tasks are not --ntasks={tasks}")
    total, wrong = sum(dealt), []
    known = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": total}
    if late:
        wrong.append("#SBATCH behind a command is a comment: sbatch reads no further")
    told = "--cpus-per-task" in step or "SRUN_CPUS_PER_TASK" in values
    if srun and "--cpus-per-task" in job and not told:
        wrong.append("srun asks for 1 processor a task: say --cpus-per-task to it, too")
    by_torchrun = words[:1] == ["torchrun"] or "torch.distributed.run" in words
    plan = Plan(dealt, total, srun, by_torchrun, spawned, total, wrong)
    if not srun:
        plan.dealt = [1]
    if by_torchrun:
        at = words.index("torchrun" if "torchrun" in words else "torch.distributed.run")
        agents(plan, options(words[at + 1 :])[0], known, values)
    elif not srun and total > 1:
        wrong.append("without srun the line runs once, on the first node")
    elif spawned > 1:
        wrong.append(f"the world size counts {total} tasks, not their processes")
    if tasks and not per_node and nodes > 1 and tasks > nodes:
        wrong.append("--ntasks alone does not say how many go to each node")
    return plan


def agents(plan: Plan, own: dict, known: dict, values: dict) -> None:
    """Note what torchrun starts in each task, and what is wrong with its words."""
    nodes = len(plan.dealt) if plan.srun else known["SLURM_NNODES"]
    per_node = number(own, "--nproc-per-node", known) or 1
    wanted = number(own, "--nnodes", known) or 1
    plan.each, plan.world = per_node * plan.each, wanted * per_node
    if "--standalone" in own and plan.tasks > 1:
        plan.world = per_node
        plan.wrong.append("--standalone: each agent makes a job of its own")
        return
    if not plan.srun and wanted > 1:
        plan.wrong.append(
            "without srun there is one agent, and it waits for the others"
        )
    elif plan.tasks > wanted:
        plan.wrong.append(
            f"{plan.tasks} tasks are {plan.tasks} agents, and --nnodes={wanted}: "
            f"{plan.tasks - wanted} find no place"
        )
    elif plan.tasks < wanted:
        plan.wrong.append(f"--nnodes={wanted}, but only {plan.tasks} agents start")
    if re.search(r"\$\{?SLURM_(PROCID|NODEID)", own.get("--node-rank", "")):
        plan.wrong.append(
            "bash puts in SLURM_PROCID before srun starts: it is 0 for all"
        )
    if nodes > 1 and "--node-rank" not in own:
        where = own.get("--rdzv-endpoint", "")
        where = re.sub(r"\$\{?(\w+)\}?", lambda m: values.get(m[1], m[0]), where)
        if own.get("--rdzv-backend") != "c10d":
            plan.wrong.append("several nodes meet by --rdzv-backend=c10d")
        elif not where:
            plan.wrong.append("--rdzv-endpoint is missing: where do the agents meet?")
        elif re.search(LOCAL, where):
            plan.wrong.append("on each node, localhost is another machine")


@for_learners
def would_start(text: str, spawned: int = 1) -> None:
    """Print what an sbatch file would start, which ranks these are, what is wrong."""
    try:
        plan = read(text, spawned)
    except Mistake as mistake:
        print(f"wrong: {mistake}")
        return
    dealt, each = " + ".join(map(str, plan.dealt)), "is a process"
    if plan.each > 1:
        each = f"starts {plan.each} processes"
    if plan.torchrun:
        each = f"is an agent for {plan.each} ranks"
    total = f" = {plan.tasks}" if len(plan.dealt) > 1 else ""
    print(f"tasks: {dealt}{total}, and each {each}")
    print(f"processes: {plan.processes}, world size: {plan.world}")
    if not plan.wrong:
        place, first = "agent" if plan.torchrun else "node", 0
        for number, tasks in enumerate(plan.dealt):
            last = first + tasks * plan.each - 1
            print(f"{place} {number}: ranks {first} to {last}")
            first = last + 1
    for reason in plan.wrong:
        print(f"wrong: {reason}")


@asks(
    "12, 1 and 9: a task each, one without srun, and three agents of twelve meet",
    with_srun=(
        12,
        "the first: 3 nodes x 4 tasks are not {} processes",
        {3: "the first: a node has 4 tasks, and srun starts the line in each"},
    ),
    without_srun=(
        1,
        "the second: not {}; one bash runs the file",
        {12: "the second: who multiplies the line, if there is no srun?"},
    ),
    left_out=(
        9,
        "the third: not {}; each of 12 tasks is an agent, and 3 are expected",
        {
            0: "the third: srun starts an agent in each task; how many meet?",
            3: "the third: 3 are those that meet; how many does srun start?",
            12: "the third: 12 are all of them, and some find a place",
        },
    ),
)
def three_files(with_srun: int, without_srun: int, left_out: int):
    """Check how many processes two files start, and which agents of a third wait."""


@says("12 ranks, 4 on each of 3 nodes, and all meet on the first")
def batch_file(text: str) -> str | None:
    """Check an sbatch file for 3 nodes of 4 GPUs, started by torchrun."""
    if "..." in str(text):
        return "there are still dots in the file"
    plan = read(text)
    if not plan.torchrun:
        return "this file is to start torchrun, one agent on each node"
    if plan.wrong:
        return plan.wrong[0]
    if len(plan.dealt) != 3:
        return f"it asks for {len(plan.dealt)} nodes, not 3"
    if plan.each != 4:
        return f"{plan.each} ranks on each node leave GPUs idle, or share them: 4 GPUs"
    return None


@says("rank, world size and local rank, from mpirun's names")
def from_mpirun(function: Callable) -> str | None:
    """Check from_mpirun(env), which gives mpirun's numbers torchrun's names."""
    for rank, size, local in ((0, 1, 0), (5, 8, 1), (7, 8, 3)):
        env = {"OMPI_COMM_WORLD_RANK": f"{rank}", "OMPI_COMM_WORLD_SIZE": f"{size}"}
        env |= {"OMPI_COMM_WORLD_LOCAL_RANK": f"{local}", "HOSTNAME": "node17"}
        case = f"rank {rank} of {size}, the process {local} of its node:"
        attempt(case, function, env)
        for name, theirs in MPI.items():
            value, right = env.get(name), env[f"OMPI_COMM_WORLD_{theirs}"]
            if value is None:
                return f"{case} {name} is not in the environment"
            if not isinstance(value, str):
                return f"{case} variables are texts, and {name} is {value!r}"
            if value != right:
                return f"{case} {name} is {value}, not {right}"
        if "MASTER_ADDR" in env:
            return f"{case} mpirun does not say where rank 0 is: leave MASTER_ADDR"
    return None
