"""Formulas and frames: what a formula may say, the columns that it reads, and a site's design matrix.

A formula comes from another person, so Medley parses it and never runs it as code. It may contain columns,
``C(column)``, interactions, powers and products of columns under ``I()``, and logarithms, exponentials and roots of one
column. Anything else could pick single rows.
"""

from __future__ import annotations

import ast
import functools
import itertools
import keyword
import operator
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..contract import BadData, RecipeError
from ..contract.text import tex
from ..rows.coding import text
from .cells import is_numeric, missing, numbers, texts
from .extra import needed
from .splines import COLUMN, EXAMPLE, Spline, b_spline, natural_spline, spline_column, spline_of

FUNCTIONS = {name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "exp", "sqrt")}

WRITTEN = (
    "columns, C(column), a:b, a*b, I(a**2), I(a*b), log, log2, log10, log1p, exp and sqrt of a column, and splines, "
    f"{EXAMPLE} or cr()"
)

SERVER = "the server"
"""Whose frame has no patients, but one of each category: nothing is checked there."""

CONDITION = (
    ast.Expression, ast.BoolOp, ast.boolop, ast.Compare, ast.cmpop, ast.Name, ast.Load, ast.Constant, ast.List,
    ast.Tuple, ast.UnaryOp, ast.USub, ast.Not,
)  # fmt: skip
"""The parts that a condition may contain."""

COMPARED: dict[type[ast.AST], Any] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a.isin(b), ast.NotIn: lambda a, b: ~a.isin(b),
}  # fmt: skip

BASE = r"(contr\.treatment\((?:base=)?)(-?\d+(?:\.\d+)?)(?=\))"
"""A base that is written as a number."""

RESERVED = {"C", "I", "np", "Intercept", *FUNCTIONS}
"""Names that formulas reserve."""

NAME = re.compile(r"""'[^']*'|"[^"]*"|`(?P<quoted>[^`]+)`|(?<![\w.])(?P<plain>[^\W\d]\w*(?:\.\w+)*)""")
"""Names in a formula or a condition, in backticks or not, and quoted texts, which hold none."""

WORDS = {"and", "or", "not", "in", "is", "if", "else", "True", "False", "None"}
"""Words of conditions, which are no names of columns without backticks."""

BACKTICKS = "write a name with spaces or signs in backticks: `age (years)`"


