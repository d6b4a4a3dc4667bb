"""Reads the costs in a method's card; `medley.testing` documents the grammar."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

from ..contract.algorithm import Algorithm

SECTION = "**One round sends**"
"""The heading of a card's costs."""


class Term(NamedTuple):
    """A count as a Python expression in d and other letters, and its unit: "float", "scalar" (8 bytes) or "byte"."""

    text: str
    unit: str

    def of(self, letters: Mapping[str, int]) -> int:
        """The count for these values of the letters."""
        # Safe: `_cost` accepts only letters, numbers, + * / and brackets.
        return int(eval(_compiled(self.text), {"__builtins__": {}}, dict(letters)))


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "a card", "eval")


class Line(NamedTuple):
    """The cost of one client method, down and up, under a condition ("" if there is none)."""

    name: str
    condition: str
    down: tuple[Term, ...]
    up: tuple[Term, ...]

    @cache  # noqa: B019 - lines are few and small, and a run's deliveries have few different sizes
    def fits(self, d: int, width: int, down: int, up: int) -> bool:
        """True if some values of the letters make the costs exactly ``down`` and ``up``.

        Args:
            d: length of x
            width: bytes of a float
            down: bytes delivered to the client
            up: bytes delivered to the server
        """
        weight = {"float": width, "scalar": 8, "byte": 1}
        text = "".join(t.text for t in self.down + self.up)
        letters = sorted({c for c in text if c.isalpha()} - {"d"})

        def search(free: list[str], fixed: dict[str, int]) -> bool | None:
            """Find values for the letters in ``free`` at which the costs fit; None if the costs are too high even with
            0 for all.

            Costs grow with every letter, so the search can stop when they are too high.
            """
            at = {**dict.fromkeys(free, 0), **fixed}
            least_down = sum(weight[t.unit] * t.of(at) for t in self.down)
            least_up = sum(weight[t.unit] * t.of(at) for t in self.up)
            if least_down > down or least_up > up:
                return None
            if not free:
                return (least_down, least_up) == (down, up)
            for k in range(max(down, up) + 1):
                result = search(free[1:], {**fixed, free[0]: k})
                if result is not False:
                    return result is True
            return False

        return search(letters, {"d": d}) is True


def has_card(method: Algorithm[Any, Any]) -> bool:
    """Whether the method's class states its costs. Medley's own methods must; a user's may."""
    kind = type(getattr(method, "method", method))
    return SECTION in (inspect.getdoc(kind) or "") or kind.__module__.startswith("medley.")


def card(method: Algorithm[Any, Any]) -> list[Line]:
    """The lines of the method's card. Raises AssertionError if there is no card, or a line cannot be read."""
    method = getattr(method, "method", method)  # a wrapper sends what its method sends
    _, heading, section = (inspect.getdoc(type(method)) or "").partition(SECTION)
    if not heading:
        raise AssertionError(f"{method.name}: the docstring has no section {SECTION}; see medley.testing")
    lines = []
    for text in section.partition("\n**")[0].splitlines():
        if text.startswith("- "):
            m = re.fullmatch(r"- (\w+)(?: \((first time|later|if [^)]*)\))?: (.+?) down, (.+?) up(?:[;.].*)?", text)
            if m is None:
                raise AssertionError(
                    f"{method.name}: cannot read the card's line {text!r}; write '- name: 2d + 1 down, d up; remark'"
                )
            lines.append(Line(m[1], m[2] or "", _cost(m[3]), _cost(m[4])))
    return lines


def _cost(text: str) -> tuple[Term, ...]:
    terms = []
    for term in re.split(r"\+(?![^(]*\))", text):
        body = term.strip().removesuffix(" bytes")
        # Factors side by side are multiplied.
        expression = re.sub(r"(?<=[\w)]) *(?=[A-Za-z(])", "*", body)
        unit = "byte" if term.strip() != body else "scalar" if body.isdigit() else "float"
        try:
            if not re.fullmatch(r"(?:[A-Za-z\d+() ]|/(?= ?[1-9]))+", body):
                raise SyntaxError
            compile(expression, text, "eval")
        except SyntaxError:
            raise AssertionError(
                f"a card counts in d, plain numbers and other letters, as in '2d + 1' or 'k(d + 1)', not {text!r}"
            ) from None
        terms.append(Term(expression, unit))
    return tuple(terms)
