"""`run`: one method, one federation, one seed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor, nn

from .. import engines
from ..clients.host import ClientHost
from ..clients.memories import Memories
from ..contract import Algorithm, Decision, Engine, Need, Problem, Settings, State, Tuned, called_with, needs_of
from ..contract import pytree as tree
from ..contract.errors import BudgetSpent, Diverged, MedleyError, RecipeError, Stalled, Unsupported
from ..contract.personal import PartlyShared, PersonalModel
from ..contract.place import naming
from ..contract.surroundings import set_aside
from ..contract.tuned import split
from ..privacy.private import private_part
from ..problems import Network
from ..problems.linear import LinearProblem
from ..problems.network import NetworkProblem, SharedNetwork
from ..problems.trees import TreesProblem
from ..runtime import streams, tricks, turns
from ..secure.connection import ReachesParties, SecureConnection
from ..server.loop import Loop
from ..server.options import RunOptions
from ..server.protocols import Evaluator
from ..storage.base import separate_copy
from ..storage.client_models import differences, save_models
from ..storage.identity import identity
from ..storage.modules import trained
from ..storage.predictions import WITHHELD
from ..storage.result import Result
from ..storage.run_folder import threads_of
from ..storage.spill import Spill
from ..transports.auto import Unchosen
from ..wire.connection import Connection, FaultyTransport, Placed, Remote
from .checks import check_choice, check_clock, check_codec, check_secure, check_seed
from .progress import ProgressBar, Watched, progress_bar
from .protocols import Draw, Population
from .start import check_names, start

log = logging.getLogger("medley")

ENDS = {"diverged": Diverged, "stalled": Stalled, "spent": BudgetSpent}
"""The errors of `run` by outcome."""


@dataclass(frozen=True, eq=False)
class Parties(Settings):
    """Who takes part in a run.

    Attributes:
        method: the method, or the method with the learning rate that tuning found
        fed: the federation
    """

    method: Annotated[Algorithm[Any, Any] | Tuned, "FedAvg()"]
    fed: Annotated[Population, "Federation(problem, data=..., partition=...)"]


@dataclass(frozen=True, eq=False)
class Call(RunOptions, Parties):
    """The arguments of `run`, those of `Parties` first."""


@called_with(Call)
def run(call: Call) -> Result:
    """Train ``method`` on ``fed``.

    Raises RecipeError for invalid options, and Unsupported if the method needs more than problem and federation
    provide.
    """
    device = call.device_name
    threads = None if call.resume is None else threads_of(Path(call.resume))
    with turns.process_turn(), set_aside("run()", device, threads), streams.globals_kept(device):
        streams.name_globals(device, call.seed, "begin")
        return PreparedRun.of(call.method, call.fed, call).run()


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """One run, checked and drawn, before its clients are connected.

    Attributes:
        requested: the method as the user gave it
        algorithm: the same with its "auto" settings resolved
        lr: the factor on every client's learning rate
    """

    requested: Algorithm[Any, Any]
    algorithm: Algorithm[Any, Any]
    lr: float
    fed: Population
    options: RunOptions
    draw: Draw
    engine: Engine
    x0: Tensor

    @classmethod
    def of(
        cls,
        method: Algorithm[Any, Any] | Tuned,
        fed: Population,
        options: RunOptions,
        draw: Draw | None = None,
        x0: Tensor | None = None,
    ) -> PreparedRun:
        """The run of these options, on ``draw`` and from ``x0`` if they are given. Raises RecipeError, BadData,
        Unsupported.
        """
        requested, lr = split(method)
        fed = sharing(fed, requested)
        scenario = fed.scenario
        o = options
        if draw is None:
            draw = fed.draw(o.seed, o.evaluate_on, o.float_type, o.device_name, o.rounds)
        problem = draw.problem
        algorithm = requested.suited(problem.gives)
        gives = problem.gives | scenario.gives | o.policy.gives
        refuse(algorithm, gives | {Need.SHARES if o.secure else Need.REPLIES})
        if isinstance(scenario.problem, Network) and scenario.problem.train is not None:
            refuse_own_steps(algorithm)
        check_codec(o.codec, algorithm)
        check_choice(algorithm, o.best)
        if o.secure is not None:
            if scenario.membership is not None:
                raise RecipeError(
                    "run(secure=...): membership= and secure= cannot be combined, because a secure run needs the "
                    "same clients throughout; leave out one of them",
                    "secure",
                )
            cohort = len(draw.cohort(1))
            attacked = scenario.attack is not None
            check_secure(o.secure, algorithm, problem, (o.codec, o.reply_policy), cohort, attacked)
        engine = engines.choose(o.engine, problem, o.device_name)
        check_names(o.init, fed)
        if x0 is None:
            x0 = start(problem, problem.initial(streams.generator(o.seed, "init")), o.weights)
        if isinstance(problem, TreesProblem):
            problem.check(x0, o.rounds)
        personal = algorithm.is_personal or isinstance(problem, PartlyShared)
        o.check_measurable(draw.tested, scenario.f_star, scenario.stream is not None, personal)
        return cls(requested, algorithm, lr, fed, o, draw, engine, x0)

    @property
    def settings(self) -> dict[str, Any]:
        """The identity of the run, in plain values: a checkpoint belongs to the same run if these are equal."""
        o = self.options
        method_settings = self.requested.settings()
        faults = faults_of(o)
        decision = _decision(self.draw.problem)
        of_data = self.fed.settings()
        if private_part(self.algorithm) is not None and "scaling" in of_data and not of_data["scaling"]["shared"]:
            of_data["scaling"] = WITHHELD
        return {
            "method": self.algorithm.name,
            **{f"method.{k}": v for k, v in method_settings.items()},
            **{f"resolved.{k}": v for k, v in self.algorithm.settings().items() if v != method_settings[k]},
            "lr multiplier": self.lr,
            **of_data,
            "seed": o.seed,
            "evaluate_on": o.evaluate_on,
            "dtype": str(self.draw.problem.dtype).removeprefix("torch."),
            "device": o.device_name,
            "engine": self.engine.name,
            **({} if decision == "argmax" else {"decision": decision}),
            "codec": repr(o.encoding),
            # Another number of rounds would move the ends of tasks.
            **({} if self.draw.rounds_per_task is None else {"rounds a task": o.rounds}),
            **({} if o.policy.endless else {"reply_policy": repr(o.policy)}),
            **({"faults": faults} if faults else {}),
            **({"secure": repr(o.secure)} if o.secure else {}),
            **({"metrics": o.directions} if o.metrics else {}),
            **({} if o.eval_rows is None else {"eval_rows": o.eval_rows}),
            **({} if o.best is None else {"best": o.best}),
        }

    def identity(self) -> dict[str, str]:
        """Fingerprints of the run's parts other than settings, for folders. Raises RecipeError if a
        part has no fingerprint.
        """
        o = self.options
        parts = {
            "method": self.requested,
            "init": o.weights,
            "codec": o.codec,
            "metrics": o.metrics,
            "faults": faults_of(o),
        }
        return self.fed.identity() | identity(parts)

    def host(self, stack_size: int) -> ClientHost:
        """The host of the clients. One call serves at most ``stack_size`` of them."""
        o = self.options
        draw = self.draw
        engine, lr = self.engine, self.lr  # not self: Ray serialises the function, but cannot serialise the transport
        client = lambda i, t: draw.client(i, t, engine, lr)
        memories = Memories(Spill(tree.dataclasses_in(self.algorithm.memory), device=o.device_name))
        keeps = self.fed.scenario.keeps_optimizers
        about = o.seed, o.encoding, memories, o.device_name
        return ClientHost(self.algorithm, draw.problem, client, *about, stack_size, keeps, self.fed.client_names)

    def _evaluator(self) -> Evaluator:
        """The evaluator of the run's figures."""
        o = self.options
        minimises = Need.CONVEX in self.algorithm.requires()
        return self.draw.evaluator(o.functions, "grad_norm" in (o.target or {}), minimises, o.eval_rows)

    def _wrap(self, connection: Connection, bar: ProgressBar | None, host: ClientHost) -> Connection:
        """The connection, with a progress bar for its exchanges and with secure sums, if the run has them."""
        secure = self.options.secure
        parties = isinstance(connection, ReachesParties)
        watched: Connection = connection if bar is None or (secure and parties) else Watched(connection, bar)
        return watched if secure is None else SecureConnection(secure, watched, host)

    def _model(self, result: Result) -> nn.Module | None:
        """A module of the result's own; the problem's, if the problem has been made for this run alone."""
        module = _loaded(self.draw.problem, result.x, result.buffers, self.options.device_name)
        return module if module is getattr(self.fed.scenario.problem, "module", None) else separate_copy(module)

    def run(self) -> Result:
        """Connect the clients and run to the end. The result contains the model.

        Raises Diverged and Stalled, with the result, unless the options turn this off.
        """
        o = self.options
        draw = self.draw
        stack_size = engines.stack_size(draw.problem.d, o.device_name)
        settings = self.settings | ({} if o.folder is None else self.identity())
        host = self.host(stack_size)
        with (
            naming(host.names),
            tricks.kept_vectors(0 if isinstance(o.transport, Remote) else self.x0.nbytes),
            contextlib.closing((o.transport or Unchosen()).open(host)) as connection,
            progress_bar(o.progress, self.algorithm.name, o.rounds * draw.task_count) as bar,
        ):
            check_seed(self.algorithm, o.seed, isinstance(connection, ReachesParties))
            check_clock(o.policy, connection)
            loop = Loop(
                self.algorithm,
                self._wrap(connection, bar, host),
                self.x0,
                draw.problem.buffers(),
                draw,
                self._evaluator(),
                o,
                stack_size=stack_size,
                device=cache(lambda i: self.fed.scenario.devices.of(o.seed, i)),
                tick=None if bar is None else bar.tick,
                settings=settings,
                place=lambda: connection.place if isinstance(connection, Placed) else "",
            )
            if isinstance(o.transport, Remote):
                object.__setattr__(self, "x0", self.x0.new_empty(0))  # the loop has it: not to the end of the run
            result = loop(Path(o.resume) if o.resume is not None else None)
        result.personal = _own_models(draw.problem, result, loop.clientwise.models, o.device_name)
        result.model = self._model(result)
        if o.folder is not None:
            result.save_structure(o.folder)
            save_models(o.folder, result.personal)
        note_idle(o, bool(result.personal))
        kind = ENDS.get(result.status.outcome)
        if o.throw and kind:
            raise kind(result.status.message, result)
        return result


