"""Formulas and frames: what a formula may say, the columns that it reads, and a site's design matrix.

A formula comes from another person, so Medley parses it and never runs it as code. It may contain columns,
``C(column)``, interactions, powers and products of columns under ``I()``, and logarithms, exponentials and roots of one
column. Anything else could pick single rows. Only this module imports pandas and formulaic.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..contract import BadData, RecipeError
from ..rows.coding import text

FUNCTIONS = {name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "exp", "sqrt")}

WRITTEN = "columns, C(column), a:b, a*b, I(a**2), I(a*b), and log, log2, log10, log1p, exp and sqrt of a column"

CONDITION = (
    ast.Expression, ast.BoolOp, ast.boolop, ast.Compare, ast.cmpop, ast.Name, ast.Load, ast.Constant, ast.List,
    ast.Tuple, ast.UnaryOp, ast.USub, ast.Not,
)  # fmt: skip
"""The parts that a condition may contain."""

COMPARED: dict[type[ast.AST], Any] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a.isin(b), ast.NotIn: lambda a, b: ~a.isin(b),
}  # fmt: skip

RESERVED = {"C", "I", "np", "Intercept", *FUNCTIONS}
"""Names that formulas reserve."""


def needed(package: str) -> Any:
    """The module of one of the extra's packages. Raises RecipeError if the package is not installed."""
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as e:
        raise RecipeError(f"medley.statistics needs {package} ({e}): pip install 'medley-fl[statistics]'") from e


