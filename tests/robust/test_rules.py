"""Every rule against byzfl, closed forms, other orders of its rows, and rows that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import medley as md
from medley.contract.errors import RecipeError, TooFewReplies
from medley.robust.mixed import mix
from medley.robust.rule import Context, byzantine_among, distances, median, products, squared_distances, trimmed
from support.pairs import quick

R = md.robust
CASES = json.loads(Path(__file__).with_name("byzfl.json").read_text())["cases"]


def folds(liars: float) -> list[R.Rule]:
    """Every rule, bearing this share of liars; the root of FLTrust is row 0."""
    rules = [
        R.TrimmedMean(liars),
        R.Median(),
        R.GeometricMedian(tolerance=1e-9),
        R.Krum(liars),
        R.MultiKrum(liars),
        R.CentredClipping(steps=40),
        R.FLTrust(0),
    ]
    return [*rules, *(R.Mixed(rule, liars) for rule in rules)]


def context(rule: R.Rule, root: int = 0) -> Context:
    return Context(root=root) if rule.root_client is not None else Context()


def rows_of(a: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(a, d, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 1


@pytest.mark.parametrize(("far", "near"), [(1e6, 3.0), (1e12, 1e5), (1e37, 1e30)])
@pytest.mark.parametrize("rule", [R.Krum(0.2), R.MultiKrum(0.2)], ids=str)
def test_a_far_liar_does_not_hide_a_near_one(rule: R.Rule, far: float, near: float) -> None:
    """The far one's distances made all scores equal but for rounding, and the one nearest to it won."""
    x = rows_of(10, 20)
    honest = float(x[2:].norm(dim=1).max())
    x[:2] = torch.eye(20, dtype=x.dtype)[0] * torch.tensor([[near], [far]], dtype=x.dtype)
    for rows in (x, x.flip(0)):
        assert float(rule(rows).norm()) <= max(honest, 3.0)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"a={c['a']} f={c['f']}")
@pytest.mark.shapes
def test_folds_are_those_of_byzfl(case: dict[str, Any]) -> None:
    x = torch.tensor(case["rows"], dtype=torch.float64)
    a = case["a"]
    f = case["f"]
    liars = f / a
    vectors = {
        "TrimmedMean": R.TrimmedMean(liars)(x),
        "Median": R.Median()(x),
        "GeometricMedian": R.GeometricMedian(steps=5000, tolerance=1e-13)(x),
        "Krum": R.Krum(liars)(x),
        "MultiKrum": R.MultiKrum(liars, keep=a - f - 1)(x),
        "CentredClipping": R.CentredClipping(radius=1.5, steps=3)(x),
        "mixed": mix(x, f),
        "NNM-Median": R.Mixed(R.Median(), liars)(x),
    }
    for name, v in vectors.items():
        theirs = torch.tensor(case["byzfl"][name], dtype=torch.float64)
        off = float((v - theirs).abs().max())
        assert off < (1e-6 if name == "GeometricMedian" else 1e-12), (name, off)


def test_trimmed_mean_is_a_mean_of_sorted_values() -> None:
    x = torch.tensor([[1.0, 9.0], [2.0, -50.0], [3.0, 8.0], [4.0, 7.0], [1000.0, 6.0]])
    assert R.TrimmedMean(0.2)(x).tolist() == [3.0, 7.0]
    assert R.TrimmedMean(0.0)(x).tolist() == [202.0, -4.0]
    assert R.TrimmedMean(0.4)(x).tolist() == R.Median()(x).tolist() == [3.0, 7.0]
    assert R.Median()(x[:4]).tolist() == [2.5, 7.5]


def test_geometric_median_of_a_triangle_is_fermats_point() -> None:
    # Of an equilateral triangle it is the centroid; with 3 of 5 points in one place it is that place.
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]], dtype=torch.float64)
    assert torch.allclose(R.GeometricMedian()(x), x.mean(0), atol=1e-6)
    y = torch.tensor([[2.0, 2.0]] * 3 + [[50.0, 0.0], [0.0, -70.0]], dtype=torch.float64)
    assert torch.allclose(R.GeometricMedian()(y), y[0], atol=1e-4)


