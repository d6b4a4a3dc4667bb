"""Methods that leave each client a model of its own: closed forms, and settings at which one equals another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import medley as md
from medley.contract.algorithm import Algorithm
from medley.contract.errors import RecipeError
from medley.participation import Fixed
from support.pairs import quick

Q = md.problems.synthetic_quadratics(clients=3, d=4, rows=(6, 10))


def rows(i: int, n: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(i)
    y = torch.randint(3, (n,), generator=g)
    return torch.randn(n, 4, generator=g, dtype=torch.float64) + y[:, None], y


def network(shared: Any = None, clients: int = 3, lr: float = 0.1, **more: Any) -> md.Federation:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    pace = md.scenarios.Pace(lr=lr, epochs=more.pop("epochs", 2), batch=more.pop("batch", None))
    problem = md.problems.Network(module, shared=shared)
    return md.Federation(problem, clients=[rows(i) for i in range(clients)], classes=3, pace=pace, **more)


def run(method: Algorithm[Any, Any], fed: md.Federation, rounds: int = 4, **more: Any) -> md.Result:
    return md.run(method, fed, rounds, dtype="float64", progress=False, **more)


def parameters(r: md.Result, i: int) -> torch.Tensor:
    """The parameters of client i's model, in the order of the module."""
    return torch.cat([p.detach().reshape(-1) for p in r.client_model(i).parameters()])


def test_local_is_training_alone():
    r = run(md.LocalOnly(), network())
    for i in range(3):
        alone = md.Federation(network().problem, clients=[rows(i)], classes=3, pace=network().pace)
        assert torch.allclose(parameters(r, i), run(md.FedAvg(), alone).x, atol=1e-12, rtol=0)
    assert torch.equal(r.x, run(md.LocalOnly(), network(), 0).x)
    assert r.ledger.up == 0
    assert r.ledger.down == 3 * 8 * len(r.x)


def test_the_servers_model_of_fedavgft_and_ditto_is_that_of_fedavg():
    fed, x = network(batch=5), run(md.FedAvg(), network(batch=5)).x
    for method in (md.FedAvgFT(epochs=3), md.Ditto(), md.Ditto(mu=0.1, own_epochs=4)):
        assert torch.equal(run(method, fed).x, x)


def test_fine_tuning_is_a_descent_from_the_servers_model():
    r = run(md.FedAvgFT(epochs=5), network())
    alone = md.Federation(
        network().problem, clients=[rows(1)], classes=3, pace=md.scenarios.Pace(lr=0.1, epochs=5, batch=None)
    )
    assert torch.allclose(parameters(r, 1), run(md.FedAvg(), alone, 1, init=r.x).x, atol=1e-12, rtol=0)


def test_ditto_without_a_pull_trains_alone_and_a_strong_pull_holds_to_the_server():
    fed = network()
    alone, free = run(md.LocalOnly(), fed), run(md.Ditto(mu=0.0), fed)
    assert torch.allclose(parameters(alone, 2), parameters(free, 2), atol=1e-12, rtol=0)
    far = [float((parameters(run(md.Ditto(mu=mu), fed), 2) - run(md.FedAvg(), fed).x).norm()) for mu in (0.0, 1.0, 9.0)]
    assert far[0] > far[1] > far[2]


def test_one_step_of_ditto_is_its_formula():
    fed = network(epochs=1)
    r1, r2 = run(md.Ditto(mu=0.7), fed, 1), run(md.Ditto(mu=0.7), fed, 2)
    sim = fed.draw(0, dtype=torch.float64)
    v, f = parameters(r1, 0), sim.problem.bind(*rows(0))
    want = v - 0.1 * (f.grad(v) + 0.7 * (v - r1.x))
    assert torch.allclose(parameters(r2, 0), want, atol=1e-12, rtol=0)


