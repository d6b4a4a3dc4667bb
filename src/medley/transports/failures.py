"""Failures in other processes: errors that cross the wire, and the number of attempts."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from ..contract import errors
from ..contract.errors import MedleyError

ATTEMPTS = 3
"""Number of workers that may die on the same request before the run gives up."""


def describe(e: Exception) -> dict[str, Any]:
    """An error as JSON values: its nearest class among Medley's, its text, and its scalar attributes.

    An error that is not Medley's becomes a MedleyError with the traceback in its text.
    """
    classes = [c.__name__ for c in type(e).__mro__ if getattr(errors, c.__name__, None) is c and c is not Exception]
    if not classes:
        return {"error": "MedleyError", "text": f"a worker failed: {e}\n{traceback.format_exc()}", "attributes": {}}
    plain = {k: v for k, v in vars(e).items() if isinstance(v, bool | int | float | str | None)}
    return {"error": classes[0], "text": str(e), "attributes": plain}


def revive(head: Mapping[str, Any]) -> MedleyError:
    """Inverse of `describe`."""
    kind: type[MedleyError] = getattr(errors, head["error"])
    e = kind.__new__(kind, head["text"])
    e.__dict__.update(head["attributes"])
    return e
