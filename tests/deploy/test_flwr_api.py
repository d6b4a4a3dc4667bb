"""What Medley asks of flwr: objects that are announced before they arrive are waited for shortly."""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from medley.contract.errors import MedleyError
from medley.deploy.node.fleet import FleetNode, Parcel
from medley.deploy.protocol import flwr_api

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable import inflatable_object
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

from support import bench  # noqa: F401  Flower's task identity, which messages want

LATE = 2
"""Looks at each object that find it announced and not there; with Flower's pauses they cost 2.4 s at least."""


def test_a_node_waits_shortly_for_objects_that_are_on_their_way() -> None:
    message = Message(RecordDict({"n": ConfigRecord({"bytes": b"abc"})}), 7, "query")
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {k: o.deflate() for k, o in inflatable_object.get_all_nested_objects(message).items()}
    looks: Counter[str] = Counter()

    class Late(FleetNode):
        def __init__(self) -> None:
            self._node = Node(node_id=7)

        def _call(self, name: str, request: Any) -> Any:
            assert name == "PullObject"
            looks[request.object_id] += 1
            there = looks[request.object_id] > LATE
            content = contents[request.object_id] if there else b""
            return PullObjectResponse(object_found=True, object_available=there, object_content=content)

    begun = time.monotonic()
    got = Late().content(Parcel(b"", message, inflatable_object.get_object_tree(message)))
    assert got.content["n"]["bytes"] == b"abc"
    assert set(looks.values()) == {LATE + 1}
    assert time.monotonic() - begun < 1.5


def test_the_server_waits_shortly_too() -> None:
    looks: Counter[str] = Counter()

    def pulled(name: str) -> bytes:
        looks[name] += 1
        if looks[name] <= LATE:
            raise ObjectUnavailableError(name)
        return b"there"

    class Grid:
        """Flower's grid takes objects by a call without a pause of its own."""

        def pull_messages(self, ids: list[str]) -> list[Message]:
            assert pull_objects(["a", "b"], pulled) == {"a": b"there", "b": b"there"}
            return []

        def get_node_ids(self) -> list[int]:
            return [100]

    begun = time.monotonic()
    assert flwr_api.pull(Grid(), ["m"], begun + 60, [100]) == []  # type: ignore[arg-type]
    assert looks == {"a": LATE + 1, "b": LATE + 1}
    assert time.monotonic() - begun < 1.5


def test_an_announced_reply_is_given_up_as_soon_as_its_node_is_gone() -> None:
    def never(name: str) -> bytes:
        raise ObjectUnavailableError(name)

    class Grid:
        looks = 0

        def pull_messages(self, ids: list[str]) -> list[Message]:
            with pytest.raises(ObjectPullError):
                pull_objects(["a"], never)
            return []

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            return [100, 101] if self.looks < 3 else [100]

    grid = Grid()
    assert flwr_api.pull(grid, ["m"], time.monotonic() + 600, [100, 101]) == []  # type: ignore[arg-type]
    assert grid.looks == 3


def test_what_is_taken_of_flwr_is_there_and_stands_in_one_table() -> None:
    """Each name of the tables is in the installed version, and no other file of Medley imports flwr."""
    for names in (flwr_api.DOCUMENTED | flwr_api.UNDOCUMENTED).values():
        for name in names.split():
            assert getattr(flwr_api, name) is not None
    own = Path(flwr_api.__file__)
    for path in own.parents[2].rglob("*.py"):
        modules = {
            module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for module in (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
            )
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
        }
        assert path == own or not any(m.split(".")[0] == "flwr" for m in modules), path
    used = set(re.findall(r"\bflwr\.([a-zA-Z_]+)", (own.parents[1] / "node" / "fleet.py").read_text(encoding="utf-8")))
    assert "FleetHttpClient" in used
    assert all(hasattr(flwr_api, name) for name in used)


def test_what_flwr_has_no_more_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flwr_api.UNDOCUMENTED, "flwr.common.serde", "message_from_proto gone_from_proto")
    monkeypatch.setitem(flwr_api.UNDOCUMENTED, "flwr.supernode.no_such", "NoSuchClient")
    for name in ("gone_from_proto", "NoSuchClient"):
        with pytest.raises(MedleyError, match=r"flwr [\d.]+ does not work here: .*\. Medley is tested with flwr 1\.41"):
            getattr(flwr_api, name)
    monkeypatch.setattr(flwr_api.versions, "version_of", lambda package: "1.99.0")
    with pytest.raises(MedleyError, match=r"flwr 1\.99\.0 is installed, but private parts that Medley needs"):
        _ = flwr_api.NoSuchClient
    with pytest.raises(AttributeError, match="Medley takes no nothing from flwr"):
        _ = flwr_api.nothing
