"""The parameters of a network that clients share, by name."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from ...contract import Patterns, RecipeError

BODY = "body"
"""The word that you may use for the names of all layers except the one that runs last."""

BUT_NORMS = "all but norms"
"""The word that you may use for the names of all layers except those that normalise."""

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)
"""Layers that normalise. `_NormBase` is torch's base of batch and instance normalisation."""


def has_parameters(module: nn.Module) -> bool:
    """Whether a module, or one inside it, has parameters."""
    return any(True for _ in module.parameters())


def trainable(module: nn.Module, shared: Patterns | None) -> tuple[list[nn.Parameter], int]:
    """The trainable parameters, shared ones first, each group in the order of the module; and the number of shared.

    Args:
        shared: names, see `medley.problems.Network`, in which `without_last` has replaced "body" already; None shares
            all

    Raises RecipeError if a pattern fits no trainable parameter, or if no parameter is shared.
    """
    params = [p for p in module.parameters() if p.requires_grad]
    if shared is None:
        return params, len(params)
    chosen = _chosen(module, patterns(shared))
    first = [p for p in params if id(p) in chosen]
    if not first:
        raise RecipeError(f"Network(shared={shared!r}): no parameter is left to share", "shared")
    return first + [p for p in params if id(p) not in chosen], len(first)


def patterns(shared: Patterns) -> tuple[str, ...]:
    """The patterns as a tuple, even if there is only one."""
    return (shared,) if isinstance(shared, str) else tuple(shared)


def without_last(module: nn.Module, shared: Patterns, last: tuple[str, ...], failed: str) -> tuple[str, ...]:
    """The patterns with "body" replaced by names: all trainable parameters except the last layer's.

    Args:
        last: the paths of the layers that run last, see `medley.problems.network.layers.Layers`
        failed: why they are not known; empty if they are

    Raises RecipeError, with the names, unless there is one such layer.
    """
    names = {name: p for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    outside_layers = last == ("",) and any(map(has_parameters, module.children()))
    if failed or len(last) != 1 or outside_layers:
        several = " and ".join(map(repr, last))
        why = failed or (
            "a parameter outside of all layers runs last"
            if outside_layers
            else f"{several} run side by side"
            if last
            else "no layer runs after all others"
        )
        raise RecipeError(
            f"Network(shared={BODY!r}): this means all layers except the one that runs last, but Medley cannot "
            f"tell which one that is: {why}. Give the shared parameters by name, such as "
            f"shared={[next(iter(names))]!r}",
            "shared",
        )
    last_ids = {id(p) for p in module.get_submodule(last[0]).parameters()}
    body = [name for name, p in names.items() if id(p) not in last_ids]
    if not body:
        raise RecipeError(f"Network(shared={shared!r}): no parameter is left to share", "shared")
    out = []
    for pattern in patterns(shared):
        out += body if pattern == BODY else [pattern]
    return tuple(out)


def _chosen(module: nn.Module, shared: tuple[str, ...]) -> set[int]:
    """The ids of the shared parameters."""
    names = {n: p for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    every = {id(p) for p in names.values()}
    chosen: set[int] = set() if any(not pattern.startswith("!") for pattern in shared) else set(every)
    for pattern in shared:
        if pattern == BUT_NORMS:
            _ask_of_norms(module)
            norms = set[int]()
            for m in module.modules():
                if isinstance(m, NORMS):
                    norms |= {id(p) for p in m.parameters() if p.requires_grad}
            if not norms:
                raise RecipeError(f"Network(shared={pattern!r}): the network has no normalisation layers", "shared")
            chosen |= every - norms
        else:
            matches = {id(p) for name, p in names.items() if fnmatchcase(name, pattern.removeprefix("!"))}
            if not matches:
                raise RecipeError.unknown(pattern.removeprefix("!"), names, "Network(shared=...)")
            chosen = chosen - matches if pattern.startswith("!") else chosen | matches
    return chosen


def _ask_of_norms(module: nn.Module) -> None:
    """Raise RecipeError for a layer with parameters that is named a norm but is of an unknown class."""
    for name, m in module.named_modules():
        parameter = next((n for n, p in m.named_parameters(recurse=False) if p.requires_grad), None)
        if parameter and "norm" in type(m).__name__.lower() and not isinstance(m, NORMS):
            raise RecipeError(
                f"Network(shared={BUT_NORMS!r}): {name}, a {type(m).__name__}, is not one of torch's "
                f"normalisation layers. If it normalises, name what clients keep, Network(shared='!{name}.*'); "
                "if it does not, rename its class",
                "shared",
            )
