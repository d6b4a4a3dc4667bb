"""Engines against each other on every layer of torch.nn and the options that matter; ids that pad and repeat."""

# ruff: noqa: E501  a table, a case a line

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md

SIZES = (5, 9, 4, 7, 6, 12, 30)


class Then(nn.Module):
    """A layer between others: of floats [b, 6] in a shape of its own, of ids [b, 5], or of pairs."""

    def __init__(
        self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor], first: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.first, self.layer, self.call = first or nn.Linear(6, 6), layer, call

    def forward(self, x: Tensor) -> Tensor:
        out = self.call(self.layer, self.first(x)).reshape(len(x), -1)
        return F.pad(out, (0, max(0, 3 - out.shape[1])))[:, :3] + out.sum(1, keepdim=True) / 7


def plain(m: nn.Module, h: Tensor) -> Tensor:
    return m(h)  # type: ignore[no-any-return]


def shaped(*shape: int) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda m, h: m(
        h[:, : torch.Size(shape).numel()].repeat(1, 4)[:, : torch.Size(shape).numel()].reshape(len(h), *shape)
    )


def rnn(m: nn.Module, h: Tensor) -> Tensor:
    return m(h.reshape(len(h), 2, 3))[0]  # type: ignore[no-any-return]


def cell(m: nn.Module, h: Tensor) -> Tensor:
    out = m(h)
    return out[0] if isinstance(out, tuple) else out


def two(m: nn.Module, h: Tensor) -> Tensor:
    return m(h, h.flip(1).relu())  # type: ignore[no-any-return]


ACTIVATIONS = ("ReLU", "ReLU6", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "Tanh", "LogSigmoid", "Softplus",
    "Softshrink", "Softsign", "Tanhshrink", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "PReLU", "Softmin",
    "Softmax", "LogSoftmax", "Identity", "Flatten")  # fmt: skip
IDS: dict[str, Callable[[], nn.Module]] = {
    f"{kind.__name__} {said}": lambda kind=kind, said=said: Then(kind(9, 4, **said), plain, nn.Identity())  # type: ignore[misc]
    for kind in (nn.Embedding, nn.EmbeddingBag)
    for said in (
        {}, {"padding_idx": 0}, {"padding_idx": 8}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}, {"sparse": True},
        {"padding_idx": 0, "scale_grad_by_freq": True}, {"max_norm": 1.0, "norm_type": 1.0},
    )
} | {f"EmbeddingBag {m}": lambda m=m: Then(nn.EmbeddingBag(9, 4, mode=m, padding_idx=1), plain, nn.Identity()) for m in ("sum", "mean", "max")}  # type: ignore[misc]  # fmt: skip


def functional(**how: Any) -> Then:
    return Then(nn.Embedding(9, 4), lambda m, h: F.embedding(h, m.weight, **how), nn.Identity())  # type: ignore[arg-type]