@pytest.mark.shapes
def test_fltrust_by_hand() -> None:
    # (3, 4) has cosine 0.6 to the root and becomes (1.2, 1.6), (4, 0) becomes (2, 0); (0, 5) and (-1, 0) have weight 0.
    x = torch.tensor([[2.0, 0.0], [3.0, 4.0], [0.0, 5.0], [-1.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    vector = R.FLTrust(7)(x, Context(root=0))
    expected = (0.6 * torch.tensor([1.2, 1.6]) + 1.0 * torch.tensor([2.0, 0.0])) / 1.6
    assert torch.allclose(vector, expected.double())
    assert R.FLTrust(7)(x[[0, 2, 3]], Context(root=0)).tolist() == [2.0, 0.0]  # nobody agrees: the root's own
    with pytest.raises(TooFewReplies, match="client 7, which holds the root set, did not reply"):
        R.FLTrust(7)(x)


def test_centred_clipping_goes_on_from_the_last_vector() -> None:
    x = torch.full((4, 3), 10.0)
    rule = R.CentredClipping(radius=1.0, steps=1)
    one = rule(x)
    assert float(one.norm()) == pytest.approx(1.0)
    assert float(rule(x, Context(before=one)).norm()) == pytest.approx(2.0)
    assert float(rule(x, Context(before=torch.zeros(2))).norm()) == pytest.approx(1.0)  # of another shape: anew


@pytest.mark.parametrize("rule", quick(5, folds(0.2)), ids=lambda f: f.name)
@given(a=st.integers(8, 14), d=st.integers(1, 6), seed=st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_the_order_of_rows_plays_no_part(rule: R.Rule, a: int, d: int, seed: int) -> None:
    x = rows_of(a, d, seed)
    if isinstance(rule, R.Mixed) and "Krum" in rule.name:
        # Groups of one size, whose rows are alike, are a tie that only their order can decide.
        assume(len(mix(x, byzantine_among(rule, a)).round(decimals=9).unique(dim=0)) > a // 2)
    order = torch.randperm(a, generator=torch.Generator().manual_seed(seed))
    root = order.tolist().index(0)
    assert torch.allclose(rule(x, context(rule)), rule(x[order], context(rule, root)), atol=1e-9)


@pytest.mark.parametrize("rule", folds(0.2), ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_are_their_mean(rule: R.Rule, dtype: torch.dtype) -> None:
    x = rows_of(1, 9, dtype=dtype).repeat(10, 1)
    vector = rule(x, context(rule))
    assert vector.dtype == dtype
    assert torch.allclose(vector, x[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", folds(4 / 11), ids=lambda f: f.name)
@pytest.mark.parametrize("size", quick(1, [1e2, 1e6, 1e15]))
@given(seed=st.integers(0, 200), f=st.integers(1, 4))
@settings(max_examples=8, deadline=None)
def test_liars_that_are_borne_move_it_no_further_than_honest_rows_lie_apart(
    rule: R.Rule, size: float, seed: int, f: int
) -> None:
    a = 11
    d = 6
    x = rows_of(a, d, seed, torch.float32)
    honest = x[: a - f]
    spread = float(distances(honest, honest.mean(0)).max())
    x[a - f :] = size * torch.randn(f, d, generator=torch.Generator().manual_seed(seed))
    away = float((rule(x, context(rule)) - honest.mean(0)).norm())
    assert away < 4 * spread, (away, spread)


@pytest.mark.parametrize("rule", folds(0.2), ids=lambda f: f.name)
def test_a_mean_is_moved_by_one_liar_and_no_fold_is(rule: R.Rule) -> None:
    x = rows_of(12, 40)
    lied = x.clone()
    lied[-1] = 1e6
    plain = rule(x, context(rule))
    assert float((lied.mean(0) - x.mean(0)).norm()) > 1e5
    assert float((rule(lied, context(rule)) - plain).norm()) < 2 * float(distances(x, x.mean(0)).max())


@pytest.mark.parametrize("rule", folds(0.2), ids=lambda f: f.name)
def test_the_same_rows_give_the_same_bits(rule: R.Rule) -> None:
    x = rows_of(12, 9000, dtype=torch.float32)
    assert torch.equal(rule(x, context(rule)), rule(x.clone(), context(rule)))


def test_the_number_of_liars_is_rounded_up_but_not_by_a_rounding_error() -> None:
    for share, a, f in (
        (0.29, 100, 29),
        (0.07, 100, 7),
        (0.3, 10, 3),
        (0.2, 10, 2),
        (0.2, 9, 2),
        (0.2, 4, 1),
        (0.0, 9, 0),
    ):
        assert byzantine_among(R.Krum(share), a) == f
    assert byzantine_among(R.Median(), 10) == 0


@pytest.mark.parametrize("make", [R.TrimmedMean, R.Krum, R.MultiKrum, lambda s: R.Mixed(R.Median(), s)])
@pytest.mark.parametrize("share", [0.5, -0.1, 1.0, float("nan")])
def test_a_share_of_a_half_is_refused(make: Any, share: Any) -> None:
    with pytest.raises(RecipeError, match=r"byzantine=.*must be a number in \[0, 0.5\)") as caught:
        make(share)
    assert caught.value.key == "byzantine"


def test_mixing_twice_is_refused() -> None:
    with pytest.raises(RecipeError, match="that rule already mixes"):
        R.Mixed(R.Mixed(R.Median(), 0.2), 0.2)


@pytest.mark.parametrize("rule", [R.Krum(0.3), R.MultiKrum(0.3), R.Mixed(R.Krum(0.3), 0.3)], ids=lambda f: f.name)
def test_krum_wants_two_f_and_three_replies(rule: R.Rule) -> None:
    assert rule.least(10) == 9
    rule(rows_of(10, 3))
    with pytest.raises(
        TooFewReplies, match=r"Krum.* needs 5 replies to tolerate 1 Byzantine clients of the 2 asked, but"
    ):
        rule(rows_of(2, 3))
    with pytest.raises(
        TooFewReplies,
        match=r"Krum\(byzantine=0.45.* needs 9 replies to tolerate 3 Byzantine clients of the 6 asked, but got 6",
    ):
        R.Krum(0.45)(rows_of(6, 3))


@pytest.mark.parametrize("rule", [R.TrimmedMean(0.2), R.MultiKrum(0.2), R.Mixed(R.TrimmedMean(0.2), 0.2)], ids=str)
def test_lost_honest_replies_do_not_make_fewer_liars(rule: R.Rule) -> None:
    x = rows_of(9, 5)
    x[:2] = torch.tensor([[1e9], [-3e9]])
    assert float(rule(x, Context(requested=10)).norm()) < 10
    least = rule.least(10)
    assert float(rule(x[:least], Context(requested=10)).norm()) < 10
    with pytest.raises(TooFewReplies, match=rf"needs {least} replies to tolerate 2 Byzantine clients of the 10 asked"):
        rule(x[: least - 1], Context(requested=10))


def test_multi_krum_keeps_no_more_than_may_be_honest() -> None:
    with pytest.raises(
        TooFewReplies, match="averages 9 of 10 replies, but 2 of them may be Byzantine: set keep= to at most 8"
    ):
        R.MultiKrum(0.2, keep=9)(rows_of(10, 3))
    x = rows_of(10, 3)
    assert torch.equal(R.MultiKrum(0.2, keep=1)(x), R.Krum(0.2)(x))


def test_distances_keep_their_digits_beside_a_row_that_is_far_off() -> None:
    x = rows_of(9, 5000, dtype=torch.float32)
    x[-1] = 1e18
    near = squared_distances(x)[:8, :8]
    assert torch.allclose(near, torch.cdist(x[:8].double(), x[:8].double()) ** 2, rtol=1e-5)
    assert torch.equal(near, near.T)
    assert float(squared_distances(x)[0, 8]) > 1e38
    assert torch.allclose(products(x[:8], x[0]), x[:8].double() @ x[0].double())


def test_distances_keep_their_digits_far_from_0() -> None:
    """Replies may share a large part, 1e7 in each coordinate here: of ‖x‖² + ‖y‖² − 2⟨x, y⟩ nothing would be left."""
    x = rows_of(9, 50, dtype=torch.float64)
    computed = squared_distances(x + 1e7)
    expected = torch.cdist(x, x) ** 2
    assert torch.allclose(computed, expected, rtol=1e-5, atol=1e-9)


@given(a=st.integers(1, 12), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=30, deadline=None)
def test_trimmed_is_numpys_sort(a: int, seed: int, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (a - 1) // 2))
    x = rows_of(a, 5, seed)
    assert np.allclose(trimmed(x, f), np.sort(x.numpy(), 0)[f : a - f].mean(0))
    assert np.allclose(median(x), np.median(x.numpy(), 0))


def spread(rows: torch.Tensor, v: torch.Tensor) -> float:
    return float((rows - v).norm(dim=1).sum())


@pytest.mark.parametrize("offset", quick(2, [0.0, 1e-9, 1e-6, 1e-4, 1e-2, 0.1]))
def test_a_reply_at_or_beside_the_start_does_not_hold_the_geometric_median(offset: float) -> None:
    g = torch.Generator().manual_seed(0)
    crossed = torch.tensor([[0, 0], [10, 0.1], [10, -0.1], [-0.1, 10], [-0.1, -10]], dtype=torch.float64)
    honest = torch.cat([torch.randn(12, 200, generator=g) + 3, 9 * torch.randn(8, 200, generator=g)]).double()
    s = honest.sort(0).values
    liar = torch.cat([honest, (s[9:10] + s[10:11]) / 2])
    for rows, at in ((crossed, 0), (liar, 20)):
        rows = rows.clone()
        rows[at] += offset * torch.randn(rows.shape[1], generator=g).double()
        v = R.GeometricMedian()(rows)
        best = R.GeometricMedian(steps=20000, tolerance=1e-14)(rows)
        w = rows.mean(0)
        for _ in range(1000):  # at most 200 change anything
            beta = 1 / (rows - w).norm(dim=1).clamp(min=1e-12)
            w = beta @ rows / beta.sum()
        least = min([spread(rows, w), *(spread(rows, row) for row in rows)])
        assert spread(rows, v) / least - 1 < 2e-5, offset
        assert spread(rows, best) / least - 1 < 1e-9, offset
        assert spread(rows, rows.median(0).values) / least - 1 > 1e-3


def test_a_reply_that_is_the_geometric_median_is_returned() -> None:
    x = torch.tensor([[0.0, 0], [1, 0], [-0.5, 0.9], [-0.5, -0.9], [0, 0]], dtype=torch.float64)
    assert R.GeometricMedian()(x).norm() < 1e-6
    assert torch.equal(R.GeometricMedian()(x[[1, 1, 1]]), x[1])
