"""Runs a script on several ranks from a cell. A run passes through, in this order:

run.py          torchrun() refuses what can't run, asks, shows lines, raises an error
script.py       where a function of the notebook is asked for, makes a script of it
client.py       the kernel's end of the pipe: starts a supervisor once, sends it orders
supervisor.py   a process of its own: takes orders, ends all ranks if the pipe closes
elastic.py      torch's launcher, which starts the ranks and looks after them
in_rank.py      around a rank's script: dies with its parent, notes why it failed
watch.py        beside the run: passes on lines, ends what outstays; then outcome()
failure.py      back in the kernel: explain() says who failed first, and why

"Why was rank 2 blamed?" is watch.outcome, who failed, and failure.explain, who first.
"""

from .failure import RankFailed, RankTimeout
from .run import Run, torchrun
from .script import script_of
