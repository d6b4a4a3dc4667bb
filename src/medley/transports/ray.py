"""Clients on a Ray cluster: the same bits as in one process, on any number of machines.

Every worker is an actor. It fetches the clients' data once, at its first request of a run, and keeps nothing else
between two requests: clients' memories stay with the server and travel with each request. So any free actor can take a
block. If an actor or its machine dies, Ray starts another one and gives it the same block.

Requests and replies are bytes that run no code of their own. But Ray pickles the clients' data and the messages of its
own processes: use only a cluster that is yours.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

from ..contract import Checked, MedleyError, RecipeError, at_least, pytree
from ..contract.surroundings import set_aside
from ..runtime.versions import install
from ..wire.clip import Clip
from ..wire.connection import Host
from ..wire.exchange import Exchange
from ..wire.fold import Fold
from .failures import ATTEMPTS, describe, revive
from .memories import MemoriesHere, answer


@dataclass(frozen=True)
class Ray(Checked):
    """Actors on Ray (the extra ``ray``), each with one thread on one CPU, or with a share of a GPU too.

    Attributes:
        workers: number of actors. Default: one per CPU that Ray has, but at most as many as fit on its GPUs
        address: address of the cluster, as in ``ray.init``: "auto", "ray://head:10001". Default: the environment
            variable RAY_ADDRESS, else a cluster on this machine, which ends with the run
        gpus_per_worker: GPUs of an actor, for a run with ``device="cuda"``: a share such as 0.5, or a whole number, of
            which torch uses the first. Default 0, for a run on the CPU

    Medley must be installed on every machine. Actors take seconds to start: for many runs, ``with Ray(2).held() as
    transport`` keeps them from one run to the next.

    A run on the CPU has the same bits as on `InProcess` in a process that computes with one thread
    (``torch.set_num_threads(1)``). Each actor sees its own GPU as "cuda:0"; Ray starts it where a GPU is free. Raises
    RecipeError for fewer than one worker, without Ray, for GPUs without ``device="cuda"`` or the reverse, and for more
    GPUs than Ray has.
    """

    workers: Annotated[int, at_least(1)] | None = None
    address: str | None = None
    gpus_per_worker: Annotated[float, at_least(0)] = 0.0

    def __post_init__(self) -> None:
        g = self.gpus_per_worker
        if isinstance(g, float) and not (0 <= g <= 1 or (1 < g < math.inf and g.is_integer())):
            raise RecipeError(
                f"Ray(gpus_per_worker={g}): must be a share of a GPU, from 0 to 1, or a whole number", "gpus_per_worker"
            )
        super().__post_init__()

    def open(self, host: Host) -> RayConnection:
        """Begin a run with the clients of ``host``: connect, unless this process is connected, and start the actors."""
        _check_device(host, self.gpus_per_worker)
        return RayConnection(Actors(self.workers, self.address, self.gpus_per_worker), host, ends=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[Actors]:
        """A transport whose actors serve one run after the other, until the ``with`` block ends."""
        actors = Actors(self.workers, self.address, self.gpus_per_worker)
        try:
            yield actors
        finally:
            actors.close()


class Actors:
    """A connection to Ray with running actors. It is also a transport, whose actors outlive a run."""

    def __init__(self, workers: int | None, address: str | None, gpus: float = 0.0) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Otherwise Ray warns that its version 3 will leave CUDA_VISIBLE_DEVICES alone, and fills the log.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        try:
            import ray
        except ImportError as e:
            raise RecipeError(f"Ray: it cannot be imported ({e}); {install('ray')}", "transport") from None
        address = address or os.environ.get("RAY_ADDRESS", "local")
        self.ray, self.ours = ray, not ray.is_initialized()
        if self.ours:
            local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
            try:
                ray.init(address=address, logging_level="error", log_to_driver=False, **local)
            except (ConnectionError, RuntimeError, ValueError) as e:
                raise RecipeError(f"Ray(address={address!r}): no cluster answers there: {e}", "address") from None
        self.gpus, has, options = gpus, ray.cluster_resources(), {"num_gpus": gpus} if gpus else {}
        room = _room(has, gpus)
        if gpus and (workers or 1) > room:
            if self.ours:
                ray.shutdown()
            raise RecipeError(
                f"Ray: {workers or 1} workers with gpus_per_worker={gpus:g}, but there is room for {room} on "
                f"{has.get('GPU', 0):g} GPUs and {has['CPU']:g} CPUs; use fewer workers, or a smaller share",
                "gpus_per_worker",
            )
        kind = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=ATTEMPTS - 1, **options)(Actor)
        self.actors = [kind.remote() for _ in range(workers or room)]

    def open(self, host: Host) -> RayConnection:
        """Begin a run with the clients of ``host`` on these actors."""
        _check_device(host, self.gpus)
        return RayConnection(self, host, ends=False)

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for actor in self.actors:
            self.ray.kill(actor)
        self.actors = []
        if self.ours and self.ray.is_initialized():
            self.ray.shutdown()


def _check_device(host: Host, gpus: float) -> None:
    """Raise RecipeError if the run's device is not the workers'."""
    if gpus and host.device != "cuda":
        raise RecipeError(
            f"Ray(gpus_per_worker={gpus:g}): the run is on {host.device}; set device='cuda', each worker's own GPU",
            "gpus_per_worker",
        )
    if not gpus and host.device != "cpu":
        raise RecipeError(
            f"Ray: workers compute on the CPU, but the run is on {host.device}; use Ray(gpus_per_worker=1), or leave "
            "device= out",
            "device",
        )


def _room(has: Mapping[str, float], gpus: float) -> int:
    """The number of workers that fit on a cluster, one CPU each. Ray does not split an actor's share of a GPU over two
    GPUs.
    """
    if not gpus:
        return int(has["CPU"])
    devices = int(has.get("GPU", 0))
    return min(int(has["CPU"]), int(devices / gpus) if gpus > 1 else devices * int(1 / gpus + 1e-9))


def _moved(tree: Any, device: str) -> Any:
    """A pytree that arrived as bytes, on the device of the run."""
    return tree if device == "cpu" else pytree.map_tensors(tree, lambda t: t.to(device))


class Actor:
    """A worker. It keeps the data of the last run and the common message of the last exchange that it served."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.data: Any = None
        self.common: Any = None

    def serve(self, data: list[Any], common: list[Any], bodies: list[bytes]) -> list[bytes | dict[str, Any]]:
        """The answers to some blocks, each with its clients' pending memories; an error, as JSON values, ends the list.

        Args:
            data: the reference of the run's host, in a list: Ray would fetch a bare reference at every call
            common: the reference of the exchange's common message, in a list
            bodies: the blocks' requests
        """
        import ray

        if data != self.data:
            self.host: Host = ray.get(data[0])
            self.classes = {"Exchange": Exchange, "Clip": Clip, **pytree.dataclasses_in(self.host.algorithm.memory)}
            self.data = data
        if common != self.common:
            self.every = _moved(pytree.from_bytes(ray.get(common[0]), {}), self.host.device)
            self.common = common
        answers: list[bytes | dict[str, Any]] = []
        for block in bodies:
            try:
                mine = _moved(pytree.from_bytes(block, self.classes), self.host.device)
                request = replace(mine["exchange"], **self.every)
                with set_aside("Ray", self.host.device):
                    answers.append(pytree.to_bytes(answer(self.host, request, mine["held"])))
            except Exception as e:
                return [*answers, describe(e)]
        return answers


