"""Chooses the engine that runs local descents."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..contract import Engine, Problem, RecipeError
from ..problems.linear import LinearProblem
from ..problems.network import NetworkProblem
from ..problems.network.shared import SharedNetwork
from .fused.engine import fused
from .own_loop import OwnLoop
from .personal import PersonalDescent
from .seq import Seq
from .stacked import Stacked, stacked

NAMES = ("auto", "seq", "fused", "stacked")
"""Names that `choose` accepts."""

SMALL = 20_000
"""Parameters up to which stacked models are faster than `Seq` on a CPU."""

FEW = 5
"""Clients from which stacked models are faster than `Seq` on a CPU."""


def choose(name: str, problem: Problem, device: str) -> Engine:
    """The engine of this name; "auto" takes the fastest that fits the problem and the device.

    A network with a training loop of its own takes `OwnLoop`. Otherwise that is `fused`; otherwise `stacked`, for small
    models and on CUDA; otherwise `seq`. On CUDA convolutions are stacked, because `fused` trains them client by client,
    and a device waits for the host at each step.

    Raises RecipeError for a name that is not in `NAMES`, or an engine that does not fit the problem.
    """
    if name not in NAMES:
        raise RecipeError.unknown(name, NAMES, "run(engine=...)")
    network = problem.joint if isinstance(problem, SharedNetwork) else problem
    train = network.family.train if isinstance(network, NetworkProblem) else None
    if train is not None:
        if name != "auto":
            raise RecipeError(
                f"run(engine={name!r}): clients train by Network(train=...), a loop of their own; leave engine= out",
                "engine",
            )
        return PersonalDescent(OwnLoop(train)) if isinstance(problem, SharedNetwork) else OwnLoop(train)
    if isinstance(problem, SharedNetwork):
        if name == "stacked":
            raise RecipeError("run(engine='stacked'): clients have their own parameters; leave engine= out", "engine")
        inner = Seq() if name == "seq" else fused(problem.joint)
        if inner is None and name == "fused":
            return choose(name, problem.joint, device)  # its error says why not
        return PersonalDescent(inner or Seq())
    if name == "seq":
        return Seq()
    cuda = device.startswith("cuda")
    pays = cuda or problem.d <= SMALL
    least = 2 if cuda or name == "stacked" else FEW
    quick = None if name == "stacked" else fused(problem)
    if quick is not None:
        if name == "auto" and pays and isinstance(problem, LinearProblem | NetworkProblem):
            rest = Stacked(problem, True, least)
            return replace(rest, few=quick) if cuda and quick.maps else replace(quick, rest=rest)
        return quick
    if name == "fused":
        raise RecipeError(
            "run(engine='fused'): it takes linear models, and networks of Linear, Conv2d, MaxPool2d, Flatten, ReLU and "
            "Tanh that end in a Linear and are trained on cross_entropy or mse; leave engine= out",
            "engine",
        )
    engine = stacked(problem, least) if pays or name == "stacked" else "it is too large"
    if isinstance(engine, Stacked):
        return engine
    if name == "stacked":
        raise RecipeError(f"run(engine='stacked'): {engine}; leave engine= out", "engine")
    return Seq()


def stack_size(d: int, device: str = "cpu") -> int:
    """The number of clients in a client stack, for models of d parameters.

    On a CPU, as many as fill 1 MiB of float32, which stays in one core's cache:

    - at most 32, so that there is work for several processes; 128 below d = 1024, too little work for that;
    - at least 8 within 8 MiB, because for larger models fewer and larger operations outweigh the cache; at least 1.

    On CUDA, up to 128 that fit a quarter of its memory with 16 vectors each.

    The number depends only on the problem and the device, so that a sum over clients has the same bits for any number
    of workers.
    """
    if device.startswith("cuda"):
        return max(1, min(128, torch.cuda.get_device_properties(device).total_memory // (4 * 16 * 4 * d)))
    return max(1, min(128 if d < 1024 else 32, (1 << 18) // d), min(8, (1 << 21) // d))
