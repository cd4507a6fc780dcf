"""Lets every test import what notebooks and scripts share; long files come first."""

import signal
import sys
from pathlib import Path

for room in ("notebooks", "scripts"):
    sys.path.insert(0, str(Path(__file__).parents[1] / room))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background
    signal.signal(signal.SIGINT, signal.default_int_handler)
LONG = """
test_launch 06_dp_vs_ddp test_scripts test_browser 14_horovod 13b_elastic
12_launchers 13_when_it_breaks 12b_two_nodes 12c_slurm test_05
""".split()


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest: no lane then ends much later."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))
