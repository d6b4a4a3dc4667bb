"""Error messages in a recipe's terms, because the reader wrote TOML and not a Python call."""

from __future__ import annotations

import inspect
import re

from .schema import CALLS, KINDS

FEDERATION = {"validation": "data.validation", "test": "data.test", "data": "[data]", "clients": "[data]"}
"""Where in a recipe the arguments of `Federation` stand that have no table of their own name."""

TABLES = {call.__name__: table for table, call in CALLS.items() if inspect.isclass(call)} | {
    "run": "run",
    "tune": "tune",
    "compare": "run",
}
"""Tables by the call whose arguments they hold."""

OPTIONS = ("base", "save", "jobs")
"""Arguments of a comparison and of a search that come from the shell."""

CALL = re.compile(r"\b(?:\w+\.)?(?P<call>[A-Za-z]\w*)\((?P<key>\w+)=(?P<value>'[^']*'|[^()',]*)\)")

PREPARED = re.compile(r"(?:prepared=)?medley\.statistics\.Study\(\.\.\.\)\.prepare\(\[('[^']*')[^)]*\)")
LEFT_OUT = re.compile(r"\bleave_out=\['([^']*)'\]")
PREPARE = r"data.prepared, the file that medley prepare FILE... --column \1 writes"


def in_terms(message: str) -> str:
    """A message with calls such as ``Federation(validation=0.1)`` in a recipe's terms: "data.validation = 0.1"."""

    def in_recipe(match: re.Match[str]) -> str:
        call = match["call"]
        key = match["key"]
        value = match["value"]
        if call in ("compare", "tune") and key in OPTIONS:
            return f"--{key}" if value == "..." else f"--{key} {value}"
        if call == "Federation":
            is_table = key in KINDS or key in CALLS
            path = FEDERATION.get(key, (f"[{key}]" if value == "..." else key) if is_table else f"federation.{key}")
        elif call in TABLES:
            path = f"{TABLES[call]}.{key}"
        else:
            return match[0]
        written = {"True": "true", "False": "false"}.get(value, value.replace("'", '"'))
        return path if value == "..." or path.startswith("[") else f"{path} = {written}"

    return CALL.sub(in_recipe, PREPARED.sub(PREPARE, LEFT_OUT.sub(r"--leave-out \1", message)))
