"""A federation without its data: problem, pace, participation, devices, weights, stream and replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from ..contract import Algorithm, BadData, Family, LocalSampling, Need, RecipeError, ReplayPolicy
from ..devices import Devices
from ..distributions import is_number
from ..participation import Everyone, Fixed, Participation, draw_cohort, rule_of, sampling_of
from ..problems import Network
from ..problems.network.spec import keeps_state
from ..scenarios import Attack, Members, Membership, Pace
from ..storage.as_json import without_addresses
from ..tasks import Stream, Tasks
from .checks import expect

Weighting = Literal["size", "uniform"]


class Shares(Mapping[int, float]):
    """p_i of the clients 0 to n − 1, in one array, because a dictionary of ten million clients would take a gigabyte.

    Attributes:
        array: the shares [n]
        count: n
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.count = len(array)  # asked several times for each client of a round

    def __getitem__(self, i: int) -> float:
        if not 0 <= i < self.count:
            raise KeyError(i)
        return self.array.item(i)  # type: ignore[no-any-return]

    def __contains__(self, i: object) -> bool:
        return i in range(self.count)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, eq=False)
class Scenario:
    """The settings of a federation that do not depend on its data. `Scenario.of` checks them."""

    problem: Family
    pace: Pace
    participation: Participation
    devices: Devices
    weights: Weighting
    """p_i by "size" (the sum of a client's weights of rows) or "uniform"."""
    f_star: float | None
    """The optimal loss, if it is known."""
    stream: Stream | Tasks | None
    replay: ReplayPolicy | None
    attack: Attack | None = None
    membership: Members | None = None
    """The clients of each round, if some join or leave; None for the same clients throughout."""
    people: str = ""
    """The column that names the person of each row; "" unless the method's rows are private by person."""

    @classmethod
    def of(
        cls,
        problem: Family,
        pace: Pace | None = None,
        participation: float | Participation | None = None,
        devices: Devices | None = None,
        weights: Weighting = "size",
        f_star: float | None = None,
        stream: Stream | Tasks | None = None,
        replay: ReplayPolicy | None = None,
    ) -> Scenario:
        """The scenario of these arguments of `Federation`. Raises RecipeError for values out of range."""
        if isinstance(problem, torch.nn.Module):
            raise RecipeError("Federation(problem): this is a module; wrap it: problems.Network(module)", "problem")
        expect(problem, Family, "Federation(problem)", "problems.Softmax()", "problem", required=True)
        expect(pace, Pace, "Federation(pace=...)", "scenarios.Pace(lr=0.1)", "pace")
        expect(devices, Devices, "Federation(devices=...)", "devices.phones()", "devices")
        expect(participation, object, "Federation(participation=...)", "participation.Everyone()", "participation")
        expect(stream, Stream | Tasks, "Federation(stream=...)", "tasks.Split(tasks=5)", "stream")
        expect(replay, ReplayPolicy, "Federation(replay=...)", "replay.Ring(capacity=100)", "replay")
        if replay is not None and stream is None:
            raise RecipeError(
                "Federation(replay=...): replay needs stream=, because without it there are no past tasks", "replay"
            )
        if weights not in ("size", "uniform"):
            raise RecipeError.unknown(str(weights), ("size", "uniform"), "Federation(weights=...)")
        if f_star is not None and not is_number(f_star):
            raise RecipeError(f"Federation(f_star={f_star!r}): must be a finite number, the optimal loss", "f_star")
        try:
            rule = rule_of(participation)
        except RecipeError as e:
            raise RecipeError(f"Federation(participation={participation!r}): {e}", "participation") from None
        return cls(problem, pace or Pace(), rule, devices or Devices(), weights, f_star, stream, replay)

    def attacked(self, attack: Attack | None) -> Scenario:
        """The scenario with this attack, or None. Raises RecipeError for an attack that does not fit the scenario."""
        expect(attack, Attack, "Federation(attack=...)", "scenarios.Attack('sign flip', share=0.2)", "attack")
        if attack is not None and attack.of_rows and self.stream is not None:
            raise RecipeError(
                f"Federation(attack=...): {attack.kind!r} changes rows of one data set, but a stream has "
                "several; choose an attack on replies",
                "attack",
            )
        return replace(self, attack=attack)

    def sharing(self, method: Algorithm[Any, Any]) -> Scenario:
        """The same scenario, with a network whose clients share the parameters that the method asks for, and with the
        column of people that it needs.

        A network that specifies its shared parameters stays as it is.
        """
        patterns = method.shares()
        problem = self.problem
        if patterns is not None and isinstance(problem, Network) and problem.shared is None:
            problem = replace(problem, shared=patterns)
        if problem is self.problem and method.people() == self.people:
            return self
        return replace(self, problem=problem, people=method.people())

    def joined(self, membership: Members | None) -> Scenario:
        """The scenario with clients that join and leave; None for the same clients throughout."""
        expect(membership, Members, "Federation(membership=...)", "scenarios.Membership(joins={3: 10})", "membership")
        if membership is not None and self.f_star is not None:
            raise RecipeError(
                "Federation(membership=..., f_star=...): the optimum moves when clients join or leave; leave "
                "f_star out",
                "f_star",
            )
        return replace(self, membership=membership)

    @property
    def gives(self) -> frozenset[Need]:
        """The needs of a method that the scenario meets, in addition to those that the problem meets."""
        everyone = isinstance(self.participation, Everyone)
        conditions = {
            Need.EVERYONE: everyone,
            Need.STREAM: self.stream is not None,
            Need.REPLAY: self.replay is not None,
            Need.UNIFORM: self.weights == "uniform",
            Need.FIXED: self.membership is None,
            Need.SGD: self.pace.optimizer == "sgd",
            Need.SAMPLING: sampling_of(self.participation, 2) is not None,
        }
        return frozenset(need for need, is_met in conditions.items() if is_met)

    @property
    def keeps_optimizers(self) -> bool:
        """Whether each client's optimizer, or its training loop, keeps a state between rounds."""
        loop = self.problem.train if isinstance(self.problem, Network) else None
        return self.pace.optimizer_state == "kept" or keeps_state(loop)

    def check(self, clients: int) -> None:
        """Raise RecipeError unless lists in pace and devices have an entry for each of ``clients`` clients."""
        self.pace.check(clients)
        self.devices.check(clients)
        if isinstance(self.membership, Membership):
            self.membership.check(clients)

    def local(self, seed: int, round: int, sizes: np.ndarray) -> Callable[[int], LocalSampling]:
        """The distribution of each client's batches in this round, from the clients' numbers of rows [clients]."""
        return lambda i: LocalSampling.of(self.pace.of(seed, i, round), int(sizes[i]))

    def members(self, round: int, clients: int) -> tuple[int, ...]:
        """Ids of the members in a round, among ``clients`` clients."""
        return tuple(range(clients)) if self.membership is None else self.membership.at(round, clients)

    def shares(
        self, sizes: np.ndarray, totals: np.ndarray, members: Sequence[int] | None = None
    ) -> Mapping[int, float]:
        """p_i by client id, Σ p_i = 1, of the members; None for all clients. Raises BadData if no member has rows."""
        weights = totals if self.weights == "size" else (sizes > 0).astype(np.int64)
        if members is None:
            return Shares(weights / weights.sum())
        weights = weights[list(members)]
        if not weights.any():
            raise BadData(f"none of the members {[*members]} has rows; keep a client that has some")
        return dict(zip(members, (weights / weights.sum()).tolist(), strict=True))

    def cohort(self, round: int, sizes: np.ndarray, seed: int) -> tuple[int, ...]:
        """Ids of the clients that take part: the drawn members that have rows."""
        if self.membership is None:
            ids = draw_cohort(self.participation, round, sizes, seed)
        else:
            members = np.array(self.members(round, len(sizes)), dtype=np.int64)
            if isinstance(self.participation, Fixed):  # it names clients
                ids = np.intersect1d(draw_cohort(self.participation, round, sizes, seed), members)
            else:
                ids = members[draw_cohort(self.participation, round, sizes[members], seed)]
        return tuple(ids[sizes[ids] > 0].tolist())

    @property
    def parts(self) -> dict[str, Any]:
        """Everything in the scenario that affects a run's bits, by name, for its identity. If you passed tasks of your
        own, they count as data.
        """
        return {
            "problem": self.problem,
            "pace": self.pace,
            "participation": self.participation,
            "devices": self.devices,
            "stream": None if isinstance(self.stream, Tasks) else self.stream,
            "replay": self.replay,
            **({} if self.attack is None else {"attack": self.attack}),
            **({} if self.membership is None else {"membership": self.membership}),
        }

    def settings(self, data: str, partition: str, validation: float = 0.0) -> dict[str, Any]:
        """The record of a federation in plain values.

        Args:
            data: the data's name, shape and checksum
            partition: the rule that divides it among clients, or the number of clients with their own data
            validation: the share of training rows held out
        """
        stream = without_addresses(repr(self.stream))
        replay = repr(self.replay)
        tasks = {} if self.stream is None else {"stream": stream, "replay": replay}
        return {
            **self.problem.settings(),
            "data": data,
            "partition": partition,
            "pace": without_addresses(repr(self.pace)),
            "participation": without_addresses(repr(self.participation)),
            "devices": without_addresses(repr(self.devices)),
            "weights": self.weights,
            "validation": validation,
            "f_star": self.f_star,
            **tasks,
            **({} if self.attack is None else {"attack": repr(self.attack), "attackers": self.attack.share}),
            **({} if self.membership is None else {"membership": repr(self.membership)}),
        }
