"""FedExLoRA against a loop in plain PyTorch that forms each client's B_i A_i, and its bytes."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley.algorithms.fedexlora import Trained, Update
from medley.contract import Client, Recall, on_client
from medley.problems import Network

M, H, N, R, S = 7, 6, 5, 2, 0.5


class Layer(nn.Module):
    """A layer with an adapter; if ``across``, its weights are stored as their transpose, as GPT-2's are."""

    def __init__(self, n: int, m: int, across: bool = False) -> None:
        super().__init__()
        self.fan_in_fan_out, self.scaling = across, {"default": S}
        self.base_layer = nn.Linear(m, n, bias=False) if across else nn.Linear(n, m)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(n, R, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(R, m, bias=False)})

    def forward(self, X: Tensor) -> Any:
        base = X @ self.base_layer.weight if self.fan_in_fan_out else self.base_layer(X)
        return base + S * self.lora_B["default"](self.lora_A["default"](X))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(Layer(N, H), nn.Tanh(), Layer(H, M, across=True), nn.Linear(M, 3)).double()


def clients() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(n, N, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in (4, 9, 6, 5)]


def federation(module: nn.Module | None = None, **options: Any) -> md.Federation:
    pace = options.pop("pace", md.scenarios.Pace(lr=0.3, steps=3, batch=None))
    return md.Federation(
        Network(module or network(), start="module"), clients=clients(), classes=3, pace=pace, **options
    )


def run(method: Any, fed: md.Federation, rounds: int, **options: Any) -> md.Result:
    return md.run(method, fed, rounds, dtype="float64", progress=False, **options)


def parts(module: Any) -> tuple[list[Any], list[Tensor], list[Tensor]]:
    """The layers with adapters, their weights, and all that is trained."""
    layers = [m for m in module if isinstance(m, Layer)]
    weights = [layer.base_layer.weight for layer in layers]
    return layers, weights, [p for p in module.parameters() if all(p is not w for w in weights)]


def by_hand(cohorts: list[tuple[int, ...]], ranks: tuple[int, ...]) -> Tensor:
    """x after a round of each cohort: products of whole matrices, no factors, no displacements."""
    module, data = network(), clients()
    layers, weights, params = parts(module)
    for ids in cohorts:
        start, ends, products = [p.detach().clone() for p in params], [], []
        for i in ids:
            for p, v in zip(params, start, strict=True):
                p.data = v.clone()
            for _ in range(3):
                grads = torch.autograd.grad(nn.functional.cross_entropy(module(data[i][0]), data[i][1]), params)
                for p, g in zip(params, grads, strict=True):
                    if any(p is layer.lora_A["default"].weight for layer in layers):
                        g[ranks[i] :] = 0
                    if any(p is layer.lora_B["default"].weight for layer in layers):
                        g[:, ranks[i] :] = 0
                    p.data = p.data - 0.3 * g
            ends.append([p.detach().clone() for p in params])
            products.append([(m.lora_B["default"].weight @ m.lora_A["default"].weight).detach() for m in layers])
        share = [len(data[i][1]) / sum(len(data[j][1]) for j in ids) for i in ids]
        for k, p in enumerate(params):
            p.data = torch.stack([w * end[k] for w, end in zip(share, ends, strict=True)]).sum(0)
        for k, (layer, W) in enumerate(zip(layers, weights, strict=True)):
            wanted = torch.stack([w * made[k] for w, made in zip(share, products, strict=True)]).sum(0)
            left = S * (wanted - (layer.lora_B["default"].weight @ layer.lora_A["default"].weight).detach())
            W.data = W.data + (left.T if layer.fan_in_fan_out else left)
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("ranks", [None, (1, 2, 2, 1)])
@pytest.mark.parametrize("participation", [None, md.participation.Fraction(0.5)])
def test_rounds_by_whole_products(participation: Any, ranks: Any) -> None:
    fed = federation(participation=participation)
    cohorts = [fed.draw(0).cohort(t) for t in range(1, 6)]
    got = run(md.FedExLoRA(ranks), fed, 5).x
    wanted = by_hand(cohorts, ranks or (R,) * 4)
    assert float((got - wanted).abs().max()) < 1e-13
    assert float((got - run(md.FedExLoRA(ranks), fed, 1).x).abs().max()) > 1e-3


