"""Time of a run by part, next to the limit of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..contract import Algorithm, Data, MedleyError, Tuned
from ..engines.fused.products import linear
from ..federation.federation import Federation
from ..federation.run import run
from ..rows.fields import applied, inputs_of
from ..runtime.operations import OperationMode
from ..runtime.stopwatch import Stopwatch
from ..storage.result import Result

PARTS = {
    "local steps": "descents on clients' rows",
    "clients outside their steps": "their data, requests, replies and memories",
    "aggregation": "summing replies",
    "exchanges": "messages, ledger and clock; waiting for other processes",
    "server": "the method's own step",
    "evaluation": "loss and accuracy",
    "files": "checkpoint, history and ledger",
    "everything else": "drawing clients, x₀, the loop",
}
"""Parts of a run, with a short description of each."""


@dataclass(frozen=True)
class Limits:
    """The speed of torch's own kernels on this machine.

    Attributes:
        gemm: matrix products, in GFLOP/s
    """

    gemm: float

    @classmethod
    def measure(cls, dtype: torch.dtype) -> Limits:
        """Measure with torch's current number of threads: the best of a few, in about a quarter of a second."""
        a, b = (torch.randn(1024, 1024, dtype=dtype) for _ in "ab")
        product = min(_best(lambda: a @ b), _best(lambda: linear(a, b)))
        return cls(2e-9 * 1024**3 / product)


@dataclass(frozen=True)
class Profile:
    """The time of a run, by part.

    Attributes:
        seconds: seconds by part, see `PARTS`
        flops: floating-point operations of local steps
        limits: the limit of this machine
    """

    seconds: dict[str, float]
    rounds: int
    flops: float
    limits: Limits

    def text(self) -> str:
        """A table, and the speed of local steps next to the machine's limit."""
        total = sum(self.seconds.values())
        lines = [f"{'where the time went':28}{'s':>9}{'share':>8}{'ms a round':>12}"]
        for part, why in PARTS.items():
            s = self.seconds.get(part, 0.0)
            lines.append(f"{part:28}{s:9.3f}{s / total:8.1%}{1e3 * s / max(1, self.rounds):12.2f}   {why}")
        lines.append(f"{'all':28}{total:9.3f}{1:8.1%}{1e3 * total / max(1, self.rounds):12.2f}")
        if self.seconds.get("local steps") and self.flops:
            speed = 1e-9 * self.flops / self.seconds["local steps"]
            best = self.limits.gemm
            lines.append(
                f"local steps: {1e-9 * self.flops:.3g} GFLOP, as plain steps take them, at {speed:.3g} GFLOP/s, "
                f"{speed / best:.0%} of the {best:.0f} GFLOP/s of a matrix product of 1024×1024 here"
            )
        return "\n".join(lines)


def profiled(
    method: Algorithm[Any, Any] | Tuned, fed: Federation, rounds: int = 100, **options: Any
) -> tuple[Result, Profile]:
    """`medley.run` with a profile of its time. It takes the same arguments as `medley.run`.

    Work in other processes counts as exchanges: profile a run in one process to see its parts.
    """
    began = time.perf_counter()
    with Stopwatch() as watch:
        result = run(method, fed, rounds, **options)
    seconds = dict(watch.seconds)
    seconds["everything else"] = time.perf_counter() - began - sum(seconds.values())
    forward = 2.0 * result.x.numel()
    if result.model is not None:
        X = fed.data.X[:1]
        forward = operations(result.model.to("cpu"), X.to(result.x.dtype) if X.is_floating_point() else X)
    flops = 3 * watch.rows * forward  # a gradient is a forward pass and two products of its size on the way back
    return result, Profile(seconds, int(result.history[-1]["round"]), flops, Limits.measure(result.x.dtype))


class Operations(OperationMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of products and convolutions within it, as torch counts them."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # loaded for a profile or a plan only

        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._counts = flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        arguments = kwargs or {}
        out = func(*args, **arguments)
        count = self._counts.get(func._overloadpacket)
        self.total += 0 if count is None else count(*args, **arguments, out_val=out)
        return out


def operations(module: nn.Module, rows: Data) -> float:
    """Operations of a forward pass of these rows, in the module's current mode; 0 if torch cannot count them."""
    # oneDNN's recurrent layers are one operation that torch does not count.
    backend: Any = torch.backends.mkldnn
    onednn = backend.enabled
    backend.enabled = False  # not flags(): it warns of another setting
    try:
        with torch.no_grad(), Operations() as counter:
            applied(module, inputs_of(rows))
        return float(counter.total)
    except (RuntimeError, MedleyError):
        return 0.0
    finally:
        backend.enabled = onednn


def _best(f: Callable[[], object]) -> float:
    f()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        f()
        times.append(time.perf_counter() - began)
    return min(times)