def note_idle(o: RunOptions, personal: bool) -> None:
    """Log a warning for settings that changed nothing in this run; ``personal``: whether clients have own models."""
    if o.folder is None and o.checkpoint_every != RunOptions.checkpoint_every:
        log.warning("run(checkpoint_every=%d): nothing is saved without checkpoint=, the folder", o.checkpoint_every)
    if o.client_models and not personal:
        log.warning("run(client_models=True): all clients used the server's model, so there are none to keep")


def check(methods: Mapping[str, Algorithm[Any, Any] | Tuned], fed: Population, options: Mapping[str, Any]) -> None:
    """Raise the error that `run` would raise before its first round for one of these methods, naming the method.

    Args:
        fed: the federation; drawn once for each device
        options: options of `run` for each method, by the same names
    """
    draws: dict[tuple[str, object], Draw] = {}
    for name, method in methods.items():
        try:
            o = RunOptions(**options[name])
            key = o.device_name, (split(method)[0].shares(), split(method)[0].people())
            prepared = PreparedRun.of(method, fed, o, draws.get(key))
            draws[key] = prepared.draw
            prepared.algorithm.start(prepared.x0)
        except MedleyError as e:
            e.args = (f"{name}: {e}", *e.args[1:])
            raise


def sharing(fed: Population, method: Algorithm[Any, Any]) -> Population:
    """The federation with the shared parameters that the method asks for, unless its network specifies them."""
    scenario = fed.scenario.sharing(method)
    return fed if scenario is fed.scenario else fed.within(scenario)