def test_the_model_has_the_mean_of_products_and_fedavg_has_not() -> None:
    """After a round from B = 0, W + sBA is the mean of the clients' W + sB_i A_i; the product of means is not."""
    module = network()
    for layer in parts(module)[0]:
        nn.init.zeros_(layer.lora_B["default"].weight)
    begun = [W.detach().clone() for W in parts(module)[1]]
    pace, found = md.scenarios.Pace(lr=2.0, steps=20, batch=None), []
    fed = federation(module, weights="uniform", pace=pace)
    alone = [
        run(md.FedExLoRA(), md.Federation(fed.problem, clients=[rows], classes=3, pace=pace), 1) for rows in clients()
    ]

    def update(result: md.Result, k: int) -> Any:
        layer = parts(result.model)[0][k]
        product = S * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        W = layer.base_layer.weight - begun[k]
        return ((W.T if layer.fan_in_fan_out else W) + product).detach()

    exact = run(md.FedExLoRA(), fed, 1)
    for k in range(2):
        wanted = torch.stack([update(r, k) for r in alone]).mean(0)
        assert float((update(exact, k) - wanted).norm() / wanted.norm()) < 1e-12
        layer = parts(exact.model)[0][k]
        means = S * (layer.lora_B["default"].weight @ layer.lora_A["default"].weight).detach()
        found.append(float((means - wanted).norm() / wanted.norm()))
    assert min(found) > 0.01


def test_bytes_of_the_residual() -> None:
    module = network()
    d = sum(p.numel() for p in module.parameters())
    a = sum(p.numel() for p in parts(module)[2])
    rows, columns = H + H, N + M  # of W as it is stored, [6, 5] and [6, 7]
    ledger = run(md.FedExLoRA(), federation(), 3).ledger
    assert {e.up for e in ledger} == {8 * (a + 2) + 2 * 7 * 8}
    assert {e.down for e in ledger if e.round == 1} == {8 * d}
    assert 3 * R * (rows + columns) > d - a  # of four clients they are larger than the weights
    assert {e.down for e in ledger if e.round == 3} == {8 * d}
    two = md.Federation(
        Network(network(), start="module"), clients=clients()[:2], classes=3, pace=md.scenarios.Pace(lr=0.1)
    )
    assert {e.down for e in run(md.FedExLoRA(), two, 3).ledger if e.round > 1} == {8 * (a + R * (rows + columns))}
    assert {e.up for e in run(md.FedExLoRA(ranks=[1]), two, 2).ledger} == {8 * (a - (N + H + H + M) + 2) + 2 * 7 * 8}


def test_one_client_is_fedavg_of_what_is_trained() -> None:
    one = md.Federation(
        Network(network(), start="module"), clients=clients()[:1], classes=3, pace=md.scenarios.Pace(lr=0.1)
    )
    module = network()
    for W in parts(module)[1]:
        W.requires_grad_(False)
    frozen = md.Federation(
        Network(module, start="module"), clients=clients()[:1], classes=3, pace=md.scenarios.Pace(lr=0.1)
    )
    got = run(md.FedExLoRA(), one, 3).model
    plain = run(md.FedAvg(), frozen, 3).model
    assert got is not None
    assert plain is not None
    for p, q in zip(got.parameters(), plain.parameters(), strict=True):
        assert float((p - q).detach().abs().max()) < 1e-14


@pytest.mark.parametrize("optimizer", ["adam", torch.optim.AdamW])
def test_weights_feel_neither_decay_nor_clipping_nor_optimizers(optimizer: Any) -> None:
    pace = md.scenarios.Pace(lr=0.01, steps=4, batch=2, weight_decay=0.1, clip=0.5, optimizer=optimizer)
    one = md.Federation(Network(network(), start="module"), clients=clients()[:1], classes=3, pace=pace)
    module = network()
    for W in parts(module)[1]:
        W.requires_grad_(False)
    frozen = md.Federation(Network(module, start="module"), clients=clients()[:1], classes=3, pace=pace)
    got, plain = run(md.FedExLoRA(), one, 2).model, run(md.FedAvg(), frozen, 2).model
    assert got is not None
    assert plain is not None
    for p, q, begun in zip(got.parameters(), plain.parameters(), network().parameters(), strict=True):
        assert float((p - q).detach().abs().max()) < 1e-14
        assert torch.equal(p, begun) == any(begun.shape == W.shape for W in parts(network())[1])


