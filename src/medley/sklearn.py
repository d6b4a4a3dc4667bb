"""Regressions with the interface of scikit-learn: the model of all rows, fitted while every site keeps its own rows.

``fit(X, y, sites=...)`` simulates the sites, one client each. ``history_`` and ``bytes_up_`` record the traffic that
they would have. After ``set_fit_request(sites=True)`` scikit-learn's cross-validation passes ``sites`` on.

Side: in a simulation both: one process holds the rows of all sites.

>>> from medley.sklearn import FederatedRidge
>>> from sklearn.datasets import load_diabetes
>>> X, y = load_diabetes(return_X_y=True)
>>> model = FederatedRidge(alpha=0.1).fit(X, y, sites=5)
>>> round(model.score(X, y), 2)
0.51
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .algorithms.fednl import FedNL
from .algorithms.giant import GIANT
from .algorithms.lbfgs import LBFGS
from .algorithms.newton import Newton
from .algorithms.shed import SHED
from .contract import Algorithm, BadData, RecipeError
from .contract.surroundings import set_aside
from .federation.federation import Federation
from .federation.run import run
from .problems.linear import LeastSquares, Linear, Logistic, Softmax
from .storage.history import Row
from .storage.result import Result

Array = np.ndarray

Solver = str | Algorithm[Any, Any]

SOLVERS: dict[str, Callable[[], Algorithm[Any, Any]]] = {
    "newton": Newton,
    "lbfgs": LBFGS,
    "fednl": FedNL,
    "giant": GIANT,
    "shed": SHED,
    "shed.fast": SHED.fast,
}


class _Federated(BaseEstimator):  # type: ignore[misc]
    """The common part of both regressions: sites, weights, the run and its record."""

    fit_intercept: bool
    solver: Solver
    max_iter: int
    tol: float

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _rows(self, X: Any) -> Any:
        """Rows to predict, dense or sparse."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, accept_sparse="csr", reset=False)

    def _read(self, X: Any, y: Any, sample_weight: Any, sites: Any, **checks: Any) -> tuple[Array, ...]:
        """X, y, weights and sites numbered from 0, all without the rows of weight 0."""
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse="csr", **checks)
        w = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        n = len(y)
        if sites is None or isinstance(sites, int):
            if not 1 <= (k := 1 if sites is None else sites) <= n:
                raise RecipeError(f"fit(sites={k}): must be from 1 to the number of rows, {n}", "sites")
            sites = np.arange(n) % k
        sites = np.asarray(sites)
        absent = [not isinstance(s, str) and str(s) in ("None", "nan", "<NA>", "NaT") for s in sites.ravel()]
        if any(absent):
            row = absent.index(True)
            raise BadData(
                f"fit(sites=...): row {row} has no site ({sites.ravel()[row]}); name its site, or leave the row out",
                row=row,
            )
        if sites.shape != (n,):
            raise BadData(f"fit(sites=...): has shape {sites.shape}; give the site of each of the {n} rows")
        keep = w > 0
        return X[keep], y[keep], w[keep], np.unique(sites[keep], return_inverse=True)[1]

    def _run(self, family: Linear, X: Array, y: Array, w: Array, sites: Array) -> Result:
        """Run the solver until ‖∇f‖ ≤ tol·‖∇f(0)‖; otherwise a ConvergenceWarning gives the reason."""
        if isinstance(self.solver, str):
            if self.solver not in SOLVERS:
                raise RecipeError.unknown(self.solver, SOLVERS, f"{type(self).__name__}(solver=...)")
            method = SOLVERS[self.solver]()
        else:
            method = self.solver
        rows = [np.flatnonzero(sites == i) for i in range(sites.max() + 1)]
        with set_aside("fit()"):
            fed = Federation(family, clients=[(X[r], y[r], w[r]) for r in rows])
            sim = fed.draw(0)
            x0 = torch.zeros(sim.problem.d, dtype=sim.problem.dtype)
            goal = self.tol * sim.evaluate(x0, None, grad_norm=True)["grad_norm"]
        result = run(method, fed, self.max_iter, target={"grad_norm": goal}, throw=False, progress=False)
        if result.status.outcome != "target":
            g = result.history[-1]["grad_norm"]
            why = result.status.message or f"‖∇f‖ is {g:.2g} and not {goal:.2g}; raise max_iter, or tol"
            warnings.warn(
                f"{method.name} after {self.max_iter} rounds at most: {why}", ConvergenceWarning, stacklevel=3
            )
        return result

    def _record(self, results: list[Result]) -> None:
        self.n_iter_ = np.array([int(r.history[-1]["round"]) for r in results])
        self.bytes_up_ = sum(int(r.history[-1]["bytes_up"]) for r in results)
        self.history_: list[Row] = [*chain.from_iterable(r.history for r in results)]

    def _split(self, x: Array) -> tuple[Array, Any]:
        """Coefficients and intercepts of parameters [..., features (+ 1)]."""
        return (x[..., :-1], x[..., -1]) if self.fit_intercept else (x, np.zeros(x.shape[:-1]))


