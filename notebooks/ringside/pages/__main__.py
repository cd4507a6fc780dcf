"""Makes the pages: `python -m ringside.pages FOLDER`, in notebooks/."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sphinx.cmd.build import build_main

from .stage import stage


def main(folder: str) -> int:
    """Make the pages in a new folder; the result is the exit code."""
    with TemporaryDirectory() as room:
        source, made = Path(room, "source"), Path(room, "made", "pages")
        source.mkdir()
        stage(source)
        quiet = ["-q", "-W", "--keep-going", "-j", "auto", "-d", f"{room}/read"]
        code = build_main([*quiet, str(source), str(made)])
        if code == 0:
            shutil.move(made, folder)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
