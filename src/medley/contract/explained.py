"""What public objects say of attributes that they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime import renamed
from ..runtime.field_words import meant
from .errors import MANY


class Explained:
    """Base of classes whose instances say what an earlier attribute is now, and what Medley has for other libraries'
    attributes, such as ``fit``.
    """

    if not TYPE_CHECKING:  # it would accept any attribute

        def __getattr__(self, name):
            """Raises AttributeError."""
            new = renamed.ATTRIBUTES.get(type(self).__name__, {}).get(name)
            if new is not None:
                raise AttributeError(f"{type(self).__name__}.{name} is now {new}", name=name)
            if not name.startswith("_") and not hasattr(type(self), name):
                names = [n for n in dir(self) if not n.startswith("_")]
                hint = meant(name, names) or (f" It has: {', '.join(names)}." if len(names) <= MANY else "")
                raise AttributeError(f"{type(self).__name__} has no {name!r}.{hint}", name=name)
            return object.__getattribute__(self, name)  # again, for the error that it raised
