"""Shows the owner an answer that the node saved next to its record: its numbers, as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ...contract import pytree
from ...contract.errors import WireError
from ...contract.text import shown

LONGEST = 64
"""How many numbers of a tensor are shown; the file has them all."""


def numbers(answer: bytes) -> Iterator[str]:
    """Lines "name: value" of the content of any kind of answer."""
    content: Any = answer[1:]
    try:
        content = json.loads(content)
    except ValueError:
        try:
            content = pytree.from_bytes(content, {})
        except WireError:
            yield f"{len(answer)} bytes in a form of their own, such as encrypted shares"
            return
    yield from _lines("", content)


def _lines(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _lines(f"{name}.{key}" if name else str(key), part)
    elif isinstance(value, Tensor):
        few = ", ".join(f"{v:.10g}" for v in value.flatten()[:LONGEST].tolist())
        yield f"{shown(name)}: {list(value.shape)} {few}{', …' if value.numel() > LONGEST else ''}"
    else:
        yield f"{shown(name)}: {shown(value)}"
