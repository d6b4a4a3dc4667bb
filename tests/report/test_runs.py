"""The rows of runs, and their settings."""

from __future__ import annotations

import pytest

import medley as md


def test_a_report_has_no_seed_of_a_private_run() -> None:
    """Noise follows from it. The seed of another run stands in its row and among its settings."""
    pytest.importorskip("dp_accounting")
    fed = md.Federation(
        md.problems.Softmax(), data=md.datasets.digits(), partition=md.partitions.IID(4), weights="uniform"
    )
    private = md.run(md.Private(md.FedAvg(), noise=1.0), fed, rounds=1, seed=987654321, progress=False)
    plain = md.run(md.FedAvg(), fed, rounds=1, seed=987654322, progress=False)
    page = md.report.page([private, plain])
    assert (page.count("987654321"), page.count("987654322")) == (0, 2)
