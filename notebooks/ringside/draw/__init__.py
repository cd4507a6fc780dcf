"""Makes a picture of a recording. A recording passes through, in this order:

player.py       Player, film, still, animate: asks for frames of the module that draws
                the kind which the header names (DRAWS), makes a page of them;
                player.js and .css are its controls, a picture stands where none run
retell.py       where only bare facts were recorded, tells them as events that are drawn
ring.py         ranks in a ring that pass chunks on
flow.py         ranks that hold numbers and send them; cards.py draws one rank's
grid.py         who reads which sample in which epoch
stream.py       which worker of which rank reads what of a stream
chunks.py       tells chunks that partners swap, or share, as flow.py draws them
marks.py        tells who tests which sample as flow.py draws it
timeline.py     who did what when; race.py makes one of measured steps, and lives.py
                one of runs that stop and go on, lose bits, or wait
paths.py        scores by samples seen, for several ways to train
answers.py      what a network that learns to add says after each pass over its data
trees.py        who starts which process, who tells it what, and how it ends
jobs.py         which task of Slurm is which rank, and who starts it; stages.py makes
                both appear part by part
crossings.py    tells which messages cross from node to node as flow.py draws them
roadmap.py      the map of the course
chart.py        bars and lines of measurements
clock.py        when each part of a moving picture is seen
svg.py          the palette, and shapes as text

Each that draws has describe(events, step) ("step k of n. What it is; who has what"),
frame(events, step) and animate(events); if it needs them, last(events), where steps are
not counted, sheet(events), with all at once, and several(recordings), to compare. A
Layout finds places, in the same file or in one that ends in _layout. A new kind is such
a file, a row in DRAWS, and, at the top of recording.py, a row with its fields in KINDS,
and one for each new field in FIELDS. A kind that another one can draw needs no file but
a function in retell.py, with a row in TELLS.
"""
