"""Mixed: a linear mixed model, with random effects of sites and of groups within sites, from one exchange of sums.

**Reference**: Bates, Mächler, Bolker & Walker, Journal of Statistical Software 67, 2015, for the model and its profiled
likelihood; Luo et al., Nature Communications 13, 2022 (DLMM), for its sums by site.

**One round sends** (floats per site, e columns of the model with the outcome, q effects of a group, h strata): the
categories, as `GLM`; e(e + 1)/2 + 2 to begin, again for each change of basis; then as many, and for each stratum
1 + q² + e(e + 1)/2 · q(q + 1)/2. A stratum is all groups of a site with the same ZᵀZ: with as many rows, if
intercepts alone are random. The server searches alone: no site answers at variances that a server chooses.

**Departures**: p-values are of z under the normal distribution; lme4 has none. Unless its rules are exact, a site
rounds its sums of the outcome, see `medley.statistics.rounding`.

**Checked against**: the likelihood of all rows with a whole covariance matrix, in `tests/statistics/test_mixed.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..contract import Client, Cohort, Message, RecipeError, at_least, on_client
from .analysis import Analysis, Json, Report, lower, packed, site_of, tensor, unpacked, upper
from .basis import Basis
from .cells import factorized
from .families import FAMILIES
from .formulas import design, parsed, within
from .glm import Rows, design_names, within_basis
from .groups import Grouped, Groups, rare
from .profiled import SINGULAR, Factor, Likelihood
from .random_terms import SITE, Terms, terms
from .rounding import Outcome
from .scoring import Unfit, inverse
from .site import Site, within_used


class Request(Message):
    """Down: all sites' categories; their rows; T's triangle, empty for none; b [p], which is taken off the outcome;
    and the columns of groups' effects as they are fitted [q, q], empty until sums by stratum are asked for.
    """

    terms: Json
    rows: int
    basis: Float[Tensor, " t"]
    b: Float[Tensor, " p"]
    turn: Float[Tensor, "q q"]


class Sums(Message):
    """Up: BᵀB's triangle; by stratum the number of groups, ZᵀZ, and sums of products of ZᵀB, a triangle for each pair
    of effects; the rows, and the groups, that ``alike`` leaves out.
    """

    gram: Float[Tensor, " g"]
    counts: Float[Tensor, " h"]
    M: Float[Tensor, "h q q"]
    C: Float[Tensor, "h m c"]
    left_out: Float[Tensor, " 2"]


class Layout(NamedTuple):
    """The columns' names, those of the fixed effects first, how many these are, and the places of the random effects'
    columns, by block, of groups and of sites.
    """

    names: list[str]
    p: int
    groups: list[list[int]]
    sites: list[list[int]]


@dataclass(frozen=True)
class Mixed(Analysis):
    """A linear mixed model.

    Attributes:
        formula: "y ~ days + (days | patient) + (1 | site)", in lme4's notation; "site" is the study's sites, any other
            group a column that names groups within sites
        reml: whether the likelihood is the restricted one. Default True
        where: a condition on the rows, "age >= 18"; empty for all
        alike: if not 0, leave out the groups of a site of which fewer than this, or than its rules' rows, have as many
            rows with the same values of the random effects' columns; at least as many groups as these rows are left
            out, and the result counts them. Default 0: their site refuses
        family: "gaussian", the only one
    """

    call = "mixed"

    formula: str
    reml: bool = True
    where: str = ""
    alike: Annotated[int, at_least(0)] = 0
    family: str = "gaussian"

    refuses_secure: ClassVar[str] = (
        "a mixed model weighs each site's own sums by variances that are not yet known, and secure sums hide them: "
        "leave one of both out"
    )

    def __post_init__(self) -> None:
        if self.family != "gaussian":
            raise RecipeError(
                f"mixed(family={self.family!r}): only linear models have a likelihood of sums. For an outcome of 0 and "
                "1 or of counts, fit study.glm with sites='fixed' for the sites' effects, cov='HC1' for errors that "
                "hold without the model, or combine the sites' own fits by study.meta",
                "family",
            )
        super().__post_init__()

    @property
    def terms(self) -> Terms:
        """The formula's parts."""
        return terms(self.formula)

    @property
    def cluster(self) -> str:
        """The column of groups, whose names stay at their site."""
        return self.terms.group

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        parts = [parsed(text) for text in (self.terms.fixed, *(r.formula for r in self.terms.random))]
        columns = dict.fromkeys(c for f in parts for c in f.columns) | dict.fromkeys(filter(None, [self.cluster]))
        return tuple(columns), tuple(dict.fromkeys(c for f in parts for c in f.categorical))

    def used(self, site: Site) -> tuple[np.ndarray, int]:
        """See `Analysis.used`; without the groups that are like too few others, if ``alike`` says so."""
        used, missing = super().used(site)
        if self.alike and self.cluster:
            parts = [parsed(f) for f in self.terms.blocks(of_site=False)]
            columns = [c for f in parts for c in f.columns if c != f.response]
            used = used & ~rare(site, used, self.cluster, columns, self.alike)
            site.least(int(used.sum()), f"rows of {self.cluster} that are like enough others")
        return used, missing

    def layout(self, levels: dict[str, list[str]]) -> Layout:
        """The columns, from the categories alone."""
        fixed = design_names(self.terms.fixed, levels)
        blocks = {of: [design_names(f, levels) for f in self.terms.blocks(of)] for of in (False, True)}
        names = list(dict.fromkeys([*fixed, *(name for b in (*blocks[False], *blocks[True]) for name in b)]))
        places = [[[names.index(name) for name in b] for b in blocks[of]] for of in (False, True)]
        for of in places:
            twice = [names[k] for b in of for k in b if sum(k in other for other in of) > 1]
            if twice:
                raise RecipeError(f"mixed({self.formula!r}): {twice[0]} has two random effects of a group", "formula")
        return Layout(names, len(fixed), *places)

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on categories, find a basis, read each site's sums by stratum, and search for the variances."""
        levels, rows = self.agreed(clients)
        layout, n, sites = self.layout(levels), int(rows[:, 0].sum()), len(clients.ids)
        names, p = layout.names, layout.p
        if not p or p >= n:
            raise Unfit(f"mixed: {p} fixed effects of {n} rows cannot be fitted")
        for block in layout.sites:
            if sites < 2 or len(block) * sites >= n:
                raise Unfit(
                    f"mixed: {len(block)} random effects of each of {sites} sites cannot be told from {n} rows; give "
                    "sites several rows each, and the study at least two sites, or leave out their effects"
                )
        T, d = Basis(names[:p]), len(names)
        point: dict[str, Any] = {"terms": packed(levels), "rows": n, "basis": tensor([]), "b": tensor(np.zeros(p))}
        none = tensor(np.zeros((0, 0)))
        while True:
            gram = lower(self.summed(clients, self.gram, Request(turn=none, **point)).gram)
            if not T.improved(gram[:p, :p]):
                break
            point["basis"] = tensor(T.T[np.triu_indices(p)])
        if gram[-1, -1] <= 0:
            raise Unfit(f"{parsed(self.terms.fixed).response} is 0 at all sites: there is nothing to explain")
        squares = float(gram[-1, -1])
        point["b"] = tensor(inverse(gram[:p, :p]) @ gram[:p, -1])
        whole = np.eye(d)
        whole[:p, :p] = T.T
        turns = [
            _turn(gram[:d, :d], np.linalg.inv(whole), blocks, n, names) for blocks in (layout.groups, layout.sites)
        ]
        ups = clients.ask(self.strata, Request(turn=tensor(turns[0]), **point)).each()
        S = np.linalg.solve(whole, np.eye(d)[:, [k for b in layout.sites for k in b]]) @ turns[1]
        factors = [Factor([len(b) for b in of], t) for of, t in zip(layout[2:], turns, strict=True)]
        model = _likelihood(ups, factors, S, (n, p, self.reml, squares))
        self._refuse_too_many(layout, int(model.counts.sum()), n)
        left = np.array([ups[i].left_out.numpy() for i in sorted(ups)])
        s.result = self._found(model, layout, T.T, point["b"].numpy()) | {"left_out": left}, rows

    def _refuse_too_many(self, layout: Layout, groups: int, n: int) -> None:
        """Raise Unfit unless the groups are fewer than the rows, and their effects, too, as lme4 does."""
        for block in layout.groups:
            if groups < 2 or len(block) * groups >= n:
                raise Unfit(
                    f"mixed: {len(block)} random effects of each of {groups} values of {self.cluster} cannot be told "
                    f"from the residuals of {n} rows; leave out random slopes, or name a column with several rows each"
                )

    def _found(self, model: Likelihood, layout: Layout, T: np.ndarray, b: np.ndarray) -> dict[str, Any]:
        theta = model.fit()
        at = model.at(torch.from_numpy(theta))
        k, scale = len(model.groups.rows), float(at.scale)
        covariances, least = {}, np.inf
        for name, factor, blocks, part in (
            (self.cluster, model.groups, layout.groups, theta[:k]), (SITE, model.sites, layout.sites, theta[k:]),
        ):  # fmt: skip
            if len(part):
                L = factor.of(torch.from_numpy(part)).numpy()
                least = min(least, float(np.linalg.svd(L)[1].min()))
                root = factor.turn @ L
                covariances[name] = [layout.names[j] for b in blocks for j in b], scale * root @ root.T
        return {
            "names": layout.names[: layout.p], "b": T @ (b + at.b.numpy()), "covariances": covariances, "scale": scale,
            "cov": scale * T @ inverse(at.H.numpy()) @ T.T, "criterion": float(at.criterion),
            "parameters": layout.p + len(theta) + 1, "singular": least < SINGULAR,
            "groups": int(model.counts.sum()),
            "effects": model.effects(theta) if len(theta) > k else None
        }  # fmt: skip

    @on_client
    def gram(self, me: Client[Any], request: Request) -> Sums:
        """Products of each pair of columns, the outcome's among them."""
        r = self._rows(site_of(me), request)
        return _no_strata(self._products(r, request)[0])

    @on_client
    def strata(self, me: Client[Any], request: Request) -> Sums:
        """Products of each pair of columns; by stratum the groups, and products of the groups' sums."""
        site = site_of(me)
        r, q = self._rows(site, request), len(request.turn)
        gram, base, A = self._products(r, request)
        if not q:
            return _no_strata(gram)
        layout, turn = self.layout(unpacked(request.terms)), request.turn.numpy()
        Z = r.D[:, [k for b in layout.groups for k in b]]
        fitted = Z @ turn
        M = np.add.reduceat(fitted[:, :, None] * fitted[:, None], r.starts)
        by_group = np.add.reduceat((Z if r.outcome else fitted)[:, :, None] * base[:, None], r.starts)
        first, counts = np.unique(r.stratum, return_index=True, return_counts=True)[1:]
        C = np.stack([np.einsum("iaj,ibk->abjk", D, D) for D in (by_group[r.stratum == h] for h in range(len(first)))])
        if r.outcome is not None:
            C = self._rounded(site, r, C, by_group, layout)
            C = np.einsum("ac,bd,habjk,jl,km->hcdlm", turn, turn, C, A, A, optimize=True)
        C = (C + C.transpose(0, 2, 1, 3, 4)) / 2
        a, b = np.triu_indices(q)
        j, k = np.triu_indices(C.shape[-1])
        C = (C + C.transpose(0, 1, 2, 4, 3)) / 2
        left = super().used(site)[0] & ~self.used(site)[0]
        rows_groups = [left.sum(), site.columns[self.cluster][left].nunique()]
        return Sums(
            tensor(upper(gram)), tensor(counts), tensor(M[first]), tensor(C[:, a, b][:, :, j, k]), tensor(rows_groups)
        )

    def _products(self, r: Grouped, request: Request) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """BᵀB; the columns whose sums leave, rounded or not; and B's columns as combinations of them."""
        p, b = len(request.b), request.b.numpy()
        X = within_basis(r.D[:, :p], request.basis)
        d = r.D.shape[1]
        if r.outcome is None:
            B = np.column_stack([X, r.D[:, p:], r.y - X @ b])
            return B.T @ B, B, np.eye(d + 1)
        H = r.D.T @ r.D
        own = np.linalg.pinv(H, hermitian=True) @ r.outcome.Xy
        left = r.outcome.Xy - H @ own
        squares = float(r.outcome.a @ r.outcome.a + r.outcome.sums[0] - own @ (r.outcome.Xy + left))
        sums = np.block([[H, left[:, None]], [left[None], np.array([[squares]])]])
        A = np.eye(d + 1)
        A[:p, :p] = within_basis(np.eye(p), request.basis)
        A[:d, -1] = own - A[:d, :p] @ b
        return A.T @ sums @ A, np.column_stack([r.D, r.y - r.D @ own]), A

    def _rounded(self, site: Site, r: Grouped, C: np.ndarray, by_group: np.ndarray, layout: Layout) -> np.ndarray:
        """The products by stratum, those of the outcome on grids."""
        assert r.outcome is not None
        out, at = C.copy(), [layout.names[k] for b in layout.groups for k in b]
        for h in range(len(C)):
            D = by_group[r.stratum == h]
            mine = np.isin(np.repeat(r.stratum, np.diff([*r.starts, len(r.y)])), h)
            of = site.digest(within_used(r.outcome.used, mine[np.argsort(r.order)]), np.ones(int(mine.sum())))
            for a, first in enumerate(at):
                for b, second in enumerate(at):
                    rows = D[:, a] * D[:, b, -1:]
                    keys = [f"{self.cluster} {of} {first} {second} {name}" for name in (*layout.names, "1")]
                    values = r.outcome.rounded(rows.sum(0), np.sqrt(len(D)) * rows.std(0), keys)
                    out[h, a, b, :, -1] = out[h, b, a, -1, :] = values
        return out

    def _rows(self, site: Site, request: Request) -> Grouped:
        """The site's rows of this fit, once they may leave; they are kept for the next exchange."""
        key = repr(self), bytes(request.terms.numpy())
        if key not in site.kept:
            site.kept.clear()
            site.kept[key] = self._prepared(site, unpacked(request.terms), request.rows)
        rows: Grouped = site.kept[key]
        return rows

    def _prepared(self, site: Site, levels: dict[str, list[str]], everywhere: int) -> Grouped:
        if site.own and any(r.group == SITE for r in self.terms.random):
            raise RecipeError(f"{site.name} has a column 'site', and (1 | site) is of the study's sites: rename yours")
        used, _ = self.used(site)
        frame, columns = site.at(used), dict[str, np.ndarray]()
        beside = dict[str, np.ndarray]()
        for text in (self.terms.fixed, *(r.formula for r in self.terms.random)):
            f = parsed(text)
            names, X = design(f, frame, levels, site.name)
            columns |= dict(zip(names, X.T, strict=True)) | columns
            beside |= within(f, frame, levels, site.name, names, X)
        layout = self.layout(levels)
        D = np.column_stack([columns[name] for name in layout.names])
        response = parsed(self.terms.fixed).response
        y = site.column(used, response, 0.0)
        if len(values := np.unique(y)) <= 3:
            for v in values:
                site.cell(y == v, response)
        site.check_size(int((np.abs(D).sum(0) > 0).sum()), len(y), everywhere)
        site.admit_fit(used, D, layout.names, [c for c in self.reads[0] if c != self.cluster], None, False, beside)
        outcome = None
        if site.rules.rounded:
            rows = Rows(D, y, np.ones(len(y)), np.zeros(len(y)), None)
            own = factorized(frame[self.cluster])[0] if self.cluster else np.arange(len(y))
            values = np.bincount(np.unique([own, y], axis=1)[0].astype(int))
            most = int(np.where(values == 1, 1, np.bincount(own)).sum())  # who knows that a group's are equal seeks one
            outcome = Outcome.of(site, response, used, FAMILIES["gaussian"], rows, True, most)
        if not self.cluster:
            return Grouped(D, y, np.zeros(0, int), np.zeros(0, int), np.arange(len(y)), outcome)
        codes = factorized(site.columns[self.cluster])[0]
        Z = D[:, [k for b in layout.groups for k in b]]
        order = np.lexsort((*Z.T[::-1], codes[used]))  # so that equal rows have equal sums, to the bit
        starts = np.unique(codes[used][order], return_index=True)[1]
        M = np.add.reduceat(Z[order, :, None] * Z[order, None], starts).reshape(len(starts), -1)
        stratum = np.unique(M, axis=0, return_inverse=True)[1].ravel()
        r = Grouped(D[order], y[order], starts, stratum, order, outcome)
        Groups(site, self.cluster, codes, used, r).admit(Z[order], layout.names)
        return r