class RayConnection(MemoriesHere):
    """Sends blocks to free actors and keeps the clients' memories. With ``ends`` the actors end with the run."""

    def __init__(self, actors: Actors, host: Host, ends: bool) -> None:
        super().__init__(host)
        self.actors = actors
        self.ends = ends
        self.ray = actors.ray
        self.device = host.device
        self.classes = pytree.dataclasses_in(host.algorithm.memory)
        self.data = [self.ray.put(host.without_memories())]

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request. Yields blocks as they are done.

        If there are several errors, the first block's is raised, as in one process.
        """
        common = [self.ray.put(pytree.to_bytes({"common": exchange.common, "buffers": exchange.buffers}))]
        at = 0
        end = len(exchange.blocks)
        free = list(self.actors.actors)
        busy = dict[Any, tuple[Any, range]]()
        failed: dict[int, MedleyError] = {}
        done: list[Fold] = []
        while True:
            while free and not failed and at < end:
                actor = free.pop()
                last = at + self._share(end - at)
                bodies = [self._request(exchange, exchange.blocks[block]) for block in range(at, last)]
                busy[actor.serve.remote(self.data, common, bodies)] = actor, range(at, last)
                at = last
            yield from done
            done = []
            awaited = [ref for ref, (_, blocks) in busy.items() if blocks[0] < min(failed, default=1 << 62)]
            if not awaited:
                break
            (ref,), _ = self.ray.wait(awaited)
            actor, blocks = busy.pop(ref)
            free.append(actor)
            try:
                answers = self.ray.get(ref)
            except self.ray.exceptions.RayError as e:
                answers = [{"error": "MedleyError", "attributes": {}, "text": self._lost(exchange, blocks, e)}]
            for block, came in zip(blocks, answers, strict=False):
                if isinstance(came, dict):
                    failed[block] = revive(came)
                else:
                    answer = pytree.from_bytes(came, self.classes)
                    pending = answer.pop("pending")
                    done.append(self.fold(exchange, block, {**_moved(answer, self.device), "pending": pending}))
        if failed:
            raise failed[min(failed)]

    def _share(self, left: int) -> int:
        """The number of blocks in the next request, out of those that are left.

        It is large at first, since every request has a fixed cost, and 1 at the end, so that all actors end together.
        """
        return -(-left // (2 * len(self.actors.actors)))

    def _request(self, exchange: Exchange, ids: tuple[int, ...]) -> bytes:
        return pytree.to_bytes({"exchange": exchange.of_block(ids), "held": self.memories_of(exchange, ids)})

    def _lost(self, exchange: Exchange, blocks: range, e: Exception) -> str:
        ids = [*itertools.chain.from_iterable(exchange.blocks[block] for block in blocks)]
        return (
            f"Ray lost {ATTEMPTS} workers in a row that served clients {ids} in round "
            f"{exchange.round} ({exchange.method}): {e}\nIf memory ran out, use fewer workers; if "
            "a module is missing, install it on every machine, or name it in ray.init(runtime_env=...)"
        )

    def close(self) -> None:
        """End the actors, unless they serve further runs."""
        if self.ends:
            self.actors.close()