def _decision(problem: Problem) -> Decision:
    """How to read a class from the problem's outputs: "argmax", as for linear models, or a margin above 0."""
    network = problem.joint if isinstance(problem, SharedNetwork) else problem
    return network.decision if isinstance(network, NetworkProblem) else "argmax"


def faults_of(options: RunOptions) -> str:
    """The faults between server and clients, in words; empty if there are none."""
    return options.transport.faults if isinstance(options.transport, FaultyTransport) else ""


def _loaded(problem: Problem, x: Tensor, buffers: State | None, device: str) -> nn.Module | None:
    """The problem's module in evaluation mode, with x and buffers; None if it has no module.

    Personal parameters keep the problem's current values.
    """
    if buffers is not None:
        problem.load_buffers(buffers)
    if isinstance(problem, LinearProblem | TreesProblem):
        return problem.module(x)
    x = x.to(device)
    owner = problem
    if isinstance(owner, SharedNetwork):
        problem = owner.joint
        x = owner.full(x)
    if not isinstance(problem, NetworkProblem):
        return None
    problem.load(x)
    problem.mode(False)
    return trained(problem.module)


def _own_models(
    problem: Problem, result: Result, models: Mapping[int, PersonalModel], device: str
) -> dict[int, dict[str, Tensor]]:
    """The clients' own models, as a result stores them. Afterwards the problem has the first client's personal part."""
    out: dict[int, dict[str, Tensor]] = {}
    if isinstance(problem, PartlyShared):
        problem.load_own(None)
    server = _loaded(problem, result.x, result.buffers, device) if models else None
    if server is None:
        return {}
    fixed = {name for name, p in server.named_parameters() if not p.requires_grad}
    base = {name: t.detach().cpu().clone() for name, t in server.state_dict().items() if name not in fixed}
    for i, model in models.items():
        if isinstance(problem, PartlyShared):
            problem.load_own(model.own)
        module = _loaded(problem, model.x, model.buffers, device)
        assert module is not None
        out[i] = differences(module, base)
    if isinstance(problem, PartlyShared):
        problem.load_own(None)
    return out


