"""FedECADO's settings, and the rules between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch

from ...contract.algorithm import Algorithm
from ...contract.errors import RecipeError
from ...contract.needs import Need
from ...contract.settings import at_least, at_most, positive
from ...contract.types import Vec
from .messages import Memory, Server

Auto = Literal["auto"]

INDUCTIVE = ("lam", "C_c", "kappa", "delta", "sensitivity", "refresh", "weights", "probes")
"""Settings of the inductive forms."""


@dataclass(frozen=True)
class Settings(Algorithm[Server, Memory]):
    """FedECADO's settings; `FedECADO` describes them."""

    lam: Annotated[float, at_least(0)] | Auto = "auto"
    C_c: Annotated[float, at_least(0)] | Auto = "auto"
    q: Annotated[float, at_least(0)] | Auto = "auto"
    kappa: Annotated[float, at_least(1)] | Auto | None = "auto"
    delta: Annotated[float, positive] | None = None
    sensitivity: Literal["off", "scalar", "diagonal"] = "off"
    refresh: Annotated[int, at_least(0)] = 0
    form: Literal["norton", "J", "I", "paper"] = "norton"
    flows: Literal["client", "server"] = "server"
    weights: Literal["mean1", "p", "uniform"] = "mean1"
    probes: Annotated[int, at_least(1)] = 8
    reach: Annotated[float, at_least(0)] = 1.0
    inertia: bool = True
    steady: bool = True
    shorten: bool = True
    gamma: Annotated[float, positive, at_most(0.25)] | None = None

    def __post_init__(self) -> None:
        """Beside the declared settings: each form has its own."""
        super().__post_init__()
        if self.form == "norton":
            defaults = type(self).__dataclass_fields__
            for key in INDUCTIVE:
                if getattr(self, key) != defaults[key].default:
                    raise RecipeError(
                        f"FedECADO({key}={getattr(self, key)!r}): the default form has no {key}; add form='J', or leave"
                        f" {key} out",
                        key,
                    )
            if self.q != "auto" and self.q > 1:
                raise RecipeError(f"FedECADO(q={self.q!r}): must be a number in [0, 1], or 'auto'", "q")
        else:
            for key in ("reach", "inertia", "steady", "shorten", "gamma"):
                value = getattr(self, key)
                if value != getattr(type(self), key):
                    raise RecipeError(f"FedECADO({key}={value}): form={self.form!r} has no {key}; leave it out", key)
        if self.flows == "client" and (self.form in ("I", "paper") or self.delta is not None):
            raise RecipeError(
                "FedECADO(flows='client') takes one step a round, in the default form or the J form; leave form and "
                "delta",
                "flows",
            )

    def suited(self, gives: frozenset[str]) -> Settings:
        """The "auto" settings resolved for a problem."""
        convex = "convex" in gives
        auto = {"lam": 0.0 if convex else 1.0, "q": 0.0 if convex else 0.5, "kappa": None if convex else 1.0}
        if self.form == "norton":
            auto = {"q": 0.5}
        elif self.form != "J":
            auto = {"lam": 1.0, "q": 0.0, "kappa": None}
        resolved: dict[str, Any] = {k: v for k, v in auto.items() if getattr(self, k) == "auto"}
        return replace(self, **resolved)

    def requires(self) -> frozenset[str]:
        """Hessian-vector products for the sensitivity; replies one by one, but for flows at the clients.

        The earlier forms also need the same clients from the first round to the last.
        """
        sums = self.form == "norton" and self.flows == "client"
        more = {Need.HESSIAN: self.sensitivity != "off", Need.REPLIES: not sums, Need.FIXED: self.form != "norton"}
        return self.needs | {need for need, wanted in more.items() if wanted}

    def start(self, x: Vec) -> Server:
        """No flows."""
        return Server(x, torch.zeros_like(x))