@dataclass(frozen=True)
class Parsed:
    """A parsed formula: the column on its left, its right side, columns of numbers, and columns under C()."""

    response: str
    right: str
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column, the response first."""
        return tuple(dict.fromkeys((self.response, *self.numeric, *self.categorical)))


@cache
def parsed(formula: str) -> Parsed:
    """Read a formula such as "died ~ age + C(sex)". Raises RecipeError, naming the part, for anything else."""
    formulaic = needed("formulaic")
    left, tilde, right = formula.partition("~")
    if not tilde or not left.strip() or not right.strip():
        raise RecipeError(f"formula {formula!r}: write the outcome, ~, and what explains it: 'died ~ age + C(sex)'")
    try:
        terms = [*formulaic.Formula(right.strip())]
        if not all(hasattr(term, "factors") for term in terms):
            raise SyntaxError("it has one right side, without | and a second ~")
    except Exception as e:  # the parser raises many kinds
        raise RecipeError(f"formula {formula!r} cannot be read: {e}") from None
    response = left.strip().strip("`")
    if not response.isidentifier() and f"`{response}`" != left.strip():
        remedy = f"instead of {response!r}, compute it in each site's data, and recode text to 0 and 1"
        raise RecipeError(f"formula {formula!r}: the outcome is one column of numbers; {remedy}")
    numeric, categorical = dict[str, None](), dict[str, None]()
    for term in terms:
        for factor in term.factors:
            kind = str(factor.eval_method.value)
            if kind == "literal":
                continue
            names, category = ((factor.expr,), False) if kind == "lookup" else _factor(factor.expr, formula)
            (categorical if category else numeric).update(dict.fromkeys(names))
    if both := numeric.keys() & categorical.keys():
        raise RecipeError(
            f"formula {formula!r}: {min(both)} occurs both as a number and in C(); write only one of them"
        )
    if reserved := RESERVED & {response, *numeric, *categorical}:
        raise RecipeError(
            f"formula {formula!r}: {min(reserved)} has a meaning of its own in formulas; rename the column"
        )
    if response in numeric or response in categorical:
        raise RecipeError(f"formula {formula!r}: {response} is on both sides")
    return Parsed(response, right.strip(), tuple(numeric), tuple(categorical))


def _factor(text: str, formula: str) -> tuple[tuple[str, ...], bool]:
    """The columns of one factor, and whether it consists of categories."""
    if found := re.fullmatch(r"C\((\w+)(, contr\.treatment\((base=)?('[^'()]*'|\"[^\"()]*\"|\d+)\))?\)", text):
        return (found[1],), True
    found = re.fullmatch(rf"(?:np\.)?(?:{'|'.join(FUNCTIONS)})\(([^\W\d]\w*)\)", text)
    if found := found or re.fullmatch(r"I\(([^\W\d]\w*) ?(?:\*\* ?[23]|\* ?([^\W\d]\w*))\)", text):
        return tuple(filter(None, found.groups())), False
    raise RecipeError(f"formula {formula!r}: {text} is not understood; a formula has {WRITTEN}")


def table(data: Any, site: str) -> Any:
    """A site's rows as a pandas frame, its columns' names as texts. Raises BadData for data without columns or rows."""
    pandas = needed("pandas")
    if hasattr(data, "to_pandas"):
        data = data.to_pandas()
    elif isinstance(data, Mapping):
        data = pandas.DataFrame(dict(data))
    if not isinstance(data, pandas.DataFrame):
        raise BadData(f"{site}: a {type(data).__name__} is no frame; give a pandas DataFrame, or columns in a dict")
    out = data.reset_index(drop=True)
    out.columns = [str(c) for c in out.columns]
    if not len(out) or out.columns.has_duplicates:
        raise BadData(f"{site}: the frame has {'no rows' if not len(out) else 'two columns of one name'}")
    return out


def is_numeric(column: Any) -> bool:
    """Whether a column holds numbers, or True and False."""
    return bool(needed("pandas").api.types.is_numeric_dtype(column.dtype))


def numbers(frame: Any, name: str, site: str, remedy: str = "write C({}) for categories") -> np.ndarray:
    """A column as floats, missing as NaN. Raises BadData with this remedy for text, and for infinities."""
    column = frame[name]
    if not is_numeric(column) or column.dtype.kind == "c":
        raise BadData(f"{site}: {name} is not a number; {remedy.format(name)}")
    values: np.ndarray = column.to_numpy(dtype=float, na_value=np.nan)
    if np.isinf(values).any():
        raise BadData(f"{site}: {name} is infinite in a row; leave it empty, or recode it")
    return values


def texts(frame: Any, name: str) -> np.ndarray:
    """A column as categories, by their texts: whole numbers as "1", others as they are; None where missing."""
    column = frame[name]
    missing = column.isna().to_numpy()
    return np.array([None if m else text(v) for m, v in zip(missing, column.tolist(), strict=True)], dtype=object)


def in_sequence(levels: Sequence[str]) -> list[str]:
    """Levels sorted as numbers if all are numbers, else as texts."""
    try:
        return sorted(levels, key=float)
    except ValueError:
        return sorted(levels)


def design(parsed: Parsed, frame: Any, levels: Mapping[str, Sequence[str]], site: str) -> tuple[list[str], np.ndarray]:
    """The names of the design matrix's columns, and the matrix [n, p]; ``levels`` are the categories of all sites."""
    pandas = needed("pandas")
    columns = {c: numbers(frame, c, site) for c in parsed.numeric}
    columns |= {c: pandas.Categorical(texts(frame, c), categories=[*levels[c]]) for c in parsed.categorical}
    columns = columns or {"1": np.zeros(len(frame))}
    context = {**FUNCTIONS, "np": SimpleNamespace(**FUNCTIONS)}
    rows = pandas.DataFrame(columns)
    try:
        with np.errstate(all="ignore"):
            made = needed("formulaic").model_matrix(parsed.right, rows, context=context, na_action="ignore")
    except ValueError as e:
        if "provided levels" not in str(e):
            raise
        raise RecipeError(f"formula {parsed.right!r}: no site has the base that it names in contr.treatment") from None
    X = np.ascontiguousarray(made.to_numpy(dtype=float)).reshape(len(frame), -1)
    names = [str(c) for c in made.columns]
    if (bad := ~np.isfinite(X).all(0)).any():
        raise BadData(f"{site}: {names[int(bad.argmax())]} is not finite in a row, as the logarithm of 0 is")
    return names, X


