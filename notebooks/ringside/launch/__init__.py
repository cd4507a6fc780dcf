"""Runs a script on several ranks from a cell. A run passes through, in this order:

run.py          torchrun() refuses what can't run, sends an order, shows lines; then it
                reads the recording, which rank 0's script has written to a file
script.py       only for a function of the notebook: makes a script of it
client.py       the kernel's end of the pipe: starts a supervisor once, with variables
                that mislead no rank, and sends it orders
supervisor.py   a process of its own: takes orders, ends all ranks if the pipe closes
elastic.py      in that process, torch's launcher, with three functions of ours; it has
                the ranks forked from a third process, which has imported torch
in_rank.py      in each rank: run() runs the script, and notes its pid and why it failed
watch.py        beside all this: passes on lines, ends what outstays; then outcome()
failure.py      back in the kernel: explain() says who failed first, and why

"Why was rank 2 blamed?" is watch.outcome, who failed, and failure.explain, who first.
"""

from .failure import RankFailed, RankTimeout
from .run import Run, torchrun
from .script import script_of