def frozen_base(module: Any) -> None:
    module[0].base_layer.weight.requires_grad_(False)


def frozen_factor(module: Any) -> None:
    module[0].lora_A["default"].weight.requires_grad_(False)


def two_adapters(module: Any) -> None:
    module[0].lora_A["other"] = nn.Linear(N, R).double()


def magnitudes(module: Any) -> None:
    module[0].use_dora = {"default": True}


def tied(module: Any) -> None:
    """The residual of the one layer would change the other."""
    module[0].head = nn.Linear(N, H).double()
    module[0].head.weight = module[0].base_layer.weight


@pytest.mark.parametrize("spoil", [frozen_base, frozen_factor, two_adapters, magnitudes, tied])
def test_refuses_adapters_of_another_form(spoil: Any) -> None:
    module = network()
    spoil(module)
    with pytest.raises(md.Unsupported, match="FedExLoRA needs a Network with LoRA adapters whose layers' own weights"):
        run(md.FedExLoRA(), federation(module), 1)


class Doubled(md.FedExLoRA):
    """Client 2 has another scaling than the others."""

    @on_client
    def train(self, me: Client[Any], ask: Recall, request: Update) -> Trained:
        reply = md.FedExLoRA.train(self, me, ask, request)
        return Trained(reply.delta, reply.layers, reply.scale * (2 if me.id == 2 else 1))


def test_refuses_clients_of_another_model() -> None:
    with pytest.raises(md.WireError, match="client 2 has other adapters than client 0: give all the same model"):
        run(Doubled(), federation(), 1)


class Lying(md.FedExLoRA):
    """A reply that claims places outside of the model, those of another layer, or more numbers than are trained."""

    lie: ClassVar[str] = ""

    @on_client
    def train(self, me: Client[Any], ask: Recall, request: Update) -> Trained:
        reply = md.FedExLoRA.train(self, me, ask, request)
        layers, delta = reply.layers.clone(), reply.delta
        if self.lie == "none":
            return Trained(delta, layers[:0], reply.scale[:0])
        if self.lie == "long":
            delta = torch.cat([delta, delta[:1]])
        elif self.lie == "twice":
            layers[1] = layers[0]
        elif self.lie:
            layers[0, 2 if self.lie == "negative" else 3] = -4 if self.lie == "negative" else 1 << 62
        return Trained(delta, layers, reply.scale)


@pytest.mark.parametrize("lie", ["none", "long", "twice", "negative", "huge"])
def test_refuses_layers_that_are_no_part_of_x(lie: str) -> None:
    class Told(Lying):
        pass

    Told.lie = lie
    one = md.Federation(Network(network(), start="module"), clients=clients()[:1], classes=3)
    with pytest.raises(md.WireError, match="client 0's adapters do not fit a model of"):
        run(Told(), one, 1)


class Careless(md.FedExLoRA):
    """A server that sends too much or too little after the first round."""

    how: ClassVar[str] = ""

    def update(self, s: Any, i: int) -> Update:
        got = super().update(s, i)
        if got.x is not None:
            return got
        assert got.trained is not None
        assert got.left is not None
        if self.how == "rows":
            return Update(None, got.trained, got.left[:-1], got.right)
        if self.how == "half":
            return Update(None, got.trained, got.left)
        return Update(None, torch.cat([got.trained, got.trained[:1]]), got.left, got.right)


@pytest.mark.parametrize("how", ["rows", "half", "long"])
def test_a_client_refuses_an_update_of_another_model(how: str) -> None:
    class Told(Careless):
        pass

    Told.how = how
    two = md.Federation(Network(network(), start="module"), clients=clients()[:2], classes=3)
    with pytest.raises(
        md.MedleyError,
        match=r"client 0: the server.s update does not fit its model; restore a copy, or resume with readmit=.0.",
    ):
        run(Told(), two, 3)
