"""A method: frozen hyper-parameters, a server script, client methods, and two declared states."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, overload

from typing_extensions import TypeVar, get_original_bases

from .client import Client, Nothing
from .cohort import Cohort
from .errors import Unsupported
from .explained import Explained
from .message import Message
from .needs import Need, needs_of
from .personal import Patterns
from .settings import Checked
from .types import Vec

S = TypeVar("S")

M = TypeVar("M", default=Any)

F = TypeVar("F", bound=Callable[..., Message])


class MessageTypes(NamedTuple):
    """The wire types of a client method.

    Attributes:
        common: the message to all clients
        each: each client's own message; None if the method takes none
        up: the reply
        vectorized: whether a stack of clients may be served in one call; default False
    """

    common: type[Message]
    each: type[Message] | None
    up: type[Message]
    vectorized: bool = False


@overload
def on_client(method: F) -> F: ...


@overload
def on_client(*, vectorized: bool) -> Callable[[F], F]: ...


def on_client(method: F | None = None, *, vectorized: bool = False) -> F | Callable[[F], F]:
    """Mark a method as a client method, which runs where the data is. Its annotations are its wire types.

    With ``vectorized=True`` it runs for many simulated clients in one call: ``me`` is then a
    `medley.clients.stack.ClientStack`, vectors are [k, d], and a client's numbers are columns [k, 1]. Such a method
    must not branch on a client's numbers or call ``float`` on them. The conformance battery compares both variants.
    """

    def mark(method: F) -> F:
        method.on_client, method.vectorized = True, vectorized  # type: ignore[attr-defined]
        return method

    return mark if method is None else mark(method)


def _refuse_bare(cls: type) -> None:
    """Raise TypeError for a number in the class's body without a type, because it would not be a setting."""
    try:
        declared = set().union(*map(inspect.get_annotations, cls.__mro__))
    except NameError:  # from Python 3.14 on, annotations are evaluated here, and may name later definitions
        return
    for name, value in vars(cls).items():
        if not name.startswith("_") and name not in declared and type(value) in (int, float):
            raise TypeError(
                f"class {cls.__name__}: {name} = {value!r} has no type, so it is not a setting: write {name}: "
                f"{type(value).__name__} = {value!r}"
            )


def _message_types(cls: type, method: Any) -> MessageTypes:
    """The wire types that a client method's annotations declare. Raises TypeError for annotations of another form."""
    function = inspect.unwrap(method)
    hints = typing.get_type_hints(function)
    _, *names = inspect.signature(function).parameters
    messages = names[1:]  # without the client, whose annotation is for readers and mypy
    bare = next((name for name in [*messages, "return"] if not _is_message(hints.get(name))), None)
    if not 1 <= len(messages) <= 2 or bare is not None:
        remedy = ""
        if bare == "return":
            remedy = "; its return annotation is not a Message: write `-> Step`, or the reply's own class"
        elif bare is not None:
            remedy = f"; {bare!r} is not annotated with one: write `{bare}: Model`, or its own class"
        raise TypeError(
            f"{cls.__name__}.{method.__name__}: a client method takes (self, me: Client[...], request: SomeMessage), "
            f"and if each client gets its own message, a third SomeMessage; it returns a Message{remedy}"
        )
    each = hints[messages[1]] if len(messages) == 2 else None
    return MessageTypes(hints[messages[0]], each, hints["return"], method.vectorized)


def _is_message(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, Message)


CARD = re.compile(r"^\*\*(Reference|Status|One round sends)\*\*:?", re.MULTILINE)
"""A section that makes a docstring a method's card; none of the three alone is needed."""


def _with_card(cls: type) -> str | None:
    """The class's docstring, combined with its module's docstring if that is a card."""
    docstring = cls.__doc__
    card = getattr(sys.modules.get(cls.__module__), "__doc__", None)
    if not docstring or not CARD.search(card or "") or CARD.search(inspect.cleandoc(docstring)):
        return docstring
    first, _, rest = inspect.cleandoc(card or "").partition("\n\n")
    parts = (
        (first, inspect.cleandoc(docstring))
        if first.startswith(f"{cls.__name__}: ")
        else (inspect.cleandoc(docstring), first)
    )
    return "\n\n".join((*parts, rest))


