"""Ray, for real: actors in processes of their own, some of which are killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import medley as md
from medley.contract.errors import RecipeError
from medley.transports import InProcess, Ray
from medley.transports.ray import Actors
from support.scripted import Assassin, Script, assert_same, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    # Ray leaves its own sockets and pipes to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    options = {
        "include_dashboard": False,
        "logging_level": "error",
        "log_to_driver": False,
        "runtime_env": {"env_vars": {"PYTHONPATH": path}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(address="local", num_cpus=2, num_gpus=2, **options)  # two that are not there: scheduling
        yield
        ray.shutdown()


@pytest.mark.parametrize("method", [Script(), md.FedNorton()], ids=lambda m: m.name)
def test_same_bits_as_in_one_process(method: Any) -> None:
    a = train(method, InProcess())
    assert_same(a, train(method, Ray(2)))
    assert a["loss"][-1] < a["loss"][0]


def test_buffers_and_dropout_have_the_same_bits() -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    data = md.datasets.gaussian_classes(n=120, features=8, classes=3, test=30)
    fed = md.Federation(md.problems.Network(net), data=data, partition=md.partitions.IID(6))
    a, b = train(Script(), InProcess(), fed), train(Script(), Ray(2), fed)
    assert_same(a, b)
    assert a.buffers is not None
    assert b.buffers is not None
    assert torch.equal(a.buffers[0], b.buffers[0])


def test_resume_on_ray_what_began_in_one_process(tmp_path: Path) -> None:
    whole = train(Script(), InProcess(), rounds=4)
    train(Script(), InProcess(), rounds=2, checkpoint=tmp_path)
    assert_same(whole, train(Script(), Ray(2), rounds=4, resume=tmp_path))


def test_an_actor_killed_in_the_middle_of_a_round_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    assert_same(train(Script(), InProcess()), train(Script(Assassin(str(tmp_path), 2)), Ray(2)))
    assert len({int(p.name) for p in tmp_path.iterdir()}) == 2


def test_a_block_that_kills_every_actor_names_its_clients(tmp_path: Path) -> None:
    with pytest.raises(md.MedleyError, match=r"lost 3 workers .* clients \[3\] in round 2 \(train\)"):
        train(Script(Assassin(str(tmp_path), 100)), Ray(2))
    assert len(list(tmp_path.iterdir())) == 3


def divide(client: int, round: int) -> None:
    if client in (2, 4) and round == 2:
        1 / 0  # noqa: B018


def test_the_first_block_that_fails_is_reported_as_in_one_process() -> None:
    for transport in (InProcess(), Ray(2)):
        with pytest.raises(md.ClientFailed) as e:
            train(Script(divide), transport)
        assert (e.value.client, e.value.round, e.value.method) == (2, 2, "train")
        assert "in divide" in e.value.traceback


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(md.RecipeError, match="at least 1") as e:
        Ray(0)
    assert e.value.key == "workers"


@pytest.mark.parametrize(("gpus", "of"), [(1.0, 2), (0.5, 1)])
def test_workers_are_started_where_gpus_are_free(gpus: float, of: int) -> None:
    import ray

    actors = Actors(2, None, gpus)
    try:
        got = [ray.get(a.__ray_call__.remote(lambda _: os.environ["CUDA_VISIBLE_DEVICES"])) for a in actors.actors]
    finally:
        actors.close()
    assert len(set(got)) >= of
    assert set(got) <= {"0", "1"}


def test_more_gpus_than_there_are_and_gpus_without_a_run_on_them() -> None:
    with pytest.raises(RecipeError, match=r"3 workers with gpus_per_worker=1, but there is room for 2 on 2 GPUs"):
        Actors(3, None, 1.0)
    with pytest.raises(RecipeError, match="room for 0 on 2 GPUs"):
        Actors(None, None, 4.0)
    with pytest.raises(RecipeError, match="the run is on cpu; set device='cuda'"):
        train(Script(), Ray(2, gpus_per_worker=0.5))
