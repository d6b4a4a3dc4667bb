"""A problem as a list of layers and the slope of its loss."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ...contract.problem import Problem
from ...problems.linear import LinearProblem, Softmax
from ...problems.network import NetworkProblem
from .layers import Conv, Dense, Layer, Plain, Pool, Slope, cross_entropy, flatten, relu, squared, tanh


def layers_of(problem: Problem) -> tuple[list[Layer], Slope] | None:
    """The problem as layers and ∂l/∂z, or None if it has parts that `layers` does not have.

    A network must be an `nn.Sequential` of Linear, Conv2d, MaxPool2d, Flatten, ReLU, Tanh and Identity that ends in a
    Linear, without hooks, methods of its own, buffers, frozen, or tied parameters, and trained on cross_entropy or mse.
    """
    if isinstance(problem, LinearProblem):
        family = problem.family
        slope: Slope = lambda z, y: family.slope(z, y[:, None])
        if not problem.scalar:  # several targets; of stacked clients z is [b, o, k]
            slope = lambda z, y: family.slope(z, y.mT if z.ndim == 3 else y)
        slope = cross_entropy if isinstance(family, Softmax) else slope
        return [Dense(0, problem.features, problem.width, None, True)], slope
    if not isinstance(problem, NetworkProblem) or callable(problem.family.loss) or problem.buffers() is not None:
        return None
    if problem.factors is not None or not problem.in_order:
        return None
    if any(_altered(m) for m in problem.module.modules()):
        return None
    layers = _network(problem)
    if layers is None:
        return None
    return layers, cross_entropy if problem.family.loss == "cross_entropy" else squared


def _network(problem: NetworkProblem) -> list[Layer] | None:
    """The network's layers, or None if one of its modules is not known here.

    ``maps`` is True while activations are [rows, channels, height, width], ``rows`` while they are [rows, features].
    """
    layers: list[Layer] = []
    at = 0
    maps = len(problem.row or ()) == 3
    rows = len(problem.row or ()) == 1
    for m in _modules(problem.module):
        sizes = [p.numel() for p in m.parameters()]
        bias = at + sizes[0] if len(sizes) == 2 else None
        if isinstance(m, nn.Linear | nn.Conv2d) and not _usual(m):
            return None
        if type(m) is nn.Linear and rows:
            layers.append(Dense(at, m.in_features, m.out_features, bias, not any(isinstance(o, Dense) for o in layers)))
            maps = False
        elif type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1):
            layers += [Plain(flatten)] if layers and maps else []
            maps = False
            rows = True
        elif type(m) is nn.Conv2d and maps and m.padding_mode == "zeros" and not isinstance(m.padding, str):
            layers.append(Conv(at, m.weight.shape, bias, (m.stride, m.padding, m.dilation, m.groups)))
        elif type(m) is nn.MaxPool2d and maps and not m.return_indices:
            how = (*(_pair(v) for v in (m.kernel_size, m.stride, m.padding, m.dilation)), m.ceil_mode)
            # max(relu(h)) = relu(max(h)): pooling first leaves a quarter of the work for the ReLU.
            layers.insert(len(layers) - (layers[-1:] == [Plain(relu)]), Pool(how))
        elif type(m) in (nn.ReLU, nn.Tanh) and layers:
            layers.append(Plain(relu if type(m) is nn.ReLU else tanh))
        elif type(m) is not nn.Identity:
            return None
        at += sum(sizes)
    # With frozen or shared parameters, x has fewer numbers than the layers.
    return layers if layers and isinstance(layers[-1], Dense) and at == problem.d else None


def _altered(m: nn.Module) -> bool:
    """Whether the module has hooks, or methods that replace its class's, such as a `forward` under autocast."""
    return any((k.endswith("_hooks") and v) or callable(getattr(type(m), k, None)) for k, v in vars(m).items())


def _usual(m: nn.Linear | nn.Conv2d) -> bool:
    """Whether a layer's weights are still the parameters that torch made, in the same order and shapes: users may
    replace them.

    A weight that is registered anew, as by `torch.nn.utils.remove_weight_norm`, comes after the bias, and a bias may be
    a buffer.
    """
    names = [name for name, _ in m.named_parameters()]
    shape = m.weight.shape if isinstance(m, nn.Conv2d) else (m.out_features, m.in_features)
    return names == (["weight"] if m.bias is None else ["weight", "bias"]) and m.weight.shape == shape


def _modules(module: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested `nn.Sequential`s in order."""
    if type(module) is nn.Sequential:
        for m in module:
            yield from _modules(m)
    else:
        yield module


def _pair(v: int | tuple[int, ...]) -> list[int]:
    return [v, v] if isinstance(v, int) else list(v)
