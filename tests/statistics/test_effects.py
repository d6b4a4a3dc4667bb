"""Treatment effects: weighted fits are those of all rows together, their errors know the weights were estimated, and
what leaves a site obeys its rules."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import medley as md
from medley.contract import BadData, RecipeError, Stalled, TooFewReplies, WireError
from medley.report import love
from medley.statistics import GLM, Rules, Study, Weights, Withheld
from medley.statistics.analysis import packed, tensor
from medley.statistics.curves import merged
from medley.statistics.scoring import Point
from medley.statistics.study import Sites
from medley.statistics.weights import Fit, Robust, sent

MODEL = "treated ~ age + C(sex)"
KINDS = [("ATE", False), ("ATE", True), ("ATT", False), ("overlap", False)]


def rows(n: int = 360, seed: int = 5) -> Any:
    """Made-up patients: the older ones are treated more often, and have the event sooner."""
    g = np.random.default_rng(seed)
    age = g.normal(60, 10, n).round(1)
    sex = g.integers(0, 2, n)
    treated = g.random(n) < 1 / (1 + np.exp(-(0.05 * (age - 60) + 0.5 * sex - 0.3)))
    eta = -0.5 + 0.6 * treated + 0.04 * (age - 60) + 0.3 * sex
    months = g.exponential(10 * np.exp(-eta))
    end = g.uniform(2, 15, n)
    return pd.DataFrame(
        {
            "age": age,
            "sex": np.array(["F", "M"])[sex],
            "treated": treated.astype(int),
            "died": (g.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
            "score": (10 * eta + g.normal(0, 5, n)).round(2),
            "months": np.minimum(months, end).round(1) + 0.1,
            "event": (months <= end).astype(int),
        }
    )


def parts(frame: Any, way: str = "blocks") -> dict[str, Any]:
    """Three sites: of unequal size, in turns, or by age."""
    if way == "turns":
        return {name: frame.iloc[k::3] for k, name in enumerate("ABC")}
    ordered = frame if way == "blocks" else frame.sort_values("age", kind="stable")
    ends = np.array([0, 0.5, 0.8, 1]) * len(frame)
    return {name: ordered.iloc[int(ends[k]) : int(ends[k + 1])] for k, name in enumerate("ABC")}


def root(G: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Where G is 0, by Newton's steps with a numeric Jacobian."""
    for _ in range(30):
        step = np.linalg.solve(jacobian(G, x), G(x))
        x = x - step
        if np.abs(step).max() < 1e-11:  # the next step is its square
            break
    return x


