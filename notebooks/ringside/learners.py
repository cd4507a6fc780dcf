"""Tries how many learners a machine holds: each a kernel that runs a four-rank cell.

`course.py doctor --learners 15` runs this, for a teacher whose class shares a machine.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path

from jupyter_client.manager import AsyncKernelManager

from .launch.run import free_megabytes

HERE = Path(__file__).parents[1]  # where the notebooks are
READY = "import matplotlib, torch; from ringside import torchrun"
CELL = 'torchrun("03_ring_all_reduce", ranks=4, quiet=True)'
ROOM = 1.0  # gigabytes that stay free: a machine without any stands still
PATIENCE = 600  # seconds for one cell, however many wait with it


class Learner:
    """A kernel of its own, as an open page has."""

    def __init__(self):
        self.client = None
        self.kernel = AsyncKernelManager(kernel_name="python3")
        self.kernel.kernel_spec.argv[0] = sys.executable

    async def come(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await self.kernel.start_kernel(cwd=str(HERE), **quiet)
        self.client = self.kernel.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=PATIENCE)

    async def run(self, cell: str) -> tuple[float, str]:
        """Run a cell; the result is the seconds it took, and why it failed, if so."""
        begin = time.monotonic()
        how = {"timeout": PATIENCE, "output_hook": lambda message: None}
        runs = asyncio.create_task(self.client.execute_interactive(cell, **how))
        fault = ""
        while not (await asyncio.wait([runs], timeout=1))[0]:
            if not await self.kernel.is_alive():
                runs.cancel()
                fault = "its kernel is gone, perhaps for want of memory"
                break
        else:
            if runs.exception():
                fault = str(runs.exception())
            elif (told := runs.result()["content"])["status"] != "ok":
                fault = f"{told['ename']}: {told['evalue']}"
        return time.monotonic() - begin, fault

    async def go(self) -> None:
        if self.client:
            self.client.stop_channels()
        if self.kernel.has_kernel:
            await self.kernel.shutdown_kernel(now=True)


class Room:
    """Learners in one room, and the least memory that was free since they came."""

    def __init__(self):
        self.learners, self.lack, self.least = [], "", float("inf")
        self.before = self.look()

    def look(self) -> float:
        """Note how many gigabytes are free; the result is that."""
        free = free_megabytes() * 2**20 / 1e9
        self.least = min(self.least, free)
        return free

    async def fill(self, number: int) -> None:
        """Bring in learners up to a number, or note what they lack."""
        while len(self.learners) < number and not self.lack:
            learner = Learner()
            try:
                if self.look() < ROOM:
                    raise OSError("memory")
                await learner.come()
                self.learners.append(learner)
            except (OSError, RuntimeError) as error:
                await learner.go()
                self.lack = f"{error}, when learner {len(self.learners) + 1} came"
            if self.learners and len(self.learners) % 10 == 0:
                say(f"{len(self.learners)} learners are here")
        await self.all_at_once(READY)

    async def all_at_once(self, cell: str) -> tuple[float, list[str]]:
        """Have all run a cell at the same time: the slowest wait, and what failed."""
        told = begin = time.monotonic()
        cells = [asyncio.create_task(learner.run(cell)) for learner in self.learners]
        while not all(done.done() for done in cells):
            self.look()
            await asyncio.sleep(0.05)
            if (now := time.monotonic()) > told + 20:
                ended = sum(done.done() for done in cells)
                say(f"{ended} of {len(cells)} have ended after {now - begin:.0f} s")
                told = now
        ends = [done.result() for done in cells]
        slowest = max((seconds for seconds, _ in ends), default=0)
        return slowest, [fault for _, fault in ends if fault]


def say(line: str) -> None:
    print(line, flush=True)


async def tried(number: int) -> int:
    """Say how a number of learners fares; the result is 0 if all could work."""
    room = Room()
    try:
        waits, faults = {}, []
        for who in sorted({1, number}):
            await room.fill(who)
            rounds = [await room.all_at_once(CELL) for _ in range(2)]
            waits[len(room.learners)] = [slowest for slowest, _ in rounds]
            faults += [fault for _, failed in rounds for fault in failed]
    finally:
        for learner in room.learners:
            await learner.go()
    here = len(room.learners)
    if here:
        say(f"{'':15}first cell   next cell")
        for who, (first, later) in waits.items():
            say(f"{who:2} at once {first:12.1f} s {later:9.1f} s   the slowest wait")
        each = (room.before - room.least) / here
        say(f"memory: {each:.2f} GB each, {room.least:.1f} GB free at least")
    if faults:
        say(f"{len(faults)} cells failed, as this one: {faults[0]}")
    if room.lack:
        say(f"What ran out first: {room.lack}.")
    elif not faults:
        say("Nothing ran out. All share the processors: they wait longer, no more.")
    return 1 if faults or room.lack else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", type=int)
    sys.exit(asyncio.run(tried(parser.parse_args().number)))
