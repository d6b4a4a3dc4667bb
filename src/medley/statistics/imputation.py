"""Multiple imputation by chained equations: missing cells are drawn at their site, from models of all sites' rows.

**Reference**: van Buuren & Groothuis-Oudshoorn, "mice", Journal of Statistical Software 45(3), 2011; Rubin, "Multiple
Imputation for Nonresponse in Surveys", 1987, section 5.3. The draws are those of mice's ``norm`` and ``logreg``.

A column is regressed on the others, over the rows of all sites that have it, by `GLM`, so that only sums leave. With
the coefficients b, their covariance V, and z, u and χ² from random streams, an imputation takes

    σ* = σ √(ν / χ²_ν),  b* = b + (σ*/σ) V^½ z,  x = X b* + σ* u     for numbers, with ν = n − p,
    b* = b + V^½ z,  P(x = 1) = 1 / (1 + exp(−X b*))                  for two categories.

The server draws coefficients once for all sites; a site draws its cells from a stream by its name, so that neither the
order of sites nor another site changes them. A chain begins with values drawn from those that the site has.

**Departures**: mice adds weighted rows to every logistic model (White, Daniel & Royston, 2010), and here a model whose
columns separate the two categories stops with `Stalled`, which names them. If a single
column is incomplete, its model depends on no draw, so it is fitted once and visited once.

**What would leave**: whoever knows a site's draws could solve the sums of many imputations for single rows, so streams
follow from a secret. Draws of two categories are zeros and ones: sums of two imputations that differ in few cells would
be about these rows, so a site refuses them.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..contract import BadData, RecipeError, Stalled
from ..contract.arguments import method_with
from ..rows.coding import text
from ..runtime.streams import rng
from ..server.bookkeeping import Bookkeeping
from .analysis import Analysis, unpacked
from .bootstrap import refuse_rounded
from .cells import in_sequence, is_numeric, is_text, numbers, texts
from .extra import InNotebooks, needed
from .families import LINKS
from .formulas import NAME, check_columns, complete, design, parsed
from .glm import GLM
from .margins import Margins
from .ordinal import Ordinal
from .register import Register
from .rubin import PooledFit
from .rules import Withheld
from .site import Site
from .survival import Cox

log = logging.getLogger("medley")

Cells = dict[tuple[int, str], np.ndarray]
"""The values of missing cells, of numbers or of 0 and 1 for two categories, by site and column."""


class Model(NamedTuple):
    """The model of an incomplete column; ``levels`` are its two categories, none for numbers."""

    column: str
    glm: GLM
    levels: tuple[str, ...]

    def coded(self, site: Site) -> np.ndarray:
        """The column as the model's outcome [n], missing as NaN."""
        plain, values = cells_of(site, self.column)
        if not self.levels:
            return values
        return np.where(gone(site, self.column), np.nan, values == (float(self.levels[1]) if plain else self.levels[1]))

    def completed(self, site: Site, cells: np.ndarray) -> np.ndarray:
        """The column with these values in its missing cells."""
        plain, out = cells_of(site, self.column)
        levels = np.array(self.levels, float if plain else object)
        out[gone(site, self.column)] = levels[cells.astype(int)] if self.levels else cells
        return out


def cells_of(site: Site, column: str) -> tuple[bool, np.ndarray]:
    """Whether a column is numbers at this site, and these, or its texts [n]; missing as NaN or None."""
    plain = is_numeric(site.frame[column])
    return plain, (numbers if plain else texts)(site.frame, column, site.name)


def gone(site: Site, column: str) -> np.ndarray:
    """The rows of a site that lack a column [n]."""
    return ~complete(site.columns, [column])