def _no_strata(gram: np.ndarray) -> Sums:
    """The sums of a site of which no groups are asked for."""
    nothing = tensor(np.zeros((0, 0, 0)))
    return Sums(tensor(upper(gram)), tensor([]), nothing, nothing, tensor(np.zeros(2)))


def _turn(H: np.ndarray, back: np.ndarray, blocks: list[list[int]], n: int, names: list[str]) -> np.ndarray:
    """The columns of random effects that are fitted, of each block of about the same size and not correlated, as
    combinations of its own columns [q, q]; ``back`` has the columns as combinations of those whose squares are H.
    """
    size = np.sqrt(np.maximum(np.diag(H), 1e-300))
    s, u = np.linalg.eigh(H / np.outer(size, size))
    half = np.sqrt(np.maximum(s, 0.0))[:, None] * u.T * size @ back
    q, at = sum(map(len, blocks)), 0
    out = np.zeros((q, q))
    for block in blocks:
        R = np.linalg.qr(half[:, block] / np.sqrt(n))[1]
        if (np.abs(np.diag(R)) < 1e-10 * np.sqrt((R**2).sum(0))).any() or not R.any():
            raise Unfit(
                f"collinear: the columns of random effects, {', '.join(names[k] for k in block)}; leave one out"
            )
        out[at : at + len(block), at : at + len(block)] = np.linalg.inv(R)
        at += len(block)
    return out


