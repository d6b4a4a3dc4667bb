"""The estimators beside scikit-learn's own, and its own checks of estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import medley as md
from medley.sklearn import FederatedLogisticRegression, FederatedRidge
from support.pairs import quick


def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X[:, :9]), y


def digits(rows=600):
    X, y = load_digits(return_X_y=True)
    return X[:rows] / 16, y[:rows]


def weights(n):
    w = np.random.default_rng(0).uniform(0, 2, n)
    w[::7] = 0
    return w


@pytest.mark.slow
@parametrize_with_checks([FederatedLogisticRegression(), FederatedRidge()])
def test_scikit_learns_checks_of_estimators(estimator, check):
    check(estimator)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_logistic_regression_is_scikit_learns(weighted, intercept):
    X, y = cancer()
    w = weights(len(y)) if weighted else None
    theirs = LogisticRegression(C=0.3, fit_intercept=intercept, solver="newton-cholesky", tol=1e-12).fit(X, y, w)
    ours = FederatedLogisticRegression(0.3, fit_intercept=intercept).fit(X, y, w, sites=np.arange(len(y)) % 4 > 0)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-8)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-8)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-8)
    assert (ours.predict(X) == theirs.predict(X)).all()
    assert ours.n_iter_[0] < 15
    d = X.shape[1] + intercept
    assert ours.bytes_up_ == 2 * ours.n_iter_[0] * (8 * (d * (d + 1) // 2 + d) + 8 * 13)


@pytest.mark.parametrize("solver", quick(2, ["lbfgs", "fednl", "shed", "shed.fast", md.SHED(pairs=3)]), ids=str)
def test_every_solver_gives_the_same_model(solver):
    X, y = cancer()
    theirs = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-12).fit(X, y)
    ours = FederatedLogisticRegression(0.1, solver=solver, max_iter=500, tol=1e-8).fit(X, y, sites=3)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    assert ours.history_[-1]["bytes_up"] == ours.bytes_up_


@pytest.mark.slow
@pytest.mark.parametrize("weighted", quick(1, [False, True]))
def test_many_classes_by_softmax(weighted):
    X, y = digits(300)
    X, w = X[:, ::4], weights(len(y)) if weighted else None
    theirs = LogisticRegression(solver="newton-cholesky", tol=1e-12).fit(X, y, w)
    ours = FederatedLogisticRegression().fit(X, y, w, sites=3)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_ - theirs.intercept_.mean(), atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


@pytest.mark.slow
def test_many_classes_one_against_the_rest():
    X, y = digits(300)
    X = X[:, ::4]
    labels = np.array([f"digit {c}" for c in range(10)])[y]
    theirs = OneVsRestClassifier(LogisticRegression(solver="newton-cholesky", tol=1e-12)).fit(X, labels)
    ours = FederatedLogisticRegression(multi_class="ovr").fit(X, labels, sites=3)
    np.testing.assert_allclose(ours.coef_, [e.coef_[0] for e in theirs.estimators_], atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert (ours.predict(X) == theirs.predict(X)).all()
    assert ours.n_iter_.shape == (10,)


@pytest.mark.parametrize("weighted", quick(1, [False, True]))
@pytest.mark.parametrize("solver", ["newton", "lbfgs", "shed"])
def test_ridge_is_scikit_learns(solver, weighted):
    X, y = load_diabetes(return_X_y=True)
    w = weights(len(y)) if weighted else None
    theirs = Ridge(0.1, solver="cholesky").fit(X, y, w)
    ours = FederatedRidge(0.1, solver=solver, max_iter=300).fit(X, y, w, sites=5)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-6)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-9)


def test_what_does_not_converge_says_so():
    X, y = cancer()
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        FederatedLogisticRegression(max_iter=2).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="separable"):
        FederatedLogisticRegression(C=np.inf).fit(X, X[:, 0] > 0)


@pytest.mark.parametrize(
    ("settings", "data", "message"),
    [
        ({"solver": "newtn"}, {}, "Did you mean 'newton'"),
        ({"C": 0.0}, {}, "C=0.0"),
        ({"multi_class": "both"}, {}, "'both'"),
        ({}, {"sites": 7}, "from 1 to the number of rows, 6"),
        ({}, {"sites": [1, 2]}, "the site of each of the 6 rows"),
        ({}, {"sample_weight": [1, 0, 1, 0, 1, 0]}, r"one class, 0; at least"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, data, message):
    with pytest.raises(ValueError, match=message):
        FederatedLogisticRegression(**settings).fit(np.eye(6), np.arange(6) % 2, **data)


@pytest.mark.parametrize("model", [FederatedLogisticRegression(), FederatedRidge()])
def test_sparse_rows_are_fitted_as_dense_ones(model: Any) -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((120, 9)) < 0.3).astype(float)  # one-hot
    y = (X @ np.arange(-4, 5) + rng.normal(size=120) > 0).astype(int)
    thin, dense = scipy.sparse.csr_matrix(X), clone(model).fit(X, y, sites=3)
    sparse = clone(model).fit(thin, y, sites=3)
    assert np.allclose(sparse.coef_, dense.coef_, atol=1e-8)
    assert np.allclose(sparse.predict(thin), dense.predict(X), atol=1e-8)
