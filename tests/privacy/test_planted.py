"""Bugs that are planted: for each there is a test that fails with it."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from secrets import randbits
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from medley.contract import client
from medley.contract.cohort import BoundedSum
from medley.contract.sampling import Sampling
from medley.participation import Bernoulli
from medley.privacy import accountant, private, rows
from medley.privacy.replies import PrivateReplies
from medley.problems.linear.objective import LinearObjective
from medley.runtime import streams
from medley.server import cohort
from medley.server.replies import LiveReplies
from medley.wire.clip import Clip

pytest.importorskip("dp_accounting")

Plant = Callable[[pytest.MonkeyPatch], None]


@cache
def checks(name: str) -> ModuleType:
    """The tests of a file beside this one, under another name, so that they are not collected twice."""
    spec = importlib.util.spec_from_file_location(f"checks_{name}", Path(__file__).with_name(f"test_{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def noise_per_client(patch: pytest.MonkeyPatch) -> None:
    right = private.Round.sum

    def wrong(self: Any, *args: Any) -> Any:
        own, came = self.private, len(self.clients.ids)
        self.private = dataclasses.replace(own, noise=own.noise * math.sqrt(came))
        out = right(self, *args)
        self.private, self.released[-1] = own, own.noise
        return out

    patch.setattr(private.Round, "sum", wrong)


def clip_after_the_mean(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, weight: float, scales: Any) -> BoundedSum:
        total = self.sum(dict.fromkeys(self._cohort.p, weight)).delta
        most = weight * len(self.ids) * scales
        return BoundedSum({"delta": total * min(1.0, most / float(total.norm()))}, 0, len(self.ids))

    patch.setattr(LiveReplies, "bounded", wrong)


def half_the_rate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bernoulli, "sampling", lambda self, n: Sampling("poisson", n, self.p / 2))


def one_vector_only(patch: pytest.MonkeyPatch) -> None:
    right = Clip.norm
    patch.setattr(Clip, "norm", lambda self, packed: right(self, dict([next(iter(packed.items()))])))


def no_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(private.Round, "_rng", lambda *args: streams.Secret(randbits(64)))


def denominator_of_those_who_came(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrivateReplies, "count", property(lambda self: float(len(self._clients._clients.ids))))


def count_of_one_side(patch: pytest.MonkeyPatch) -> None:
    right = LiveReplies.bounded
    patch.setattr(LiveReplies, "bounded", lambda self, *args: right(self, *args)._replace(came=0))


def bound_on_the_mean_of_rows(patch: pytest.MonkeyPatch) -> None:
    right = LinearObjective.clipped

    def wrong(self: Any, x: Any, some: Any, bound: float) -> Any:
        total, decay = right(self, x, some, 1e12)
        return total * min(1.0, bound * self.n / float(total.norm())), decay

    patch.setattr(LinearObjective, "clipped", wrong)


def rows_without_a_name(patch: pytest.MonkeyPatch) -> None:
    right = rows.NoisyGradient.grad
    unnamed = lambda self, *args, **kw: right(dataclasses.replace(self, rng=streams.Secret(randbits(64))), *args, **kw)
    patch.setattr(rows.NoisyGradient, "grad", unnamed)


def one_noise_for_all_steps(patch: pytest.MonkeyPatch) -> None:
    right = rows.NoisyGradient.grad

    def wrong(self: Any, *args: Any, **kw: Any) -> Any:
        self.rng._calls = 0
        return right(self, *args, **kw)

    patch.setattr(rows.NoisyGradient, "grad", wrong)


def noise_in_the_first_step(patch: pytest.MonkeyPatch) -> None:
    right = rows.NoisyGradient.grad

    def wrong(self: Any, *args: Any, **kw: Any) -> Any:
        return right(self if self.rng._calls == 0 else dataclasses.replace(self, noise=0.0), *args, **kw)

    patch.setattr(rows.NoisyGradient, "grad", wrong)


def bits_of_the_seed(many: int) -> Plant:
    """Secrets from so many bits of the seed."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = streams.Secret.__init__
        patch.setattr(streams.Secret, "__init__", lambda self, seed, *name: right(self, seed % 2**many, *name))

    plant.__name__ = f"{many}_bits_of_the_seed"
    return plant


def seeds_as_floats(patch: pytest.MonkeyPatch) -> None:
    right = streams.Secret.__init__
    patch.setattr(streams.Secret, "__init__", lambda self, seed, *name: right(self, int(float(seed)), *name))