FLOATS: dict[str, Callable[[], nn.Module]] = {
    name: lambda name=name: Then(
        getattr(nn, name)(**({"dim": 1} if "oftm" in name and name != "Softmax2d" else {})), plain
    )
    for name in ACTIVATIONS
}  # type: ignore[misc]
FLOATS |= {
    "Bilinear": lambda: Then(nn.Bilinear(6, 6, 4), two),
    "GLU": lambda: Then(nn.GLU(), plain),
    "Threshold": lambda: Then(nn.Threshold(0.1, 1.0), plain),
    "CosineSimilarity": lambda: Then(nn.CosineSimilarity(), two),
    "PairwiseDistance": lambda: Then(nn.PairwiseDistance(), two),
    "cdist": lambda: Then(nn.Identity(), lambda m, h: torch.cdist(h[:, :, None].relu(), h[:, :, None])),
    "prod": lambda: Then(nn.ReLU(), lambda m, h: m(h)[:, :3].prod(1, keepdim=True) + m(h)),
    "cumprod": lambda: Then(nn.ReLU(), lambda m, h: m(h).cumprod(1)),
    "norm": lambda: Then(nn.ReLU(), lambda m, h: m(h[:, :2]).norm(dim=1, keepdim=True) + h),
    "normalize": lambda: Then(nn.ReLU(), lambda m, h: F.normalize(m(h), dim=1)),
    "max": lambda: Then(nn.ReLU(), lambda m, h: m(h).max(1, keepdim=True)[0] + h),
    "amax": lambda: Then(nn.ReLU(), lambda m, h: m(h).amax(1, keepdim=True) + h),
    "median": lambda: Then(nn.ReLU(), lambda m, h: m(h).median(1, keepdim=True)[0] + h),
    "sort": lambda: Then(nn.ReLU(), lambda m, h: m(h).sort(1)[0] * torch.arange(6.0, dtype=h.dtype)),
    "topk": lambda: Then(nn.ReLU(), lambda m, h: m(h).topk(3, 1)[0]),
    "logsumexp": lambda: Then(nn.ReLU(), lambda m, h: m(h).logsumexp(1, keepdim=True) + h),
    "std": lambda: Then(nn.ReLU(), lambda m, h: (m(h) + 0.01 * h).std(1, keepdim=True) + h),
    "abs": lambda: Then(nn.ReLU(), lambda m, h: m(h).abs() + h.abs()),
    "masked": lambda: Then(nn.Identity(), lambda m, h: torch.where(h > 0, h, 0.1 * h).masked_fill(h > 1, 1.0)),
    "gather": lambda: Then(nn.Identity(), lambda m, h: h.gather(1, h.argsort(1)) * h),
    "LayerNorm": lambda: Then(nn.LayerNorm(6), plain),
    "LayerNorm plain": lambda: Then(nn.LayerNorm(6, elementwise_affine=False), plain),
    "RMSNorm": lambda: Then(nn.RMSNorm(6), plain),
    "GroupNorm": lambda: Then(nn.GroupNorm(2, 6), plain),
    "LocalResponseNorm": lambda: Then(nn.LocalResponseNorm(2), shaped(3, 2)),
    "BatchNorm1d": lambda: Then(nn.BatchNorm1d(6), plain),
    "InstanceNorm1d": lambda: Then(nn.InstanceNorm1d(2, affine=True), shaped(2, 3)),
    "InstanceNorm1d running": lambda: Then(nn.InstanceNorm1d(3, track_running_stats=True), shaped(3, 2)),
    "Unflatten": lambda: Then(nn.Unflatten(1, (2, 3)), plain),
    "Fold": lambda: Then(nn.Fold((2, 2), (2, 1)), shaped(2, 2)),
    "Unfold": lambda: Then(nn.Unfold((2, 2)), shaped(1, 2, 3)),
    "Upsample": lambda: Then(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), shaped(1, 2, 3)),
    "UpsamplingNearest2d": lambda: Then(nn.UpsamplingNearest2d(scale_factor=2), shaped(1, 2, 3)),
    "PixelShuffle": lambda: Then(nn.PixelShuffle(2), shaped(4, 1, 1)),
    "ChannelShuffle": lambda: Then(nn.ChannelShuffle(2), shaped(4, 1, 1)),
    "ReflectionPad1d": lambda: Then(nn.ReflectionPad1d(1), shaped(2, 3)),
    "ReplicationPad2d": lambda: Then(nn.ReplicationPad2d(1), shaped(1, 2, 3)),
    "ZeroPad2d": lambda: Then(nn.ZeroPad2d(1), shaped(1, 2, 3)),
    "CircularPad1d": lambda: Then(nn.CircularPad1d(1), shaped(2, 3)),
    "Softmax2d": lambda: Then(nn.Softmax2d(), shaped(3, 1, 2)),
    **{f"{k.__name__} {bi}": lambda k=k, bi=bi: Then(k(3, 4, batch_first=True, bidirectional=bi), rnn) for k in (nn.RNN, nn.LSTM, nn.GRU) for bi in (False, True)},  # type: ignore[misc]
    **{k.__name__: lambda k=k: Then(k(6, 4), cell) for k in (nn.RNNCell, nn.LSTMCell, nn.GRUCell)},  # type: ignore[misc]
    "MultiheadAttention": lambda: Then(nn.MultiheadAttention(3, 1, batch_first=True), lambda m, h: m(*[h.reshape(len(h), 2, 3)] * 3)[0]),
    "MultiheadAttention masked": lambda: Then(nn.MultiheadAttention(3, 1, batch_first=True, add_zero_attn=True), lambda m, h: m(*[(q := h.reshape(len(h), 2, 3))] * 3, key_padding_mask=q[:, :, 0] > 0)[0]),
    "TransformerEncoderLayer": lambda: Then(nn.TransformerEncoderLayer(6, 2, 5, 0.0, batch_first=True), lambda m, h: m(h[:, None])),
    "TransformerDecoderLayer": lambda: Then(nn.TransformerDecoderLayer(6, 2, 5, 0.0, batch_first=True), lambda m, h: m(h[:, None], h[:, None])),
    **{f"{k.__name__} {more}": lambda k=k, more=more: Then(k(1, 2, 2, **more), shaped(1, 2, 3) if "2d" in k.__name__ else shaped(1, 6)) for k in (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d) for more in ({}, {"padding": 1}, {"bias": False, "stride": 2}, {"dilation": 2, "padding": 1})},  # type: ignore[misc]
    "Conv1d circular": lambda: Then(nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"), shaped(1, 6)),
    "Conv1d groups": lambda: Then(nn.Conv1d(2, 4, 2, groups=2), shaped(2, 3)),
    "Conv3d": lambda: Then(nn.Conv3d(1, 2, (1, 2, 2)), shaped(1, 1, 2, 3)),
    **{name: lambda name=name, a=a, s=s: Then(nn.Sequential(nn.ReLU(), getattr(nn, name)(a)), shaped(*s)) for name, a, s in (("MaxPool1d", 2, (1, 6)), ("AvgPool1d", 2, (1, 6)), ("MaxPool2d", 2, (1, 2, 3)), ("AvgPool2d", 2, (1, 2, 3)), ("AdaptiveAvgPool1d", 2, (1, 6)), ("AdaptiveMaxPool1d", 2, (1, 6)), ("AdaptiveMaxPool2d", (1, 2), (1, 2, 3)), ("AdaptiveAvgPool2d", (1, 2), (1, 2, 3)))},  # type: ignore[misc]
    "LPPool1d": lambda: Then(nn.LPPool1d(2, 2), lambda m, h: m(h[:, None].relu())),
    "MaxPool1d overlapping": lambda: Then(nn.MaxPool1d(3, stride=1, padding=1), lambda m, h: m(h[:, None].relu())),
    "weight_norm": lambda: Then(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), plain),
    "grid_sample": lambda: Then(nn.Identity(), lambda m, h: F.grid_sample(h.reshape(len(h), 1, 2, 3), h[:, :4].reshape(len(h), 1, 2, 2).tanh(), align_corners=False)),
    "index_add": lambda: Then(nn.Identity(), lambda m, h: torch.zeros_like(h).index_add(1, torch.tensor([0, 0, 1, 1, 2, 2]), h)),
}  # fmt: skip
IDS |= {
    "functional padding": lambda: functional(padding_idx=0),
    "functional frequencies": lambda: functional(scale_grad_by_freq=True),
    "functional norm": lambda: functional(max_norm=0.5),
}
IMAGES: dict[str, Callable[[], nn.Module]] = {
    f"{said} {pool}": lambda said=said, pool=pool: nn.Sequential(nn.Conv2d(2, 2, 2, **said), nn.ReLU(), nn.MaxPool2d(2, **pool), nn.Flatten(), nn.LazyLinear(3))  # type: ignore[misc]
    for said in ({}, {"padding": 1}, {"stride": 2}, {"dilation": 2}, {"groups": 2}, {"bias": False}, {"padding": 1, "padding_mode": "reflect"})
    for pool in ({"stride": 1}, {"padding": 1}, {"ceil_mode": True})
}  # fmt: skip
LOSSES: dict[str, Any] = {
    "ignore_index": lambda o, t: F.cross_entropy(o, t, ignore_index=0, reduction="sum") / len(t),
    "ignore_index, mean": lambda o, t: F.cross_entropy(o, t, ignore_index=0),
    "weights": lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([0.5, 1.0, 3.0], dtype=o.dtype)),
    "smoothed": lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1),
    "by row": lambda o, t: F.cross_entropy(o, t, reduction="none"),
    "margins": nn.MultiMarginLoss(),
    "nll": lambda o, t: F.nll_loss(o.log_softmax(1), t, ignore_index=1, reduction="sum"),
    "kl": lambda o, t: F.kl_div(o.log_softmax(1), F.one_hot(t, 3).to(o.dtype), reduction="batchmean"),
    "l1": lambda o, t: F.l1_loss(o, F.one_hot(t, 3).to(o.dtype)),
    "huber": lambda o, t: F.huber_loss(o, F.one_hot(t, 3).to(o.dtype)),
    "cosine": lambda o, t: F.cosine_embedding_loss(o, F.one_hot(t, 3).to(o.dtype), torch.ones(len(o), dtype=o.dtype)),
}


