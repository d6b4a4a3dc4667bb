"""What public packages show: the names of ``__all__``, and for other words what they mean."""

from __future__ import annotations

import sys
from typing import Any

from ..runtime import renamed
from ..runtime.field_words import meant


def public(name: str) -> None:
    """Let ``dir`` of the module ``name`` show its ``__all__`` alone, and let an unknown attribute say what was meant.

    The two functions are set here, and not written in the module, so that type checkers still know every attribute.
    """
    module: Any = sys.modules[name]

    def missing(attribute: str) -> Any:
        full_name = f"{name}.{attribute}"
        new = renamed.current(full_name)
        if new is not None:
            raise AttributeError(f"{full_name} is now {new}", name=attribute)
        near = "" if attribute.startswith("_") else meant(attribute, module.__all__)
        raise AttributeError(f"{name} has no {attribute!r}.{near}", name=attribute)

    module.__getattr__ = missing
    module.__dir__ = lambda: sorted(module.__all__)