def name_without(what: str, file: ModuleType, part: int) -> Plant:
    """Secrets of a file that leave out a part of their name: 0, who draws; 1, the round."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        class Shortened(streams.Secret):
            def __init__(self, seed: int, *name: Any) -> None:
                super().__init__(seed, *name[:part], *name[part + 1 :])

        patch.setattr(file, "streams", SimpleNamespace(**{**vars(streams), "Secret": Shortened}))

    plant.__name__ = f"name_without_{what}"
    return plant


def uniform_noise(patch: pytest.MonkeyPatch) -> None:
    wrong = lambda self, shape: ((self.uniform(math.prod(shape)) - 0.5) * math.sqrt(12)).reshape(tuple(shape))
    patch.setattr(streams.Secret, "normal", wrong)


def noise_without_tails(patch: pytest.MonkeyPatch) -> None:
    right = streams.Secret.normal
    patch.setattr(streams.Secret, "normal", lambda self, shape: right(self, shape).clamp(-2.5, 2.5))


def noise_without_the_bound(patch: pytest.MonkeyPatch) -> None:
    right = rows.NoisyGradient.grad
    wrong = lambda self, *args, **kw: right(dataclasses.replace(self, noise=self.noise / self.bound), *args, **kw)
    patch.setattr(rows.NoisyGradient, "grad", wrong)


def divided_by_the_rows_that_were_drawn(patch: pytest.MonkeyPatch) -> None:
    right = rows.NoisyGradient.grad

    def wrong(self: Any, x: Any, took: Any = None, *args: Any, **kw: Any) -> Any:
        count = self.law.rows if took is None else max(1, len(took))
        return right(self, x, took, *args, **kw) * (self.law.rate * self.law.rows / count)

    patch.setattr(rows.NoisyGradient, "grad", wrong)


def batches_of_one_size(patch: pytest.MonkeyPatch) -> None:
    """The rows with the smallest numbers: as many as are expected."""
    uniform = streams.Secret.uniform
    ranked = lambda self, n: (uniform(self, n).argsort().argsort() + 0.5) / n
    patch.setattr(streams.Secret, "uniform", ranked)


def work_of_the_rows_that_were_drawn(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, me: Any, x: Any, how: Any) -> Any:
        return super(rows.NoisySteps, self).descend(me, x, how._replace(first=False))

    patch.setattr(rows.NoisySteps, "descend", wrong)


def account_of_one_step(patch: pytest.MonkeyPatch) -> None:
    right = accountant.release
    patch.setattr(accountant, "release", lambda sampling, z, steps=1: right(sampling, z, 1))


def account_of_the_last_round(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(accountant, "added", lambda before, now: [now])


def budget_without_an_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows.RowCohort, "_within", lambda self, i, then: then)
    patch.setattr(private.Round, "_check_budget", lambda self, further: None)


STEPS = "test_noise_is_fresh_in_every_step_in_every_round_and_at_every_client"

PLANTED: list[Any] = [
    (noise_per_client, "private", "test_noise_belongs_to_the_sum"),
    (clip_after_the_mean, "private", "test_sensitivity"),
    (half_the_rate, "private", "test_history_has_the_account_of_what_was_drawn"),
    (one_vector_only, "private", "test_fields_are_bounded_together"),
    (no_name, "private", "test_same_seed_same_noise_and_another_seed_another"),
    (denominator_of_those_who_came, "private", "test_denominator_is_the_expected_cohort"),
    (count_of_one_side, "private", "test_quantile_counts_both_sides"),
    (bound_on_the_mean_of_rows, "rows", "test_one_row_moves_a_step_by_at_most_its_bound"),
    (rows_without_a_name, "rows", "test_noise_has_a_name"),
    (one_noise_for_all_steps, "rows", STEPS),
    (noise_in_the_first_step, "rows", STEPS),
    (name_without("the client", client, 0), "rows", STEPS),
    (name_without("the round", client, 1), "rows", STEPS),
    (name_without("the round", cohort, 1), "private", "test_noise_is_normal_and_fresh_in_every_round"),
    (bits_of_the_seed(16), "private", "test_every_bit_of_the_seed_moves_the_noise"),
    (bits_of_the_seed(16), "rows", "test_every_bit_of_the_seed_moves_the_noise_of_rows"),
    (bits_of_the_seed(64), "private", "test_every_bit_of_the_seed_moves_the_noise"),
    (bits_of_the_seed(128), "rows", "test_every_bit_of_the_seed_moves_the_noise_of_rows"),
    (seeds_as_floats, "private", "test_every_bit_of_the_seed_moves_the_noise"),
    (uniform_noise, "private", "test_noise_is_normal_and_fresh_in_every_round"),
    (noise_without_tails, "private", "test_noise_is_normal_and_fresh_in_every_round"),
    (noise_without_the_bound, "rows", "test_noise_of_a_step"),
    (divided_by_the_rows_that_were_drawn, "rows", "test_noise_of_a_step"),
    (batches_of_one_size, "rows", "test_batches_are_poisson"),
    (work_of_the_rows_that_were_drawn, "rows", "test_work_tells_no_batch"),
    (account_of_one_step, "rows", "test_every_client_has_its_account"),
    (account_of_the_last_round, "rows", "test_every_client_has_its_account"),
    (budget_without_an_end, "rows", "test_budget_of_a_client_ends_the_run"),
    (budget_without_an_end, "private", "test_budget_ends_a_run"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "file", "test"), PLANTED, ids=lambda v: getattr(v, "__name__", v))
def test_a_planted_bug_is_caught(plant: Plant, file: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(checks(file), test)()
