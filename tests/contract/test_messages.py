"""Messages that several methods share, and the losses along a line."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

import medley as md
from medley.contract import messages
from medley.contract.message import Message
from support.rig import Rig

TOY = md.problems.synthetic_logistic(clients=4, d=5, mu=0.1)


@pytest.mark.parametrize("ids", [(0, 1, 2, 3), (1, 3)])
def test_losses_along_a_line_are_means_over_the_clients_that_are_asked(ids: tuple[int, ...]) -> None:
    method = md.Newton()
    rig = Rig(method, TOY)
    x = rig().x  # clients remember the x from before this round
    before, p = torch.zeros(5).double(), torch.linspace(-1, 1, 5, dtype=torch.float64)
    assert not torch.equal(x, before)
    rig.t += 1
    along = messages.losses_along(rig.cohort(rig.all), rig.method.losses, p, ids)
    share = sum(rig.sim.p[i] for i in ids)
    for etas in ([0.0, 1.0], [0.25]):
        expected = [
            sum(rig.sim.p[i] * rig.client(i, 1).problem.loss(before - eta * p) for i in ids) / share for eta in etas
        ]
        assert along(etas) == pytest.approx(expected, rel=1e-13)


def test_no_two_shared_messages_have_the_same_fields() -> None:
    kinds = [k for k in vars(messages).values() if isinstance(k, type) and issubclass(k, Message) and k is not Message]
    assert len(kinds) > 10
    assert {k.__name__ for k in kinds} == set(messages.__all__) - {"losses_along", "recall_all"}
    declared = [tuple((f.name, str(f.type)) for f in fields(k)) for k in kinds]
    assert len(set(declared)) == len(declared)
