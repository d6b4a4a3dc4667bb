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
from types import ModuleType
from typing import Any

import pytest

from medley.contract.cohort import BoundedSum
from medley.contract.sampling import Sampling
from medley.privacy import private, rows
from medley.privacy.replies import PrivateReplies
from medley.problems.linear.objective import LinearObjective
from medley.runtime import streams
from medley.scenarios import Bernoulli
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


PLANTED: list[Any] = [
    pytest.param(noise_per_client, "private", "test_noise_belongs_to_the_sum", marks=pytest.mark.slow),
    (clip_after_the_mean, "private", "test_sensitivity"),
    (half_the_rate, "private", "test_history_has_the_account_of_what_was_drawn"),
    (one_vector_only, "private", "test_fields_are_bounded_together"),
    (no_name, "private", "test_same_seed_same_noise_and_another_seed_another"),
    (denominator_of_those_who_came, "private", "test_denominator_is_the_expected_cohort"),
    (count_of_one_side, "private", "test_quantile_counts_both_sides"),
    (bound_on_the_mean_of_rows, "rows", "test_one_row_moves_a_step_by_at_most_its_bound"),
    (rows_without_a_name, "rows", "test_noise_has_a_name"),
]


@pytest.mark.parametrize(("plant", "file", "test"), PLANTED, ids=lambda v: getattr(v, "__name__", v))
def test_a_planted_bug_is_caught(plant: Plant, file: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        getattr(checks(file), test)()