class Algorithm(Checked, Explained, ABC, Generic[S, M]):
    """Base of every method: ``class X(Algorithm[Server, Memory])``, or ``Algorithm[Server]`` if clients keep nothing.

    A subclass is a frozen dataclass of hyper-parameters, declared as in `medley.contract.settings` and checked when an
    instance is made. A method with rules between its settings extends ``__post_init__``. The server's state
    lives in ``Server``, a client's in ``Memory``. Both are dataclasses of tensors, scalars, strings, None, and lists
    and dicts of these. Change them by assignment, never in place: after a lost reply, Medley restores an earlier
    version, which must be unchanged.

    ``needs`` has the properties that a run must offer, as members of `Need` or as their words. If a run lacks one,
    Medley raises `Unsupported` before round 1.

    ``waits_as`` is for methods designed for late replies. It names the method to which they reduce in a run that waits
    for every reply; such a run starts with a warning. Default "": no warning.

    ``every_round`` is True for a method whose `round` is also called when no client takes part. Default False.

    ``sums_as`` is for methods whose server reads single replies by default. It names the variant whose server needs
    only sums; error messages of `medley.Private` then suggest it. Default "".

    Set ``fixed_scale`` to False if your method itself chooses the scale of what it sends. Otherwise a run with secure
    sums refuses a reply that fixed-point numbers would round to nothing. Default True.

    Set ``any_loop`` to True if clients send only where their training ends, and the method does not change their
    gradients, loss or optimizer. Clients may then train by a loop of the user's own, `Network(train=function)`. Default
    False: such a run is refused before round 1.

    Set ``asks_once`` to True if your method asks each client in one round only. Default False.

    Set ``solves_sums`` to True if your method solves equations made of sums of replies: a run with `TopK` or
    `Quantise`, which lose small entries, is then refused. Default False.

    ``instead`` maps needs of this method to the variant that works without them; error messages then suggest it.
    Default: none.

    If the module's docstring is a card (it has a section **Reference**, **Status** or **One round sends**), the class's
    docstring includes it.
    Several methods of one paper may share a base: an abstract subclass of this class, in their file.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    waits_as: ClassVar[str] = ""
    every_round: ClassVar[bool] = False
    sums_as: ClassVar[str] = ""
    fixed_scale: ClassVar[bool] = True
    any_loop: ClassVar[bool] = False
    asks_once: ClassVar[bool] = False
    solves_sums: ClassVar[bool] = False
    instead: ClassVar[Mapping[str, str]] = {}
    memory: ClassVar[type] = Nothing
    message_types: ClassVar[dict[str, MessageTypes]] = {}

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        base = next((b for b in get_original_bases(cls) if typing.get_origin(b) is Algorithm), None)
        if base is not None:
            arguments = typing.get_args(base)[1:]  # from Python 3.13 on, these include a default
            cls.memory = arguments[0] if arguments and arguments[0] is not Any else Nothing
        elif Algorithm in cls.__bases__:
            raise TypeError(f"class {cls.__name__}: write Algorithm[Server] or Algorithm[Server, Memory] as its base")
        inherited = "needs" not in vars(cls)
        cls.needs = needs_of(cls.needs)
        if cls.memory is not Nothing and cls.readmit is Algorithm.readmit:
            cls.needs |= {Need.FIXED}
        elif cls.memory is not Nothing and inherited:
            cls.needs -= {Need.FIXED}  # inherited from a base without `readmit`
        _refuse_bare(cls)
        types = {
            name: _message_types(cls, method) for name, method in vars(cls).items() if hasattr(method, "on_client")
        }
        cls.message_types = cls.message_types | types
        cls.__doc__ = _with_card(cls)

    @property
    def name(self) -> str:
        """The method's name in tables and reports."""
        return type(self).__name__

    @property
    def remembers(self) -> bool:
        """True if clients keep a memory between calls."""
        return self.memory is not Nothing

    def suited(self, gives: frozenset[Need]) -> Algorithm[S, M]:
        """The method with its "auto" settings resolved for a problem with these properties (`Problem.gives`)."""
        del gives
        return self

    def requires(self) -> frozenset[str]:
        """``needs``, and the needs of these hyper-parameters."""
        return self.needs

    @abstractmethod
    def start(self, x: Vec) -> S:
        """The server's state before round 1, from x₀ [d]. Clients can be asked only from round 1 on."""

    def remember(self, x: Vec) -> M:
        """A client's memory before its first call; ``x`` is a zero vector [d] of the run's dtype and device."""
        del x
        return typing.cast(M, self.memory())

    @abstractmethod
    def round(self, s: S, clients: Cohort) -> None:
        """One round in the paper's order. ``s`` is changed by assignment; ``clients`` take part: at least one, or
        possibly none if the method has ``every_round``.
        """

    def end_task(self, s: S, clients: Cohort) -> None:
        """Called when a task of the stream is over; ``clients`` are all clients that have rows of it.

        Continual methods consolidate here. The default does nothing.
        """

    def readmit(self, s: S, clients: Cohort, who: Sequence[int]) -> None:
        """Update the server's state when the set of clients changes, before the first round with the new clients.

        Clients join, leave, or come back without their memory. ``clients.p`` contains the members and their new p_i.

        Args:
            s: the server's state, changed by assignment
            clients: all members that have rows
            who: the clients that left, and those that start with the memory of `remember`

        If clients keep no memory, the default does nothing. Otherwise it raises Unsupported, because sums over
        memories, such as c = Σ p_i c_i, would no longer hold. A method with memories that does not override it gets
        `Need.FIXED` automatically. A method without memories must declare `Need.FIXED` itself if its server's state
        sums over clients.
        """
        if self.remembers:
            raise Unsupported(
                f"{self.name} cannot let a client in again without its memory, because the method does not define "
                "how the server's state changes then. Restore the client's memory from a copy, or start a new run",
                method=self.name,
                need="memory",
            )

    def personal(self, me: Client[M], x: Vec) -> Vec:
        """The model that client ``me`` uses when it gets the server's model x [d]; by default x.

        It runs where the client's data is, and the ledger counts no message, byte or second for it. It may read
        ``me.memory`` and descend; its changes are discarded. A client that never took part has the memory of
        `remember`, and personal parameters as the seed drew them.
        """
        del me
        return x

    @property
    def is_personal(self) -> bool:
        """Whether clients use their own models, that is, whether `personal` is overridden."""
        return type(self).personal is not Algorithm.personal

    def shares(self) -> Patterns | None:
        """Names of the parameters that this method shares, if the problem does not specify them; default None: all. The
        names are as in ``shared`` of `medley.problems.Network`.
        """
        return None

    def people(self) -> str:
        """The column that names the person of each row, if rows are private by person; default "": none."""
        return ""

    def model(self, s: S) -> Vec:
        """The model to evaluate and to return [d]; by default s.x."""
        return s.x  # type: ignore[attr-defined,no-any-return]

    def figures(self, s: S) -> dict[str, float]:
        """Figures of the server's state for a row of the history, by column; none by default.

        It is called once per row, so it suits figures that cost more than a round.
        """
        del s
        return {}

    def by_client(self, s: S) -> dict[int, dict[str, float]]:
        """Figures of clients for their rows of `Result.clients`, by client and column; none by default."""
        del s
        return {}

    def settings(self) -> dict[str, Any]:
        """Hyper-parameters by name, for the record. Raises TypeError for a class that is not a dataclass."""
        if not dataclasses.is_dataclass(type(self)):
            raise TypeError(f"class {type(self).__name__}: write @dataclass(frozen=True) above it")
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]


__all__ = ["Algorithm", "Client", "Cohort", "MessageTypes", "Need", "on_client"]
