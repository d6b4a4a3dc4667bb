"""Ray's workers on GPUs, as far as it can be seen without any: actors in this process, on a pretended GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from medley.transports import Ray, ray
from support.pairs import quick
from support.pretended_gpu import PretendedGPU
from support.scripted import Script, train


class Results(dict[int, Any]):
    """Answers of actors, by reference."""

    def keep(self, value: Any) -> int:
        self[len(self)] = value
        return len(self) - 1


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A transport with two actors in this process. Requests, replies and memories are bytes all the same."""
    results = Results()
    fake = SimpleNamespace(
        put=results.keep,
        get=results.__getitem__,
        wait=lambda refs: (refs[:1], refs[1:]),
        exceptions=SimpleNamespace(RayError=OSError),
    )
    monkeypatch.setitem(__import__("sys").modules, "ray", fake)

    def actor() -> Any:
        one = ray.Actor()
        return SimpleNamespace(serve=SimpleNamespace(remote=lambda *request: results.keep(one.serve(*request))))

    actors: Any = SimpleNamespace(ray=fake, actors=[actor(), actor()])
    return SimpleNamespace(open=lambda host: ray.RayConnection(actors, host, ends=False))


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(1, [Script(), md.FedNorton(), md.SCAFFOLD()]), ids=lambda m: m.name)
def test_what_comes_as_bytes_is_put_on_the_device_of_the_run(method: Any, here: Any) -> None:
    plain = train(method, md.transports.InProcess())
    assert torch.equal(train(method, here).x, plain.x)
    with PretendedGPU() as gpu:
        there = train(method, here, device="cuda")
    torch.testing.assert_close(there.x, plain.x, rtol=1e-12, atol=0)
    assert gpu.lines()


@pytest.mark.parametrize(
    ("gpus", "has", "room"),
    [
        (0.0, {"CPU": 4.0}, 4),
        (1.0, {"CPU": 4.0, "GPU": 2.0}, 2),
        (0.5, {"CPU": 16.0, "GPU": 2.0}, 4),
        (0.3, {"CPU": 16.0, "GPU": 2.0}, 6),
        (0.1, {"CPU": 16.0, "GPU": 1.0}, 10),
        (0.6, {"CPU": 16.0, "GPU": 2.0}, 2),
        (2.0, {"CPU": 16.0, "GPU": 5.0}, 2),
        (0.5, {"CPU": 3.0, "GPU": 8.0}, 3),
        (1.0, {"CPU": 4.0}, 0),
    ],
)
def test_room_for_workers(gpus: float, has: dict[str, float], room: int) -> None:
    assert ray._room(has, gpus) == room


@pytest.mark.parametrize("gpus", [-0.5, 1.5, float("nan"), float("inf")])
def test_shares_of_a_gpu(gpus: float) -> None:
    with pytest.raises(RecipeError, match="a share of a GPU, from 0 to 1, or a whole number"):
        Ray(gpus_per_worker=gpus)


def test_device_and_gpus_belong_together() -> None:
    with pytest.raises(RecipeError, match=r"Ray\(gpus_per_worker=0.5\): the run is on cpu; set device='cuda'"):
        train(Script(), Ray(2, gpus_per_worker=0.5))
    with PretendedGPU(), pytest.raises(RecipeError, match=r"the run is on cuda; use Ray\(gpus_per_worker=1\)"):
        train(Script(), Ray(2), device="cuda")
