"""Checks the answers of launchers."""

from collections.abc import Callable

from .table import asks
from .verdict import attempt, says

WHERE = {  # a function may stand, and why a new process finds it, or not
    "in_a_file": "the new process imports the file, and finds the name in it",
    "in_a_cell": "the new process has no notebook, so the name leads nowhere",
    "a_lambda": "a lambda has no name that could be looked up",
    "in_a_function": "it exists only while the outer function runs",
}
LAUNCH, NEW = "python -m torch.distributed.launch", "torchrun"
CASES = {  # the words behind the launcher: the old ones, and the new ones
    "--nproc_per_node=2 job.py": "--nproc_per_node=2 job.py",
    "--use_env --nproc_per_node=4 job.py": "--nproc_per_node=4 job.py",
    "--nproc_per_node=8 --use-env job.py": "--nproc_per_node=8 job.py",
    "--nproc_per_node=2 job.py --lr 0.1": "--nproc_per_node=2 job.py --lr 0.1",
    "--nproc_per_node=2 job.py --use_env": "--nproc_per_node=2 job.py --use_env",
}


@asks(
    "launchers end the three others, and nobody does by hand",
    like="ended_by_torchrun=2",
    ended_by_torchrun=(
        3,
        "torchrun does not end {}: who still runs?",
        {
            1: "the agent does not end one rank, but all that still run",
            4: "rank 2 has ended by itself: how many are left?",
        },
    ),
    ended_by_hand=(
        0,
        "by hand not {}: who would end them?",
        {3: "who would end them? By hand, nobody watches"},
    ),
    code_of_torchrun=(
        1,
        "not {}: torchrun is a Python program that raises",
        {
            7: "7 is in what torchrun says, but its own exit code is another one",
            0: "0 would say that all went well",
        },
    ),
    code_by_hand=(7, "not {}: by hand, the process that you started is rank 2"),
)
def one_of_four(
    ended_by_torchrun: int, ended_by_hand: int, code_of_torchrun: int, code_by_hand: int
):
    """Check what follows when rank 2 of 4 ends with exit code 7."""


@asks(
    "only a function that a file holds under its name can be found there",
    types="each answer is True or False",
    **{
        where: (where == "in_a_file", f"not so for {where}: {why}")
        for where, why in WHERE.items()
    },
)
def can_start(in_a_file: bool, in_a_cell: bool, a_lambda: bool, in_a_function: bool):
    """Check which functions a spawned process can find."""


@says(f"{len(CASES)} old commands are new ones now")
def migrate(function: Callable) -> str | None:
    """Check to_torchrun(command), which rewrites a command of the old launcher."""
    for behind, right in CASES.items():
        old, new = f"{LAUNCH} {behind}", f"{NEW} {right}"
        said = attempt(f"{old!r}:", function, old, into=str)
        if said.split() == new.split():
            continue
        if "torch.distributed.launch" in said:
            return f"{old!r}: it still has the old launcher"
        if said.partition("job.py")[2].split() != right.partition("job.py")[2].split():
            return f"{old!r}: what stands behind job.py is for the script, so keep it"
        if "use" in said.partition("job.py")[0]:
            return f"{old!r}: torchrun has no option --use_env"
        if not said.startswith(NEW):
            return f"{old!r}: the new command begins with torchrun"
        return f"{old!r}: it is {new!r}, not {said!r}"
    return None


@asks(
    "GPU 4 is cuda:0, and ranks 2 and 3 ask for devices that are not there",
    types="cuda_0 is a whole number",
    cuda_0=(
        4,
        "cuda:0 is the first visible GPU, and that is not {}",
        {
            0: "GPU 0 is not visible to this process at all",
            6: "GPU 6 comes second in the list, so it is cuda:1",
        },
    ),
    ranks_that_fail=(
        {2, 3},
        "it is not {sorted}: which of cuda:0 to cuda:3 exist?",
        {
            (0, 1): "ranks 0 and 1 find a device: cuda:0 and cuda:1 are there",
            (0, 1, 2, 3): "two GPUs are visible, as cuda:0 and cuda:1: two ranks find"
            " theirs",
        },
        "ranks_that_fail is a list, such as [0, 1]",
    ),
)
def gpus(cuda_0: int, ranks_that_fail: list[int]):
    """Check two predictions: four ranks, each on cuda:rank, GPUs 4 and 6 visible."""