@dataclass(frozen=True)
class Parsed:
    """A parsed formula: the column on its left, its right side, columns of numbers, and columns under C().

    Attributes:
        names: the columns for which the right side has plain names of ours, because it could not be read otherwise
        splines: splines of columns of numbers
    """

    response: str
    right: str
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    splines: tuple[Spline, ...] = ()

    def shown(self, text: str) -> str:
        """A part of the right side with the columns' own names."""
        return shown(text, self.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column, the response first."""
        return tuple(dict.fromkeys((self.response, *self.numeric, *self.categorical)))


def readable(text: str) -> tuple[str, dict[str, str]]:
    """A formula or condition that Python can read: with plain names of ours for columns such as ``fu.days``, ``class``,
    or `` `age (years)` ``; and the columns that those names stand for.
    """
    names = dict[str, str]()

    def place(match: re.Match[str]) -> str:
        quoted = match["quoted"]
        plain = match["plain"]
        name = quoted or plain
        if name is None or (plain and (plain in WORDS or plain.startswith(("np.", "contr.")))):
            return match[0]
        simple = name.isidentifier() and name == unicodedata.normalize("NFKC", name) and not keyword.iskeyword(name)
        if simple and (plain or name not in RESERVED):
            return name
        ours = next((k for k, column in names.items() if column == name), None)
        if ours is None:
            ours = next(k for k in (f"column{n}_" for n in itertools.count(len(names))) if k not in text)
            names[ours] = name
        return ours

    return NAME.sub(place, text), names


def shown(text: str, names: Mapping[str, str]) -> str:
    """A text with the columns' own names instead of the plain names that stand for them."""
    for ours, name in names.items():
        text = text.replace(ours, name)
    return text


@cache
def parsed(formula: str) -> Parsed:
    """Read a formula such as "died ~ age + C(sex)". Raises RecipeError, naming the part, for anything else."""
    text, names = readable(formula)
    left, tilde, right = (part.strip() for part in text.partition("~"))
    if not tilde or not left or not right:
        raise RecipeError(f"formula {formula!r}: write the outcome, ~, and what explains it: 'died ~ age + C(sex)'")
    try:
        terms = _terms(right)
    except Exception as e:  # the parser raises many kinds; its first line has the reason, the others a picture
        reason = shown(str(e).splitlines()[0] if str(e) else type(e).__name__, names)
        remedy = "a sign stands between two names, 'died ~ age + sex'; " * ("Operator" in reason) + BACKTICKS
        raise RecipeError(f"formula {formula!r} cannot be read: {reason}; {remedy}") from None
    if not left.isidentifier():
        remedy = f"instead of {shown(left, names)!r}, compute it in each site's data, and recode text to 0 and 1"
        raise RecipeError(f"formula {formula!r}: the outcome is one column of numbers; {remedy}; {BACKTICKS}")
    numeric = dict[str, None]()
    categorical = dict[str, None]()
    splines = list[Spline]()
    for term in terms:
        for factor, kind in term:
            if kind == "literal":
                continue
            spline = spline_of(factor)
            if spline is not None:
                if len(term) > 1:
                    raise RecipeError(f"formula {formula!r}: a spline stands alone, and not in a product of columns")
                splines.append(spline._replace(column=names.get(spline.column, spline.column)))
                numeric[spline.column] = None
                continue
            used, category = ((factor,), False) if kind == "lookup" else _factor(factor, formula, names)
            (categorical if category else numeric).update(dict.fromkeys(used))
    reserved = RESERVED & {left, *numeric, *categorical} | {"Intercept"} & {*names.values()}
    if reserved:
        raise RecipeError(
            f"formula {formula!r}: {min(reserved)} has a meaning of its own in formulas; rename the column"
        )
    response, *columns = (names.get(c, c) for c in (left, *numeric, *categorical))
    if response in columns:
        raise RecipeError(f"formula {formula!r}: {response} is on both sides")
    both = numeric.keys() & categorical.keys()
    if both:
        name = shown(min(both), names)
        raise RecipeError(f"formula {formula!r}: {name} occurs both as a number and in C(); write only one of them")
    k = len(numeric)
    return Parsed(response, right, tuple(columns[:k]), tuple(columns[k:]), names, tuple(splines))


def _sum(right: str) -> list[str]:
    """The terms of a right side that only adds columns and C(column), each once; else none: formulaic reads others."""
    parts = [part.strip() for part in right.split("+")]
    is_plain = all(re.fullmatch(r"[A-Za-z_]\w*|C\([A-Za-z_]\w*\)", p, re.ASCII) and p not in WORDS for p in parts)
    return parts if is_plain and len({*parts}) == len(parts) else []


def _terms(right: str) -> list[list[tuple[str, str]]]:
    """The factors of each term, with their kinds: "lookup" for a column, "python" or "literal"."""
    if parts := _sum(right):  # formulaic takes longer to import than a fit does
        return [[(part, "lookup" if part.isidentifier() else "python")] for part in parts]
    terms = [*needed("formulaic").Formula(right)]
    if not all(hasattr(term, "factors") for term in terms):
        raise SyntaxError("it has one right side, without | and a second ~")
    return [[(factor.expr, str(factor.eval_method.value)) for factor in term.factors] for term in terms]


def _factor(text: str, formula: str, names: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """The columns of one factor, and whether it consists of categories."""
    match = re.fullmatch(r"C\((\w+)(, contr\.treatment\((base=)?('[^'()]*'|\"[^\"()]*\"|-?\d+(?:\.\d+)?)\))?\)", text)
    if match:
        return (match[1],), True
    match = re.fullmatch(rf"(?:np\.)?(?:{'|'.join(FUNCTIONS)})\(([^\W\d]\w*)\)", text)
    match = match or re.fullmatch(r"I\(([^\W\d]\w*) ?(?:\*\* ?[23]|\* ?([^\W\d]\w*))\)", text)
    if match:
        return tuple(filter(None, match.groups())), False
    raise RecipeError(
        f"formula {formula!r}: {shown(text, names)} is not understood; a formula has {WRITTEN}; {BACKTICKS}"
    )


def design(parsed: Parsed, frame: Any, levels: Mapping[str, Sequence[str]], site: str) -> tuple[list[str], np.ndarray]:
    """The names of the design matrix's columns, and the matrix [n, p]; ``levels`` are the categories of all sites."""
    plain = {name: ours for ours, name in parsed.names.items()}
    columns = {plain.get(c, c): numbers(frame, c, site) for c in parsed.numeric}
    columns |= {plain.get(c, c): texts(frame, c, site) for c in parsed.categorical}
    planned = designed(parsed, levels)
    for spline in parsed.splines if site != SERVER else ():
        spline.check(numbers(frame, spline.column, site), site)
    with np.errstate(all="ignore"):
        values = [column.of(columns, len(frame)) for column in planned]
    X = np.ascontiguousarray(np.column_stack(values) if values else np.empty((len(frame), 0)))
    names = [column.name for column in planned]
    bad = ~np.isfinite(X).all(0)
    if bad.any():
        raise BadData(f"{site}: {names[int(bad.argmax())]} is not finite in a row, as the logarithm of 0 is")
    return names, X


class Column(NamedTuple):
    """A column of a design matrix: a product of its factors, each a number, or 1 for rows of one category, else 0."""

    name: str
    scale: float
    factors: tuple[tuple[str, str | None], ...]

    def of(self, columns: Mapping[str, np.ndarray], n: int) -> np.ndarray:
        """This column's values [n], from the frame's columns."""
        if not self.factors:
            return np.full(n, float(self.scale))
        values = [
            _evaluated(factor, columns) if category is None else 1.0 * (columns[factor] == category)
            for factor, category in self.factors
        ]
        out: np.ndarray = self.scale * functools.reduce(np.multiply, values)
        return out


def _evaluated(factor: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """A factor of numbers, as `_factor` accepts them."""
    if factor in columns:
        return columns[factor]
    if COLUMN.fullmatch(factor):
        return spline_column(factor, columns)
    of, _, inner = factor.removesuffix(")").partition("(")
    if of != "I":
        return np.asarray(FUNCTIONS[of.removeprefix("np.")](columns[inner]))
    base, power, exponent = inner.partition("**")
    if power:
        return columns[base.strip()] ** int(exponent)
    one, _, other = inner.partition("*")
    return np.asarray(columns[one.strip()] * columns[other.strip()])


def designed(parsed: Parsed, levels: Mapping[str, Sequence[str]]) -> tuple[Column, ...]:
    """The columns of a formula's design matrix, from the categories alone."""
    return _columns(parsed, tuple((c, tuple(levels[c])) for c in parsed.categorical))


@lru_cache(64)
def _columns(parsed: Parsed, levels: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[Column, ...]:
    """As formulaic lays them out for rows in which every category occurs."""
    plain = {name: ours for ours, name in parsed.names.items()}
    categories = {plain.get(c, c): v for c, v in levels}
    if parts := _sum(parsed.right):
        out = [Column("Intercept", 1.0, ())]
        for part in parts:
            of = part.removeprefix("C(").removesuffix(")")
            columns = [("", None)] if of == part else [(f"[T.{v}]", v) for v in categories[of][1:]]
            out += [Column(parsed.shown(part) + name, 1.0, ((of, v),)) for name, v in columns]
        return tuple(out)
    pandas = needed("pandas")
    length = max([1, *map(len, categories.values())])
    rows: dict[str, Any] = {plain.get(c, c): np.ones(length) for c in parsed.numeric}
    for c, v in categories.items():
        rows[c] = pandas.Categorical([v[k % len(v)] for k in range(length)], categories=[*v])
    # Categories are texts, so a base that is written as a number is made one; names stay as they are written.
    quoted = {m[0]: f"{m[1]}'{text(float(m[2]))}'" for m in re.finditer(BASE, parsed.right)}
    right = re.sub(BASE, lambda m: quoted[m[0]], parsed.right)
    context = {**FUNCTIONS, "np": SimpleNamespace(**FUNCTIONS), "bs": b_spline, "cr": natural_spline}
    try:
        spec = (
            needed("formulaic")
            .model_matrix(right, pandas.DataFrame(rows or {"1": np.zeros(length)}), context=context, na_action="ignore")
            .model_spec
        )
    except ValueError as e:
        if "provided levels" not in str(e):
            raise
        written = parsed.shown(parsed.right)
        raise RecipeError(f"formula {written!r}: no site has the base that it names in contr.treatment") from None
    out = list[Column]()
    for term in spec.structure:
        products = [(s.scale, factors) for s in term.scoped_terms for factors in _products(s.factors, categories)]
        if COLUMN.fullmatch(term.columns[0] if term.columns else ""):
            products = [(1.0, ((name, None),)) for name in term.columns]
        for name, (scale, factors) in zip(term.columns, products, strict=True):
            for written, base in quoted.items():
                name = name.replace(base, written)
            out.append(Column(parsed.shown(name), scale, factors))
    return tuple(out)


def _products(
    factors: Sequence[Any], categories: Mapping[str, Sequence[str]]
) -> Iterator[tuple[tuple[str, str | None], ...]]:
    """The factors of each column of a term, the first factor's categories fastest."""
    parts = list[list[tuple[str, str | None]]]()
    for factor in factors:
        text = str(factor.factor.expr)
        match = re.fullmatch(r"C\((\w+)(?:, contr\.treatment\((?:base=)?(.*)\))?\)", text)
        if match is None:
            parts.append([(text, None)])
            continue
        present = categories[match[1]]
        base = str(ast.literal_eval(match[2])) if match[2] else present[0]
        parts.append([(match[1], v) for v in present if not factor.reduced or v != base])
    for product in itertools.product(*reversed(parts)):
        columns = product[::-1]
        yield tuple(sorted(columns, key=lambda c: c[1] is None))  # categories first: they take nothing from a product


def within(
    parsed: Parsed, frame: Any, levels: Mapping[str, Sequence[str]], site: str, names: Sequence[str], X: np.ndarray
) -> dict[str, np.ndarray]:
    """The rows of the category in each column that is a number within one, and those between two knots of a spline: 1
    or 0 [n], by a name.

    ``names`` and ``X`` are the design; without products of columns it has these rows itself.
    """
    if any("[" in name and ":" in name for name in names):
        names, X = design(parsed, frame.assign(**dict.fromkeys(parsed.numeric, 2.0)), levels, SERVER)
    categories = {name: x for name, x in zip(names, X.T, strict=True) if "[" in name and not COLUMN.fullmatch(name)}
    out = {f"the category in {name}": 1.0 * (x != 0) for name, x in categories.items()}
    for spline in parsed.splines:
        out |= spline.between(numbers(frame, spline.column, site))
    return out


def chosen(frame: Any, where: str, site: str) -> tuple[np.ndarray, list[np.ndarray], list[str]]:
    """The rows of a condition such as "age >= 18 and sex == 'F'", bool [n], those of each of its comparisons, and the
    columns that it compares.

    Medley parses the condition and never runs it as code. A missing value fulfils no comparison.
    """
    parts = list[np.ndarray]()

    def rows(node: Any) -> np.ndarray:
        """The rows of a part of the condition."""
        if isinstance(node, ast.BoolOp):
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return np.asarray(join.reduce([rows(v) for v in node.values]), dtype=bool)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~rows(node.operand)
        sides = [value(v) for v in ([node.left, *node.comparators] if isinstance(node, ast.Compare) else [node])]
        ways = [COMPARED[type(op)] for op in node.ops] if isinstance(node, ast.Compare) else [operator.eq]
        mask = np.ones(len(frame), bool)
        for compared, one, other in zip(ways, sides, sides[1:] or [True], strict=False):
            present = np.ones(len(frame), bool)
            for side, another in ((one, other), (other, one)):
                if hasattr(side, "dtype"):
                    _comparable(side, another, site)
                    present &= side.notna().to_numpy()
            fulfil = needed("pandas").Series(compared(one, other), index=frame.index)
            parts.append(fulfil.to_numpy(dtype=bool, na_value=False) & present)
            mask &= parts[-1]
        return mask

    def value(node: Any) -> Any:
        """A column, or a value in the condition."""
        if isinstance(node, ast.Name):
            return frame[columns.get(node.id, node.id)]
        literal = ast.literal_eval(node)
        values = literal if isinstance(literal, list | tuple) else [literal]
        trimmed = [v.strip() if isinstance(v, str) else v for v in values]  # as the frame's texts
        return trimmed if values is literal else trimmed[0]

    condition, columns = readable(where.strip())
    try:
        tree = ast.parse(condition, mode="eval")
        if not all(isinstance(node, CONDITION) for node in ast.walk(tree)):
            raise SyntaxError
        used = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        names = [columns.get(name, name) for name in used]
        check_columns(frame, names, site)
        return rows(tree.body) & complete(frame, names), parts, names
    except BadData:
        raise
    except Exception as e:  # of many kinds: of Python's parser, of comparisons of pandas
        remedy = "write comparisons of a column with a value, and join them: \"age >= 18 and sex == 'F'\""
        raise RecipeError(f"where={where!r}: {remedy}; {BACKTICKS}", "where") from (
            None if isinstance(e, SyntaxError) else e
        )


def _comparable(column: Any, values: Any, site: str) -> None:
    """Raise BadData if a column that is not numeric is compared with a number, or a numeric one with a text."""
    for value in () if hasattr(values, "dtype") else values if isinstance(values, list | tuple) else (values,):
        number = is_numeric(getattr(column.dtype, "categories", column))
        if isinstance(value, int | float) != number and not isinstance(value, bool):
            raise BadData(f"{site}: {column.name} has {'numbers' if number else 'texts'}, and where= has {value!r}")


def check_columns(frame: Any, names: Sequence[str], site: str) -> None:
    """Raise BadData, naming the site, for a column that its frame does not have."""
    columns = frame.columns
    for name in names:
        if name not in columns:
            from ..runtime.field_words import nearest

            remedy = nearest(name, map(str, columns)) or " Name a column that the tables of all sites have."
            raise BadData(f"{site} has no column {name!r}.{remedy}")


def complete(frame: Any, names: Sequence[str]) -> np.ndarray:
    """The rows in which none of these columns is missing, bool [n]."""
    out = np.ones(len(frame), bool)
    for name in names:
        out &= ~missing(frame, name)
    return out


def latex(frame: Any, digits: int) -> str:
    """A frame as a LaTeX table, for booktabs."""
    formatted: Any = lambda v: f"{v:.{digits}f}" if isinstance(v, float) else str(v)
    escaped = lambda v: tex(formatted(v))
    lines = [["", *frame.columns], *([i, *row] for i, row in zip(frame.index, frame.to_numpy().tolist(), strict=True))]
    head, *rows = (" & ".join(map(escaped, line)) + r" \\" for line in lines)
    begin = rf"\begin{{tabular}}{{l{'r' * frame.shape[1]}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"])