def within(parsed: Parsed, frame: Any, levels: Mapping[str, Sequence[str]], site: str) -> dict[str, np.ndarray]:
    """The rows of the category in each column that is a number within one: 1 or 0 [n], by a name."""
    names, X = design(parsed, frame.assign(**dict.fromkeys(parsed.numeric, 2.0)), levels, site)
    return {f"the category in {name}": 1.0 * (x != 0) for name, x in zip(names, X.T, strict=True) if "[" in name}


def chosen(frame: Any, where: str, site: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """The rows of a condition such as "age >= 18 and sex == 'F'", bool [n], and those of each of its comparisons.

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
        found = np.ones(len(frame), bool)
        for compared, one, other in zip(ways, sides, sides[1:] or [True], strict=False):
            there = np.ones(len(frame), bool)
            for side, another in ((one, other), (other, one)):
                if hasattr(side, "dtype"):
                    _comparable(side, another, site)
                    there &= side.notna().to_numpy()
            fulfil = needed("pandas").Series(compared(one, other), index=frame.index)
            parts.append(fulfil.to_numpy(dtype=bool, na_value=False) & there)
            found &= parts[-1]
        return found

    def value(node: Any) -> Any:
        """A column, or a value in the condition."""
        return frame[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)

    try:
        tree = ast.parse(where.strip(), mode="eval")
        if not all(isinstance(node, CONDITION) for node in ast.walk(tree)):
            raise SyntaxError
        names = [*dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))]
        check_columns(frame, names, site)
        return rows(tree.body) & complete(frame, names), parts
    except BadData:
        raise
    except Exception as e:  # of many kinds: of Python's parser, of comparisons of pandas
        said = "write comparisons of a column with a value, and join them: \"age >= 18 and sex == 'F'\""
        raise RecipeError(f"where={where!r}: {said}", "where") from (None if isinstance(e, SyntaxError) else e)


def _comparable(column: Any, values: Any, site: str) -> None:
    """Raise BadData if a column that is not numeric is compared with a number, or a numeric one with a text."""
    for value in () if hasattr(values, "dtype") else values if isinstance(values, list | tuple) else (values,):
        number = is_numeric(getattr(column.dtype, "categories", column))
        if isinstance(value, int | float) != number and not isinstance(value, bool):
            raise BadData(f"{site}: {column.name} has {'numbers' if number else 'texts'}, and where= has {value!r}")


def check_columns(frame: Any, names: Sequence[str], site: str) -> None:
    """Raise BadData, naming the site, for a column that its frame does not have."""
    for name in names:
        if name not in frame.columns:
            from ..contract.errors import nearest

            raise BadData(f"{site} has no column {name!r}.{nearest(name, map(str, frame.columns))}")


def complete(frame: Any, names: Sequence[str]) -> np.ndarray:
    """The rows in which none of these columns is missing, bool [n]."""
    return np.asarray(~frame[[*names]].isna().any(axis=1).to_numpy(), dtype=bool)


def latex(frame: Any, digits: int) -> str:
    """A frame as a LaTeX table, for booktabs."""
    said: Any = lambda v: f"{v:.{digits}f}" if isinstance(v, float) else str(v)
    escaped = lambda v: "".join(
        {"<": "$<$", ">": "$>$", "|": "$|$"}.get(c, f"\\{c}" if c in "_%&#$" else c) for c in said(v)
    )
    lines = [["", *frame.columns], *([i, *row] for i, row in zip(frame.index, frame.to_numpy().tolist(), strict=True))]
    head, *rows = (" & ".join(map(escaped, line)) + r" \\" for line in lines)
    begin = rf"\begin{{tabular}}{{l{'r' * frame.shape[1]}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"])
