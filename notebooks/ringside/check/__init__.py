"""Checks a learner's answers: a wrong one gets the name of its mistake.

Each lesson has a file of checkers. Predictions are judged by a table of data, of which
asks() in table.py makes a checker; a function of the learner's, by a function that
returns a mistake, or None. In verdict.py, says() makes either print one line, after a
look at blanks, and attempt() calls the learner's function, whose exception is the
mistake. And watched.py runs one on real ranks: it tells what each rank did, and who
waits for whom.
"""

from .bets import bets
from .devices import all_devices
from .lesson_00 import missing, rank_9
from .lesson_01 import step, two_means, weigh
from .lesson_02 import my_share, mysteries, padded, six_runs
from .lesson_03 import five_ranks, ring_broadcast, uneven_chunks
from .lesson_04 import bucket_plan, fixed_hook, launch_order
from .lesson_05 import flaws, kept, step_time
from .lesson_10 import five_talk, in_turns, piece_from_each
from .lesson_11 import mended, rank_two, right_call
from .lesson_12 import crossing, doubling, sixteen_ranks
from .lesson_13 import collect, ten_rows, three_forwards
from .lesson_14 import accumulation, rank_three
from .lesson_15 import after_moves, averages, drift
from .lesson_16 import rounds, stream_parts, worker_reads
from .lesson_17 import dice, equal_or_own, own_seeds
from .lesson_20 import join, running_means, what_it_sends
from .lesson_21 import few_or_all, four_ways, in_order
from .lesson_22 import after_kill, place_after, snapshot
from .lesson_23 import files_to_read, survives, ten_numbers
from .lesson_24 import neighbours, next_scale, step_order
from .lesson_25 import again, hour, warm_up
from .lesson_30 import can_start, gpus, migrate, one_of_four
from .lesson_31 import crossing_bytes, three_names, wins_below
from .lesson_32 import batch_file, from_mpirun, three_files, would_start
from .lesson_33 import at_the_root, guilty, limits
from .lesson_34 import after_death, budget_of, steps_in_all
from .lesson_35 import (
    script_1,
    script_2,
    script_3,
    script_4,
    script_5,
    script_6,
    script_7,
    script_8,
    script_9,
    script_10,
)
from .lesson_40 import cycles, joined, moved
from .lesson_41 import ages, boss_bytes, mean_of_the_living