def compared(module: nn.Module, clients: int, kind: str = "floats", loss: Any = "cross_entropy") -> tuple[float, str]:
    """The largest difference of the engines' models after two rounds, and the name of the engine that is chosen."""
    g = torch.Generator().manual_seed(0)

    def rows(n: int) -> Tensor:
        if kind == "ids":  # the first rows have neither padding nor repeats, the others have both
            first = torch.tensor([[1, 2, 3, 4, 5], [2, 3, 4, 5, 6]])
            return torch.cat([first, torch.randint(3, (n, 5), generator=g)])[:n]
        shape = (n, 2, 4, 4) if kind == "images" else (n, 6)
        return torch.randn(*shape, generator=g, dtype=torch.float64) * (torch.rand(*shape, generator=g) > 0.4)

    data = [(X, torch.randint(3, (len(X),), generator=g)) for X in map(rows, (SIZES * 3)[:clients])]
    if kind == "images":
        module(data[0][0].float())
    pace = md.scenarios.Pace(lr=0.2, epochs=2, batch=4)
    fed = md.Federation(md.problems.Network(module, loss=loss), clients=data, classes=3, pace=pace)
    a, b = (md.run(md.FedAvg(), fed, 2, dtype="float64", progress=False, engine=e) for e in ("seq", "auto"))
    return float((a.x - b.x).abs().max()), str(b.settings["engine"])


