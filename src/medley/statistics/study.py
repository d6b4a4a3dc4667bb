"""`Study`: sites with their frames, and the analyses over all of them."""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, cast

import numpy as np
import torch

from ..clients.host import ClientHost
from ..contract import (
    BadData,
    Client,
    Diverged,
    Need,
    Pace,
    RecipeError,
    State,
    Task,
    TooFewReplies,
)
from ..contract.arguments import known_keywords, method_with
from ..contract.errors import named
from ..contract.explained import Explained
from ..contract.place import naming
from ..contract.settings import Settings
from ..contract.surroundings import set_aside
from ..secure import SecureSum
from ..secure.connection import SecureConnection
from ..secure.ring import STEPS, Ring, widest
from ..server.bookkeeping import Bookkeeping
from ..server.cohort import LiveCohort
from ..storage.events import ExchangeEvent
from ..transports import InProcess
from ..wire.connection import Transport
from ..wire.ledger import Ledger
from .analysis import Analysis, Hello
from .balance import Balance, BalanceTable
from .bootstrap import Bootstrap, bootstrap
from .cells import missing, numbers
from .correlation import Correlation, Correlations
from .curves import Curves, KaplanMeier
from .describe import Describe
from .extra import needed
from .fit import Cost, GLMFit
from .formulas import check_columns
from .glm import GLM
from .imputation import Imputed, impute
from .margins import Margins, MarginsFit
from .meta import Meta, MetaFit
from .mixed import Mixed
from .mixed_fit import MixedFit
from .ordinal import Ordinal, OrdinalFit
from .pca import PCA, Components
from .pooling import pooling
from .prepare import Preparation, Prepare, steps_for
from .register import file_of
from .rules import Rules, Withheld
from .site import Site
from .splines import KINDS, MOST_KNOTS, agreed_spline
from .survival import Cox, CoxFit
from .tables import TableOne

log = logging.getLogger("medley")

RESULTS: dict[type[Analysis], Any] = {
    GLM: GLMFit, Describe: TableOne, Cox: CoxFit, KaplanMeier: Curves, Meta: MetaFit,
    Prepare: Preparation, PCA: Components, Margins: MarginsFit,
    Correlation: Correlations, Balance: BalanceTable, Ordinal: OrdinalFit, Mixed: MixedFit,
}  # fmt: skip
"""The result of each analysis."""


LEAST = 1000
"""The least bound of the entries of a study's secure sums, which count rows; for the coarsest steps see `STEPS`."""


@dataclass(frozen=True)
class Shape:
    """The properties of a problem that a host of clients needs; a study has no model."""

    d: int = 1
    dtype: torch.dtype = torch.float64
    gives: frozenset[Need] = frozenset()

    def buffers(self) -> State | None:
        """None."""
        return None


@dataclass
class Sites:
    """The sites of a study, as clients by number."""

    sites: Mapping[int, Site]
    task: Task = field(default_factory=Task)
    pace: Pace = field(default_factory=Pace)

    def __call__(self, i: int, round: int) -> Client[Any]:
        """Site i as a client."""
        return Client(i, 1.0, cast(Any, self.sites[i]), self.pace, cast(Any, None), round=round, task=self.task)


def check_ring(secure: SecureSum, sites: int) -> None:
    """Raise RecipeError, with settings that do, for secure sums too coarse or too narrow for so many sites' studies."""
    bound = max(secure.bound.values()) if isinstance(secure.bound, Mapping) else secure.bound
    weights = dict.fromkeys(range(sites), 1.0)
    scale = Ring(secure.bits, bound, weights).scale(bound)
    if scale < 2.0**STEPS or bound < LEAST:
        raise RecipeError(
            f"Study(secure=SecureSum(bits={secure.bits}, bound={bound:.3g})): sums of {sites} sites would have steps "
            f"of {1 / scale:.2g} up to {bound:.3g}, and a study needs {2.0**-STEPS:.2g} up to {LEAST} or more; "
            f"give SecureSum(bits=64, bound={widest(weights)})",
            "secure",
        )


def check_site(analyses: Sequence[Analysis], site: Site) -> None:
    """Read a site's columns as the analyses do. Raises the error with which their first questions would be refused.

    What they ask is noted in the site's register, so this site must have one of its own.
    """
    me = Sites({0: site})(0, 1)
    for analysis in analyses:
        cast(Any, analysis.agree)(me, Hello(1))
        rows = site.at(analysis.used(site)[0])
        for name in analysis.numeric:
            numbers(rows, name, site.name, "write C({}) for categories, which an outcome or an event cannot be")