def _likelihood(
    ups: dict[int, Sums], factors: list[Factor], S: np.ndarray, rest: tuple[int, int, bool, float]
) -> Likelihood:
    """The likelihood of all sites' sums."""
    replies = [ups[i] for i in sorted(ups)]
    gram = torch.stack([tensor(lower(up.gram)) for up in replies])
    e, q = gram.shape[-1], sum(factors[0].sizes)
    counts = torch.cat([up.counts for up in replies])
    C = torch.zeros(len(counts), q, q, e, e, dtype=torch.float64)
    if q:
        a, b = np.triu_indices(q)
        j, k = np.triu_indices(e)
        flat = torch.cat([up.C for up in replies])
        for m, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
            C[:, x, y, j, k] = C[:, y, x, j, k] = flat[:, m]
            C[:, x, y, k, j] = C[:, y, x, k, j] = flat[:, m]
    M = torch.cat([up.M for up in replies]) if q else torch.zeros(0, 0, 0, dtype=torch.float64)
    site = torch.repeat_interleave(torch.arange(len(replies)), torch.tensor([len(up.counts) for up in replies]))
    columns = tensor(np.vstack([S, np.zeros((1, S.shape[1]))]))
    return Likelihood(gram, site, counts, M, C, factors[0], factors[1], columns, *rest)
