"""What public packages and objects show: the names of a package's ``__all__``, and for other words what they mean."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..runtime import renamed
from ..runtime.field_words import meant, translated


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


class Explained:
    """Base of classes whose instances say what Medley has for other libraries' attributes, such as ``fit``."""

    if not TYPE_CHECKING:  # it would accept any attribute

        def __getattr__(self, name):
            """Raises AttributeError."""
            if not name.startswith("_") and not hasattr(type(self), name):
                hint = translated(name, dir(self))
                if hint:
                    raise AttributeError(f"{type(self).__name__} has no {name!r}.{hint}", name=name)
            return object.__getattribute__(self, name)  # again, for the error that it raised