class FederatedLogisticRegression(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Logistic regression over sites: minimises C Σ_j w_j l_j + ½‖W‖² as scikit-learn's LogisticRegression does.

    Args:
        C: inverse weight of the ridge, as in scikit-learn. Default 1; inf is no ridge
        multi_class: for more than two classes, "multinomial" (softmax, default) or "ovr" (each against the rest)
        fit_intercept: whether there is an intercept. Default True
        solver: "newton" (default), "lbfgs", "fednl", "giant", "shed", "shed.fast", or a method as ``SHED(pairs=4)``
        max_iter: most rounds of a run. Default 100
        tol: ``fit`` ends where ‖∇f‖ ≤ tol·‖∇f(0)‖, f the mean loss; otherwise it warns. Default 1e-10

    Attributes after ``fit``:

    Args:
        coef_: [k, features], ``intercept_`` [k]: the model; k is the number of classes, or 1 for two classes
        classes_: [classes]: the labels
        n_iter_: rounds of each run
        bytes_up_: bytes that all sites sent
        history_: the rows of all runs' histories
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        multi_class: str = "multinomial",
        fit_intercept: bool = True,
        solver: Solver = "newton",
        max_iter: int = 100,
        tol: float = 1e-10,
    ) -> None:
        self.C = C
        self.multi_class = multi_class
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any, sample_weight: Any = None, sites: Any = None) -> FederatedLogisticRegression:
        """Fit to rows X [n, features] and labels y [n].

        Args:
            sample_weight: weights [n]. Default 1 each
            sites: the site of each row [n], or a number of sites of equal size. Default: one site

        Raises RecipeError (a ValueError) for settings that cannot be used, BadData or another ValueError for such data.
        """
        if not self.C > 0:
            raise RecipeError(
                f"FederatedLogisticRegression(C={self.C}): must be above 0; for no ridge penalty give inf", "C"
            )
        if self.multi_class not in ("multinomial", "ovr"):
            raise RecipeError.unknown(self.multi_class, ("multinomial", "ovr"), "FederatedLogisticRegression")
        X, y, w, sites = self._read(X, y, sample_weight, sites)
        check_classification_targets(y)
        self.classes_, label = np.unique(y, return_inverse=True)
        k = len(self.classes_)
        if k < 2:
            raise BadData(
                f"all rows with a weight are of one class, {self.classes_.tolist()[0]!r}; at least 2 are needed"
            )
        mu = 1 / (self.C * w.sum())
        if k > 2 and self.multi_class == "multinomial":
            results = [self._run(Softmax(mu, self.fit_intercept), X, label, w, sites)]
        else:
            positive = [1] if k == 2 else range(k)
            family = Logistic(mu, self.fit_intercept)
            results = [self._run(family, X, (label == c).astype(np.int64), w, sites) for c in positive]
        self._record(results)
        x = np.concatenate([r.x.numpy() for r in results]).reshape(1 if k == 2 else k, -1)
        self.coef_, self.intercept_ = self._split(x)
        if len(results) < len(x):
            # Softmax is the same if all intercepts change by the same number; here their mean is 0.
            self.intercept_ = self.intercept_ - self.intercept_.mean()
        return self

    def decision_function(self, X: Any) -> Array:
        """Margins [n] of the second of two classes, or outputs [n, classes]."""
        z: Array = self._rows(X) @ self.coef_.T + self.intercept_
        return z[:, 0] if len(self.classes_) == 2 else z

    def predict(self, X: Any) -> Array:
        """Labels [n]."""
        z = self.decision_function(X)
        return np.asarray(self.classes_[(z > 0).astype(int) if z.ndim == 1 else z.argmax(1)])

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [n, classes]; with "ovr" each is computed by itself and divided by their sum."""
        z = self.decision_function(X)
        if z.ndim == 1:
            return np.stack([expit(-z), expit(z)], 1)
        if self.multi_class == "multinomial":
            return np.asarray(softmax(z, 1))
        p = expit(z)
        return np.asarray(p / p.sum(1, keepdims=True))


class FederatedRidge(RegressorMixin, _Federated):  # type: ignore[misc]
    """Ridge regression over sites: minimises Σ_j w_j (y_j − z_j)² + alpha ‖w‖² as scikit-learn's Ridge does.

    Settings and attributes as `FederatedLogisticRegression`'s; ``coef_`` is [features] and ``intercept_`` a number.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        solver: Solver = "newton",
        max_iter: int = 100,
        tol: float = 1e-10,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any, sample_weight: Any = None, sites: Any = None) -> FederatedRidge:
        """Fit to rows X [n, features] and targets y [n]; ``sites`` and errors as in `FederatedLogisticRegression`."""
        X, y, w, sites = self._read(X, y, sample_weight, sites, y_numeric=True)
        family = LeastSquares(self.alpha / w.sum(), self.fit_intercept)
        result = self._run(family, X, y.astype(np.float64), w, sites)
        self._record([result])
        self.coef_, self.intercept_ = self._split(result.x.numpy())
        return self

    def predict(self, X: Any) -> Array:
        """Predictions [n]."""
        return np.asarray(self._rows(X) @ self.coef_ + self.intercept_)
