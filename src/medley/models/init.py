"""Initial parameters from a named stream."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from medley.core.errors import RecipeError

Module = TypeVar("Module", bound=nn.Module)


def initialise(module: Module, generator: torch.Generator) -> Module:
    """Draw the module's parameters anew by torch's own rules, in place, from ``generator`` alone; return it.

    The global random state is left as it was. Raises ``RecipeError`` for parameters that are not on the CPU, whose
    random numbers would be others, and for a module whose parameters no ``reset_parameters`` draws.
    """
    for name, part in module.named_modules():
        own = list(part.parameters(recurse=False))
        if any(p.device.type != "cpu" for p in own):
            raise RecipeError(
                f"models.initialise(): {name or 'the module'} is on {own[0].device}; move it there afterwards."
            )
        if own and not callable(getattr(part, "reset_parameters", None)):
            raise RecipeError(
                f"models.initialise(): {name or 'the module'} ({type(part).__name__}) has parameters of its own "
                "and no reset_parameters(); give it one."
            )
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed the accelerators too.
        torch.default_generator.manual_seed(seed)
        for part in module.modules():
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()
    return module
