"""Makes a lesson again: records its script, draws the picture, runs the notebook."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

from ..draw.answers import as_printed
from ..draw.player import animate
from ..launch import torchrun
from ..recording import ROOT, read
from .minutes import LABEL, label

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python"}
METADATA = {"kernelspec": KERNEL | {"name": "python3"}}
METADATA |= {"language_info": {"name": "python"}}
PRINTED = {"00_four_ranks_tonight": "train_alone"}  # whose recording is what it says
CPU = {"CUDA_VISIBLE_DEVICES": ""}
WIDGET = "application/vnd.jupyter.widget-view+json"


def record(name: str, measure: bool = False) -> None:
    """Record a script, unless that would time it again unasked."""
    recording = ROOT / "figures" / f"{name}.jsonl"
    old = read(recording).header if recording.exists() else {}
    if measure and old and not old.get("measured"):
        sys.exit(f"{name} does not measure times: leave out --measure")
    if name in PRINTED:
        lines = torchrun(PRINTED[name], ranks=1, quiet=True, env=CPU).lines[0]
        recording.write_text(as_printed(lines).text(name), "utf-8")
    elif measure or not old.get("measured"):
        with TemporaryDirectory() as folder:  # what lies beside it is not kept
            new = Path(folder, recording.name)
            how = {"ranks": 2, "timeout": 600} if measure else {"ranks": 4}
            torchrun(name, "--record", new, **how, quiet=True)
            recording.write_bytes(new.read_bytes())


def draw(name: str) -> None:
    """Draw the picture of a recording."""
    recording = ROOT / "figures" / f"{name}.jsonl"
    recording.with_suffix(".svg").write_text(animate(read(recording)), "utf-8")


def execute(path: Path, measured: bool = False) -> None:
    """Run a notebook; what may differ each time stays, unless times are new anyway."""
    old = nbformat.read(path, 4)
    new = nbformat.read(path, 4)
    client = NotebookClient(
        new,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],  # it warns that it listens on loopback
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    new.metadata = nbformat.from_dict(METADATA)
    for before, after in zip(old.cells, new.cells):
        if after.cell_type == "code":
            varies = "nbval-ignore-output" in after.metadata.get("tags", [])
            if varies and before.outputs and not measured:
                after.outputs = before.outputs
            for output in after.outputs:  # a form is not there before it is run
                if output.get("data", {}).pop(WIDGET, 0):
                    output.data["text/plain"] = "Run this cell: then you can choose."
    top = new.cells[0]
    top.source = LABEL.sub(label(new.cells), top.source)
    nbformat.write(new, path)
