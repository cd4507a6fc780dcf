"""Lets every test import what notebooks and scripts share; long files come first."""

import gc
import signal
import sys
from pathlib import Path

for room in ("notebooks", "scripts"):
    sys.path.insert(0, str(Path(__file__).parents[1] / room))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all is collected: it would go through thousands of tests
LONG = """
test_launch test_scripts test_browser test_plain 40_horovod 34_elastic test_neighbours
33_when_it_breaks 30_launchers 31_two_nodes 32_slurm test_04 05_dp_vs_ddp test_train
""".split()


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest: no lane then ends much later."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


def pytest_collection_finish():
    gc.freeze()  # nor through them later
    gc.enable()
