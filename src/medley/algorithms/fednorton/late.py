"""FedNorton with late replies: an absent client is a source in parallel with a measured conductance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...contract import Replies, TimedStep, Vec

Share = float | Tensor
KEPT = 0.5
"""The share of a secant's sums that is kept from one visit, or round, to the next: a single visit is noisy, and old
ones belong to another place."""

MARGIN = 2.0
"""m: conductances are doubled, because a secant through noise is as often too flat as too steep, and one that is too
flat overshoots."""

NEAR = 0.25
"""The share of a client's way at which its gradient equals the mean one."""


@dataclass
class Branch:
    """The parts of a client's Norton equivalent other than the source J_i.

    Attributes:
        at: x̄_i, where its flow was measured [d].
        rise, way: sums of ⟨ΔJ_i, Δx̄_i⟩ and |Δx̄_i|² over its visits, each worth half of the next one.
        size, error: |J_i|² and |ε_i|² at its last visit.
        met: the turn of that visit.
    """

    at: Vec
    rise: float = 0.0
    way: float = 0.0
    size: float = 0.0
    error: float = 0.0
    met: int = 0

    @property
    def h(self) -> float:
        """The conductance h_i = max(0, rise/way), a secant; 0 at the first visit."""
        return max(0.0, self.rise / self.way) if self.way > 0 else 0.0


@dataclass
class Lateness:
    """What the server knows about replies that are under way.

    Attributes:
        delays: rounds from a request to its reply, by client, of the last one.
        turns: the number of rounds with replies.
        asked: by client, the node [d] and the net flow [d] of its request that is under way.
        branches: by client, from the first late reply on.
        G, GX: Σ p_i h_i, and Σ p_i h_i x̄_i [d]; GX is None before the first.
    """

    delays: dict[int, int] = field(default_factory=dict)
    turns: int = 0
    asked: dict[int, tuple[Vec, Vec]] = field(default_factory=dict)
    branches: dict[int, Branch] = field(default_factory=dict)
    G: float = 0.0
    GX: Vec | None = None

    @property
    def delay(self) -> float:
        """The mean of the clients' last delays; 0 if all were on time."""
        return sum(self.delays.values()) / max(len(self.delays), 1)

    @property
    def applies(self) -> bool:
        """Whether a client's last reply was late, or branches of late ones are still there."""
        return self.delay > 0 or bool(self.branches)

    @property
    def part(self) -> float:
        """δ in [0, 1]: how far the rule for late replies applies; 1 if replies take a round or longer."""
        return min(1.0, self.delay)

    def kirchhoff(self, S: Vec, x: Vec) -> Vec:
        """S(x) = Σ p_i (J_i + m h_i (x − x̄_i)), from S = Σ p_i J_i [d]; m = 2δ."""
        return S if self.GX is None else S + MARGIN * self.part * (self.G * x - self.GX)

    def lasting(self, p: Mapping[int, float], rho: Share) -> tuple[Share, Share]:
        """ρ' for the net flows and ρ'' for the node; both are ρ if no reply is late.

        With σ = Σ p_i|ε_i|²/Σ p_i|J_i|² at the clients' last visits, 1 − σ/2 leaves the least noise in the move. The
        net flows get the smaller 1 − √σ, because an outdated net flow pushes a client during its whole visit.
        """
        size = sum(p[i] * b.size for i, b in self.branches.items())
        d = self.part
        if d == 0 or size == 0:
            return rho, rho
        sigma = sum(p[i] * b.error for i, b in self.branches.items()) / size
        prompt = (1 - d) * float(rho)
        return prompt + d * max(0.0, 1 - math.sqrt(sigma)), prompt + d * max(0.0, 1 - sigma / 2)

    def arrived(self, replies: Replies[TimedStep], current_round: int) -> None:
        """Count a round with replies, and note for how many rounds each was under way."""
        self.turns = self.turns + 1
        self.delays = self.delays | {i: current_round - sent for i, sent in replies.asked.items()}

    def weight(self, i: int, p: float) -> float:
        """p_i g_i, where g_i are the turns since client i's last reply, 1 at its first: at most all clients' weight."""
        old = self.branches.get(i)
        return p if old is None else min(1.0, p * (self.turns - old.met))

    def visit(self, i: int, p: float, x: Vec, at: Vec, flow: Vec, change: Vec) -> Vec:
        """ε_i = Ĵ_i⁺(x) − Ĵ_i(x) [d] after a reply; the branch of client i becomes that of this visit.

        ``p`` is p_i, ``x`` the node, ``at`` x̄_i, ``flow`` J_i⁺ and ``change`` J_i⁺ − J_i.
        """
        old = self.branches.get(i)
        new = Branch(at, met=self.turns)
        m = MARGIN * self.part
        GX = torch.zeros_like(x) if self.GX is None else self.GX
        if old is not None:
            dx = at - old.at
            new.rise = KEPT * old.rise + float(change @ dx)
            new.way = KEPT * old.way + float(dx @ dx)
            change = change - m * old.h * (x - old.at)
            GX = GX - p * old.h * old.at
            self.G = self.G - p * old.h
        error = change + m * new.h * (x - at)
        self.GX = GX + p * new.h * at
        self.G = self.G + p * new.h
        new.size = float(flow @ flow)
        new.error = float(error @ error)
        self.branches = self.branches | {i: new}
        return error