def test_fedper_is_fedavg_on_named_parameters():
    a, b = run(md.FedPer(), network(batch=5)), run(md.FedAvg(), network("body", batch=5))
    assert torch.equal(a.x, b.x)
    assert a.clients == b.clients
    assert list(a.ledger) == list(b.ledger)
    assert len(a.x) == 4 * 5 + 5
    assert a.ledger.up == 4 * 3 * 25 * 8
    every = run(md.FedPer(shared="*"), network(batch=5))
    assert torch.equal(every.x, run(md.FedAvg(), network(batch=5)).x)
    named = run(md.FedPer(), network("0.weight", batch=5))
    assert len(named.x) == 20  # the network's own names come first


def test_one_client_of_fedper_trains_the_whole_network():
    a, b = run(md.FedPer(), network(clients=1, batch=5)), run(md.FedAvg(), network(clients=1, batch=5))
    assert torch.allclose(parameters(a, 0), b.x, atol=1e-12, rtol=0)


def test_fedrep_steps_the_body_under_the_trained_head():
    fed = network("body", clients=1, epochs=1)
    r0, r1 = run(md.FedRep(head_epochs=3), fed, 0), run(md.FedRep(head_epochs=3), fed, 1)
    f = fed.draw(0, dtype=torch.float64).problem.joint.bind(*rows(0))  # type: ignore[attr-defined]
    w = parameters(r0, 0)
    for part in (*[slice(25, None)] * 3, slice(0, 25)):
        step = torch.zeros_like(w)
        step[part] = f.grad(w)[part]
        w = w - 0.1 * step
    assert torch.allclose(parameters(r1, 0), w, atol=1e-12, rtol=0)


def test_fedbn_keeps_statistics_and_scales_at_home():
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    fed = md.Federation(md.problems.Network(module), clients=[rows(i) for i in range(3)], classes=3)
    r = run(md.FedBN(), fed)
    means = [r.client_model(i)[1].running_mean for i in range(3)]  # type: ignore[index]
    assert r.buffers is None
    assert not torch.equal(means[0], means[1])
    for i in range(3):
        own = r.client_model(i)
        batch = own[0](rows(i)[0])  # type: ignore[index]
        assert torch.equal(own[0].weight, r.client_model(0)[0].weight)  # type: ignore[index]
        assert float((own[1].running_mean - batch.mean(0)).detach().abs().max()) < 1.0  # type: ignore[index]
    assert {name.split(".")[0] for i in range(3) for name in r.personal[i]} == {"1"}


def test_pfedme_finds_the_proximal_point_of_a_quadratic():
    fed = md.Federation(Q.problem, clients=Q.clients, pace=md.scenarios.Pace(lr=0.1, steps=1, batch=None))
    method = md.pFedMe(mu=2.0, inner_steps=500, outer_lr=0.05)
    r0, r1 = run(method, fed, 0), run(method, fed, 1)
    sim, moved = fed.draw(0, dtype=torch.float64), torch.zeros_like(r0.x)
    for i, p in sim.p.items():
        f = sim.problem.bind(*sim.clients.rows.of(0, i))
        H, g = f.hessian(r0.x), f.grad(r0.x)
        theta = r0.x - torch.linalg.solve(H + 2.0 * torch.eye(len(g), dtype=g.dtype), g)
        assert r1.clients[i]["loss"] == pytest.approx(f.loss(theta), rel=1e-9)
        moved -= p * 0.05 * 2.0 * (r0.x - theta)
    assert torch.allclose(r1.x, r0.x + moved, atol=1e-10, rtol=0)


@pytest.mark.slow
def test_everyone_of_pfedme_trains_and_only_those_asked_are_in_the_mean():
    fed = network(participation=Fixed([[0, 2]]), batch=5)
    some, every = (run(md.pFedMe(mu=2.0, everyone=everyone), fed, 3) for everyone in (False, True))
    alone = run(md.pFedMe(mu=2.0, everyone=True), network(batch=5), 1)
    assert torch.equal(some.x, every.x)
    for i in (0, 2):
        assert torch.equal(parameters(some, i), parameters(every, i))
    assert torch.equal(parameters(some, 1), some.x)
    assert float((parameters(every, 1) - every.x).norm()) > 0.01
    once = run(md.pFedMe(mu=2.0, everyone=True), fed, 1)
    assert torch.equal(parameters(once, 1), parameters(alone, 1))  # its first θ does not hang on who is in the mean
    sent = [(e.client, e.up) for e in every.ledger if e.round == 3 and e.method == "follow"]
    assert [client for client, _ in sent] == [1]


