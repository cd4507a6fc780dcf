"""Runs a script on several ranks from a cell. Every run passes through, in this order:

run.py          torchrun() refuses what can't run, sends an order, shows lines; then it
                reads the recording, a file that rank 0 has written for all ranks
client.py       the kernel's end of the pipe: a supervisor is started once, as soon as
                a notebook imports this, with variables that mislead no rank; server()
                waits until it is there, ask() sends an order and gives events
supervisor.py   a process of its own: serve() imports torch, and makes a copy of the
                process, the fork server; then it takes orders, and launch() sees one
                through; it ends all ranks if the pipe closes
agent.py        start(): a subclass of torch's agent has that copy fork the ranks
in_rank.py      in each rank run_warm(), then run(), which runs the script and notes
                what it says, its pid, and why it failed (a recording is written by
                save_recording() of scripts/shared.py)
watch.py        beside all this: passes on lines, ends what outstays
blame.py        outcome() says what became of each rank, and, back in the kernel,
                explain() whose fault a failure was

And where it must be:

memory.py       says how many ranks will fit
script.py       makes a script of a function of the notebook
own_network.py  take() leaves the network that all users of a machine share
loopback.py     the place where the agent of a run meets itself
fork_server.py  what a new fork server imports, if the copy has died
plain.py        start(), if ranks can't be copies: `python -m torch.distributed.run`
failure.py      the errors that a cell shows, and the logs of failed runs
"""

import sys

from .client import start_early
from .failure import RankFailed, RankTimeout
from .run import Run, torchrun
from .script import script_of

# In a page, the first run then waits less. Elsewhere an import starts nothing.
jupyter = sys.modules.get("IPython")
if jupyter and hasattr(jupyter.get_ipython(), "kernel"):
    start_early()
