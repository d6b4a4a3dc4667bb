from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from medley.contract import pace as core
from medley.contract.errors import RecipeError
from medley.distributions import Choice, Integers, Uniform
from medley.runtime.streams import rng
from medley.scenarios import Pace, cosine, step_decay


def test_numbers_are_for_everyone():
    assert Pace().of(0, 5, 1) == core.Pace()
    pace = Pace(lr=1, steps=3, batch=None, momentum=0.9, weight_decay=1e-4, clip=10, pairs=4)
    assert pace.of(1, 2, 3) == core.Pace(1.0, 1, 3, None, 0.9, 1e-4, 10.0, pairs=4)
    assert Pace(optimizer="adam").of(1, 2, 3) == core.Pace(optimizer="adam")


def test_a_list_is_one_entry_a_client():
    pace = Pace(lr=[0.1, 0.2], epochs=(1, 5), batch=[None, 8], steps=np.array([4, 2]))
    assert pace.of(0, 1, 9) == core.Pace(lr=0.2, epochs=5, steps=2, batch=8)
    assert pace.of(0, 0, 9).batch is None
    pace.check(2)
    with pytest.raises(RecipeError, match=r"Pace\(lr=...\) lists 2 values for 3 clients, which is too short") as e:
        pace.check(3)
    assert e.value.key == "lr"
    with pytest.raises(RecipeError, match="for 1 clients, which is too long"):
        pace.check(1)
    with pytest.raises(RecipeError, match="lr lists 2 values, client 2 has none"):
        pace.of(0, 2, 1)


def test_a_list_given_is_copied():
    rates = [0.1, 0.2]
    pace = Pace(lr=rates)
    rates[0] = 99.0
    assert pace.of(0, 0, 1).lr == 0.1


def test_a_law_is_drawn_once_a_client_from_its_own_stream():
    law = Uniform(0.01, 0.1)
    pace = Pace(lr=law, epochs=Integers(1, 10))
    for client in range(20):
        assert pace.of(3, client, 1).lr == pace.of(3, client, 8).lr == law.draw(rng(3, "pace", client, "lr"))
    assert len({pace.of(3, client, 1).lr for client in range(20)}) == 20
    assert pace.of(3, 0, 1).lr != pace.of(4, 0, 1).lr
    # fields do not share a stream, and one field's kind does not move another's draw
    assert [Pace(epochs=Integers(1, 10)).of(3, i, 1).epochs for i in range(20)] == [
        pace.of(3, i, 1).epochs for i in range(20)
    ]


def test_redraw_draws_in_every_round():
    pace = Pace(lr=Uniform(0.01, 0.1), redraw=True)
    assert len({pace.of(3, 0, r).lr for r in range(1, 21)}) == 20
    assert pace.of(3, 0, 7) == pace.of(3, 0, 7)


def test_a_function_of_the_round():
    pace = Pace(lr=lambda r: 1 / r, epochs=lambda r: np.int64(r), batch=lambda r: None)
    assert pace.of(0, 4, 5) == core.Pace(lr=0.2, epochs=5, batch=None)
    with pytest.raises(RecipeError, match=r"Pace\(epochs=...\) gives 0 to client 4 in round 10"):
        Pace(epochs=lambda r: 10 - r).of(0, 4, 10)


def test_schedules_multiply_lr():
    pace = Pace(lr=[0.4, 0.8], schedule=step_decay(every=10, factor=0.5))
    assert [pace.of(0, 1, r).lr for r in (1, 10, 11, 20, 21)] == [0.8, 0.8, 0.4, 0.4, 0.2]
    half = cosine(rounds=4)
    assert [half(r) for r in (1, 2, 3, 4, 5, 50)] == pytest.approx(
        [1, (1 + math.sqrt(0.5)) / 2, 0.5, *[(1 - math.sqrt(0.5)) / 2] * 3]
    )
    assert repr(Pace(schedule=half)).endswith("schedule=cosine(rounds=4))")
    assert pickle.loads(pickle.dumps(pace)) == pace
    with pytest.raises(RecipeError, match=r"0.0 to client 0 in round 2 \(the schedule's factor is 0.0\)"):
        Pace(schedule=lambda r: 2.0 - r).of(0, 0, 2)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lr": 0.0}, r"Pace\(lr=...\) gives 0.0 to every client: a learning rate must be above 0"),
        ({"lr": math.inf}, "gives inf to every client"),
        ({"lr": [0.1, math.nan]}, "gives nan to client 1"),
        ({"epochs": 0}, r"Pace\(epochs=...\) gives 0 to every client: epochs must be a whole number, at least 1"),
        ({"epochs": [1, 2, -1]}, "gives -1 to client 2"),
        ({"epochs": 1.5}, r"at least 1. Integers\(low, high\) draws whole numbers"),
        ({"steps": 0}, "steps must be"),
        ({"batch": 0}, "batch must be a whole number, at least 1. None is the full batch"),
        ({"pairs": -1}, "pairs must be a whole number, at least 0"),
        ({"momentum": 1.0}, r"Pace\(momentum=1.0\): must be a number in \[0, 1\)"),
        ({"weight_decay": -1.0}, r"weight_decay=-1.0\): must be a finite number, at least 0"),
        ({"clip": 0.0}, r"Pace\(clip=0.0\): must be a finite number above 0, or None"),
    ],
)
def test_settings_that_make_no_sense(kwargs, message):
    with pytest.raises(RecipeError, match=message) as e:
        Pace(**kwargs)
    assert e.value.key in kwargs


def test_rates_by_name_are_refused_with_the_way_out():
    with pytest.raises(RecipeError, match="give a list with an entry for each client, in the order of their numbers"):
        Pace(lr={"Bern": 0.1})


def test_laws_that_leave_the_range_are_named_at_the_draw():
    with pytest.raises(RecipeError, match=r"Pace\(lr=...\) gives -\S+ to client 3 in round 2"):
        Pace(lr=Uniform(-2, -1)).of(0, 3, 2)
    with pytest.raises(RecipeError, match="draws whole numbers"):
        Pace(epochs=Uniform(1, 10)).of(0, 3, 2)
    assert Pace(epochs=Choice([2.0])).of(0, 3, 2).epochs == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: step_decay(0, 0.5), "every counts rounds"),
        (lambda: step_decay(5, 0), "factor must be above 0"),
        (lambda: cosine(0), "rounds must be at least 1"),
    ],
)
def test_schedules_that_make_no_sense(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
