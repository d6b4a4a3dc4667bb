"""Methods through codecs that round: where they end up."""

from __future__ import annotations

import pytest

import medley as md
from medley.codecs import Quantise, TopK
from support.oracles import federation, run

FED = federation(md.problems.synthetic_quadratics(clients=5, d=20, rows=(20, 30)), lr=0.05, epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [Quantise(feedback=True), TopK(0.25)], ids=str)
def test_scaffold_finds_the_optimum_through_a_codec(codec):
    """Whose error goes to 0 as replies do."""
    exact, coarse = (run(md.SCAFFOLD(), FED, 300, codec=c, eval_every=300) for c in (None, codec))
    assert exact.summary["gap"] < 1e-9
    assert coarse.summary["gap"] < 1e-9


@pytest.mark.slow
def test_fedavg_through_eight_bits_ends_where_it_does_without():
    exact, coarse = (run(md.FedAvg(), FED, 100, codec=c, eval_every=100).x for c in (None, Quantise()))
    assert float((exact - coarse).norm() / exact.norm()) < 0.01
