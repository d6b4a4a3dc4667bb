"""Speed, bandwidth and latency of the clients' machines, for the virtual clock.

Side: the server's, for its virtual clock; real machines have their own speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .contract import RecipeError, Settings
from .contract.place import name_of
from .contract.public import public
from .contract.text import unquoted
from .distributions import LogUniform, Spread, check_lengths, is_distribution, is_number, of_client, plain
from .runtime.clock import Device
from .runtime.streams import rng

__all__ = ["Devices", "factory", "hospitals", "phones"]

_FIELDS = ("speed", "down", "up", "latency")


@dataclass(frozen=True)
class Devices(Settings):
    """The machines of a federation. Each field is one number for all, a list with one entry per client, or a
    distribution.

    A distribution is drawn from once per client. Raises RecipeError, naming key and client, for a value that is not
    finite and above 0; the latency may be 0.

    Attributes:
        speed: Row gradients per second; default 1,000.
        down: Bytes per second to the client; default 2.5e6.
        up: Bytes per second from the client; default 1e6.
        latency: Seconds per exchange; default 0.05.
    """

    speed: Spread = 1000.0
    down: Spread = 2.5e6
    up: Spread = 1.0e6
    latency: Spread = 0.05

    def __post_init__(self) -> None:
        for key in _FIELDS:
            value = plain(getattr(self, key))
            object.__setattr__(self, key, value)
            if isinstance(value, tuple):
                for client, entry in enumerate(value):
                    _checked(key, entry, name_of(client))
            elif not is_distribution(value):
                _checked(key, value, "every client")

    def check(self, clients: int) -> None:
        """Raise RecipeError unless every list has exactly one entry for each of ``clients`` clients."""
        check_lengths(self, clients)

    def of(self, seed: int, client: int) -> Device:
        """The device of ``client`` in the run of ``seed``, the same in every round."""
        return Device(**{key: self._value(key, seed, client) for key in _FIELDS})

    def _value(self, key: str, seed: int, client: int) -> float:
        value = of_client(getattr(self, key), key, client, lambda: rng(seed, "device", client, key))
        return _checked(key, value, name_of(client))


def _checked(key: str, value: Any, whose: str) -> float:
    if not is_number(value) or value < 0 or (value == 0 and key != "latency"):
        bound = "at least 0" if key == "latency" else "above 0"
        raise RecipeError(
            f"Devices({key}=...) gives {value!r} to {whose}: it must be {bound} and finite{unquoted(value)}.", key
        )
    return float(value)


def phones() -> Devices:
    """Phones: two orders of magnitude between the fastest and the slowest, in compute and in bandwidth.

    The spreads of this and the other presets are plausible round figures for illustration, not measurements.
    """
    return Devices(
        speed=LogUniform(50, 5000),
        down=LogUniform(2.5e5, 2.5e7),
        up=LogUniform(5e4, 5e6),
        latency=LogUniform(0.02, 0.5),
    )


def hospitals() -> Devices:
    """Hospitals: servers on wired connections, one order of magnitude apart. Illustrative, like `phones`."""
    return Devices(
        speed=LogUniform(5e3, 5e4),
        down=LogUniform(5e6, 1e8),
        up=LogUniform(2.5e6, 5e7),
        latency=LogUniform(0.005, 0.05),
    )


def factory() -> Devices:
    """A factory: small controllers and workstations, on one local network. Illustrative, like `phones`."""
    return Devices(
        speed=LogUniform(20, 2e4), down=LogUniform(1e6, 1e8), up=LogUniform(1e6, 1e8), latency=LogUniform(0.001, 0.01)
    )


public(__name__)
