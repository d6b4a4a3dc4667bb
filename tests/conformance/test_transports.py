"""Every method on transports that are not this process: Ray's actors, and Flower's objects without a network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import medley as md
from medley.contract.algorithm import Algorithm
from medley.testing import conformance
from medley.testing.method_runs import Subject
from medley.wire.connection import Transport
from support.methods import METHODS, WHOLE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray() -> Iterator[Transport]:
    """Two actors for all methods."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(Path(md.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        )
        with md.transports.Ray(2).held() as actors:
            yield actors


@pytest.fixture(autouse=True)
def last_place(method: Algorithm[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Most methods on the last of their places alone: a transport carries tensors, whatever the problem."""
    if type(method) not in WHOLE:
        last = Subject(method).places[-1:]
        monkeypatch.setattr(Subject, "places", last)


# Ray leaves its own sockets and pipes to the garbage collector.
@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_on_ray(method: Algorithm[Any, Any], ray: Transport) -> None:
    conformance(method, ray)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_on_flower(method: Algorithm[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from support.bench import FlowerInProcess

    monkeypatch.setattr(os, "fsync", lambda fd: None)  # clients' memories need not outlive a power cut here
    conformance(method, FlowerInProcess(tmp_path))