def test_the_authors_decay_of_theta_is_weight_decay_of_the_pace():
    fed = md.Federation(
        Q.problem, clients=Q.clients, pace=md.scenarios.Pace(lr=0.05, steps=3, batch=None, weight_decay=0.001)
    )
    r0, r1 = (run(md.pFedMe(mu=2.0, outer_lr=0.02), fed, k) for k in (0, 1))
    sim, moved = fed.draw(0, dtype=torch.float64), torch.zeros_like(r0.x)
    for i, p in sim.p.items():
        f = sim.problem.bind(*sim.clients.rows.of(0, i))
        w = theta = r0.x
        for _ in range(3):
            for _ in range(5):
                theta = theta - 0.05 * (f.grad(theta) + 2.0 * (theta - w) + 0.001 * theta)
            w = w - 0.02 * 2.0 * (w - theta)
        moved = moved + p * (w - r0.x)
    assert torch.allclose(r1.x, r0.x + moved, atol=1e-14, rtol=0)


def test_apfl_without_weight_is_fedavg_and_with_all_of_it_trains_alone():
    fed = network()
    none, all_of_it = run(md.APFL(alpha=0.0), fed), run(md.APFL(alpha=1.0), fed)
    x = run(md.FedAvg(), fed).x
    assert torch.allclose(none.x, x, atol=1e-12, rtol=0)
    assert torch.allclose(all_of_it.x, x, atol=1e-12, rtol=0)
    assert torch.allclose(parameters(none, 1), none.x, atol=1e-15, rtol=0)
    assert torch.allclose(parameters(all_of_it, 1), parameters(run(md.LocalOnly(), fed), 1), atol=1e-12, rtol=0)


def test_the_weight_of_apfl_follows_its_gradient():
    fed = network(epochs=1)
    r1, r2 = run(md.APFL(alpha=0.5, adaptive=True), fed, 1), run(md.APFL(alpha=0.5, adaptive=True), fed, 2)
    f = fed.draw(0, dtype=torch.float64).problem.bind(*rows(0))
    x0 = run(md.LocalOnly(), fed, 0).x
    v = x0 - 0.1 * 0.5 * f.grad(x0)  # v = w at first, so α stays
    mixed = 0.5 * v + 0.5 * r1.x
    assert torch.allclose(parameters(r1, 0), mixed, atol=1e-12, rtol=0)
    g = f.grad(mixed)
    a = 0.5 - 0.1 * float(g @ (v - r1.x))
    want = a * (v - 0.1 * a * g) + (1 - a) * r2.x
    assert a != 0.5
    assert torch.allclose(parameters(r2, 0), want, atol=1e-12, rtol=0)


def test_prototypes_are_means_of_features_and_pull_them_together():
    fed = network(epochs=5)
    alone, free = run(md.LocalOnly(), fed), run(md.FedProto(weight=0.0), fed)
    assert torch.allclose(parameters(alone, 1), parameters(free, 1), atol=1e-12, rtol=0)

    def spread(r: md.Result) -> float:
        """The distance of the clients' mean features of class 0."""
        with torch.no_grad():
            means = [r.client_model(i)[:2](rows(i)[0][rows(i)[1] == 0]).mean(0) for i in range(3)]  # type: ignore[index]
        return float(torch.stack(means).var(0).sum())

    assert spread(run(md.FedProto(weight=20.0), fed, 15)) < 0.5 * spread(run(md.FedProto(weight=0.0), fed, 15))


