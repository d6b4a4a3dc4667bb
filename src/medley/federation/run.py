"""`run`: one method, one federation, one seed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import engines
from ..clients.host import ClientHost
from ..clients.memories import Memories
from ..contract.algorithm import Algorithm
from ..contract.client import Engine
from ..contract.errors import BudgetSpent, Diverged, MedleyError, RecipeError, Stalled, Unsupported
from ..contract.needs import Need, needs_of
from ..contract.own import PartlyShared, PersonalModel
from ..contract.problem import Problem, State
from ..contract.tuned import Tuned
from ..problems import Network
from ..problems.linear import LinearProblem
from ..problems.network import NetworkProblem, SharedNetwork
from ..runtime import streams
from ..secure import SecureSum
from ..secure.connection import ReachesParties, SecureConnection
from ..server.loop import Loop
from ..server.protocols import Evaluator
from ..server.reply_policy import ReplyPolicy
from ..storage import pytree as tree
from ..storage.client_models import differences, save_models
from ..storage.identity import identity
from ..storage.modules import trained
from ..storage.result import Result, Row
from ..storage.spill import Spill
from ..storage.weights import Start
from ..transports.auto import Unchosen
from ..wire.codec import Codec, Plain
from ..wire.connection import Connection, FaultyTransport, Placed, Transport
from .checks import check_secure, check_seed, expect
from .evaluation import Metric
from .options import RunOptions
from .progress import ProgressBar, Watched, progress_bar
from .protocols import Draw, Population, SharingPopulation
from .simulation import HeldOut
from .start import check_features, start

ENDS = {"diverged": Diverged, "stalled": Stalled, "spent": BudgetSpent}
"""The errors of `run` by outcome."""


def run(
    method: Algorithm[Any, Any] | Tuned,
    fed: Population,
    rounds: int = 100,
    *,
    seed: int = 0,
    init: Start | None = None,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
    engine: str = "auto",
    transport: Transport | None = None,
    codec: Codec | None = None,
    reply_policy: ReplyPolicy | None = None,
    secure: SecureSum | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: str | Path | None = None,
    recipe: str | None = None,
    eval_every: int = 1,
    eval_rows: int | None = None,
    clients_every: int | None = None,
    client_models: bool | None = None,
    evaluate_on: HeldOut = "test",
    target: Mapping[str, float] | None = None,
    target_over: int = 1,
    metrics: Mapping[str, Metric] | None = None,
    on_round: Callable[[Row], object] | None = None,
    throw: bool = True,
    progress: bool | None = None,
    readmit: Sequence[int] = (),
) -> Result:
    """Train ``method`` on ``fed``.

    Args:
        method: the method, or one with the learning rate that tuning found
        fed: the federation
        rounds: the number of rounds; in a stream, of each task
        seed: the seed of all random draws
        init: weights and buffers to begin at, in place of the seed's own: a Result, a state_dict, a module, a file of
            either (safetensors, or torch.save's), the folder of a run, or x₀ [d]
        dtype: the floating-point type of the model, "float32" or "float64"; the problem's own by default
        device: the device, or torch's name of it
        engine: the engine of local descents: "auto", "seq", "fused" or "stacked"
        transport: the way to the clients; this process by default. `transports.Auto()` takes worker processes where
            they pay
        codec: the encoding of messages; see `medley.wire.codecs`
        reply_policy: the replies that an exchange waits for; all by default
        secure: secure aggregation, with which the server learns sums of replies only; None, the default, for none
        checkpoint: a new folder for all that the run leaves; see `medley.storage.run_folder`
        checkpoint_every: rounds between two checkpoints; there is one at the end and on Ctrl-C, too
        resume: the folder of a run that was stopped or killed; the run goes on, and goes on writing to it
        recipe: the TOML source, saved in the run folder
        eval_every: rounds between two rows of the history
        eval_rows: the number of training rows that the history's loss is estimated from, about p_i of them client i's;
            None, the default, measures it on all. The column ``loss_error`` has the standard error
        clients_every: rounds between two tables of `Result.clients`; by default there is one, at the end, where clients
            have test rows or models of their own
        client_models: whether the result keeps the clients' own models, for `Result.client_model`; by default where
            they take at most 256 MiB together
        evaluate_on: the rows that test figures are of, "test" or "validation"
        target: the figures that end the run: ``{"accuracy": 0.9}`` at least; losses, gap and grad_norm at most; metrics
            in their own direction
        target_over: the number of last evaluations whose mean is held against ``target``. A single evaluation, the
            default, stops a noisy run at a lucky round
        metrics: functions of the test rows' (outputs, y), by the name of their column. Less is better for those that
            `lower_is_better` marks, or whose name says so
        on_round: a function that is called with every row of the history
        throw: whether a run that diverges raises Diverged, one that stalls Stalled, and one whose privacy budget is
            spent BudgetSpent; all carry the result so far
        progress: whether to show a progress bar; on a terminal by default
        readmit: with ``resume``, clients that lost their memory: they begin anew, and the method's sums are taken anew

    Raises RecipeError for options that make no sense, and Unsupported for a method that needs more than there is.
    """
    given = {name: value for name, value in locals().items() if name not in ("method", "fed")}
    return PreparedRun.of(method, fed, RunOptions.of(given)).run()


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """One run, checked and drawn, before its clients are connected.

    Attributes:
        asked: the method as the user gave it
        algorithm: the same with its "auto" settings resolved
        lr: the factor on every client's learning rate
        fed: the federation
        options: the options of `run`
        draw: the federation as the seed drew it
        engine: the engine of local descents
        x0: the first model [d]
    """

    asked: Algorithm[Any, Any]
    algorithm: Algorithm[Any, Any]
    lr: float
    fed: Population
    options: RunOptions
    draw: Draw
    engine: Engine
    x0: Tensor

    @classmethod
    def of(
        cls, method: Algorithm[Any, Any] | Tuned, fed: Population, options: RunOptions, draw: Draw | None = None
    ) -> PreparedRun:
        """The run of these options, on ``draw`` where it is there already. Raises RecipeError, BadData, Unsupported."""
        expect(method, Algorithm | Tuned, "run(method)", "FedAvg()", "method", wanted=True)
        expect(fed, Population, "run(fed)", "Federation(problem, data=..., partition=...)", "fed", wanted=True)
        asked, lr = (method.method, method.lr) if isinstance(method, Tuned) else (method, 1.0)
        fed = sharing(fed, asked)
        scenario, o = fed.scenario, options
        assert not isinstance(o.dtype, str)
        if draw is None:
            draw = fed.draw(o.seed, o.evaluate_on, o.dtype, o.device, o.rounds)
        problem = draw.problem
        algorithm = asked.suited(problem.gives)
        policy = o.reply_policy or ReplyPolicy()
        refuse(algorithm, problem.gives | scenario.gives | policy.gives | {Need.SHARES if o.secure else Need.REPLIES})
        if o.secure is not None:
            if scenario.membership is not None:
                raise RecipeError(
                    "run(secure=...): membership= with secure= is not there; a secure run has the same clients "
                    "throughout. Leave one of them out",
                    "secure",
                )
            cohort, attacked = len(draw.cohort(1)), scenario.attack is not None
            check_secure(o.secure, algorithm, problem, (o.codec, o.reply_policy), cohort, attacked)
        engine = engines.choose(o.engine, problem, o.device)
        check_features(o.init, fed)
        x0 = start(problem, problem.initial(streams.generator(o.seed, "init")), o.weights)
        o.check_measurable(draw.tested, scenario.f_star, scenario.stream is not None)
        return cls(asked, algorithm, lr, fed, o, draw, engine, x0)

    @property
    def settings(self) -> dict[str, Any]:
        """The identity of the run, in plain values: a checkpoint is of the same run where these are the same."""
        o, asked = self.options, self.asked.settings()
        policy = o.reply_policy or ReplyPolicy()
        faults = faults_of(o)
        return {
            "method": self.algorithm.name,
            **{f"method.{k}": v for k, v in asked.items()},
            **{f"resolved.{k}": v for k, v in self.algorithm.settings().items() if v != asked[k]},
            "lr multiplier": self.lr,
            **self.fed.settings(),
            "seed": o.seed,
            "evaluate_on": o.evaluate_on,
            "dtype": str(self.draw.problem.dtype).removeprefix("torch."),
            "device": o.device,
            "engine": self.engine.name,
            "codec": repr(o.codec or Plain()),
            # Another number moves the ends of tasks.
            **({} if self.draw.rounds_per_task is None else {"rounds a task": o.rounds}),
            **({} if policy.endless else {"reply_policy": repr(policy)}),
            **({"faults": faults} if faults else {}),
            **({"secure": repr(o.secure)} if o.secure else {}),
            **({"metrics": o.directions} if o.metrics else {}),
            **({} if o.eval_rows is None else {"eval_rows": o.eval_rows}),
        }

    def identity(self) -> dict[str, str]:
        """Fingerprints of the run's parts beside its settings, for folders. Raises RecipeError for one without."""
        o = self.options
        parts = {
            "method": self.asked,
            "init": o.weights,
            "codec": o.codec,
            "metrics": o.metrics,
            "faults": faults_of(o),
        }
        return self.fed.identity() | identity(parts)

    def host(self, codec: Codec, stack_size: int) -> ClientHost:
        """The host of the clients. Messages go through ``codec``; one call serves at most ``stack_size`` clients."""
        o, draw = self.options, self.draw
        engine, lr = self.engine, self.lr  # not self: on Ray the function travels, and the transport cannot
        client = lambda i, t: draw.client(i, t, engine, lr)
        memories = Memories(Spill(tree.dataclasses_in(self.algorithm.memory), device=o.device))
        keeps = self.fed.scenario.pace.optimizer_state == "kept"
        return ClientHost(self.algorithm, draw.problem, client, o.seed, codec, memories, o.device, stack_size, keeps)

    def _evaluator(self) -> Evaluator:
        """The evaluator of the run's figures."""
        o, minimises = self.options, Need.CONVEX in self.algorithm.requires()
        return self.draw.evaluator(o.metrics, "grad_norm" in (o.target or {}), minimises, o.eval_rows)

    def _carried(self, connection: Connection, bar: ProgressBar | None, host: ClientHost) -> Connection:
        """The connection with the progress of its exchanges on a bar, and with secure sums, where there are such."""
        secure, parties = self.options.secure, isinstance(connection, ReachesParties)
        watched: Connection = connection if bar is None or (secure and parties) else Watched(connection, bar)
        return watched if secure is None else SecureConnection(secure, watched, host)

    def run(self) -> Result:
        """Connect the clients and run to the end. The result has the model loaded.

        Raises Diverged and Stalled, with the result, unless the options say otherwise.
        """
        o, draw = self.options, self.draw
        codec = o.codec or Plain()
        stack_size, evaluator = engines.stack_size(draw.problem.d, o.device), self._evaluator()
        wanted, policy = dict(o.target or {}), o.reply_policy or ReplyPolicy()
        total = o.rounds if draw.rounds_per_task is None else o.rounds * draw.task_count
        folder = o.resume if o.checkpoint is None else o.checkpoint
        settings, host = self.settings | ({} if folder is None else self.identity()), self.host(codec, stack_size)
        with (
            contextlib.closing((o.transport or Unchosen()).open(host)) as connection,
            progress_bar(o.progress, self.algorithm.name, total) as bar,
        ):
            check_seed(self.algorithm, o.seed, isinstance(connection, ReachesParties))

            def watch(row: Row) -> None:
                if bar is not None:
                    bar.tick(row)
                if o.on_round is not None:
                    o.on_round(row)

            loop = Loop(
                self.algorithm,
                self._carried(connection, bar, host),
                self.x0,
                draw.problem.buffers(),
                draw,
                evaluator,
                rounds=total,
                seed=o.seed,
                eval_every=o.eval_every,
                clients_every=o.clients_every,
                client_models=o.client_models,
                target=wanted,
                at_least=o.at_least,
                target_over=o.target_over,
                codec=codec,
                stack_size=stack_size,
                device=cache(lambda i: self.fed.scenario.devices.of(o.seed, i)),
                checkpoint=Path(folder) if folder is not None else None,
                checkpoint_every=o.checkpoint_every,
                recipe=o.recipe,
                on_round=watch,
                settings=settings,
                reply_policy=policy,
                readmit=tuple(o.readmit),
                place=lambda: connection.place if isinstance(connection, Placed) else "",
            )
            result = loop(Path(o.resume) if o.resume is not None else None)
        result.personal = _own_models(draw.problem, result, loop.clientwise.models, o.device)
        result.model = _loaded(draw.problem, result.x, result.buffers, o.device)
        if folder is not None:
            result.save_structure(folder)
            save_models(Path(folder), result.personal)
        if o.throw and (kind := ENDS.get(result.status.outcome)):
            raise kind(result.status.message, result)
        return result


def check(methods: Mapping[str, Algorithm[Any, Any] | Tuned], fed: Population, options: Mapping[str, Any]) -> None:
    """Raise the error with which `run` would refuse one of these methods before its first round, and name the method.

    Args:
        methods: methods by name
        fed: the federation; it is drawn once for each device
        options: options of `run` for each method, by the same names
    """
    draws: dict[tuple[str, object], Draw] = {}
    for name, method in methods.items():
        try:
            o = RunOptions.of(options[name])
            key = o.device, method.method.shares() if isinstance(method, Tuned) else method.shares()
            prepared = PreparedRun.of(method, fed, o, draws.get(key))
            draws[key] = prepared.draw
            prepared.algorithm.start(prepared.x0)
        except MedleyError as e:
            e.args = (f"{name}: {e}", *e.args[1:])
            raise


def sharing(fed: Population, method: Algorithm[Any, Any]) -> Population:
    """The federation with the shared parameters that the method asks for, unless its network says which they are."""
    patterns, problem = method.shares(), fed.scenario.problem
    if patterns is None or not isinstance(problem, Network) or problem.shared is not None:
        return fed
    if not isinstance(fed, SharingPopulation):
        raise Unsupported(
            f"{method.name}: clients on other machines need the names of shared parameters in the recipe",
            method=method.name,
            need="shared",
        )
    return fed.sharing(patterns)


def faults_of(options: RunOptions) -> str:
    """The faults between server and clients, in words; empty without."""
    return options.transport.faults if isinstance(options.transport, FaultyTransport) else ""


def _loaded(problem: Problem, x: Tensor, buffers: State | None, device: str) -> nn.Module | None:
    """The problem's module in evaluation mode, with x and buffers; None where it has none.

    Own parameters are those of the problem as it stands.
    """
    if buffers is not None:
        problem.load_buffers(buffers)
    if isinstance(problem, LinearProblem):
        return problem.module(x)
    x, owner = x.to(device), problem
    if isinstance(owner, SharedNetwork):
        problem, x = owner.joint, owner.whole(x)
    if not isinstance(problem, NetworkProblem):
        return None
    problem.load(x)
    problem.mode(False)
    return trained(problem.module)


def _own_models(
    problem: Problem, result: Result, models: Mapping[int, PersonalModel], device: str
) -> dict[int, dict[str, Tensor]]:
    """The clients' own models, as a result keeps them. The problem's own part is the first one after it."""
    out: dict[int, dict[str, Tensor]] = {}
    if isinstance(problem, PartlyShared):
        problem.load_own(None)
    server = _loaded(problem, result.x, result.buffers, device)
    if server is None:
        return {}
    base = {name: t.detach().cpu().clone() for name, t in server.state_dict().items()}
    for i, own in models.items():
        if isinstance(problem, PartlyShared):
            problem.load_own(own.own)
        module = _loaded(problem, own.x, own.buffers, device)
        assert module is not None
        out[i] = differences(module, base)
    if isinstance(problem, PartlyShared):
        problem.load_own(None)
    return out


def refuse(algorithm: Algorithm[Any, Any], gives: frozenset[Need]) -> None:
    """Raise Unsupported where the method needs more than problem and scenario give."""
    for need in sorted(needs_of(algorithm.requires()) - gives):
        other = f"; or give {algorithm.instead[need]}, which does without" if need in algorithm.instead else ""
        if need is Need.REPLIES and algorithm.sums_as:
            other = f"; or give {algorithm.sums_as}, whose server reads sums"
        raise Unsupported(f"{algorithm.name} needs {need.wanted}{other}", method=algorithm.name, need=need)
