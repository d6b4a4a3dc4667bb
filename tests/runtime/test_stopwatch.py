from __future__ import annotations

import time

import pytest

import medley as md
from medley.experiments.profile import profiled
from medley.runtime.stopwatch import Stopwatch, doing
from support.toys import federation


def test_what_is_done_within_something_else_is_not_counted_there():
    with doing("nobody asks"):
        pass
    with Stopwatch() as watch:
        with doing("outer"):
            time.sleep(0.01)
            with doing("inner"):
                time.sleep(0.03)
        time.sleep(0.05)
        with doing("inner"):
            pass
    assert watch.seconds.keys() == {"outer", "inner"}
    assert watch.seconds["outer"] >= 0.01
    assert watch.seconds["inner"] >= 0.03


@pytest.mark.slow
def test_a_profile_counts_the_operations_of_local_steps():
    fed = federation(pace=md.scenarios.Pace(lr=0.01, epochs=2, batch=3))
    result, spent = profiled(md.SCAFFOLD(), fed, 3, progress=False)
    # Two passes over 4 + 5 + 6 + 7 + 8 rows in three rounds; 2d forward, as much again twice on the way back.
    assert spent.flops == 3 * 2 * 30 * 3 * 2 * 3
    assert result.history[-1]["round"] == 3
