"""Makes lessons: `python -m ringside 03_ring_all_reduce`, in notebooks/.

Records the script on four ranks, draws the picture, and runs the notebook. Without a
name, all lessons. If nothing has changed, no byte of any file does. So a recording of
real times is kept; `--measure 04_distributed_data_parallel` makes it again, on two
ranks, as most machines have two cores to run them on. Do that when all is quiet.

    --draw [NAME ...]   draws pictures from what is recorded, and runs nothing
    --map               writes what stands about pages in other places, and the tables
                        of the checkers: author/signs.py
    --new 36_name       makes the files of a new lesson, and says what is left to do
"""

import sys

from .author.make import draw, execute, record
from .author.new import new
from .author.signs import put_up
from .recording import ROOT


def main(words: list[str]) -> None:
    flags = [word for word in words if word.startswith("-")]
    names = [word for word in words if word not in flags]
    all_names = [
        path.stem for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    ]
    if flags == ["--map"] and not names:
        put_up()
    elif flags == ["--new"] and len(names) == 1:
        new(names[0])
    elif flags == ["--draw"]:
        for name in names or all_names:
            draw(name)
    elif flags == ["--measure"] and not names:
        sys.exit("name the lessons to measure: a quiet machine matters")
    elif flags in ([], ["--measure"]):
        for name in names or all_names:
            record(name, bool(flags))
            draw(name)
            execute(ROOT / "notebooks" / f"{name}.ipynb", bool(flags))
            print(f"{name}: recorded, drawn and run", flush=True)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
