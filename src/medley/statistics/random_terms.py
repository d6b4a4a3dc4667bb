"""Random effects in a formula, in lme4's notation: "y ~ days + (days | patient) + (1 | site)".

**Reference**: Bates, Mächler, Bolker & Walker, "Fitting Linear Mixed-Effects Models Using lme4", Journal of Statistical
Software 67, 2015, section 2.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ..contract import RecipeError
from .formulas import parsed

SITE = "site"
"""The group of a site's own effects."""

TERM = re.compile(r"\(((?:[^()|]|\([^()|]*\))*)(\|\|?)([^()|]*)\)")
"""A term in parentheses: columns, | or ||, and what groups them."""

WRITTEN = (
    "write random effects as (1 | patient), (days | patient), (0 + days | patient), (days || patient) or (1 | site)"
)


class Random(NamedTuple):
    """Random effects that may be correlated: of a site, or of a group within sites; and their columns, as a formula."""

    group: str
    formula: str


class Terms(NamedTuple):
    """A formula: its fixed part, its random effects, and the column of groups within sites, empty for none."""

    fixed: str
    random: tuple[Random, ...]
    group: str

    def blocks(self, of_site: bool) -> list[str]:
        """The formulas of the sites' effects, or of those of groups within sites."""
        return [r.formula for r in self.random if (r.group == SITE) == of_site]


@cache
def terms(formula: str) -> Terms:
    """Read a formula. Raises RecipeError, naming the term, for one that cannot be fitted from sites' sums."""
    left, tilde, right = (part.strip() for part in formula.partition("~"))
    found = list[Random]()

    def take(match: re.Match[str]) -> str:
        found.extend(_random(match, formula, left))
        return ""

    fixed = TERM.sub(take, right)
    if not found:
        raise RecipeError(f"mixed({formula!r}): it has no random effects; {WRITTEN}, or use study.glm", "formula")
    if "|" in fixed:
        raise RecipeError(f"mixed({formula!r}): {fixed.strip()!r} cannot be read; {WRITTEN}", "formula")
    pieces = [piece.strip() for piece in re.sub(r"\s+", " ", fixed).split("+")]
    fixed = " + ".join(filter(None, pieces)) or "1"
    groups = list(dict.fromkeys(r.group for r in found if r.group != SITE))
    if len(groups) > 1:
        why = "sums of groups within other groups, or across them, do not leave a site: keep one, and (1 | site)"
        raise RecipeError(f"mixed({formula!r}): it groups a site's rows by {' and by '.join(groups)}; {why}", "formula")
    if len({*found}) < len(found):
        raise RecipeError(f"mixed({formula!r}): a term of random effects is there twice", "formula")
    out = Terms(f"{left} {tilde} {fixed}", tuple(found), groups[0] if groups else "")
    if out.group in parsed(out.fixed).columns:
        raise RecipeError(
            f"mixed({formula!r}): {out.group} is a group, and cannot be a column of the model, too", "formula"
        )
    return out


def _random(match: re.Match[str], formula: str, left: str) -> Iterator[Random]:
    """The random effects of a term: with || each column's own; with site/patient those of both."""
    columns, bar, by = (part.strip() for part in match.groups())
    groups = [g.strip().strip("`") for g in re.split(r"[/:]", by)]
    names = [g for g in groups if g != SITE]
    if not all(groups) or not columns or len(names) > 1 or len(groups) > 2 or (len(groups) == 2 and groups[0] != SITE):
        raise RecipeError(f"mixed({formula!r}): {match[0]} cannot be read; {WRITTEN}", "formula")
    plain = [piece.strip() for piece in columns.split("+")]
    if bar == "||" and ("C(" in columns or set("*:-") & set(columns)):
        raise RecipeError(f"mixed({formula!r}): || is for columns of numbers; write a term for each effect", "formula")
    nested = groups[-1:] if ":" in by else groups
    for group in nested:
        if bar == "|":
            yield Random(group, f"{left} ~ {columns}")
            continue
        if "0" not in plain:
            yield Random(group, f"{left} ~ 1")
        yield from (Random(group, f"{left} ~ 0 + {c}") for c in plain if c not in ("0", "1"))
