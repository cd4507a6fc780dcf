"""What an author runs, and no learner: `python -m ringside`, in notebooks/.

new.py       makes the files of a new lesson, which runs, and says what is left to do
make.py      makes a lesson again: records, draws, runs its notebook
signs.py     writes what stands about pages in other places, from road.toml
minutes.py   counts the minutes that a page takes
"""
