"""The run-time type checker of the tests: beartype with PEP 484's rule that an int is a float, as mypy has it."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
