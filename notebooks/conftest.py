"""Closes three holes through which nbval lets a notebook pass that did not work.

And it starts a kernel again that found a port taken by somebody else.
"""

import nbval.kernel
import pytest


def twice(start):
    """Return a start that tries once more if no kernel answers.

    Jupyter looks for free ports, and the kernel opens them a second later. Meanwhile a
    rank, or another kernel, may have taken one of them. Then the kernel dies, or if it
    is the port for outputs, lives on and does not answer.
    """

    def start_new_kernel(*args, **kwargs):
        try:
            return start(*args, **kwargs)
        except RuntimeError:
            return start(*args, **kwargs)

    return start_new_kernel


nbval.kernel.start_new_kernel = twice(nbval.kernel.start_new_kernel)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Fail what hung, what came after a hang, and what was never run before."""
    report = yield
    cell = getattr(item, "cell", None)
    if cell is None or call.when != "call":
        return report
    if item.parent.timed_out:
        blame(report, "a cell of this notebook hung, so none of its results count")
    elif cell.execution_count is None and cell.source.strip():
        blame(report, "this cell has never been run, so there is nothing to compare")
    return report


def blame(report, reason: str) -> None:
    """Turn a report into a failure, even one that expected to fail."""
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: {reason}\n{report.longrepr or ''}"
    if hasattr(report, "wasxfail"):
        del report.wasxfail