class Imputed(InNotebooks):
    """A study whose missing cells have been drawn m times: Rubin's rules combine the fits of all m.

    Attributes:
        study: the study that lacks the cells
        m, iterations: how many imputations there are, and how often each chain visited a column
        models: the formula of each imputed column
        counts: the imputed cells by site and column, a frame; nothing else is imputed
        bytes_up: what the sites sent for the imputations
    """

    def __init__(self, study: Any, models: Sequence[Model], draws: Sequence[Cells], iterations: int, sent: int) -> None:
        self.study, self.m, self.iterations, self.bytes_up = study, len(draws), iterations, sent
        self.models = {model.column: model.glm.text for model in models}
        of = {c: [int(gone(site, c).sum()) for site in study.sites.values()] for c in self.models}
        self.counts = needed("pandas").DataFrame(of, [site.name for site in study.sites.values()])
        self._models, self._draws = models, draws
        self._registers = dict[tuple[int, int], Register]()

    def run(self, analysis: Analysis) -> PooledFit:
        """Run an analysis with coefficients on each of the m completed studies, and combine them.

        Raises RecipeError for a condition on an imputed column, which would pick other rows in each.
        """
        for key in ("where", "over"):
            named = {m["quoted"] or m["plain"] for m in NAME.finditer(getattr(analysis, key, ""))}
            if chosen := [c for c in self.models if c in named]:
                raise RecipeError(
                    f"{analysis.call}({key}=...): {chosen[0]} is imputed, and each imputation would have other rows; "
                    "give a condition on columns that no row lacks, or cut the rows before the study",
                    key,
                )
        fits, sent = list[Any](), 0
        for k, cells in enumerate(self._draws):
            completed = filled(self.study, self._models, cells)
            for i, site in completed.sites.items() if k else ():
                site.register = self._registers[k, i] = site.register.beside(self._registers.get((k, i)))
            fits.append(completed.run(analysis))
            sent += sum(e.up for e in completed.ledger)
        self._warn_of(analysis)
        return PooledFit(fits, self.counts, self.iterations, sent)

    def _warn_of(self, analysis: Analysis) -> None:
        """Say which columns of an analysis had no part in the imputation of another one of its columns."""
        reads = analysis.reads[0]
        part = {c for model in self._models for c in model.glm.reads[0]}
        if (apart := [c for c in reads if c not in part]) and {*reads} & {*self.models}:
            log.warning(
                "%s: %s had no part in the imputation, so that its relation to imputed columns shrinks; name it in "
                "study.impute(...)", analysis.call, ", ".join(apart),
            )  # fmt: skip

    @method_with(GLM)
    def glm(self, analysis: GLM) -> PooledFit:
        """Fit a generalised linear model to each imputation."""
        return self.run(analysis)

    @method_with(Cox)
    def cox(self, analysis: Cox) -> PooledFit:
        """Fit Cox's model to each imputation."""
        return self.run(analysis)

    @method_with(Ordinal)
    def ordinal(self, analysis: Ordinal) -> PooledFit:
        """Fit an ordinal logit to each imputation."""
        return self.run(analysis)

    @method_with(Margins)
    def margins(self, analysis: Margins) -> PooledFit:
        """Average the predictions of each imputation's model."""
        return self.run(analysis)

    def summary(self) -> str:
        """What is imputed, by which models."""
        head = f"{self.m} imputations by chained equations, {self.iterations} visits of a column; imputed cells by site"
        return "\n".join([head, self.counts.to_string(), *self.models.values()])


