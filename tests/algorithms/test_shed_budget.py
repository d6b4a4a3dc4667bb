"""SHED under a budget of bits: the allotment against all others, codes that are refined, and runs."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

import medley as md
from algorithms.test_shed import breast_cancer, to_the_end
from medley.algorithms.shed import allotted
from medley.algorithms.shed.messages import Report, Server
from medley.contract.errors import MedleyError, RecipeError
from medley.numerics.curvature import Sketch
from medley.numerics.quasinewton import Curve

ROOT = Path(__file__).parents[2]


@pytest.mark.shapes
@pytest.mark.parametrize("weight", [[8.0, 2.0, 1.0, 0.9], [1.0, 1.0, 1.0], [100.0, 1e-3, 0.0], [5.0]])
def test_no_other_allotment_of_as_many_bits_has_less_error(weight: list[float]) -> None:
    w = torch.tensor(weight, dtype=torch.float64)

    def error(bits) -> float:
        return float((w.square() * 4.0 ** -torch.tensor(bits, dtype=torch.float64)).sum())

    none = torch.zeros(len(w), dtype=torch.int8)
    for budget in range(7):
        ours = allotted.allot(w, none, budget)
        every = (b for b in itertools.product(range(budget + 1), repeat=len(w)) if sum(b) == budget)
        assert error(ours.tolist()) == pytest.approx(min(map(error, every)), rel=1e-12)
        again = allotted.allot(w, allotted.allot(w, none, budget // 2), budget - budget // 2)
        assert again.tolist() == ours.tolist()  # in instalments as at once


def test_no_vector_has_more_bits_than_the_finest_and_those_without_curvature_have_none() -> None:
    w = torch.tensor([3.0, 0.0], dtype=torch.float64)
    assert allotted.allot(w, torch.zeros(2, dtype=torch.int8), 40).tolist() == [16, 0]


@pytest.mark.shapes
def test_later_bits_refine_the_numbers_sent_before() -> None:
    V = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0][:3]
    fine = allotted.levels(V)
    depth = torch.tensor([0, 0, 0], dtype=torch.int8)
    codes = torch.zeros(3, 40, dtype=torch.int32)
    errors = []
    for more in ([1, 1, 0], [3, 0, 2], [12, 7, 5]):
        bits = torch.tensor(more, dtype=torch.int8)
        packed = allotted.pack(fine, depth, bits)
        assert len(packed) == sum(more) * 40 / 8
        codes = (codes << bits.int()[:, None]) | allotted.unpack(packed, bits, 40)
        depth = depth + bits
        assert torch.equal(codes, fine >> (16 - depth.int())[:, None])
        sent = allotted.unit(codes, depth, V[0])
        errors.append((sent - V).norm(dim=1)[depth > 0])
        size = V.abs().amax(1)[depth > 0]
        # Half an interval a number; scaling to length 1 adds at most as much.
        assert (errors[-1] <= 2 * 40**0.5 * size * 2.0 ** -depth[depth > 0].double()).all()
    assert errors[0][0] > 10 * errors[1][0] / 2 > 100 * errors[2][0]


@pytest.mark.slow
def test_allotted_bits_take_fewer_exchanges_and_bytes_than_whole_numbers() -> None:
    whole, coarse = (to_the_end(m, breast_cancer(1e-3)).history[-1] for m in (md.SHED(), md.SHED(budget=8)))
    assert (whole["exchanges"], coarse["exchanges"]) == (64, 38)
    assert coarse["bytes_up"] < whole["bytes_up"] / 4


def test_the_budget_is_what_a_report_sends() -> None:
    """10 clients, d = 30: 8 bits a column are 30 bytes; a change of g 60, an eigenvalue 8, a byte for each vector."""
    run = md.run(md.SHED(budget=8, search="none"), breast_cancer(1e-3), 1, progress=False)
    pairs = run.history[-1]["pairs"]
    assert run.ledger.up == 10 * (30 + 60 + 3 * 8) + pairs * (1 + 8)


def test_pairs_and_budget_exclude_each_other_and_least_squares_have_a_line_search() -> None:
    with pytest.raises(RecipeError, match=r"SHED\(pairs=2, budget=8\): .* leave one of the two out"):
        md.SHED(pairs=2, budget=8)
    with pytest.raises(RecipeError, match="budget"):
        md.SHED(budget=0)
    assert md.SHED(budget=8).suited(frozenset({"quadratic"})).search == "armijo"
    assert md.SHED().suited(frozenset({"quadratic"})).search == "none"


def report(**other: object) -> Report:
    x = torch.zeros(6, dtype=torch.float64)
    bits = torch.tensor([2, 1], dtype=torch.int8)
    parts = {"lam": x[:2] + 1, "bits": bits, "packed": torch.zeros(3, dtype=torch.uint8)} | other
    return Report(
        g=x.to(torch.int16),
        g_scale=x[0],
        V=None,
        V_scale=None,
        fine=x[None][:0].to(torch.int16),
        fine_scale=x[:0],
        unit=None,
        rho=0.1,
        held=0,
        lift=None,
        **parts,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"packed": torch.zeros(2, dtype=torch.uint8)},
        {"bits": torch.tensor([4, -1], dtype=torch.int8)},
        {"bits": torch.tensor([17, 0], dtype=torch.int8), "packed": torch.zeros(13, dtype=torch.uint8)},
        {"lam": torch.ones(1, dtype=torch.float64)},
    ],
)
def test_a_report_whose_bits_do_not_fit_names_the_client(wrong: dict[str, torch.Tensor]) -> None:
    x = torch.zeros(6, dtype=torch.float64)
    s = Server(x, Sketch.none(x), Curve.none(x))
    g, V = allotted.Allotted(4).decode(s, 3, report())
    assert torch.equal(g, x)
    assert V.shape == (2, 6)
    with pytest.raises(MedleyError, match=r"client 3 sent \d+ bytes of bits for 2 eigenvectors of 6 numbers"):
        allotted.Allotted(4).decode(s, 3, report(**wrong))


def test_the_table_is_that_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "papers/shed")
    import budget

    for name in ("budget", "settings"):
        monkeypatch.delitem(sys.modules, name)
    table = budget.table(budget.lines())
    assert table.count("\n") == 1 + 3 * len(budget.PROBLEMS)
    assert table in (ROOT / "docs/second-order.md").read_text(encoding="utf-8")