PADDED = ("Embedding {'padding_idx': 0}", "Embedding {'padding_idx': 8}", "Embedding {'scale_grad_by_freq': True}")


@pytest.mark.parametrize("name", [*PADDED, "functional padding"])
def test_embeddings_whose_gradient_depends_on_ids_are_trained_one_by_one(name: str):
    assert compared(IDS[name](), 5, "ids") == (0.0, "seq")


def test_other_embeddings_and_layers_are_stacked():
    for module, kind in ((IDS["Embedding {}"](), "ids"), (FLOATS["LayerNorm"](), "floats")):
        apart, engine = compared(module, 6, kind)
        assert (apart < 1e-10, engine) == (True, "stacked")


CASES = [(name, kind) for kind, some in (("ids", IDS), ("floats", FLOATS), ("images", IMAGES)) for name in some]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES, ids=str)
def test_engines_agree_on_every_layer(name: str, kind: str):
    make = {"ids": IDS, "floats": FLOATS, "images": IMAGES}[kind][name]
    torch.manual_seed(1)
    for clients in (5, 20):
        assert compared(make(), clients, kind)[0] < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_engines_agree_on_every_loss(name: str):
    assert compared(Then(nn.ReLU(), plain), 6, loss=LOSSES[name])[0] < 1e-10