def refuse(algorithm: Algorithm[Any, Any], gives: frozenset[Need]) -> None:
    """Raise Unsupported if the method needs more than problem and scenario provide."""
    if Need.TREES in gives - algorithm.requires():
        why = (
            "trains by gradients in the model's vector, and a forest has none: use Boost, or another problem than Trees"
        )
        raise Unsupported(f"{algorithm.name} {why}", method=algorithm.name, need=Need.TREES)
    for need in sorted(needs_of(algorithm.requires()) - gives):
        other = f"; or use {algorithm.instead[need]}, which does not need it" if need in algorithm.instead else ""
        if need is Need.REPLIES and algorithm.sums_as:
            other = f"; or use {algorithm.sums_as}, whose server needs only sums"
        raise Unsupported(f"{algorithm.name} needs {need.description}{other}", method=algorithm.name, need=need)


def refuse_own_steps(algorithm: Algorithm[Any, Any]) -> None:
    """Raise Unsupported for a method that reads more of its clients' training than where it ends."""
    if not algorithm.any_loop:
        raise Unsupported(
            f"{algorithm.name} takes steps of its own at the clients, and Network(train=...) trains them by a loop of "
            "yours; leave train= out, or use a method that reads only where clients end, such as FedAvg, FedAvgM, "
            "FedAdam, FedExP, FedBuff or FedPer. A method of your own says so by any_loop = True",
            method=algorithm.name,
            need="loop",
        )
