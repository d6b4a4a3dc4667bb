"""A network's layers in the order in which they run, from one forward pass: which one is last, and what it reads."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from ...runtime.operations import OperationMode
from .names import NORMS, has_parameters

ELEMENTWISE = ("aten::add", "aten::sub", "aten::mul", "aten::div")
"""Operations that keep every number in its place if the other input is a parameter, so that raw rows stay raw."""

ENDS = ("sigmoid", "softmax", "log_softmax")
"""Operations that make probabilities, or their logarithms."""


class Layers(NamedTuple):
    """The layers behind a network's outputs.

    Attributes:
        last: paths of the modules with trainable parameters after which no other such module runs; one in most networks
        head: the path of the very last module, if that is an nn.Linear that runs once and reads vectors [b, f]; None if
            it is of another kind, or there are several
        raw: whether the head's inputs contain the network's inputs, perhaps scaled, normalised or next to other numbers
        end: "sigmoid", "softmax" or "log_softmax" if that operation makes the outputs; else empty
        failed: why the pass could not be followed; empty if it was
    """

    last: tuple[str, ...] = ()
    head: str | None = None
    raw: bool = False
    end: str = ""
    failed: str = ""


class Origin(NamedTuple):
    """Where a tensor comes from: whether from the rows, whether it holds them unchanged, and the uses before it."""

    rows: bool = False
    raw: bool = False
    uses: frozenset[int] = frozenset()


def is_layer(module: nn.Module) -> bool:
    """Whether a module with parameters is one layer: no module inside it has parameters, or it does not call them."""
    inside = any(map(has_parameters, module.children()))
    return not inside or isinstance(module, nn.MultiheadAttention) or parametrize.is_parametrized(module)


def layers_of(module: nn.Module) -> dict[str, nn.Module]:
    """The layers of a module by path, without layers inside another layer."""
    out: dict[str, nn.Module] = {}
    for path, m in module.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in out) or "" in out
        if not inside and has_parameters(m) and is_layer(m):
            out[path] = m
    return out


class Watch(OperationMode):  # type: ignore[no-untyped-call]
    """Follows the rows through a pass: from each operation's inputs to its outputs, memory by memory.

    A use is one call of a layer, or one reading of a parameter by an operation outside its layer.
    """

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers = layers_of(module)
        within = dict[int, str]()
        for path, m in self.layers.items():
            within |= {id(p): path for p in m.parameters()}
        holders = dict[int, str]()
        for path, m in module.named_modules():
            holders |= {id(p): path for p in m.parameters(recurse=False)}
        places = sorted((p.data_ptr(), p.data_ptr() + p.nbytes, id(p)) for p in module.parameters() if p.numel())
        self.starts = [start for start, _, _ in places]
        self.places = places
        self.paths = [within.get(key, holders[key]) for _, _, key in places]
        self.before: list[frozenset[int]] = [frozenset()] * len(places)
        self.tensors = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]  # an address is not to be used again
        self.origins = {t.untyped_storage().data_ptr(): Origin(True, True) for t in self.tensors}
        self.ends: dict[int, str] = {}
        self.reads: dict[str, tuple[bool, bool]] = {}

    def origin(self, t: Tensor) -> Origin:
        """Where a tensor comes from."""
        if t.layout is not torch.strided:
            return Origin()
        k = bisect_right(self.starts, t.data_ptr()) - 1
        if k >= 0 and t.data_ptr() < self.places[k][1]:
            return Origin(uses=frozenset([k]))
        return self.origins.get(t.untyped_storage().data_ptr(), Origin())

    def mark(self, out: Any, origin: Callable[[Tensor], Origin]) -> None:
        """Record where the tensors of ``out`` come from. The origin of parameters does not change."""
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.layout is torch.strided and t.numel():
                self.origins[t.untyped_storage().data_ptr()] = origin(t)
                self.tensors.append(t)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sources = [self.origin(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        uses = frozenset().union(*(o.uses for o in sources))
        of_rows = frozenset().union(*(o.uses for o in sources if o.rows))
        others = frozenset().union(*(o.uses for o in sources if not o.rows))
        if any(o.rows for o in sources):
            for use in others:
                self.before[use] |= of_rows
        name = func._schema.name.removeprefix("aten::").strip("_")
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.layout is torch.strided and (name in ENDS or not func.is_view):
                self.ends[t.untyped_storage().data_ptr()] = name
        raw = any(o.raw for o in sources) and (not others or func._schema.name in ELEMENTWISE)
        self.mark(out, lambda t: Origin(any(o.rows for o in sources), raw, uses))
        return out

    def called(self, path: str) -> Callable[..., None]:
        """A hook for the layer at this path: its results come from one use of the layer, not from its parameters."""

        def hook(module: nn.Module, args: Any, out: Any) -> None:
            parameters = frozenset(k for k, of in enumerate(self.paths[: len(self.places)]) if of == path)
            results = [self.origin(t) for t in tree_leaves(out) if isinstance(t, Tensor)]
            use = len(self.paths)
            self.paths.append(path)
            self.before.append(frozenset().union(*(o.uses for o in results)) - parameters)
            first = args[0] if args and isinstance(args[0], Tensor) else None
            of_vectors = first is not None and first.ndim == 2
            of_raw = first is not None and self.origin(first).raw
            self.reads[path] = of_vectors, of_raw
            raw = of_raw and isinstance(module, NORMS)

            def after_use(t: Tensor) -> Origin:
                o = self.origin(t)
                return Origin(o.rows, raw, (o.uses - parameters) | {use})

            self.mark(out, after_use)

        return hook

    def latest(self, uses: frozenset[int], among: Callable[[str], bool]) -> tuple[str, ...]:
        """The paths of the uses that no other use follows."""
        some = [use for use in uses if among(self.paths[use])]

        def is_last(use: int) -> bool:
            return not any(use in self.before[other] for other in some if other != use)

        return tuple(sorted({self.paths[use] for use in some if is_last(use)}))


def traced_layers(module: nn.Module, inputs: Any, forward: Callable[[], Tensor]) -> Layers:
    """The layers behind the outputs of one forward pass."""
    watch: Any = Watch(module, inputs)
    hooks = [m.register_forward_hook(watch.called(path)) for path, m in watch.layers.items()]
    try:
        with torch.enable_grad(), watch:  # without gradients torch's encoder layers would call none of their parts
            out = forward()
    except Exception as e:
        return Layers(failed=f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')}")
    finally:
        for hook in hooks:
            hook.remove()
    uses = watch.origin(out).uses
    end = watch.ends.get(out.untyped_storage().data_ptr(), "")
    end = end if end in ENDS else ""
    trained = {path for path, m in module.named_modules() if any(p.requires_grad for p in m.parameters())}
    last = watch.latest(uses, trained.__contains__)
    latest = watch.latest(uses, lambda _: True)
    calls = Counter(watch.paths[len(watch.places) :])
    head = latest[0] if len(latest) == 1 and calls[latest[0]] == 1 else None
    if head is None or not isinstance(watch.layers.get(head), nn.Linear) or not watch.reads[head][0]:
        return Layers(last, end=end)
    return Layers(last, head, watch.reads[head][1], end)
