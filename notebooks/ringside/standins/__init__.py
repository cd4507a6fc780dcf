"""What plays a machine that most of us do not have.

nodes.py      two nodes, and torchrun on both
agents.py     torchrun's agents, of which one can end while the others work
slurm.py      commands on a cluster of Slurm that lasts as long as they do
horovod.py    a function under Horovod
threads.py    ranks that are only simulated, as threads of the kernel

commands.py   runs a program of any of them, keeps what it says, and leaves none behind
kept.py       what a run said once, for machines that cannot run it
"""