def test_the_prototypes_of_one_round():
    from medley.algorithms.fedproto import Prototypes, Server

    seen: list[Server] = []

    class Watching(md.FedProto):
        def round(self, s: Server, clients: Any) -> None:
            super().round(s, clients)
            seen.append(s)

    fed = network()
    r = run(Watching(), fed, 1)
    features = [r.client_model(i)[:2](rows(i)[0]) for i in range(3)]  # type: ignore[index]
    z, y = torch.cat(features), torch.cat([rows(i)[1] for i in range(3)])
    want = torch.stack([z[y == c].mean(0) for c in range(3)])
    assert seen[0].z is not None
    assert torch.allclose(seen[0].z, want, atol=1e-12, rtol=0)
    assert Prototypes(None, None).z is None


def test_prediction_by_the_nearest_prototype_of_the_clients_classes():
    from medley.algorithms.fedproto import Server

    seen: list[torch.Tensor] = []

    class Watching(md.FedProto):
        def round(self, s: Server, clients: Any) -> None:
            super().round(s, clients)
            assert s.z is not None
            seen.append(s.z)

    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))  # one output is of no class
    data = [rows(0), (rows(1)[0], rows(1)[1].clamp(max=1)), rows(2)]  # the second client has no row of class 2
    pace = md.scenarios.Pace(lr=0.1, epochs=2, batch=None)
    fed = md.Federation(md.problems.Network(module), clients=data, classes=3, pace=pace)
    by_head, r = run(md.FedProto(), fed, 3), run(Watching(predict="prototype"), fed, 3)
    X = torch.randn(200, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    differ = 0
    for i, classes in enumerate(([0, 1, 2], [0, 1], [0, 1, 2])):
        with torch.no_grad():
            phi = by_head.client_model(i)[:2](X)  # type: ignore[index]
            far = torch.cdist(phi, seen[1][classes])  # what clients were told in the last round
            got = r.client_model(i)(X).argmax(1)
            differ += int((got != by_head.client_model(i)(X)[:, :3].argmax(1)).sum())
        assert torch.equal(got, far.argmin(1))
    assert differ > 20
    assert torch.equal(
        parameters(run(md.FedProto(predict="prototype"), fed, 1), 0), parameters(run(md.FedProto(), fed, 1), 0)
    )


def test_prototypes_need_a_last_layer_with_a_bias():
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))
    fed = md.Federation(md.problems.Network(module), clients=[rows(i) for i in range(3)], classes=3)
    with pytest.raises(RecipeError, match=r'FedProto\(predict="prototype"\): the last layer has no bias') as e:
        run(md.FedProto(predict="prototype"), fed, 1)
    assert e.value.key == "predict"


@pytest.mark.parametrize(
    "method", quick(3, [md.LocalOnly(), md.Ditto(), md.pFedMe(), md.APFL(), md.FedProto(), md.FedPer(), md.FedRep(2)])
)
def test_a_client_that_never_took_part_has_the_servers_model(method: Algorithm[Any, Any]):
    r = run(method, network(participation=Fixed([[0, 2]]), batch=5))
    assert [row["took_part"] for row in r.clients] == [1, 0, 1]
    new = r.clients[1]
    assert new["loss"] == new["server_loss"]
    assert r.clients[0]["loss"] != r.clients[0]["server_loss"]
    assert 1 not in r.personal or not r.personal[1]


@pytest.mark.parametrize("method", quick(1, [md.FedProto(predict="prototype"), md.pFedMe(everyone=True)]))
def test_what_clients_keep_for_an_option_is_resumed(method: Algorithm[Any, Any], tmp_path: Path):
    fed = network(participation=0.5, batch=5)
    whole = run(method, fed, 5)
    run(method, fed, 2, checkpoint=tmp_path)
    again = run(method, fed, 5, resume=tmp_path)
    assert all(torch.equal(parameters(whole, i), parameters(again, i)) for i in range(3))
