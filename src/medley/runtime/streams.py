"""Named random streams: every draw has a name, and depends only on the seed and this name.

The key of a stream is a keyed hash of (seed, *name): 64 bits, or 256 for a `Secret`. There is nothing to save and
nothing to restore. A draw is the same in one process, in ten workers and on a phone, in any order of events.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b, shake_256

import numpy as np
import torch
from torch import Tensor

from .turns import process_turn

Name = str | int


def key(seed: int, *name: Name) -> int:
    """The 64-bit key of a stream, e.g. ``key(seed, client, round, "batches")``."""
    return int.from_bytes(_digest(seed, name, 8), "little")


def _digest(seed: int, name: Sequence[Name], size: int) -> bytes:
    state = _keyed(seed, size).copy()
    state.update("/".join([f"i{part}" if type(part) is int else _escaped(part) for part in name]).encode())
    return state.digest()


@lru_cache(typed=True)
def _keyed(seed: int, size: int) -> blake2b:
    """The hash of nothing yet under this key; a copy of it takes a third of the time of a new one."""
    raw = str(seed).encode()
    raw = raw if len(raw) <= blake2b.MAX_KEY_SIZE else blake2b(raw).digest()
    return blake2b(digest_size=size, key=raw)


@lru_cache(typed=True)
def _escaped(part: Name) -> str:
    # 1 and "1" are different names, and so are ("a/sb",) and ("a", "b").
    return f"{type(part).__name__[0]}{part}".replace("\\", "\\\\").replace("/", "\\/")


def generator(seed: int, *name: Name, reuse: torch.Generator | None = None) -> torch.Generator:
    """A fresh torch generator (CPU) of that name, or the generator ``reuse`` restarted at it."""
    return (reuse or torch.Generator()).manual_seed(key(seed, *name))


def rng(seed: int, *name: Name) -> np.random.Generator:
    """A fresh numpy generator of that name."""
    return np.random.Generator(np.random.PCG64(key(seed, *name)))


def name_globals(device: str, seed: int, *name: Name) -> None:
    """Restart the global streams of torch, NumPy and Python at this name; a user's own code draws from them."""
    at = key(seed, *name)
    # torch.manual_seed looks for every kind of accelerator, which takes a hundred times as long.
    (torch.default_generator.manual_seed if device == "cpu" else torch.manual_seed)(at)
    np.random.seed(at % 2**32)
    random.seed(at)


@contextlib.contextmanager
def globals_kept(device: str) -> Iterator[None]:
    """A context that restores the global random streams of torch, NumPy and Python at its end.

    Runs in several threads take turns, because their layers draw from the same streams.
    """
    with process_turn(), _as_before(device):
        yield


@contextlib.contextmanager
def _as_before(device: str) -> Iterator[None]:
    numpys = np.random.get_state()
    pythons = random.getstate()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if "cuda" in device else []):
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


class Secret:
    """A stream for noise that protects clients: without the seed nobody can predict it, whatever they saw before.

    Its numbers come from SHAKE-256 under a 256-bit key. torch's generator uses only 32 bits of its seed, which an
    attacker can try one by one. Each call continues where the previous one ended.
    """

    def __init__(self, seed: int, *name: Name) -> None:
        self._key = _digest(seed, name, 32)
        self._calls = 0

    def uniform(self, count: int) -> Tensor:
        """Numbers in (0, 1), float64 [count], each one of 2⁵² values."""
        self._calls += 1
        raw = shake_256(self._key + self._calls.to_bytes(8, "little")).digest(8 * count)
        return torch.from_numpy(((np.frombuffer(raw, "<u8") >> np.uint64(12)) + 0.5) * 2.0**-52)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers of this shape, float64."""
        numbers: Tensor = torch.special.ndtri(self.uniform(math.prod(shape)))
        return numbers.reshape(tuple(shape))
