"""Needs: one enumeration, whose members are their words, and an error for a word that is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

import medley as md
from medley.contract.algorithm import Algorithm
from medley.contract.needs import Need, needs_of


def test_a_need_is_its_word() -> None:
    assert Need("hessian") is Need.HESSIAN
    assert needs_of(["convex", Need.STREAM]) == {"convex", "stream"} == {Need.CONVEX, Need.STREAM}
    assert {need.value: need.name.lower() for need in Need} == {need.value: need.value for need in Need}


def test_a_word_that_is_no_need_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        md.RecipeError, match=r"needs has no 'hesian'. Did you mean 'hessian'\? It knows: adapters, body,"
    ):
        Need("hesian")


@dataclass
class Server:
    x: Tensor


def test_a_method_with_an_unknown_need_is_refused_where_it_is_written() -> None:
    with pytest.raises(md.RecipeError, match="Did you mean 'stream'"):

        class Wishful(Algorithm[Server]):
            needs = frozenset({"streams"})

            def start(self, x: Tensor) -> Server:
                return Server(x)

            def round(self, s: Server, clients: Any) -> None:
                del s, clients


@dataclass(frozen=True)
class Wanting(Algorithm[Server]):
    """A made-up method with words for needs."""

    more: str
    needs = frozenset({"convex"})

    def requires(self) -> frozenset[str]:
        return self.needs | {self.more}

    def start(self, x: Tensor) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Any) -> None:
        del s, clients


def test_a_refusal_says_the_sentence_of_the_need() -> None:
    toy = md.problems.synthetic_logistic(clients=2)
    fed = md.Federation(toy.problem, clients=toy.clients, participation=0.5)
    lacking = [
        Need.STREAM,
        Need.REPLAY,
        Need.EVERYONE,
        Need.BODY,
        Need.ADAPTERS,
        Need.TREES,
        Need.NETWORK,
        Need.NOISE,
        Need.QUADRATIC,
        Need.UNIFORM,
        Need.SHARES,
    ]
    for need in lacking:
        with pytest.raises(md.Unsupported) as e:
            md.run(Wanting(need.value), fed, 1)
        assert str(e.value) == f"Wanting needs {need.description}"
        assert (e.value.method, e.value.need) == ("Wanting", need)
    for need in set(Need) - set(lacking):
        assert md.run(Wanting(need), fed, 1, progress=False).status.ok
    with pytest.raises(md.Unsupported, match="Wanting needs replies one by one, and a secure run gives the server"):
        md.run(Wanting("replies"), md.Federation(toy.problem, clients=toy.clients), 1, secure=md.SecureSum())


def test_an_unknown_word_of_the_hyper_parameters_is_refused_by_the_run() -> None:
    toy = md.problems.synthetic_logistic(clients=2)
    with pytest.raises(md.RecipeError, match="Did you mean 'hessian'"):
        md.run(Wanting("hessians"), md.Federation(toy.problem, clients=toy.clients), 1)
