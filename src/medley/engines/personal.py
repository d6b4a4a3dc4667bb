"""Local descents if clients have parameters of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..contract import Client, Descent, Engine, LocalUpdate, MedleyError, Vec
from ..problems.network.shared import PartObjective, of_part
from .minibatches import simulated_time
from .own_loop import OwnLoop, refuse_steps
from .seq import Seq


@dataclass(frozen=True)
class PersonalDescent:
    """Local training of clients with personal parameters: of all parameters together by the engine ``inner``, of only
    the shared or only the personal ones by `Seq`.
    """

    inner: Engine

    @property
    def name(self) -> str:
        """The inner engine's name."""
        return self.inner.name

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        """See `medley.contract.client.Client.descend`; the problem's personal parameters change, too."""
        view = me.problem
        how = how._replace(first=False)
        if isinstance(self.inner, OwnLoop):
            refuse_steps(how)
        assert isinstance(view, PartObjective)
        part = view.problem.part
        d = view.problem.d
        if how.train == "shared":
            return self._part(me, view, x, how)
        if how.train == "own":
            if how.pull is not None or how.shift is not None or how.correct is not None:
                raise MedleyError(
                    "descend(train='own'): pull, shift and correct are vectors of the shared parameters; leave them out"
                )
            update = self._part(me, view.others(x), part.x, how)
            part.x = part.x + update.step
            return replace(update, step=torch.zeros_like(x))
        start = view.problem.full(x)
        joint = replace(me, problem=view.joint)
        update = self.inner.descend(joint, start, _joint(how, view, d))
        part.x = (start + update.step)[d:]
        me.optimizer_state = joint.optimizer_state
        mu = 0.0 if how.pull is None else how.pull[0]
        T = (
            update.T
            if not isinstance(mu, float | int) or not mu
            else simulated_time(me.pace, int(update.steps), mu, how)
        )
        return replace(update, step=update.step[:d], T=T)

    def _part(self, me: Client[Any], view: PartObjective, x: Vec, how: Descent) -> LocalUpdate:
        """A descent of one part, with its own random streams and optimizer state."""
        worker = replace(me, problem=view, phase=f"{me.phase} {how.train}".strip())
        update = Seq().descend(worker, x, how)
        me.optimizer_state = worker.optimizer_state
        return update


def _joint(how: Descent, view: PartObjective, d: int) -> Descent:
    """The update rule for all parameters. Pull, shift and correction do not apply to the personal ones."""
    pull = how.pull
    shift = how.shift
    correct = how.correct
    if pull is not None:
        mu, anchor = pull
        column = mu if isinstance(mu, torch.Tensor) and mu.ndim else anchor.new_full((d,), float(mu))
        pull = view.padded(column), view.padded(anchor)
    return how._replace(
        pull=pull,
        shift=None if shift is None else (shift[0], view.padded(shift[1])),
        loss=of_part(how.loss, view.part),
        correct=None if correct is None else lambda w, u, rows: torch.cat([correct(w[:d], u[:d], rows), u[d:]]),
    )
