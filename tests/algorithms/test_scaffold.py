from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import medley as md
from medley.algorithms import scaffold
from medley.contract.errors import RecipeError
from support.oracles import digits, error, federation, mean, quadratic_parts, run, states, walk
from support.toys import A_QUARTER_LOST, LossyTransport

UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("rounds", [1, 7, 20])
def test_c_is_the_mean_of_everybodys_c(option, rounds, tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.4, **UNEQUAL)
    server, memories = states(md.SCAFFOLD(option=option), fed, rounds, tmp_path)
    p = fed.draw(0).p
    total = sum((p[i] * m.c for i, m in memories.items()), torch.zeros(10).double())
    assert len(memories) == 4 or rounds > 1
    assert float((server.c - total).norm()) < 1e-14
    assert float(total.norm()) > 0.01


def test_lost_messages_do_not_break_it(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.6, **UNEQUAL)
    server, memories = states(md.SCAFFOLD(), fed, 12, tmp_path, transport=LossyTransport(A_QUARTER_LOST))
    p = fed.draw(0).p
    total = sum((p[i] * m.c for i, m in memories.items()), torch.zeros(10).double())
    assert float((server.c - total).norm()) < 1e-14 < float(total.norm())


def test_at_the_optimum_every_client_knows_its_gradient(tmp_path):
    toy = md.problems.synthetic_quadratics(5, d=5)
    server, memories = states(md.SCAFFOLD(), federation(toy, 0.4, **UNEQUAL), 250, tmp_path)
    H, b, _ = quadratic_parts(toy)
    assert float(server.c.norm()) < 1e-12
    for i, m in memories.items():
        assert float((m.c - (H[i] @ toy.x_star - b[i])).norm()) < 1e-10


@pytest.mark.parametrize("option", ["I", "II"])
def test_rounds_by_hand(option):
    toy, lr, steps, eta = md.problems.synthetic_quadratics(4, d=5), [0.1, 0.05, 0.02, 0.1], [2, 7, 5, 1], 0.8
    H, b, p = quadratic_parts(toy)
    x, c = torch.zeros(5).double(), torch.zeros(5).double()
    cs = [c] * 4
    for _ in range(5):
        D = [walk(H[i], b[i], x, lr[i], steps[i], shift=c - cs[i]) for i in range(4)]
        if option == "I":
            cs = [H[i] @ x - b[i] for i in range(4)]
        else:
            cs = [cs[i] - c - D[i] / (steps[i] * lr[i]) for i in range(4)]
        x, c = x + eta * mean(D, p), mean(cs, p)
    got = run(md.SCAFFOLD(server_lr=eta, option=option), federation(toy, lr=lr, steps=steps), 5).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("option", ["I", "II"])
def test_one_step_of_all_data_is_gradient_descent(option):
    toy = md.problems.synthetic_quadratics(6, d=5)
    H, b, p = quadratic_parts(toy)
    x = torch.zeros(5).double()
    for _ in range(20):
        x = x - 0.1 * (mean(H, p) @ x - mean(b, p))
    got = run(md.SCAFFOLD(option=option), federation(toy, lr=0.1, steps=1), 20).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


def test_the_first_round_is_fedavgs():
    for fed in (digits(), federation(md.problems.synthetic_quadratics(10), 0.4, **UNEQUAL)):
        a, b = (run(m, fed, 1, dtype="float64").x for m in (md.SCAFFOLD(), md.FedAvg()))
        assert float((a - b).norm()) < 1e-14 * float(b.norm())


@pytest.mark.slow
def test_momentum_decay_and_schedules_keep_the_fixed_point():
    toy = md.problems.synthetic_quadratics(5, d=5)
    H, b, p = quadratic_parts(toy)
    wd = 0.2
    x_star = torch.linalg.solve(mean(H, p) + wd * torch.eye(5).double(), mean(b, p))
    pace = UNEQUAL | {
        "lr": md.distributions.Uniform(0.02, 0.05),
        "epochs": md.distributions.Integers(1, 5),
        "momentum": 0.5,
        "weight_decay": wd,
    }
    fed = federation(toy, 0.4, **pace, schedule=lambda t: 1 / (1 + 0.2 * (t % 5)))
    for option in ("I", "II"):
        assert error(run(md.SCAFFOLD(option=option), fed, 300, eval_every=300), x_star) < 1e-10


def test_the_file_stays_short():
    source = Path(scaffold.__file__).read_text()
    statements = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert 20 < len(statements) <= 60


def test_defaults_are_the_papers():
    assert md.SCAFFOLD().settings() == {"server_lr": 1.0, "option": "II"}


@pytest.mark.parametrize("setting", [{"server_lr": 0.0}, {"server_lr": float("nan")}, {"option": "III"}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="SCAFFOLD") as e:
        md.SCAFFOLD(**setting)
    assert e.value.key in (*setting, *setting.values())