def impute(study: Any, columns: Sequence[str], m: int, iterations: int, seed: int | None, sites: Any) -> Imputed:
    """Draw the missing cells; see `Study.impute`."""
    for key, value, least in (("m", m, 2), ("iterations", iterations, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise RecipeError(f"impute({key}={value!r}): give a whole number, {least} or more", key)
    refuse_rounded(study, "impute()", f"{m} imputations", "fit to the complete rows")
    secret = study.secret if seed is None else seed
    models = models_of(study, columns, sites)
    check(study, models)
    iterations = iterations if len(models) > 1 else 1
    chain = Chain(study, models, secret)
    draws = [chain.draw(k, iterations) for k in range(m)]
    imputed = Imputed(study, models, draws, iterations, chain.sent)
    log.info("impute: %s", imputed.summary())
    return imputed


class Chain:
    """The chains of a study's imputations; ``sent`` are the bytes that the sites sent for their models."""

    def __init__(self, study: Any, models: Sequence[Model], secret: int) -> None:
        self.study, self.models, self.secret, self.sent = study, models, secret, 0
        self._single: Any = None

    def draw(self, k: int, iterations: int) -> Cells:
        """The cells of imputation k."""
        cells = Cells()
        for model in self.models:
            for i, site in self.study.sites.items():
                present = model.coded(site)[~gone(site, model.column)]
                random = rng(self.secret, "impute", model.column, site.name, k, 0)
                cells[i, model.column] = random.choice(present, int(gone(site, model.column).sum()))
                if len(self.models) > 1:
                    refuse_near(site, model, cells[i, model.column])
        for t in range(1, iterations + 1):
            for model in self.models:
                self._visit(model, cells, k, t)
        return cells

    def _visit(self, model: Model, cells: Cells, k: int, t: int) -> None:
        """Fit a column's model, draw its coefficients, and let each site draw its cells."""
        study = filled(self.study, self.models, cells)
        fit = self._single or self._fitted(study, model, first=(k, t) == (0, 1))
        self._single = fit if len(self.models) == 1 else None
        random = rng(self.secret, "impute", model.column, k, t)
        wide, sigma = 1.0, 0.0
        if not model.levels:
            wide = float(np.sqrt(fit.df_resid / random.chisquare(fit.df_resid)))
            sigma = wide * float(np.sqrt(fit.scale))
        b = fit.b + wide * np.linalg.cholesky(fit.covariance) @ random.standard_normal(len(fit.b))
        levels = unpacked(fit.point["terms"])
        for i, site in study.sites.items():
            random = rng(self.secret, "impute", model.column, site.name, k, t)
            eta = rows_of(model, site.at(gone(self.study.sites[i], model.column)), site.name, levels) @ b
            if model.levels:
                cells[i, model.column] = 1.0 * (random.random(len(eta)) < LINKS["logit"].mean(eta))
                refuse_near(self.study.sites[i], model, cells[i, model.column])
            else:
                cells[i, model.column] = eta + sigma * random.standard_normal(len(eta))

    def _fitted(self, study: Any, model: Model, first: bool) -> Any:
        """The model's fit to the rows that have its column; the first leaves its rows in the sites' registers."""
        for i, site in study.sites.items():
            site.frame = site.frame.assign(**{model.column: model.coded(self.study.sites[i])})
            site.register = site.register if first else site.register.beside()
        try:
            fit = study.run(model.glm)
        except Stalled as e:
            raise Stalled(
                f"impute(), the model of {model.column}, {model.glm.formula!r}: {e}; or give {model.column} a model "
                f"without it, such as '{model.column} ~ ...' in its place"
            ) from e
        self.sent += sum(e.up for e in study.ledger)
        return fit


def filled(study: Any, models: Sequence[Model], cells: Mapping[tuple[int, str], np.ndarray]) -> Any:
    """The study with these cells, and a ledger of its own; registers are the sites' own."""
    out = copy.copy(study)
    out.books, out.sites = Bookkeeping(), {}
    for i, site in study.sites.items():
        frame = site.frame.assign(**{m.column: m.completed(site, cells[i, m.column]) for m in models})
        lacked = {m.column: n for m in models if (n := int(gone(site, m.column).sum()))}
        out.sites[i] = replace(site, frame=frame, kept={}, picked=None, imputed=lacked)
    return out


def rows_of(model: Model, rows: Any, site: str, levels: dict[str, list[str]]) -> np.ndarray:
    """The design of the rows that lack the column. Raises BadData for a category that only such rows have."""
    f = parsed(model.glm.text)
    for c in f.categorical:
        if {*texts(rows, c, site)} - {*levels[c]}:
            raise BadData(f"{site}: {c} has a category of which each row lacks {model.column}; merge it with another")
    return design(f, rows, levels, site)[1]


def refuse_near(site: Site, model: Model, cells: np.ndarray) -> None:
    """Raise Withheld if these draws of two categories differ from earlier ones in fewer cells than the least number."""
    if not model.levels:
        return
    drawn, key = ~gone(site, model.column), f"imputed {model.column}"
    drawn[~drawn] = cells
    with site.register.reading():  # other studies of these rows draw other cells
        now = site.register.spread(drawn)
        earlier = [np.pad(s, (0, len(now) - len(s))) for s in site.register.sets.get(key, {}).values()]
    differ = np.array([np.count_nonzero(now != other) for other in earlier])
    if ((differ > 0) & (differ < site.rules.rows)).any():
        raise Withheld(
            f"{site.name} withholds: two imputations of {model.column} differ in fewer than {site.rules.rows} rows, "
            "and a difference of their sums would be about these; take fewer imputations and iterations, or leave out "
            f"the rows that lack it, a study's complete=[{model.column!r}]"
        )
    site.register.add([key], [drawn])


def models_of(study: Any, columns: Sequence[str], sites: Any) -> list[Model]:
    """A model for each of the columns that a row lacks. Raises RecipeError for columns that cannot be imputed."""
    if isinstance(columns, str) or not columns or not all(isinstance(c, str) for c in columns):
        raise RecipeError(f"impute(columns={columns!r}): give a list of columns, or of formulas", "columns")
    formulas = {parsed(c).response: c for c in columns if "~" in c}
    plain = {c: re.fullmatch(r"C\((.+)\)", c) for c in columns if "~" not in c}
    categories = {match[1].strip("`") for match in plain.values() if match}
    names = [parsed(c).response if "~" in c else (match[1] if (match := plain[c]) else c).strip("`") for c in columns]
    if len({*names}) < len(names):
        raise RecipeError(f"impute(columns={columns!r}): give each column once", "columns")
    for site in study.sites.values():
        check_columns(site.columns, names, site.name)
        categories |= {c for c in names if is_text(site.columns, c, site.name)}
    quoted = {c: c if c.isidentifier() else f"`{c}`" for c in names}
    terms = {c: f"C({quoted[c]})" if c in categories else quoted[c] for c in names}
    out = list[Model]()
    for c in names:
        if not any(gone(site, c).any() for site in study.sites.values()):
            continue
        others = " + ".join(term for name, term in terms.items() if name != c)
        if not others and c not in formulas:
            raise RecipeError(
                f"impute({[c]!r}): {c} would be drawn whatever else is known of a patient, and its effects would "
                f"shrink; name all columns of the analysis, its outcome among them, or say so: '{quoted[c]} ~ 1'",
                "columns",
            )
        levels = levels_of(study, c, c in categories)
        formula = formulas.get(c, f"{quoted[c]} ~ {others}")
        out.append(Model(c, GLM(formula, "binomial" if levels else "gaussian", sites=sites), levels))
    if not out:
        raise RecipeError(
            f"impute(columns={columns!r}): no row lacks any of them, so there is nothing to impute", "columns"
        )
    for formula, read in [(model.glm.formula, model.glm.reads[0]) for model in out]:
        for site in study.sites.values():
            check_columns(site.columns, read, site.name)
            if odd := [c for c in read if c not in {m.column for m in out} and gone(site, c).any()]:
                raise RecipeError(
                    f"impute({formula!r}): rows of {site.name} lack {odd[0]}; name it among the columns", "columns"
                )
    return out


def levels_of(study: Any, column: str, category: bool) -> tuple[str, ...]:
    """The two categories of a column, 0 and 1 of numbers that have no others, or none for numbers."""
    found: set[Any] = set()
    for site in study.sites.values():
        if column in ("site", site.rules.id):
            raise RecipeError(f"impute(): {column} says who a row is of, which no model knows; leave it out", "columns")
        _, values = cells_of(site, column)
        found |= {*map(text, np.unique(values[~gone(site, column)]))}
    if len(found) < 2:
        only = f"has one value, {min(found)}, wherever it is" if found else "has no value at any site"
        raise RecipeError(f"impute(): {column} {only}, and a model tells nothing of it; leave it out", "columns")
    if not category and not found <= {"0", "1"}:
        if len(found) < 3:
            raise RecipeError(
                f"impute(): {column} has fewer than three values; write C({column}), or recode to 0 and 1", "columns"
            )
        return ()
    if len(found) != 2:
        raise RecipeError(
            f"impute(): {column} has {len(found)} categories, and Medley imputes two; merge some at the sites, or "
            "leave the column out",
            "columns",
        )
    return tuple(in_sequence([*found]))


def check(study: Any, models: Sequence[Model]) -> None:
    """Ask each site whether figures over all its rows, and over those that have a column, may both leave."""
    for model in models:
        for site in study.sites.values():
            lacks = gone(site, model.column)
            if lacks.all():
                raise BadData(
                    f"{site.name} has no value of {model.column}, and other sites' models do not stand for its rows; "
                    f"leave out the column, or the site, study.without({site.name!r})"
                )
            site.admit(model.column, [np.ones(site.n, bool), ~lacks], f"the rows that lack {model.column}")
