"""Private: gives a method's server only noisy sums of bounded replies, and accounts for what they reveal.

**Reference**: McMahan, Ramage, Talwar & Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018
(DP-FedAvg with a fixed denominator); Mironov, Talwar & Zhang, "Rényi Differential Privacy of the Sampled Gaussian
Mechanism", 2019, and Koskela, Jälkö & Honkela, "Computing Tight Differential Privacy Guarantees Using FFT", AISTATS
2020 (accounting).

**Needs**: uniform client weights, and a participation rule whose distribution is known.

**One round sends** (floats per client):

The messages of the method itself.

**Departures**: none. The expected cohort is the denominator of every mean, so that a lost reply, or a round in which
nobody takes part, changes neither denominator nor noise.

**Missing replies**: a lost reply adds nothing to the sum; noise and denominator stay.

**Example**

>>> import medley as md
>>> rule = md.participation.Bernoulli(0.5)
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(40),
...                     participation=rule, weights="uniform")
>>> result = md.run(md.Private(md.FedAvg(), noise=1.0, clip=0.5), fed, rounds=2, progress=False)
>>> 1 < result.history[-1]["epsilon"] < 10
True
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from torch import Tensor

from ..contract import (
    Algorithm,
    Cohort,
    LocalSampling,
    Message,
    Need,
    Pace,
    Packed,
    Replies,
    Sampling,
    Vec,
    Wrapper,
    WrapperServer,
)
from ..contract.errors import BudgetSpent, RecipeError, Unsupported
from ..contract.settings import above, at_least, below, positive
from ..numerics.forest import layout_of
from ..runtime.streams import Secret
from ..storage.as_json import plain
from . import accountant, skellam, trees
from .accountant import Release
from .mechanisms import Banded
from .quantile import Quantile
from .replies import PrivateCohort
from .rows import RowCohort, RowNoise, by_client, noise_of_rows


@dataclass
class PrivateServer(WrapperServer):
    """The wrapped method's state, and the privacy account.

    Attributes:
        spent: what was released so far; rounds with the same sampling and noise are merged
        bounds: the bound of each exchange under adaptive clipping, by the exchange's name
        past: the noise of past rounds under `Banded`, newest first, by exchange and field
        rows: what each client has released about its rows so far, under other units than "client"
    """

    spent: list[Release] = field(default_factory=list)
    bounds: dict[str, float] = field(default_factory=dict)
    past: dict[str, list[Tensor]] = field(default_factory=dict)
    rows: dict[int, list[Release]] = field(default_factory=dict)


@dataclass(frozen=True)
class Private(Wrapper[PrivateServer]):
    """A method with differential privacy for its clients, or for each client's rows, or for people with several rows.

    Attributes:
        method: the method to run. Under unit "client" its server may read only means and sums; under unit "row" its
            clients may use their rows only in local steps
        noise: z of each sum: the standard deviation of its noise, divided by the bound on one part (a client's reply or
            a row's gradient). With a `Quantile` it is z of sum and count together. None: Medley finds it from
            ``epsilon``
        clip: the bound on a reply's norm; by field, or one number for all fields, or a `Quantile` of the norms. A reply
            with several fields is bounded as a whole, each field in units of its own bound. Under unit "row" it is the
            bound on the norm of a row's gradient, a number; under unit "person", of the sum over a person's rows
        epsilon: ε that the run may spend, under other units than "client" that each client may spend; None for no limit
        delta: δ at which ε is computed; must be below 1 over the number of units; default 1e-5
        rounds: rounds that ``epsilon`` must last, if ``noise`` is None; under unit "row" rounds of one client
        exchanges: sums in one round, if ``noise`` is None; default 1
        mechanism: `Banded` for noise that is correlated over rounds; None for independent noise
        noise_at: "server" (default), or "clients": they add the noise in shares before they mask their replies, so that
            the server of a run with ``secure=`` sees no sum without noise; see `medley.privacy.skellam`
        unit: "client" (default): the server adds noise to sums of replies; "row": clients add noise to their local
            steps, whose batches are drawn by Poisson sampling with the pace's batch as the expected size; "person": the
            same, but all rows of a person are drawn, and bounded, together
        by: under unit "person", the name of the column that says whose each row is, one of the data set's ``keys``
    """

    method: Algorithm[Any, Any]
    noise: Annotated[float, at_least(0)] | None = None
    clip: Annotated[float, positive] | Mapping[str, float] | Quantile = 1.0
    epsilon: Annotated[float, positive] | None = None
    delta: Annotated[float, above(0), below(1)] = 1e-5
    rounds: Annotated[int, at_least(1)] | None = None
    exchanges: Annotated[int, at_least(1)] = 1
    mechanism: Banded | None = None
    unit: Literal["client", "row", "person"] = "client"
    noise_at: Literal["server", "clients"] = "server"
    by: str = ""

    can = "private"
    prefix = "private"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, Private):
            raise RecipeError("Private(method=...): it is private already; pass the method itself", "method")
        if self.noise is None and (self.epsilon is None or self.rounds is None):
            raise RecipeError(
                "Private(): give noise=; or give epsilon= and rounds=, and Medley finds the noise", "noise"
            )
        if isinstance(self.clip, Mapping) and not all(
            isinstance(v, int | float) and 0 < v < float("inf") for v in self.clip.values()
        ):
            raise RecipeError(f"Private(clip={self.clip!r}): bounds must be finite numbers above 0", "clip")
        if self.mechanism is not None and isinstance(self.clip, Quantile):
            raise RecipeError(
                "Private(mechanism=Banded()): its noise cancels only if all fields have the same bound: pass "
                "one number as clip=",
                "clip",
            )
        if self.noise_at == "clients":
            self._check_shares()
        if (self.unit == "person") != bool(self.by):
            raise RecipeError(
                f"Private(unit={self.unit!r}, by={self.by!r}): "
                + ("say by= which column names the person of each row" if not self.by else "by= needs unit='person'"),
                "by",
            )
        if self.unit != "client":
            object.__setattr__(self, "any_loop", False)  # the noise is in Medley's own steps
            self._check_rows()
            one_by_one = {name: types._replace(vectorized=False) for name, types in self.method.message_types.items()}
            object.__setattr__(self, "message_types", one_by_one)
            return
        object.__setattr__(self, "every_round", True)
        if isinstance(self.method, Wrapper) and self.method.reads:
            raise Unsupported(
                f"{self.method.name} cannot be private: it {self.method.reads}, but Private adds its noise to "
                "sums of replies. Use unit='row', which adds the noise at the clients",
                method=self.method.name,
                need="sums",
            )

    def _check_shares(self) -> None:
        wrong = {
            "unit": self.unit != "client" and "clients add the noise to their steps already; leave noise_at= out",
            "noise": not self.noise and "set noise= above 0, since every client's copy of the method needs it",
            "clip": isinstance(self.clip, Quantile)
            and "the server would see the count of clients within it; use a number",
            "mechanism": self.mechanism is not None and "the noise of past rounds is with clients that have left",
        }
        for key, why in wrong.items():
            if why:
                raise RecipeError(f"Private(noise_at='clients', {key}={getattr(self, key)!r}): {why}", key)

    def _check_rows(self) -> None:
        for key in ("mechanism", "clip"):
            value = getattr(self, key)
            if value is not None and not isinstance(value, int | float):
                raise RecipeError(
                    f"Private(unit={self.unit!r}, {key}={value!r}): give one number as clip=, and no mechanism=", key
                )
        if self.exchanges != 1:
            raise RecipeError(
                f"Private(unit={self.unit!r}, exchanges=...): here clients add noise in every local step, however many "
                "exchanges there are; leave exchanges= out",
                "exchanges",
            )
        if self.bounds_trees and getattr(self.method, "ranges", None) is None:
            raise RecipeError(
                f"Private({self.method.name}()): bins from counts tell about single rows; give "
                f"{self.method.name}(ranges=...), the least and the largest value of each column by public "
                "knowledge",
                "ranges",
            )

    def client_method(self, name: str) -> Any:
        """The method's client method of this name; under other units than "client", on private rows."""
        return super().client_method(name) if self.unit == "client" else partial(self._of_rows.call, name)

    @property
    def bounds_trees(self) -> bool:
        """Whether clients bound and blur what they send for trees: under unit "row"."""
        return self.unit == "row" and Need.TREES in self.method.needs

    def people(self) -> str:
        """The column that names the person of each row, under unit "person"."""
        return self.by

    def settings(self) -> dict[str, Any]:
        """See `Wrapper.settings`. A column that is not there has no entry, so that streams keep their names."""
        return {k: v for k, v in super().settings().items() if k != "private.by" or v}

    @property
    def reads(self) -> str:
        """Under unit "client" only sums."""
        return "adds noise to sums of replies" if self.unit == "client" else ""

    @property
    def _of_rows(self) -> RowNoise:
        assert isinstance(self.clip, int | float)
        return RowNoise(self.method, float(self.clip), self._z_of_rows, self.identity, self.unit)

    def _z_of_rows(self, law: LocalSampling) -> float:
        return self._z(noise_of_rows, law)

    def _z(self, noise_for: Callable[..., float], sampling: Any, *more: int) -> float:
        """The noise as declared, or the least that ``epsilon`` needs under this sampling."""
        return noise_for(sampling, self.epsilon, self.delta, self.rounds, *more) if self.noise is None else self.noise

    def law(self, pace: Pace, problem: Any) -> LocalSampling:
        """The sums of one round that the rows of a client with this budget and problem enter."""
        return trees.law(problem.n, problem.layout.depth) if self.bounds_trees else LocalSampling.of(pace, problem.n)

    def released(self, law: LocalSampling, request: bool = True) -> Release:
        """The release of a training, of one request or, for trees, of a whole round."""
        steps = 1 if request and self.bounds_trees else law.steps
        return accountant.release(Sampling("poisson", law.rows, law.rate), self._z_of_rows(law), steps)

    @property
    def name(self) -> str:
        """ "DP-" and the method's name."""
        return f"DP-{self.method.name}"

    @property
    def identity(self) -> str:
        """Name and settings, which are part of its noise's names: with one seed, another method gets other noise."""
        return json.dumps([self.name, self.settings()], default=plain)

    def requires(self) -> frozenset[str]:
        """The method's needs, the same clients in every round, uniform weights, and a known sampling of cohorts.

        Replies must not displace others. With rows as the unit only the first two are needed.
        """
        needs = {Need.FIXED} if self.unit == "client" else {Need.FIXED, Need.ROWS}
        if self.unit == "client":
            needs |= {Need.UNIFORM, Need.SAMPLING, Need.INDEPENDENT}
        return self.method.requires() | needs | ({Need.SHARES} if self.noise_at == "clients" else set())

    def start(self, x: Vec) -> PrivateServer:
        """The method's own start, with nothing spent."""
        return PrivateServer(self.method.start(x))

    def round(self, s: PrivateServer, clients: Cohort) -> None:
        """The method's round on a cohort that gives only noisy sums, or on one that accounts for clients' rows."""
        if self.unit != "client":
            limit = None if self.epsilon is None else (self.epsilon, self.delta)
            depth = layout_of(self.model(s)).depth if self.bounds_trees else 0
            cohort = RowCohort(clients, self._of_rows, s.rows, limit, depth)
            self.method.round(s.inner, cohort)
            s.rows = cohort.spent
            return
        if clients.sampling is None:
            raise Unsupported(f"{self.name} needs {Need.SAMPLING.description}", method=self.name, need=Need.SAMPLING)
        this = Round(self, s, clients, clients.sampling)
        self.method.round(s.inner, PrivateCohort(clients, this, self.method))
        # Turns come every `period` rounds, whether sums are taken or not.
        if this.released or clients.sampling.period > 1:
            s.spent = this.account()
        this.pass_on()

    def figures(self, s: PrivateServer) -> dict[str, float]:
        """ε of all sums so far, and the method's own figures."""
        return {**self.method.figures(s.inner), "epsilon": self.spent(s)}

    def by_client(self, s: PrivateServer) -> dict[int, dict[str, float]]:
        """ε of each client's rows, or people, under other units than "client"."""
        return {i: {"epsilon": e} for i, e in by_client(s.rows, self.delta).items()}

    def spent(self, s: PrivateServer) -> float:
        """The ε of all sums so far; under other units than "client", of the client with the largest ε."""
        if self.unit != "client":
            return max((e["epsilon"] for e in self.by_client(s).values()), default=0.0)
        return accountant.epsilon(s.spent, self.delta)

    def z(self, sampling: Sampling) -> float:
        """The noise of a sum under this sampling."""
        return self._z(accountant.noise_for, sampling, self.exchanges)


def private_part(method: Algorithm[Any, Any]) -> Private | None:
    """`Private` among a method's wrappers; None if there is none."""
    while isinstance(method, Wrapper) and not isinstance(method, Private):
        method = method.method
    return method if isinstance(method, Private) else None


class Round:
    """The sums of one round. Implements `medley.privacy.replies.Noisy`.

    Args:
        s: the server's state; changed by assignment
        sampling: the distribution that the cohort was drawn from
    """

    def __init__(self, private: Private, s: PrivateServer, clients: Cohort, sampling: Sampling) -> None:
        self.private = private
        self.s = s
        self.clients = clients
        self.sampling = sampling
        self.released: list[float] = []
        self._correlated_keys: set[str] = set()
        if private.mechanism is not None and private.mechanism.bands > sampling.period:
            raise RecipeError(
                f"Private(mechanism={private.mechanism!r}): a client's turns are {sampling.period} rounds "
                f"apart; use Federation(participation=participation.Cyclic({private.mechanism.bands})), or fewer "
                "bands",
                "mechanism",
            )

    def account(self, further: float | None = None) -> list[Release]:
        """The account including this round's sums, and one more with noise ``further``."""
        z = accountant.combined([*self.released, *([] if further is None else [further])])
        release = accountant.in_shares if self.private.noise_at == "clients" else accountant.release
        return accountant.added(self.s.spent, release(self.sampling, z))

    def sum(self, replies: Replies[Any], up: type[Message], exchange: str, weight: float) -> Packed:
        """``weight`` times the sum of the bounded replies, with noise. Raises BudgetSpent before taking it."""
        p = self.private
        x = self.private.model(self.s)
        if p.noise_at == "clients":
            return self._sum_in_shares(replies, up.zeros(x), weight)
        full = p.z(self.sampling)
        clip = p.clip
        number = len(self.released)
        adaptive = clip if isinstance(clip, Quantile) else None
        expected = self.sampling.rate * sum(share > 0 for share in self.clients.p.values())
        z = full if adaptive is None else adaptive.beside_count(full, expected)
        self._check_budget(full)
        bound = 1.0 if adaptive is None else self.s.bounds.get(exchange, adaptive.start)
        scales: Any = bound if adaptive is not None else clip
        total, within, came = replies.bounded(weight, scales)
        self.released.append(full)
        rng = partial(self._rng, number, replies.ids)
        if adaptive is not None:
            # Σ (b_i − ½), which a client moves by ½. The plain count Σ b_i would move by 1.
            noise = adaptive.count_noise * expected * float(rng("count").normal(()))
            noisy = within - came / 2 + expected / 2 + noise
            self.s.bounds = {**self.s.bounds, exchange: adaptive.after(bound, noisy / expected)}
        out = Packed()
        plain = up.zeros(x) if total is None else total
        self._refuse_optional(plain)
        for name, value in plain.items():
            assert value is not None
            scale = float(scales[name] if isinstance(scales, Mapping) else scales)
            shape = value.shape if isinstance(value, Tensor) else ()
            fresh = rng(name).normal(shape).to(x)
            added = weight * z * scale * self._correlated(f"{exchange}.{name}", fresh)
            out[name] = value + added if isinstance(value, Tensor) else float(value) + float(added)
        return out

    def _sum_in_shares(self, replies: Replies[Any], zeros: Packed, weight: float) -> Packed:
        """The sum with the noise that its clients added; zeros if nobody replied."""
        p = self.private
        assert p.noise is not None
        assert not isinstance(p.clip, Quantile)
        z = skellam.gaussian(p.noise, sum(v.numel() if isinstance(v, Tensor) else 1 for v in zeros.values()))
        self._check_budget(z)
        total = replies.bounded(weight, p.clip, p.noise).total
        self.released.append(z)
        out = zeros if total is None else total
        self._refuse_optional(out)
        return out

    def _refuse_optional(self, packed: Packed) -> None:
        name = next((name for name, value in packed.items() if value is None), None)
        if name is not None:
            raise Unsupported(
                f"{self.private.name}: {name!r} is optional, which would reveal who sent it",
                method=self.private.name,
                need="sums",
            )

    def _rng(self, number: int, ids: Sequence[int], what: str) -> Secret:
        """The stream of a sum's noise. Another method, or other replies, get another stream."""
        return self.clients.secret(f"privacy, {self.private.identity}, sum {number} of {list(ids)}, {what}")

    def _correlated(self, key: str, fresh: Tensor) -> Tensor:
        mechanism = self.private.mechanism
        if mechanism is None:
            return fresh
        if key in self._correlated_keys:
            raise RecipeError(
                f"Private(mechanism={mechanism!r}): {self.private.method.name} sums {key!r} twice in round "
                f"{self.clients.round}, but the noise is correlated over rounds; leave mechanism= out",
                "mechanism",
            )
        self._correlated_keys.add(key)
        past = self.s.past.get(key, [])
        noise = mechanism.next(fresh, past)
        self.s.past = {**self.s.past, key: [noise, *past][: mechanism.bands - 1]}
        return noise

    def pass_on(self) -> None:
        """Draw also the noise of correlated sums that this round skips, so that bands stay aligned with rounds."""
        for key in self.s.past.keys() - self._correlated_keys:
            for last in self.s.past[key][:1]:
                stream = self.clients.secret(f"privacy, {self.private.identity}, no sum, {key}")
                self._correlated(key, stream.normal(last.shape).to(last))

    def _check_budget(self, further: float) -> None:
        p = self.private
        if p.epsilon is None or accountant.within(self.account(further), p.epsilon, p.delta, p.rounds):
            return
        after = accountant.epsilon(self.account(further), p.delta)
        if after > p.epsilon * (1 + 1e-9):
            raise BudgetSpent(
                f"{p.name} has spent ε = {p.spent(self.s):.4g} of {p.epsilon:g} (δ = {p.delta:g}); the next "
                f"sum, in round {self.clients.round}, would make it {after:.4g}. The result has the model of the "
                "rounds before; for more rounds use more noise"
            )
