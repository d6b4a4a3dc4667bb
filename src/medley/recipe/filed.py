"""The settings of a recipe that a sink stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..report.sections.runs import flattened
from ..storage.as_json import is_secret


def filed(tables: Mapping[str, Any]) -> dict[str, str]:
    """The settings by dotted key, without the sink's own, which may include a password, and without a secret seed."""
    settings = flattened({k: v for k, v in tables.items() if k != "sink"})
    private = any("private" in table for table in tables.get("methods", ()))
    for key in ("seed", "seeds"):
        value = tables.get("run", {}).get(key)
        seeds = value if isinstance(value, list) else [value]
        if value is not None and (private or any(type(n) is int and is_secret(n, {}) for n in seeds)):
            settings[f"run.{key}"] = "hidden"
    return settings
