"""Runs a script on several ranks from a cell. A run passes through, in this order:

run.py          torchrun() refuses what can't run, sends an order, shows lines; then it
                reads the recording, a file in which rank 0 has gathered all events
memory.py       says how many ranks will fit
script.py       only for a function of the notebook: makes a script of it
client.py       the kernel's end of the pipe: server() starts a supervisor once, with
                variables that mislead no rank; ask() sends an order, gives events
supervisor.py   a process of its own: serve() imports torch, and makes a copy of the
                process, the fork server; then it takes orders, and launch() sees one
                through; it ends all ranks if the pipe closes
fork_server.py  where there are no such copies, what a new server imports
own_network.py  before all this: take() leaves the network that all users share
agent.py        start(): a subclass of torch's agent has that copy fork the ranks
plain.py        start(), if that can't be: `python -m torch.distributed.run` instead
loopback.py     the place where the ranks of both meet
in_rank.py      in each rank run_warm(), then run(), which runs the script and notes
                what it says, its pid, and why it failed (a recording is written by
                save_recording() of scripts/shared.py)
watch.py        beside all this: passes on lines, ends what outstays
blame.py        outcome() says what became of each rank, and, back in the kernel,
                explain() who failed first, and why
failure.py      the errors that a cell shows, and the logs of failed runs
"""

from .failure import RankFailed, RankTimeout
from .run import Run, torchrun
from .script import script_of
