"""A cluster of several nodes, each a Ray server of its own on this machine, one of which dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import medley as md
from medley.transports import InProcess, Ray
from support.scripted import Script, assert_same, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs, and three nodes of one CPU each: two for the run, and one to spare."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@dataclass(frozen=True)
class NodeKiller:
    """Kills the node's Ray server, whose child the worker is, at client 3 in round 2; once."""

    folder: str

    def __call__(self, client: int, round: int) -> None:
        mark = Path(self.folder) / "killed"
        if (client, round) == (3, 2) and not mark.exists():
            mark.write_text(str(os.getppid()))
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()


def test_several_nodes_have_the_bits_of_one_process_though_one_of_them_dies(nodes: Any, tmp_path: Path) -> None:
    once = train(Script(), InProcess())
    assert_same(once, train(Script(), Ray(3, nodes.address)))
    assert_same(once, train(Script(NodeKiller(str(tmp_path))), Ray(2, nodes.address)))
    died = int((tmp_path / "killed").read_text())
    servers = [node.all_processes["raylet"][0].process for node in nodes.worker_nodes]
    (killed,) = [server for server in servers if server.pid == died]
    assert killed.poll() == -signal.SIGKILL
    assert_same(train(md.FedNorton(), InProcess()), train(md.FedNorton(), Ray(2, nodes.address)))
