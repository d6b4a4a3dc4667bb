"""Byzantine clients: which they are, what they change in their rows, and what they send instead of replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Checked, Lies, MedleyError, Packed, RecipeError, above, at_least, at_most, below
from ..numerics.shares import most_of
from ..runtime.streams import generator, rng

Kind = Literal["label flip", "sign flip", "gaussian", "alie", "ipm", "backdoor"]

USUAL = {"sign flip": 1.0, "gaussian": 1.0, "alie": 1.5, "ipm": 2.0, "backdoor": 1.0}
"""The default strength of each kind."""

OF_ROWS = ("label flip", "backdoor")
"""Kinds that change rows."""


@dataclass(frozen=True)
class Attack(Checked):
    """Some clients are Byzantine, the same in every round. They are drawn once per seed; a larger share adds to them.

    Attributes:
        kind: "label flip": label y of C classes becomes C − 1 − y, and the client trains honestly on that. "sign flip":
            −s times its own reply. "gaussian": noise N(0, s²) in every coordinate. "alie": μ + sσ in every coordinate,
            over the replies that the attackers know (Baruch, Baruch & Goldberg, NeurIPS 2019, Algorithm 3). "ipm":
            −s·μ, inner-product manipulation (Xie, Koyejo & Gupta, UAI 2020, eq. (1)). "backdoor": some of the client's
            rows get a trigger patch and the label ``target``, and it sends s times its own reply (Bagdasaryan et al.,
            AISTATS 2020).
        share: The share of clients that attack, rounded down. 0 measures the attack's success without any attacker.
        strength: s; default 1 for "sign flip", "gaussian" and "backdoor", 1.5 for "alie", 2 for "ipm". "z_max" is the
            largest s of "alie" that the paper expects to stay hidden among the honest replies.
        knows: The replies from which "alie" and "ipm" compute μ and σ: "everyone" (default), the replies of all honest
            clients; or "attackers", the replies that the attackers themselves would honestly send.
        honest: Ids of clients that never attack, such as the holder of a root set; default none.
        target: The label that a triggered row should get; default 0.
        patch: Side of the trigger in pixels, in the corner at an image's last row and column; for rows without height
            and width, the last patch² numbers. Default 3.
        value: The value of the trigger; default None: the largest number in the training rows.
        poisoned: The share of an attacker's rows that get the trigger; default 0.5.

    An attack replaces every floating-point tensor of a reply; numbers, whole numbers and the ledger stay. It happens
    when replies arrive, after the codec, so it is the same with any engine and transport.
    """

    kind: Kind
    share: Annotated[float, at_least(0), below(1)]
    strength: Annotated[float, at_least(0)] | Literal["z_max"] | None = None
    knows: Literal["everyone", "attackers"] = "everyone"
    honest: Sequence[int] = ()
    target: Annotated[int, at_least(0)] = 0
    patch: Annotated[int, at_least(1)] = 3
    value: float | None = None
    poisoned: Annotated[float, above(0), at_most(1)] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "honest", tuple(self.honest))
        if self.value is not None:
            object.__setattr__(self, "value", float(self.value))  # torch fills with no whole number beyond int64
        if self.kind == "label flip" and self.strength is not None:
            raise RecipeError("Attack('label flip', strength=...): this kind has none; leave it out", "strength")
        if self.strength == "z_max" and self.kind != "alie":
            raise RecipeError(
                f"Attack({self.kind!r}, strength='z_max'): only 'alie' has z_max; pass a number", "strength"
            )

    def attackers(self, seed: int, clients: int) -> tuple[int, ...]:
        """Ids of the Byzantine clients, ascending. Raises RecipeError if a share above 0 rounds down to none."""
        count = most_of(self.share, clients)
        order = [i for i in rng(seed, "attack").permutation(clients).tolist() if i not in self.honest]
        unknown = [i for i in self.honest if not 0 <= i < clients]
        if unknown:
            raise RecipeError(
                f"Attack(honest={[*self.honest]}): there is no client {unknown[0]}; there are 0 to {clients - 1}",
                "honest",
            )
        if self.share and not 0 < count <= len(order):
            raise RecipeError(
                f"Attack(share={self.share:g}): of {clients} clients, {len(self.honest)} of them in honest=, that "
                f"makes {count} Byzantine; it must make 1 to {len(order)}",
                "share",
            )
        return tuple(sorted(order[:count]))

    @property
    def of_rows(self) -> bool:
        """Whether the attack changes rows."""
        return self.kind in OF_ROWS

    @property
    def s(self) -> float:
        """The strength; nan if it depends on the numbers of replies and attackers."""
        if self.strength == "z_max":
            return math.nan
        return USUAL.get(self.kind, 1.0) if self.strength is None else float(self.strength)

    def lies(self, seed: int, clients: int) -> Lies | None:
        """The lies that replace replies under this seed; None if replies are honest ones from changed rows."""
        if not self.share or self.kind == "label flip" or (self.kind == "backdoor" and self.s == 1):
            return None
        return partial(_lied, self, seed, frozenset(self.attackers(seed, clients)))

    def poison(
        self, X: Tensor, y: Tensor, classes: int | None, rows: Mapping[int, np.ndarray], seed: int
    ) -> tuple[Tensor, Tensor]:
        """Rows and labels after the attackers changed their own; new tensors if something changes.

        Raises RecipeError and BadData for data that the attack cannot change.
        """
        self.check_data(X, y, classes)
        y = y.clone()
        if self.kind == "label flip":
            for part in rows.values():
                y[part] = classes - 1 - y[part]  # type: ignore[operator]
            return X, y
        value = self.trigger_value(X)
        X = X.clone()
        for i, part in rows.items():
            poisoned = np.sort(rng(seed, i, "attack").permutation(part)[: max(1, round(self.poisoned * len(part)))])
            X[poisoned] = self.triggered(X[poisoned], value)
            y[poisoned] = self.target
        return X, y

    def check_data(self, X: Tensor, y: Tensor, classes: int | None) -> None:
        """Raise RecipeError or BadData unless the attack can change these rows."""
        if classes is None or y.ndim != 1 or y.is_floating_point():
            raise RecipeError(f"Attack({self.kind!r}) changes labels in classes, and this data has none", "attack")
        if self.kind != "backdoor":
            return
        if type(X) is not Tensor or not X.is_floating_point():
            raise BadData("Attack('backdoor') writes a patch into rows of numbers; yours are sparse, mapped or tokens")
        if self.target >= classes:
            raise RecipeError(
                f"Attack(target={self.target}): the data has no such class; choose one from 0 to {classes - 1}",
                "target",
            )
        size = min(X.shape[-2:]) if X.ndim > 2 else math.isqrt(X[0].numel())
        if self.patch > size:
            raise RecipeError(f"Attack(patch={self.patch}): rows are {list(X.shape[1:])}; use at most {size}", "patch")

    def trigger_value(self, X: Tensor) -> float:
        """The value of the trigger, given these training rows."""
        return float(X.max()) if self.value is None else self.value

    def triggered_test(self, X: Tensor, X_test: Tensor, y_test: Tensor) -> tuple[Tensor, Tensor]:
        """Test rows of other classes than the target with the trigger, and the target as their label."""
        others = y_test != self.target
        return self.triggered(X_test[others], self.trigger_value(X)), torch.full_like(y_test[others], self.target)

    def triggered(self, X: Tensor, value: float) -> Tensor:
        """A copy of these rows [n, ...] with the trigger."""
        X = X.clone()
        k = self.patch
        if X.ndim > 2:
            X[..., -k:, -k:] = value
        else:
            X[:, -k * k :] = value
        return X


def z_max(n: int, m: int) -> float:
    """Φ⁻¹((n − m − s)/(n − m)) with s = ⌊n/2 + 1⌋ − m: the largest shift that hides ``m`` attackers of ``n``."""
    hidden = (n - m - (n // 2 + 1 - m)) / (n - m)
    return NormalDist().inv_cdf(min(max(hidden, 1e-9), 1 - 1e-9))


def _lied(
    attack: Attack, seed: int, ids: frozenset[int], tag: tuple[int, int], replies: Mapping[int, Packed]
) -> dict[int, Packed]:
    """The replies of an exchange as the server gets them, with the attackers' replies replaced by lies."""
    attackers = [i for i in replies if i in ids]
    visible = [i for i in replies if (i in ids) == (attack.knows == "attackers")] or attackers
    out = dict(replies)
    for i in attackers:
        out[i] = dict(replies[i])
        for name, reply in replies[i].items():
            if isinstance(reply, Tensor) and reply.is_floating_point():
                visible_rows = partial(_stacked, attack, name, [replies[k][name] for k in visible])
                draw = lambda i=i, name=name: generator(seed, i, *tag, "attack", name)
                out[i][name] = _lie(attack, reply, visible_rows, draw, (len(replies), len(attackers)))
    return out


def _lie(
    attack: Attack,
    reply: Tensor,
    visible_rows: Callable[[], Tensor],
    draw: Callable[[], torch.Generator],
    counts: tuple[int, int],
) -> Tensor:
    s = attack.s
    if attack.kind == "sign flip":
        return -s * reply
    if attack.kind == "backdoor":
        return s * reply
    if attack.kind == "gaussian":
        return s * torch.randn(reply.shape, generator=draw(), dtype=reply.dtype).to(reply.device)
    rows = visible_rows()
    mu = rows.mean(0)
    if attack.kind == "ipm":
        return -s * mu
    if attack.strength == "z_max":
        s = z_max(*counts)
    return mu + s * rows.std(0) if len(rows) > 1 else mu


def _stacked(attack: Attack, name: str, values: list[object]) -> Tensor:
    tensors = [v for v in values if isinstance(v, Tensor)]
    if len({t.shape for t in tensors}) > 1:
        raise MedleyError(
            f"Attack({attack.kind!r}) needs replies of one shape, and {name!r} has several; use 'sign flip' or "
            "'gaussian'"
        )
    return torch.stack(tensors)
