"""Codecs: `Cast` narrows messages both ways; `Quantise`, `TopK` and `Delta` compress replies; `TwoWay` has two.

Side: both: a client encodes its reply, and the server decodes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from .contract import Checked, Packed, RecipeError, WireError, at_most, in_range, integer, positive, real, take
from .contract.public import public
from .numerics.shares import least_of
from .wire.codec import Codec, CodecState, Draws, Plain, compressible, error_feedback, plus_state

__all__ = ["Cast", "Codec", "Delta", "Plain", "Quantise", "TopK", "TwoWay"]


@dataclass(frozen=True)
class Cast(Checked):
    """Floating-point tensors travel in a narrower type, requests and replies alike.

    Attributes:
        dtype: "float16" (default), "bfloat16" or "float32"

    Raises RecipeError for another type.
    """

    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    both_ways: ClassVar[bool] = True
    remembers: ClassVar[bool] = False

    def encode(self, packed: Packed, state: CodecState, rng: Draws) -> Packed:
        """Floating-point tensors in the narrow type."""
        narrow: torch.dtype = getattr(torch, self.dtype)
        return {k: v.to(narrow) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in packed.items()}

    def decode(self, encoded: Packed, state: CodecState, dtype: torch.dtype) -> Packed:
        """Floating-point tensors in ``dtype``."""
        return {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in encoded.items()}

    def keep(self, packed: Packed, decoded: Packed, state: CodecState) -> CodecState:
        """No state."""
        return {}


@dataclass(frozen=True)
class Quantise(Checked):
    """Float tensors of replies travel as small integers, one byte per entry, with one float32 scale per row.

    Attributes:
        bits: 2 to 8 (default); the levels of a row v are max|v| / (2^(bits−1) − 1) apart
        rounding: "nearest" (default), or "stochastic", which is unbiased and draws from a stream of the client, round
            and exchange
        feedback: True adds the rounding error of a reply to the client's next one; default False

    Without feedback, a sum of changes on the server, such as SCAFFOLD's c, drifts from the clients' own values. With
    feedback it differs only by the last rounding error. Raises RecipeError for other settings.
    """

    bits: Annotated[int, in_range(2, 8)] = 8
    rounding: Literal["nearest", "stochastic"] = "nearest"
    feedback: bool = False
    both_ways: ClassVar[bool] = False

    @property
    def remembers(self) -> bool:
        """True with feedback."""
        return self.feedback

    def __post_init__(self) -> None:
        take(self, integer, "bits")
        super().__post_init__()

    def encode(self, packed: Packed, state: CodecState, rng: Draws) -> Packed:
        """int8 codes under the field's name, float32 scales under ``name#``."""
        out = dict(packed)
        top = 2 ** (self.bits - 1) - 1
        draws = rng() if self.rounding == "stochastic" else None
        for name, v in packed.items():
            if compressible(v):
                v = plus_state(v, state, name)
                scale = (v.abs().amax(-1, keepdim=True) / top).float()
                levels = v / scale.where(scale > 0, 1)
                if draws is not None:
                    levels = (levels + torch.rand(v.shape, generator=draws).to(v)).floor()
                out[name] = levels.round().clamp(-top, top).to(torch.int8)
                out[name + "#"] = scale
        return out

    def decode(self, encoded: Packed, state: CodecState, dtype: torch.dtype) -> Packed:
        """Codes times scales."""
        out = {k: v for k, v in encoded.items() if k + "#" in encoded or not k.endswith("#")}
        for name, v in out.items():
            if name + "#" in encoded:
                scale = encoded[name + "#"]
                if not isinstance(v, Tensor) or not isinstance(scale, Tensor) or scale.shape != (*v.shape[:-1], 1):
                    raise WireError(f"{name}: its scales are not one for each of its rows")
                out[name] = v.to(dtype) * scale.to(dtype)
        return out

    def keep(self, packed: Packed, decoded: Packed, state: CodecState) -> CodecState:
        """The rounding errors, with feedback."""
        return error_feedback(packed, decoded, state) if self.feedback else {}


@dataclass(frozen=True)
class TopK(Checked):
    """Only the largest entries of the replies' float tensors travel, each with its index.

    Attributes:
        fraction: share of a tensor's entries to send, in (0, 1]; default 0.1
        feedback: True (default) adds the entries left out of a reply to the client's next one, so that a sum over
            rounds lacks only the last remainder

    Raises RecipeError for another fraction.
    """

    fraction: Annotated[float, positive, at_most(1)] = 0.1
    feedback: bool = True
    both_ways: ClassVar[bool] = False

    def __post_init__(self) -> None:
        take(self, real, "fraction")
        super().__post_init__()

    @property
    def remembers(self) -> bool:
        """True with feedback."""
        return self.feedback

    def encode(self, packed: Packed, state: CodecState, rng: Draws) -> Packed:
        """The entries under the field's name, int32 flat indices under ``name@``, the int32 shape under ``name#``."""
        out = dict(packed)
        for name, v in packed.items():
            if compressible(v):
                flat = plus_state(v, state, name).reshape(-1)
                at = flat.abs().argsort(descending=True, stable=True)[: least_of(self.fraction, len(flat))]
                at = at.sort().values
                out[name] = flat[at]
                out[name + "@"] = at.int()
                out[name + "#"] = torch.tensor(v.shape, dtype=torch.int32)
        return out

    def decode(self, encoded: Packed, state: CodecState, dtype: torch.dtype) -> Packed:
        """Dense tensors, 0 where no entry was sent."""
        out = {k: v for k, v in encoded.items() if k[-1:] not in ("@", "#")}
        for name, v in out.items():
            if name + "@" in encoded:
                at = encoded[name + "@"]
                shape = encoded[name + "#"]
                assert isinstance(v, Tensor)
                assert isinstance(at, Tensor)
                assert isinstance(shape, Tensor)
                size = math.prod(shape.tolist())
                if bool((shape < 0).any()) or v.shape != at.shape or len(v) != least_of(self.fraction, size):
                    raise WireError(f"{name}: {len(v)} of {size} entries are not a share of {self.fraction:g}")
                flat = v.new_zeros(size, dtype=dtype)
                flat[at.long()] = v.to(dtype)
                out[name] = flat.reshape(shape.tolist())
        return out

    def keep(self, packed: Packed, decoded: Packed, state: CodecState) -> CodecState:
        """The entries left out, with feedback."""
        return error_feedback(packed, decoded, state) if self.feedback else {}


