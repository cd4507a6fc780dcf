"""Makes the course a folder of pages that open in a browser, with nothing installed.

stage.py     puts the committed notebooks, scripts and pictures where Sphinx reads them
forms.py     makes a form for each cell that asks for bets or answers
conf.py      what Sphinx, MyST-NB and the theme are told
pages.js     compares bets, judges answers, and forgets them; pages.css is their looks
scorer.js    what a search lists first
tables.json  what the checkers of exercises judge by, for pages.js; made by
             `python -m ringside --map`
needs.txt    what `course.py pages` installs, in an environment of its own

`python -m ringside.pages FOLDER` makes the pages with the Python that runs it.
"""