def jacobian(G: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    h = 1e-4 * np.maximum(1.0, np.abs(x))
    steps = np.diag(h)
    slope = lambda s: np.array([(G(x + d) - G(x - d)) / (2 * d[k]) for k, d in enumerate(s)]).T
    return (4 * slope(steps / 2) - slope(steps)) / 3


def pooled(frame: Any, weights: Weights, score: Callable[..., np.ndarray], p: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and errors of all rows together: estimating equations of both models, each row's influence by a
    numeric derivative by how often the row counts.
    """
    Z = np.column_stack([np.ones(len(frame)), (frame.age - 60) / 10, frame.sex == "M"]).astype(float)
    a = frame.treated.to_numpy(float)

    def G(theta: np.ndarray, c: np.ndarray) -> np.ndarray:
        e = 1 / (1 + np.exp(-Z @ theta[:3]))
        w = c * weights.of(a, e, theta[3])[0]
        return np.concatenate([Z.T @ (c * (a - e)), [c @ (a - theta[3])], score(theta[4:], w)])

    ones = np.ones(len(frame))
    theta = root(lambda t: G(t, ones), np.concatenate([np.zeros(3), [a.mean()], np.zeros(p)]))
    eye = np.eye(len(ones)) * 1e-3
    by_row = np.array([(G(theta, ones + d) - G(theta, ones - d)) / 2e-3 for d in eye])
    influence = np.linalg.solve(jacobian(lambda t: G(t, ones), theta), by_row.T)
    return theta[4:], np.sqrt(np.diag(influence @ influence.T))[4:]


def glm_score(frame: Any, y: str, family: str) -> Callable[..., np.ndarray]:
    X = np.column_stack([np.ones(len(frame)), frame.treated]).astype(float)
    outcome = frame[y].to_numpy(float)
    mean = {"gaussian": lambda v: v, "binomial": lambda v: 1 / (1 + np.exp(-v)), "poisson": np.exp}[family]
    return lambda b, w: X.T @ (w * (outcome - mean(X @ b)))


def cox_score(frame: Any, strata: np.ndarray, ties: str) -> Callable[..., np.ndarray]:
    """The weighted partial likelihood's score, time by time."""
    X = np.column_stack([frame.treated, (frame.age - 60) / 10]).astype(float)
    time = frame.months.to_numpy()
    event = frame.event.to_numpy() > 0

    def score(b: np.ndarray, w: np.ndarray) -> np.ndarray:
        r = w * np.exp(X @ b)
        out = np.zeros(2)
        for s, t in {*zip(strata[event], time[event], strict=True)}:
            risk = (strata == s) & (time >= t)
            dead = risk & event & (time == t)
            out = out + w[dead] @ X[dead]
            for k in range(dead.sum()):
                share = k / dead.sum() if ties == "efron" else 0.0
                v = r * (risk - share * dead)
                out = out - w[dead].mean() * (v @ X) / v.sum()
        return out

    return score


@pytest.mark.parametrize(
    ("y", "family", "estimand", "stabilised"),
    [
        ("score", "gaussian", "ATE", True),
        ("died", "binomial", "ATT", False),
        *(
            pytest.param(y, family, *kind, marks=pytest.mark.slow)
            for y, family in (("score", "gaussian"), ("died", "binomial"))
            for kind in KINDS
        ),
    ],
)
def test_a_weighted_regression_is_that_of_all_rows_together(
    y: str, family: Any, estimand: Any, stabilised: bool
) -> None:
    frame = rows(300)
    weights = Weights(MODEL, estimand, stabilised)
    b, se = pooled(frame, weights, glm_score(frame, y, family), 2)
    for way in ("turns", "age"):
        fit = Study(parts(frame, way)).glm(f"{y} ~ treated", family, weights=weights)
        np.testing.assert_allclose(fit.params, b, rtol=1e-8)
        np.testing.assert_allclose(fit.bse, se, rtol=1e-7)


@pytest.mark.parametrize("ties", [pytest.param("breslow", marks=pytest.mark.slow), "efron"])
def test_a_weighted_cox_fit_is_that_of_all_rows_together(ties: Any) -> None:
    frame = rows(150 if ties == "breslow" else 110)
    frame["decade"] = (frame.age - 60) / 10
    weights = Weights("treated ~ decade + C(sex)", stabilised=True)
    for sites in (parts(frame, "turns"), parts(frame)) if ties == "breslow" else ({"A": frame[:60], "B": frame[60:]},):
        ordered = pd.concat([*sites.values()])
        strata = np.repeat(range(len(sites)), [*map(len, sites.values())])
        b, se = pooled(ordered, weights, cox_score(ordered, strata, ties), 2)
        fit = Study(sites).cox("months ~ treated + decade", "event", ties=ties, weights=weights)
        np.testing.assert_allclose(fit.params, b, rtol=1e-8)
        np.testing.assert_allclose(fit.bse, se, rtol=1e-6)


def test_errors_that_know_the_weights_were_estimated_differ_from_those_that_do_not() -> None:
    frame = rows(600)
    weights = Weights(MODEL)
    study = Study(parts(frame))
    fit = study.glm("score ~ treated", weights=weights)
    e = 1 / (1 + np.exp(-(study.propensity(MODEL).params.to_numpy() @ np.array(
        [np.ones(len(frame)), frame.age, frame.sex == "M"], dtype=float))))  # fmt: skip
    frame["w"] = weights.of(frame.treated.to_numpy(float), e, 0.5)[0]
    fixed = Study(parts(frame)).glm("score ~ treated", weights="w", cov="HC0")
    np.testing.assert_allclose(fit.params, fixed.params, rtol=1e-7)
    assert fit.bse["treated"] < 0.95 * fixed.bse["treated"]


@pytest.mark.slow
def test_secure_sums_give_the_same_to_their_resolution() -> None:
    weights = Weights(MODEL, "ATT")
    sites = parts(rows())
    plain = Study(sites)
    masked = Study(sites, secure=md.SecureSum(bits=64, bound=2.0**40))
    for call in (
        lambda s: s.glm("score ~ treated", weights=weights),
        lambda s: s.glm("died ~ treated", "binomial", weights=weights),
        lambda s: s.cox("months ~ treated", "event", weights=weights),
    ):
        one, other = call(plain), call(masked)
        np.testing.assert_allclose(one.params, other.params, rtol=1e-6)
        np.testing.assert_allclose(one.bse, other.bse, rtol=1e-6)
    frames = [s.balance(weights).frame() for s in (plain, masked)]
    np.testing.assert_allclose(*frames, atol=1e-6)


def scores(frame: Any, study: Study) -> tuple[np.ndarray, np.ndarray]:
    """Each row's treatment and propensity, computed where all rows are."""
    b = study.propensity(MODEL).params.to_numpy()
    Z = np.array([np.ones(len(frame)), frame.age, frame.sex == "M"], dtype=float)
    return frame.treated.to_numpy(float), 1 / (1 + np.exp(-(b @ Z)))


def test_a_weighted_curve_and_its_logrank_test_are_those_of_all_rows_together() -> None:
    frame = rows()
    study = Study(parts(frame), rules=Rules(rows=1, events=1))
    weights = Weights(MODEL, stabilised=True)
    curves = study.kaplan_meier("months", "event", unit=0.1, until=20.0, by="treated", weights=weights)
    a, e = scores(frame, study)
    w = weights.of(a, e, a.mean())[0]
    time = frame.months.to_numpy()
    dead = frame.event.to_numpy() > 0
    gap = variance = 0.0
    S, spread = 1.0, 0.0
    lines = []
    for t in np.unique(time[dead]):
        risk = time >= t - 1e-9
        now = dead & (np.abs(time - t) < 1e-9)
        Y = [w[risk & (a == k)].sum() for k in (0, 1)]
        D = [w[now & (a == k)].sum() for k in (0, 1)]
        n, d = risk.sum(), now.sum()
        gap += D[1] - Y[1] * sum(D) / sum(Y)
        squares = [(w[risk & (a == k)] ** 2).sum() for k in (0, 1)]
        if n > 1:
            variance += d * (n - d) / (n * (n - 1)) * (Y[0] ** 2 * squares[1] + Y[1] ** 2 * squares[0]) / sum(Y) ** 2
        if D[1]:
            share = 1 - D[1] / Y[1]
            S *= share
            if share > 1e-9:
                spread += (1 - share) / (share * Y[1] ** 2 / squares[1])
            lines.append((t, S, S * spread**0.5))
    expected = np.array(lines)
    found = curves.frame("1")
    np.testing.assert_allclose(found.index, expected[:, 0], atol=1e-9)
    np.testing.assert_allclose(found["survival"], expected[:, 1], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found["se"][:-1], expected[:-1, 2], rtol=1e-8)
    assert curves.logrank().statistic == pytest.approx(gap**2 / variance, rel=1e-8)
    plain = study.kaplan_meier("months", "event", unit=0.1, until=20.0, by="treated")
    assert plain.logrank().statistic != pytest.approx(curves.logrank().statistic, rel=1e-3)


def test_balance_is_that_of_all_rows_together(tmp_path: Any) -> None:
    frame = rows()
    study = Study(parts(frame, "age"))
    weights = study.propensity(MODEL).weights("ATT")
    table = study.balance(weights)
    a, e = scores(frame, study)
    w = weights.of(a, e, 0.5)[0]
    before = [frame.age[a == k] for k in (0, 1)]
    spread = np.sqrt((before[0].var() + before[1].var()) / 2)
    after = [np.average(frame.age[a == k], weights=w[a == k]) for k in (0, 1)]
    assert table.smd.loc["age", "before"] == pytest.approx((before[1].mean() - before[0].mean()) / spread, rel=1e-8)
    assert table.smd.loc["age", "after"] == pytest.approx((after[1] - after[0]) / spread, rel=1e-6, abs=1e-8)
    assert table.frame().loc["age", ("after", "SD, 0")] == pytest.approx(
        np.sqrt(
            np.average((frame.age[a == 0] - after[0]) ** 2, weights=w[a == 0]) * (a == 0).sum() / ((a == 0).sum() - 1)
        )
    )
    assert [*table.smd.index] == ["age", "C(sex)[F]", "C(sex)[T.M]"]
    assert table.smd.loc["C(sex)[F]", "before"] == pytest.approx(-table.smd.loc["C(sex)[T.M]", "before"])
    assert table.effective.to_numpy() == pytest.approx([w[a == k].sum() ** 2 / (w[a == k] ** 2).sum() for k in (0, 1)])
    assert (table.smd["after"].abs() < 0.1).all()
    assert table.smd.loc["age", "before"] > 0.2
    assert "rows, as good as" in table.summary()
    assert "SMD" in table.latex()
    assert love(table.smd, title="Balance").count("<circle") == 6
    other = study.balance(weights, columns="score")
    assert [*other.smd.index] == ["score"]


def test_trimmed_rows_are_left_out_and_truncated_ones_moved() -> None:
    frame = rows(600)
    study = Study(parts(frame))
    a, e = scores(frame, study)
    inside = (e >= 0.3) & (e <= 0.7)
    for weights, keep in ((Weights(MODEL, trim=0.3), inside), (Weights(MODEL, truncate=0.3), inside | True)):
        w = weights.of(a, np.clip(e, 0.3, 0.7), 0.5)[0] * keep
        y = frame.score.to_numpy()
        means = [np.average(y[a == k], weights=w[a == k]) for k in (0, 1)]
        fit = Study(parts(frame)).glm("score ~ treated", weights=weights)
        assert fit.nobs == keep.sum()
        assert fit.params["treated"] == pytest.approx(means[1] - means[0], rel=1e-8)
        assert Study(parts(frame)).cox("months ~ treated", "event", weights=weights).nobs == keep.sum()


@pytest.mark.slow
@pytest.mark.rounded
def test_under_the_default_rules_figures_move_by_little() -> None:
    sites = parts(rows(1500))
    weights = Weights(MODEL, stabilised=True)
    one, other = (Study(sites, rules=Rules(exact=exact)) for exact in (True, False))
    for call in (
        lambda s: s.glm("died ~ treated", "binomial", weights=weights),
        lambda s: s.cox("months ~ treated", "event", weights=weights),
    ):
        exact, rounded = call(one), call(other)
        assert (np.abs(exact.params - rounded.params) / exact.bse).max() < 0.02
        assert np.abs(rounded.bse / exact.bse - 1).max() < 0.01
        assert (exact.params != rounded.params).any()
    curves = [
        s.kaplan_meier("months", "event", unit=0.1, until=15.0, by="treated", weights=weights) for s in (one, other)
    ]
    at = [np.interp(5.0, f.index, f["survival"]) for f in (c.frame("1") for c in curves)]
    assert at[0] == pytest.approx(at[1], abs=0.06)
    spent = other.disclosure()
    assert {"treated", "died", "event"} <= {column for _, column in spent.index}


# What leaves a site.


def test_a_limit_of_scores_that_concerns_one_more_patient_is_refused() -> None:
    frame = rows(1200)
    frame["age"] += np.random.default_rng(1).normal(0, 0.01, 1200)  # no two alike
    study = Study(parts(frame))
    _, e = scores(frame, study)
    site = np.sort(np.abs(e[:600] - 0.5))[::-1]  # of A
    least, more = 0.5 - (site[19] + site[20]) / 2, 0.5 - (site[20] + site[21]) / 2
    for key in ("truncate", "trim"):
        fresh = Study({"A": frame.iloc[:600], "B": frame.iloc[600:]})
        fresh.glm("score ~ treated", weights=Weights(MODEL, **{key: least}))
        with pytest.raises(Withheld, match=f"{key}={more:g} concerns.*another {key}="):
            fresh.glm("score ~ treated", weights=Weights(MODEL, **{key: more}))


def test_a_limit_of_scores_that_concerns_few_patients_is_refused() -> None:
    frame = rows(1200)
    _, e = scores(frame, Study(parts(frame)))
    site = np.sort(np.abs(e[:600] - 0.5))[::-1]
    for key in ("truncate", "trim"):
        limit = 0.5 - (site[1] + site[2]) / 2  # two patients
        with pytest.raises(Withheld, match=r"fewer than 5 rows"):
            Study({"A": frame.iloc[:600], "B": frame.iloc[600:]}).cox(
                "months ~ treated", "event", weights=Weights(MODEL, **{key: limit})
            )


def test_trimming_to_few_rows_is_refused() -> None:
    with pytest.raises(Withheld, match=r"trim=0.4999"):
        Study(parts(rows())).glm("score ~ treated", weights=Weights(MODEL, trim=0.4999))


def test_the_propensity_of_a_category_of_few_patients_is_refused() -> None:
    frame = rows()
    frame["ward"] = np.where(np.arange(len(frame)) < 3, "rare", np.where(np.arange(len(frame)) % 2, "a", "b"))
    for call in (
        lambda s: s.propensity("treated ~ age + C(ward)"),
        lambda s: s.glm("score ~ treated", weights=Weights("treated ~ age + C(ward)")),
        lambda s: s.balance(Weights(MODEL), columns="C(ward)"),
    ):
        with pytest.raises(Withheld, match=r"fewer than 5 rows"):
            call(Study(parts(frame)))


def test_balance_in_a_category_with_few_treated_is_refused() -> None:
    frame = rows()
    frame["ward"] = np.where(np.arange(len(frame)) % 2, "a", "b")
    mine = frame.index[(frame.ward == "a") & (frame.treated == 1)][2:]
    frame.loc[mine, "ward"] = "b"  # two treated patients are left in ward a
    with pytest.raises(Withheld, match=r"with the event|rows by event"):
        Study({"A": frame}).balance(Weights(MODEL), columns="C(ward)")


def test_balance_with_and_without_one_patient_is_refused() -> None:
    frame = rows()
    frame["id"] = np.arange(len(frame))
    study = Study({"A": frame.iloc[:180], "B": frame.iloc[180:]})
    study.balance(Weights(MODEL))
    with pytest.raises(Withheld, match=r"would reveal something"):
        study.balance(Weights(MODEL), where="id != 7")


def test_a_weighted_curve_of_few_patients_is_refused() -> None:
    frame = rows()
    frame["group"] = np.where(np.arange(len(frame)) % 90 == 0, "few", "many")  # two at each of two sites
    with pytest.raises(Withheld, match=r"would reveal|fewer than"):
        Study({"A": frame.iloc[:180], "B": frame.iloc[180:]}).kaplan_meier(
            "months", "event", unit=0.5, until=15.0, by="group", weights=Weights(MODEL)
        )


def test_weighted_steps_of_a_curve_have_the_least_number_of_rows() -> None:
    g = np.random.default_rng(1)
    counts = g.integers(0, 3, (2, 50))
    sums = g.random((2, 2, 50)) * (counts > 0)
    out, _, _ = merged(counts, np.arange(50.0), 5, sums=sums)
    assert out.shape == (6, 50)
    assert out[:2][out[:2] > 0].min() >= 5
    np.testing.assert_allclose(out[2:].reshape(2, 2, 50).sum(2), sums.sum(2))
    assert ((out[2:4] > 0) == (out[:2] > 0)).all()


def one_site(frame: Any, model: GLM, b: np.ndarray, share: float = 0.5) -> Any:
    """A site, and a server's request with its own propensity coefficients."""
    study = Study({"A": frame})
    levels = {"sex": ["F", "M"]}
    fit = Fit(len(frame), share, b, np.eye(len(b)))
    request = Point(
        b=tensor([0.0, 0.0]), bread=tensor([]), mean=0.0, alpha=1e-6, rows=len(frame), terms=packed(levels),
        treatment=sent(fit),
    )  # fmt: skip
    return Sites(study.sites)(0, 1), request


def test_a_server_cannot_give_one_patient_all_the_weight() -> None:
    frame = rows()
    oldest = frame.age.nlargest(1).index[0]
    frame.loc[oldest, ["age", "treated"]] = 95.0, 0  # the weight of this patient grows with the slope of age
    model = GLM("score ~ treated", weights=Weights(MODEL))
    for slope in (0.7, 1.0, 3.0, 30.0):
        me, request = one_site(frame, model, np.array([-60.0 * slope, slope, 0.0]))
        for ask in (model.begin, model.score, model.stack):
            with pytest.raises(Withheld, match=r"weights of its (un)?treated rows explode"):
                ask(me, request)


@pytest.mark.parametrize("matrix", [[0.0] * 8, [1e9, 0, 0, 0] * 2], ids=["none", "large"])
def test_products_of_influences_that_one_patient_decides_are_refused(matrix: list[float]) -> None:
    """The server sends the matrix by which the propensity's scores enter the influences, so it may be of its own."""
    frame = rows()
    model = GLM("score ~ treated", weights=Weights(MODEL))
    me, request = one_site(frame, model, np.array([-0.3, 0.0, 0.0]))
    replies = [model.stack(me, dataclasses.replace(request, influence=tensor(m))) for m in (matrix, [0.0] * 8)]
    assert all(reply.slope.numel() == 0 for reply in replies)
    frame.loc[5, "score"] = 1e7 if matrix[0] == 0 else 1e14
    me, request = one_site(frame, model, np.array([-0.3, 0.0, 0.0]))
    request = dataclasses.replace(request, influence=tensor(matrix))
    with pytest.raises(Withheld, match=r"fewer than 5 rows decide"):
        model.stack(me, request)


def test_a_server_that_sends_no_model_or_another_gets_nothing() -> None:
    frame = rows()
    model = GLM("score ~ treated", weights=Weights(MODEL))
    me, request = one_site(frame, model, np.zeros(2))
    with pytest.raises(WireError, match=r"other columns"):
        model.score(me, request)
    with pytest.raises(WireError, match=r"without a propensity model"):
        model.score(me, dataclasses.replace(request, treatment=tensor([])))
    plain = GLM("score ~ treated")
    with pytest.raises(WireError, match=r"has none"):
        plain.stack(me, request)
    with pytest.raises(WireError, match=r"has none"):
        plain.treatment_score(me, request)


def test_what_leaves_has_no_score_and_no_weight_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = rows(900)
    study = Study(parts(frame))
    a, e = scores(frame, study)
    weights = Weights(MODEL)
    replies = list[Any]()
    reply = Robust.reply
    monkeypatch.setattr(Robust, "reply", lambda *args: replies.append(reply(*args)) or replies[-1])
    study.glm("score ~ treated", weights=weights)
    study.cox("months ~ treated", "event", weights=weights)
    assert len(replies) == 2 * 2 * 3
    sent = np.concatenate([getattr(up, k).numpy().ravel() for up in replies for k in ("bread", "slope", "meat")])
    assert sent.size == 3 * (3 + 2 * 4 + 3) + 3 * (4 + 1)
    personal = np.concatenate([e, weights.of(a, e, 0.5)[0]])
    assert np.abs(sent[:, None] / personal - 1).min() > 1e-6


# Sentences.


def test_no_patient_treated_or_each_at_a_site_is_logged_and_the_others_decide(caplog: pytest.LogCaptureFixture) -> None:
    frame = rows(900)
    sites = parts(frame)
    sites["B"] = sites["B"].assign(treated=0)
    sites["C"] = sites["C"].assign(treated=1)
    with caplog.at_level(logging.WARNING):
        fit = Study(sites).glm("score ~ treated", weights=Weights(MODEL))
    assert "B: no row is treated by treated" in caplog.text
    assert "C: no row is untreated by treated" in caplog.text
    assert np.isfinite(fit.bse).all()
    with pytest.raises(Stalled, match=r"separation by C\(site\)\[T.B\]"):
        Study(sites).glm("score ~ treated", weights=Weights(MODEL, sites="fixed"))
    cox = Study(sites).cox("months ~ treated", "event", weights=Weights(MODEL))  # B and C compare no two patients
    assert np.isfinite(cox.bse["treated"])


@pytest.mark.parametrize("value", [0, 1])
def test_nobody_treated_anywhere_or_everybody_is_refused(value: int) -> None:
    sites = {name: f.assign(treated=value) for name, f in parts(rows()).items()}
    for call in (lambda s: s.propensity(MODEL), lambda s: s.cox("months ~ age", "event", weights=Weights(MODEL))):
        with pytest.raises(BadData, match=r"treated has one value at all sites: there is nothing to explain"):
            call(Study(sites))


def test_weights_that_explode_are_refused_with_a_remedy_that_works() -> None:
    g = np.random.default_rng(0)
    frame = rows(600)
    frame["marker"] = g.normal(0, 1, 600)
    frame["treated"] = (g.random(600) < 1 / (1 + np.exp(-9 * frame.marker))).astype(int)
    sites = {"A": frame.iloc[:300], "B": frame.iloc[300:]}
    with pytest.raises(Withheld, match=r"explode.*estimand='overlap'"):
        Study(sites).glm("score ~ treated", weights=Weights("treated ~ marker"))
    assert np.isfinite(Study(sites).glm("score ~ treated", weights=Weights("treated ~ marker", "overlap")).bse).all()
    assert np.isfinite(Study(sites).glm("score ~ treated", weights=Weights("treated ~ marker", truncate=0.1)).bse).all()


def test_a_site_without_events_changes_nothing_in_a_cox_fit() -> None:
    frame = rows(900)
    sites = parts(frame)
    sites["B"] = sites["B"].assign(event=0)
    fit = Study(sites).cox("months ~ treated", "event", weights=Weights(MODEL))
    assert np.isfinite(fit.bse["treated"])


def test_a_site_that_drops_out_is_named() -> None:
    study = Study(parts(rows()), transport=md.transports.Lossy(loss=1.0))
    with pytest.raises(TooFewReplies, match=r"did not answer.*study.without"):
        study.glm("score ~ treated", weights=Weights(MODEL))


def test_settings_that_do_not_fit_are_refused_with_a_remedy() -> None:
    study = Study(parts(rows()))
    w = Weights(MODEL)
    for call, message in (
        (lambda: Weights(MODEL, "ATT", stabilised=True), "estimand='ATE'"),
        (lambda: Weights(MODEL, trim=0.1, truncate=0.1), "not both"),
        (lambda: study.glm("died ~ treated", "binomial", weights=w, cov="HC1"), "errors of its own"),
        (lambda: study.glm("died ~ treated", "negative_binomial", weights=w), "give its value"),
        (lambda: study.cox("months ~ treated", "event", cuts=[5.0], weights=w), "leave cuts= out"),
        (lambda: study.glm("score ~ age").weights(), "propensity model"),
    ):
        with pytest.raises(RecipeError, match=message):
            call()
    fit = study.glm("score ~ treated", weights=w)
    with pytest.raises(RecipeError, match=r"make no likelihood"):
        fit.lr_test(fit)
    with pytest.raises(BadData, match=r"0 and 1"):
        Study({k: v.assign(treated=2 * v.treated) for k, v in parts(rows()).items()}).glm("score ~ age", weights=w)


def test_an_outcome_does_not_belong_in_the_propensity_model() -> None:
    study = Study(parts(rows(600)))
    for call in (
        lambda: study.glm("died ~ treated", "binomial", weights=Weights("treated ~ age + died")),
        lambda: study.cox("months ~ treated", "event", weights=Weights("treated ~ age + event")),
        lambda: study.kaplan_meier(
            "months", "event", by="treated", unit=1, until=12, weights=Weights("treated ~ age + months")
        ),
    ):
        with pytest.raises(md.RecipeError, match=r"(died|event|months) is the outcome of this analysis"):
            call()
    with pytest.raises(md.RecipeError, match=r"as in 'treated ~ age'"):
        Weights("treated")


def test_a_table_is_printed_as_it_is_shown() -> None:
    balance = Study(parts(rows(600))).balance(Weights(MODEL))
    assert str(balance) == balance.frame().to_string() + balance.pooled_line()
