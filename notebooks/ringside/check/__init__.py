"""Checks a learner's answers: a wrong one gets the name of its mistake.

Each checker is a function that returns a mistake, or None, in a file for its lesson.
In verdict.py, says() makes it print one line, after a look at blanks and types, and
attempt() calls a function of the learner's, whose exception is the mistake. And
watched.py runs one on real ranks: it tells what each rank did, and who waits for whom.
"""

from .bets import bets
from .boss import ages, boss_bytes, mean_of_the_living
from .broken import (
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
from .collectives import mended, rank_two, right_call
from .crews import after_death, budget_of, steps_in_all
from .data_parallel import collect, ten_rows, three_forwards
from .evaluation import few_or_all, four_ways, in_order
from .fastest import crossing, doubling, sixteen_ranks
from .fusion import cycles, joined, moved
from .gradients import bucket_plan, fixed_hook, launch_order
from .habits import accumulation, rank_three
from .hangs import at_the_root, guilty, limits
from .jobs import batch_file, from_mpirun, three_files, would_start
from .launchers import can_start, migrate, one_of_four
from .messages import five_talk, in_turns, piece_from_each
from .moves import after_moves, averages, drift
from .nodes import crossing_bytes, three_names, wins_below
from .norms import join, running_means, what_it_sends
from .precision import neighbours, next_scale, step_order
from .race import flaws, kept, step_time
from .rates import again, hour, warm_up
from .resume import after_kill, place_after, snapshot
from .ring import five_ranks, ring_broadcast, uneven_chunks
from .sampler import my_share, mysteries, padded, six_runs
from .seeds import dice, equal_or_own, own_seeds
from .shards import files_to_read, survives, ten_numbers
from .split import step, two_means, weigh
from .start import gpus, rank_9
from .stream import rounds, stream_parts, worker_reads
