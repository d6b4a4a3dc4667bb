"""Declared settings: a field's annotation says which values it accepts, and one check enforces this for every class.

```python
@dataclass(frozen=True)
class Ridge(Checked):
    mu: Annotated[float, at_least(0)] = 0.01
    lr: Annotated[float, positive] | Literal["auto"] = "auto"
    size: Annotated[int, in_range(1, 64)] | None = None
```

To accept None, declare it. `medley.contract.annotation` documents which values an annotation accepts.
"""

from __future__ import annotations

import copyreg
import dataclasses
import html
import itertools
import typing
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..runtime.field_words import elsewhere
from .annotation import Bounds, ValueType, above, at_least, at_most, below, in_range, in_words, kinds, positive
from .errors import RecipeError
from .keywords import entries, refuse_gone, refuse_missing, refuse_unknown
from .text import unquoted


class Setting(NamedTuple):
    """One declared setting."""

    name: str
    hint: Any
    """Its annotation, resolved."""
    kinds: tuple[ValueType, ...]
    """The alternatives of its type."""
    default: Any
    """Its default; ``dataclasses.MISSING`` if a value is required."""
    doc: str
    """Its entry in the class's docstring; empty if there is none."""

    @property
    def accepts(self) -> str:
        """The values it accepts, in words: "a finite number above 0, or 'auto'"."""
        return in_words(kind.text for kind in self.kinds)

    def check(self, value: Any, where: str) -> None:
        """Raise RecipeError, naming the call ``where``, this setting and the values it accepts, unless ``value``
        fits.
        """
        if any(kind.fits(value, {}) for kind in self.kinds):
            return
        words = [*itertools.chain.from_iterable(kind.words for kind in self.kinds)]
        if words and all(kind.words or kind.text == "None" for kind in self.kinds):
            raise RecipeError.unknown(str(value), map(str, words), f"{where}({self.name}=...)")
        if isinstance(value, bool | int | float | str | list | tuple | None):
            # A text in place of a table, such as a metric to stop at, means here what it means elsewhere.
            given_words = value if isinstance(value, list | tuple) else [] if "table" in self.accepts else [value]
            hint = next(filter(None, (elsewhere(word) for word in given_words if isinstance(word, str))), "")
            hint = f".{hint}" if hint else ""
            raise RecipeError(
                f"{where}({self.name}={value!r}): must be {self.accepts}{unquoted(value)}{hint}", self.name
            )
        kind = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        hint = f".{elsewhere('DataFrame')}" if kind == "a DataFrame" else ""
        raise RecipeError(f"{where}({self.name}=...): {kind}; give {self.accepts}{hint}", self.name)


class Settings:
    """Base of classes that users construct by keyword. For an unknown keyword the error suggests the most similar one.

    ``gone`` has the settings of earlier versions, and their values as "setting=text", each with the message of the
    RecipeError that it raises now. Default: none. ``call`` is the name of the call in errors; default "": the class's
    name.
    """

    gone: ClassVar[Mapping[str, str]] = {}
    call: ClassVar[str] = ""

    if not TYPE_CHECKING:  # it would hide the arguments of classes without fields from editors

        def __new__(cls, *args, **settings):
            """A new object for ``__init__`` to fill. Raises RecipeError for a setting unknown, gone or missing."""
            refuse_gone(cls, settings)
            refuse_unknown(cls.__init__, cls.call or cls.__name__, settings)
            refuse_missing(cls.__init__, cls.call or cls.__name__, len(args), settings, cls.__doc__ or "")
            return super().__new__(cls)

        def __reduce_ex__(self, protocol):
            """For copies, which are made without arguments, and so not by ``__new__`` above."""
            make, *parts = super().__reduce_ex__(protocol)
            return (object.__new__ if make is copyreg.__newobj__ else make, *parts)


class Checked(Settings):
    """Base of frozen dataclasses whose fields are declared settings. Constructing an instance checks them all.

    A class with rules between its fields defines ``__post_init__`` and calls this one first.
    """

    def __post_init__(self) -> None:
        check(self, self.call)

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(repr(self))}</b>"


def check(settings: Any, call: str = "") -> None:
    """Check every field of a dataclass against its annotation. Raises RecipeError for the first field that does not
    fit.

    ``call`` is the constructor's name in messages, by default the class's name.
    """
    for setting in describe(type(settings)):  # type: ignore[arg-type]
        setting.check(getattr(settings, setting.name), call or type(settings).__name__)


def check_flags(instance: object, *names: str) -> None:
    """Raise RecipeError unless these attributes are True or False; the error names the class and the attribute."""
    for name in names:
        check_flag(getattr(instance, name), type(instance).__name__, name)


def check_flag(value: object, call: str, name: str) -> None:
    """Raise RecipeError unless the argument ``name`` of a call is True or False."""
    if not isinstance(value, bool):
        raise RecipeError(f"{call}({name}={value!r}): must be True or False", name)


@cache
def describe(cls: type) -> tuple[Setting, ...]:
    """The settings that a dataclass declares, in order.

    A setting's ``doc`` is its entry under "Attributes:" in the docstring of the class or a base. Raises TypeError for
    an annotation with a name that its module does not define.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as e:
        raise TypeError(f"class {cls.__name__}: {e}, which an annotation uses; define it in the module") from e
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= entries(base.__doc__ or "")
    return tuple(
        Setting(f.name, hints[f.name], tuple(kinds(hints[f.name])), _default(f), docs.get(f.name, ""))
        for f in dataclasses.fields(cls)
        if f.init
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


__all__ = [
    "Bounds",
    "Checked",
    "Setting",
    "Settings",
    "above",
    "at_least",
    "at_most",
    "below",
    "check",
    "check_flag",
    "check_flags",
    "describe",
    "in_range",
    "positive",
]