def gaps(analyses: Sequence[Analysis], site: Site) -> str:
    """A warning of gaps because of which analyses are of different rows of a site; empty if there are none.

    Raises BadData for a column that the site does not have.
    """
    rows = {columns for analysis in analyses for columns in analysis.required_columns}
    names = [*dict.fromkeys(c for columns in rows for c in columns)]
    check_columns(site.columns, names, site.name)
    lacking = {c: int(missing(site.columns, c).sum()) for c in sorted(names)}
    if len(analyses) < 2 or len({frozenset(c for c in columns if lacking[c]) for columns in rows}) < 2:
        return ""
    counts = ", ".join(f"{c} in {n}" for c, n in lacking.items() if n)
    return (
        f"{site.name}: columns have gaps, so that the analyses are of different rows ({counts}), and the site may "
        "withhold the later ones. Name these columns in complete of the first [[study]] before anything is asked: what "
        "has left stays in the site's register"
    )


def _as_frame(lines: list[tuple[str, str, float, int]]) -> Any:
    """A study's disclosure: a frame is made when somebody looks at it."""
    return needed("pandas").DataFrame(lines, columns=["site", "column", "bits", "rows"]).set_index(["site", "column"])


@dataclass(eq=False)
class Study(Settings, Explained):
    """A study over sites. Each site's rows stay there: only sums over rows leave.

    Attributes:
        data: a frame for each site, by name: of pandas, polars, or columns in a dict
        rules: which figures may leave, for all sites or by site; see `Rules`
        complete: columns without which a row is left out of the whole study
        secure: secure sums, which hide each single site's sums; default none
        transport: the way to the sites; by default they are in this process
        registers: the folder in which each site records what has left, for the next study on the same rows; by default
            the record ends with the study

    The ledger counts the bytes of each exchange. Raises BadData for frames that cannot be used.
    """

    data: Mapping[str, Any]
    rules: Rules | Mapping[str, Rules] = field(default_factory=Rules)
    complete: Sequence[str] = ()
    secure: SecureSum | None = None
    transport: Transport | None = None
    registers: str | Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.data, Mapping) or len(self.data) < 1:
            raise BadData("Study(data): give a frame for each site by its name, {'Bern': frame, ...}")
        for name in self.data:
            if not isinstance(name, str) or not name.strip():
                raise BadData(f"Study(data={{{name!r}: ...}}): the name of a site is text, for example 'Bern'")
        for site_rules in self.rules.values() if isinstance(self.rules, Mapping) else [self.rules]:
            if not isinstance(site_rules, Rules):
                raise RecipeError(f"Study(rules={self.rules!r}): pass Rules(...), or {{'Bern': Rules(...)}}", "rules")
        for name in self.rules if isinstance(self.rules, Mapping) else ():
            if name not in self.data:
                raise RecipeError(f"Study(rules=...): no site is called {name!r}; give {', '.join(self.data)}", "rules")
        if isinstance(self.complete, str):
            raise RecipeError(f"Study(complete={self.complete!r}): give a list of columns", "complete")
        self.names, self.sites = tuple(self.data), dict[int, Site]()
        self.books, folder = Bookkeeping(), self.registers
        self.secret = secrets.randbits(64)
        if folder is None and self.transport is not None:  # workers share it
            folder = mkdtemp()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for i, (name, frame) in enumerate(self.data.items()):
            if frame is not None:
                rules = self.rules if isinstance(self.rules, Rules) else self.rules.get(name, Rules())
                file = None if folder is None else file_of(folder, str(name))
                self.sites[i] = Site.of(str(name), frame, rules, tuple(self.complete), file)
        if self.secure is not None:
            secure: object = self.secure
            if not isinstance(secure, SecureSum):
                raise RecipeError(f"Study(secure={secure!r}): pass md.SecureSum(), or None", "secure")
            self.secure.needed(len(self.names))

    @property
    def ledger(self) -> Ledger:
        """The bytes of every exchange; an analysis is a round."""
        return self.books.ledger

    def without(self, *names: str) -> Study:
        """The study without these sites; the other sites keep their registers."""
        unknown = [n for n in names if n not in self.names]
        if unknown:
            raise RecipeError.unknown(unknown[0], self.names, "study.without()")
        rules = self.rules
        if isinstance(rules, Mapping):
            rules = {n: r for n, r in rules.items() if n not in names}
        out = replace(self, data={n: self.data[n] for n in self.names if n not in names}, rules=rules)
        out.sites = dict(enumerate(site for site in self.sites.values() if site.name not in names))
        return out

    @known_keywords
    @set_aside("Study.run()")
    def run(self, analysis: Analysis | None = None) -> Any:
        """Run an analysis over all sites, a round of the ledger: a `GLMFit`, a `TableOne`, and so on.

        Raises TooFewReplies, naming the sites, if some do not answer an exchange: Medley returns no partial result.
        """
        if not isinstance(analysis, Analysis):
            text = f"study.run(analysis={analysis!r:.80}): give an analysis, such as statistics.PCA(columns=['a', 'b'])"
            raise RecipeError(text, "analysis")
        if self.secure is not None and analysis.refuses_secure:
            raise RecipeError(analysis.refuses_secure, "secure")
        if self.secure is not None:
            check_ring(self.secure, len(self.names))
        host = ClientHost(analysis, cast(Any, Shape()), Sites(self.sites), names=self.names)
        ids = tuple(range(len(self.names)))
        round = max((e.round for e in self.ledger), default=0) + 1
        with self._naming(), contextlib.closing((self.transport or InProcess()).open(host)) as connection:
            channel: Any = connection if self.secure is None else SecureConnection(self.secure, connection, host)
            shares = dict.fromkeys(ids, 1 / len(ids))
            cohort = LiveCohort(ids, shares, round, channel, self.books, observe=self._refuse_silence)
            report = analysis.start(torch.zeros(1, dtype=torch.float64))
            analysis.round(report, cohort)
            cohort.settle()
        mine = [e for e in self.ledger if e.round == round]
        cost = Cost(len({e.exchange for e in mine}), sum(e.down for e in mine), sum(e.up for e in mine))
        result = RESULTS[type(analysis)](analysis, self.names, report.result, cost)
        result._disclosed = partial(_as_frame, self._bits())
        coarse = len(self.sites) < len(ids) or any(site.rules.rounded for site in self.sites.values())
        result._pooled = partial(pooling, analysis, result, coarse, self.secure, self.names, mine)
        return result

    def disclosure(self) -> Any:
        """A frame with the bits that have left so far, by site and column, and the site's number of rows: a column of
        zeros and ones cannot have more bits than that. Of sites on other machines their own registers have it.
        """
        return _as_frame(self._bits())

    def _bits(self) -> list[tuple[str, str, float, int]]:
        """The lines of `disclosure`."""
        lines = list[tuple[str, str, float, int]]()
        for site in self.sites.values():
            with site.register.reading():
                columns = {key.rpartition(" bits ")[0] for key in site.register.notes if " bits " in key}
            lines += [(site.name, c, round(site.register.spent(c), 1), site.n) for c in sorted(columns)]
        return lines

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """A context in which errors name sites instead of giving the numbers of clients."""
        try:
            with naming(self.names):
                yield
        except Diverged as e:
            if e.unexplained:
                e.args = (f"{e}; scale the columns", *e.args[1:])
            raise

    def _refuse_silence(self, e: ExchangeEvent) -> None:
        """Raise TooFewReplies unless all sites answered this exchange."""
        silent = sorted((*e.lost, *e.late))
        if silent:
            raise TooFewReplies(
                f"{named(silent, dict(enumerate(self.names)))} did not answer ({e.method}), and sums over the other "
                "sites' rows would be of another study; ask again, or leave sites out: study.without(...)"
            )

    @method_with(GLM)
    def glm(self, analysis: GLM) -> GLMFit:
        """Fit a generalised linear model to the rows of all sites.

        Raises Withheld if a site's rules withhold its sums, BadData for rows or columns that cannot be used, and
        Stalled for a likelihood without a maximum.
        """
        fit: GLMFit = self.run(analysis)
        return fit

    @method_with(Ordinal)
    def ordinal(self, analysis: Ordinal) -> OrdinalFit:
        """Fit an ordinal logit by proportional odds: "severity ~ age", levels=["mild", "moderate", "severe"]."""
        fit: OrdinalFit = self.run(analysis)
        return fit

    @known_keywords
    def propensity(self, formula: str, where: str = "", sites: Literal["", "fixed"] = "") -> GLMFit:
        """Fit a propensity model, "treated ~ age + C(sex)": a logistic regression, whose scores stay at the sites.

        ``fit.weights("ATE")`` are weights for `glm`, `cox`, `kaplan_meier` and `balance`.

        Args:
            formula: the treatment, a column of 0 and 1, and what it depended on
            where: a condition on the rows, "age >= 18"; empty for all
            sites: "fixed" gives each site except the first an effect; empty for none
        """
        return self.run(GLM(formula, "binomial", where=where, sites=sites))  # type: ignore[no-any-return]

    @known_keywords
    def describe(
        self,
        columns: Sequence[str] | str | None = None,
        by: str = "",
        where: str = "",
        quantiles: Sequence[float] = (0.25, 0.5, 0.75),
        ranks: Sequence[str] = (),
        whole: Sequence[str] = (),
        smd: bool = False,
    ) -> TableOne:
        """Describe columns over all sites: a Table 1. Figures that a site withholds are marked as withheld, never as 0.

        Args:
            columns: their names, "C(name)" for numbers that are categories; default None: all of the first site
            by: a column of groups; empty for none
            where: a condition on the rows, "age >= 18"; empty for all
            quantiles: which quantiles of numbers to compute, as shares of rows between 0 and 1
            ranks: columns of numbers whose groups are compared by a test of ranks, as skewed ones are
            whole: those of ``ranks`` that have whole numbers alone, which may be tied
            smd: whether the table has standardised mean differences
        """
        if columns is None and not self.sites:
            raise RecipeError("describe(columns=...): the rows are on other machines; name the columns", "columns")
        if columns is None:
            columns = [c for c in self.sites[0].frame.columns if c not in ("site", by)]
        columns = [columns] if isinstance(columns, str) else columns
        table: TableOne = self.run(Describe(columns, by, where, quantiles, ranks, whole, smd))
        return table

    @method_with(Balance)
    def balance(self, analysis: Balance) -> BalanceTable:
        """The treated and the untreated before and after weighting: means and standardised mean differences."""
        table: BalanceTable = self.run(analysis)
        return table

    @known_keywords
    def bootstrap(self, figure: Callable[[Study], Any], draws: int = 200, seed: int | None = None) -> Bootstrap:
        """Errors of any figure by the bootstrap: ``study.bootstrap(lambda s: s.glm("stay ~ age"))``.

        Args:
            figure: a function of a study that returns a fit, a number, or a series of numbers; it is called once with
                this study, and once for each draw of each site's rows
            draws: how many draws; default 200
            seed: for made-up rows: whoever knows it knows which rows were drawn. Default None: a secret of this study,
                so that the same draws come again

        Sites that round refuse, since draws would average that out. Raises RecipeError if a tenth of the draws fail.
        """
        return bootstrap(self, figure, draws, seed)

    @known_keywords
    def impute(
        self,
        columns: Sequence[str],
        m: int = 20,
        iterations: int = 10,
        seed: int | None = None,
        sites: Literal["", "fixed"] = "",
    ) -> Imputed:
        """Impute missing cells by chained equations: ``study.impute(["age", "sex", "stay"]).glm("stay ~ age")``.

        Args:
            columns: the columns of the models, the outcome of the analysis among them. One that a row lacks is imputed
                from all the others, numbers by linear regression, two categories by logistic regression; a formula,
                "age ~ bmi + C(sex)" instead of "age", gives its model
            m: how many imputations; default 20
            iterations: how often a chain visits each column; default 10
            seed: for made-up rows: whoever knows it could compute single rows from sums of many imputations. Default
                None: a secret of this study, so that the same imputations come again
            sites: "fixed" gives each site except the first an effect in each model; empty for none

        Raises RecipeError if a site rounds, and for columns that are not imputed, such as one of three categories;
        BadData for a column that a site lacks altogether; Withheld if few rows of a site lack a column.
        """
        return impute(self, columns, m, iterations, seed, sites)

    @method_with(Cox)
    def cox(self, analysis: Cox) -> CoxFit:
        """Fit Cox's model, stratified by site or, with ``cuts``, with one baseline: "months ~ age + C(sex)"."""
        fit: CoxFit = self.run(analysis)
        return fit

    @method_with(KaplanMeier)
    def kaplan_meier(self, analysis: KaplanMeier) -> Curves:
        """Kaplan-Meier's curves on a grid of times, by group, with the log-rank test."""
        curves: Curves = self.run(analysis)
        return curves

    @method_with(Meta)
    def meta(self, analysis: Meta) -> MetaFit:
        """Fit one formula at each site by itself, and combine coefficients by fixed and random effects."""
        fit: MetaFit = self.run(analysis)
        return fit

    @known_keywords
    def spline(self, column: str, knots: int = 3, kind: Literal["bs", "cr"] = "bs") -> str:
        """A spline of a column for formulas, with knots at quantiles of all sites: f"died ~ {study.spline('age')}".

        Args:
            column: a column of numbers
            knots: how many knots there are between the bounds
            kind: "bs" for a cubic B-spline, "cr" for a natural one, whose bounds are the quantiles 0.1 and 0.9
        """
        call = f"spline({column!r}, knots={knots!r}, kind={kind!r})"
        if kind not in KINDS or not 0 < knots <= MOST_KNOTS:
            raise RecipeError(f"{call}: give 'bs' or 'cr', and 1 to {MOST_KNOTS} knots", "knots")
        shares = np.linspace(0.1, 0.9, knots + 2) if kind == "cr" else np.linspace(0, 1, knots + 2)[1:-1]
        cell = self.describe([column], quantiles=shares.tolist()).cells[column][""]
        if cell.mean is None or not cell.sd or cell.quantiles is None:
            raise Withheld(
                f"{call}: a site withholds its quantiles, or all rows have one value; write the knots yourself"
            )
        quantiles = [q for q, _ in cell.quantiles.values()]
        term = agreed_spline(kind, column, quantiles, cell.mean, cell.sd)
        if not (np.diff(quantiles) > 0).all():
            raise RecipeError(f"{call}: several knots would be at one value; take fewer", "knots")
        return term

    @method_with(Mixed)
    def mixed(self, analysis: Mixed) -> MixedFit:
        """Fit a linear mixed model: "y ~ days + (days | patient) + (1 | site)", as lme4's lmer."""
        fit: MixedFit = self.run(analysis)
        return fit

    @method_with(Correlation)
    def correlation(self, analysis: Correlation) -> Correlations:
        """Correlations of each pair of numeric columns."""
        correlations: Correlations = self.run(analysis)
        return correlations

    @method_with(Margins)
    def margins(self, analysis: Margins) -> MarginsFit:
        """Fit a generalised linear model, and average its predictions over all rows with a column set to values."""
        fit: MarginsFit = self.run(analysis)
        return fit

    @known_keywords
    def prepare(
        self, columns: Sequence[str] | None = None, where: str = "", leave_out: Sequence[str] = ()
    ) -> Preparation:
        """Fit preprocessing to all sites' rows.

        Args:
            columns: a text for each, "age: median, standardise" or "ward: mode, encode", see `Prepare`; default None
                chooses by each column's type: numbers are standardised, texts encoded, and gaps filled by the median or
                the mode. The log has the list
            where: the rows that it is fitted to; empty for all
            leave_out: with columns=None, the columns that are no inputs, such as the outcome
        """
        if columns is None and not self.sites:
            raise RecipeError(
                "prepare(columns=...): the rows are on other machines; name the columns and their steps. There, "
                "medley prepare FILE.csv prints a list",
                "columns",
            )
        if not isinstance(leave_out, list | tuple) or not all(isinstance(name, str) for name in leave_out):
            raise RecipeError(f"prepare(leave_out={leave_out!r}): give a list of columns", "leave_out")
        if columns is not None and leave_out:
            raise RecipeError(
                "prepare(leave_out=...): columns= names the columns already; give one of both", "leave_out"
            )
        if columns is None:
            columns = steps_for({site.name: site.frame for site in self.sites.values()}, leave_out)
            log.warning("prepare: columns=%s, chosen by their types", columns)
        preparation: Preparation = self.run(Prepare(columns, where))
        return preparation

    @method_with(PCA)
    def pca(self, analysis: PCA) -> Components:
        """Principal components of numeric columns."""
        components: Components = self.run(analysis)
        return components