@dataclass(frozen=True)
class Delta(Checked):
    """Replies travel as differences to the last decoded reply of the same client and field.

    Attributes:
        inner: the codec of the differences: Quantise (default), TopK or Cast, without its own feedback

    The differences shrink as replies settle, and the error of ``inner`` shrinks with them. Whatever a reply lacked is
    added to the client's next one, so that a server's sum of changes over rounds, such as SCAFFOLD's c, lacks only the
    last error. This is stable while ``inner`` errs by less than a third of the largest entry. TopK, Quantise with 2
    bits, and Quantise with 3 bits under stochastic rounding therefore carry nothing over, and such sums drift. Raises
    RecipeError for an ``inner`` with its own feedback.
    """

    inner: Quantise | TopK | Cast = field(default_factory=lambda: Quantise())
    both_ways: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Cast) and self.inner.feedback:
            raise RecipeError(
                f"Delta({self.inner}): Delta itself carries over what was left out; pass feedback=False", "inner"
            )

    @property
    def carries(self) -> bool:
        """Whether the error of a reply is added to the next: r ← Δv + 2e − e' with |e| ≤ q|r| shrinks if 3q < 1."""
        inner = self.inner
        least = 4 if isinstance(inner, Quantise) and inner.rounding == "stochastic" else 3
        return isinstance(inner, Cast) or (isinstance(inner, Quantise) and inner.bits >= least)

    def encode(self, packed: Packed, state: CodecState, rng: Draws) -> Packed:
        """The differences plus what the last reply lacked, encoded by ``inner``."""
        steps = {
            k: plus_state(plus_state(v, state, k, -1), state, f"{k}~") if compressible(v) else v
            for k, v in packed.items()
        }
        return self.inner.encode(steps, {}, rng)

    def decode(self, encoded: Packed, state: CodecState, dtype: torch.dtype) -> Packed:
        """The last decoded reply plus the decoded differences."""
        out = self.inner.decode(encoded, {}, dtype)
        return {k: plus_state(v, state, k) if compressible(v) else v for k, v in out.items()}

    def keep(self, packed: Packed, decoded: Packed, state: CodecState) -> CodecState:
        """The decoded reply, and under ``name~`` what it lacks."""
        sent = {k: v for k, v in decoded.items() if compressible(v)}
        if not self.carries:
            return sent
        full = {k: plus_state(v, state, f"{k}~") for k, v in packed.items() if compressible(v)}
        return sent | {f"{k}~": v - sent[k] for k, v in full.items()}


@dataclass(frozen=True)
class TwoWay(Checked):
    """One codec for replies and another for requests: 8 bits up and 16 down by default.

    Attributes:
        up: the codec of replies; default Delta(Quantise(8))
        down: the codec of requests; default Cast("float16"). It has no state, since a client that was not asked has not
            seen the last request

    If a model travels down in few bits, every client rounds it the same way: gradients are then taken at the rounded
    model, and a method comes no closer to the optimum than the rounding allows. Raises RecipeError for a ``down`` with
    state.
    """

    up: Annotated[Codec, "Quantise(8)"] = field(default_factory=lambda: Delta())
    down: Annotated[Codec, "Cast()"] = field(default_factory=lambda: Cast())
    both_ways: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.down.remembers:
            raise RecipeError(
                f"TwoWay(down={self.down}): requests have no state; use Cast, or Quantise without feedback", "down"
            )

    @property
    def remembers(self) -> bool:
        """True if the codec of replies has state."""
        return self.up.remembers

    def encode(self, packed: Packed, state: CodecState, rng: Draws) -> Packed:
        """A reply, as ``up`` encodes it."""
        return self.up.encode(packed, state, rng)

    def decode(self, encoded: Packed, state: CodecState, dtype: torch.dtype) -> Packed:
        """A reply, as ``up`` decodes it."""
        return self.up.decode(encoded, state, dtype)

    def keep(self, packed: Packed, decoded: Packed, state: CodecState) -> CodecState:
        """The state of ``up``."""
        return self.up.keep(packed, decoded, state)


public(__name__)
