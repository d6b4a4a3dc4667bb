"""Medley: federated learning when the clients differ, in their data, their compute, their bandwidth and in time."""

import typing as _typing

from .runtime import renamed as _renamed

_renamed.install()

if _typing.TYPE_CHECKING:
    from ._public import *  # noqa: F403

else:  # torch takes seconds to import, and much of the command line does without

    def __getattr__(name):
        """A part of the package, or a public name. Raises AttributeError, with the nearest name that there is."""
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"medley has no {name!r}", name=name)
        new = _renamed.current(f"{__name__}.{name}")
        if new is not None:
            raise AttributeError(f"{__name__}.{name} is now {new}", name=name)
        from importlib import import_module
        from importlib.util import find_spec

        if find_spec(f"{__name__}.{name}"):  # its modules import each other so, before the public names are there
            return import_module(f"{__name__}.{name}")
        from .runtime.tricks import paused_collector

        with paused_collector():
            from . import _public
        public = {n: v for n, v in vars(_public).items() if not n.startswith("_")}
        globals().update(public, __all__=[*public])
        if name in globals():
            return globals()[name]
        from .runtime.field_words import meant

        hint = f"{meant(name, public)} dir(medley) has all names."
        raise AttributeError(f"medley has no {name!r}.{hint}", name=name)

    def __dir__():
        return sorted(__getattr__("__all__"))
