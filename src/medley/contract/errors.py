"""The errors that Medley raises::

    MedleyError
     ├── RecipeError      an invalid setting; names the key and the nearest valid one
     │    └── UnknownSetting  a keyword that a call does not accept; also a TypeError
     ├── BadData          a client's data cannot be used; names client, row and column
     ├── Unsupported      a method has a need that this run cannot meet
     ├── WireError        a message, checkpoint or run folder is damaged, or differs from its declaration
     ├── ClientFailed     client code raised; carries the remote traceback
     ├── TooFewReplies    fewer clients replied than the method or the reply policy needs
     ├── BudgetSpent      a private run would spend more than its budget; carries the result so far
     └── Diverged         numbers are not finite, the loss diverged, or all learning is lost; has the result
          └── Stalled     no step makes progress, or there is no minimiser

All of them are in `medley`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..runtime import renamed
from ..runtime.field_words import meant, nearest
from .place import Place, name_of


class MedleyError(Exception):
    """Base of all of Medley's errors. ``result`` is the result up to the failure of a run, otherwise None.

    An error from another process may lack attributes, so each class has default values for them.
    """

    result: Any = None


MANY = 40
"""If there are more known names than this, list them only if none is similar to the unknown one."""


class RecipeError(MedleyError, ValueError):
    """An invalid setting. ``key`` is its name, or None."""

    key: str | None = None

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key

    @classmethod
    def unknown(cls, key: str, allowed: Iterable[str], where: str, in_recipe: bool | None = None) -> RecipeError:
        """The error for an unknown key, with the nearest known one.

        Args:
            key: the unknown key
            allowed: all known keys
            where: the call or table that has the key
            in_recipe: for a key of Medley's own, whether a recipe or a call has it, so that the words of other
                libraries are explained; default None: the keys are a user's, such as columns
        """
        allowed = sorted(allowed)
        if new := renamed.word(key, allowed):
            return cls(f"{where} has no {key!r}: it is {new!r} now.", key)
        near = nearest(key, allowed) if in_recipe is None else meant(key, allowed, in_recipe)
        names = "" if near and len(allowed) > MANY else f" It knows: {', '.join(allowed) or 'nothing'}."
        return cls(f"{where} has no {key!r}.{near}{names}", key)


class UnknownSetting(RecipeError, TypeError):
    """A keyword that a call does not accept."""


class BadData(MedleyError, ValueError):
    """A client's data cannot be used. ``client``, ``row`` and ``column`` are numbers from 0, or None.

    The message begins with the ``place`` of the value, if there is one.
    """

    client: int | None = None
    row: int | None = None
    column: int | None = None
    stands: tuple[Place, str] | None = None
    """The place, and the message without it."""

    def __init__(
        self,
        message: str,
        *,
        client: int | None = None,
        row: int | None = None,
        column: int | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(f"{place}: {message}" if place is not None and str(place) else message)
        self.client = client
        self.row = row
        self.column = column
        if place is not None:
            self.stands = place, message
            self.client = place.client
            self.row = place.row
            self.column = place.column if isinstance(place.column, int) else column

    def at(self, place: Place) -> BadData:
        """The same error at another place, in the same column unless ``place`` has one."""
        before, message = self.stands or (Place(), str(self))
        place = place if place.column is not None else place.at(place.row, before.column)
        return type(self)(message, column=self.column, place=place)


class Unsupported(MedleyError, NotImplementedError):
    """``method`` has a ``need`` that this run cannot meet."""

    method: str = ""
    need: str = ""

    def __init__(self, message: str, *, method: str, need: str) -> None:
        super().__init__(message)
        self.method = method
        self.need = need

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, vars(self))


class WireError(MedleyError):
    """A message, checkpoint or run folder is damaged, or differs from its declaration.

    Keeps at most 2,000 characters of the message, because it may quote received data.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message[:2000])


class MemoryLost(WireError):
    """A client does not hold the memory that the server counts on, which no restart of the run brings back.

    The message ends in the remedy.
    """

    def __init__(self, message: str = "", client: int | None = None) -> None:
        remedy = f"resume with readmit=[{client}], --readmit {client} at the shell, to let it start without memory"
        super().__init__(message if client is None else f"{message}; restore a copy, or {remedy}")


class ClientFailed(MedleyError):
    """Client code raised.

    Args:
        client: the client's id
        round: the round
        method: the client method
        traceback: text of the traceback on the client's machine
    """

    client: int = -1
    round: int = -1
    method: str = ""
    traceback: str = ""

    def __init__(self, *, client: int, round: int, method: str, traceback: str) -> None:
        last = traceback.strip().splitlines()[-1] if traceback.strip() else "no traceback"
        super().__init__(
            f"{name_of(client)} failed in round {round} in {method}(): {last}\n"
            f"--- traceback at the client ---\n{traceback}"
        )
        self.client = client
        self.round = round
        self.method = method
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, vars(self))


def _again(kind: type[MedleyError], args: tuple[Any, ...], attributes: dict[str, Any]) -> MedleyError:
    """Rebuild, from a pickle or a copy, an error whose class has required keywords."""
    e = kind.__new__(kind, *args)
    e.__dict__.update(attributes)
    return e


class TooFewReplies(MedleyError):
    """Fewer clients replied than the method or the reply policy needs."""


class BudgetSpent(MedleyError):
    """The next sum would exceed a private run's budget. ``result`` is the result so far."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class Diverged(MedleyError, ArithmeticError):
    """Numbers are no longer finite, or a target diverged. ``result`` is the result so far.

    ``unexplained`` is true if the run's loop should add the likely cause and the remedy to the message.
    """

    unexplained: bool = False

    def __init__(self, message: str, result: Any = None, unexplained: bool = False) -> None:
        super().__init__(message)
        self.result = result
        self.unexplained = unexplained


class Stalled(Diverged):
    """No step makes progress, or there is no minimiser. ``result`` is the result so far."""


def reason(error: OSError) -> str:
    """Why a file cannot be used, in words, without the error's number and the path, which the message already names."""
    if isinstance(error, FileExistsError):
        return "it is a file"
    return (error.strerror or str(error)).lower()


def named(ids: Sequence[int], names: Mapping[int, str]) -> str:
    """Clients in words: "Bern and Basel" if all have names, otherwise "clients [0, 1]"."""
    present = [names[i] for i in ids if i in names]
    if not ids or len(present) < len(ids):
        return f"clients {[*ids]}"
    return " and ".join([", ".join(present[:-1]), present[-1]] if len(present) > 1 else present)
