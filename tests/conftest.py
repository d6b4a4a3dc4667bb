"""Settings of all tests: one thread, hypothesis without deadlines, the log's level as it was."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Torch reads it when a test imports it. The process that hands tests to workers imports no torch.
os.environ["OMP_NUM_THREADS"] = "1"
# Ray starts its workers with low priority (15): beside other tests they would get a thirtieth of a core.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (the name is the one Ray reads)

# No test cuts the power; those of the calls themselves put their own in its place.
os.fsync = lambda fd: None

# A shell that starts the tests in the background ignores Ctrl-C, and all their children would.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("here", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


# What is imported stays: nothing of it is searched for garbage, neither while tests are collected nor after.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one group share a worker, which xdist knows by the suffix of their names: pytest 9.2 loses it."""
    if getattr(config.option, "loadgroup", False):
        grouped = [i.nodeid for i in items if i.get_closest_marker("xdist_group")]
        if lost := [name for name in grouped if "@" not in name.rpartition("]")[2]]:
            raise pytest.UsageError(f"xdist does not see the group of {len(lost)} tests; the first is {lost[0]}")


@pytest.fixture(autouse=True)
def level_of_the_log() -> Iterator[None]:
    """Scripts that a test calls may set the level of Medley's log; the next test finds it as it was."""
    log = logging.getLogger("medley")
    before = log.level
    yield
    log.setLevel(before)
