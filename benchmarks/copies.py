"""How many copies of a model its messages take at a node and at a server, without a network and without training.

    python benchmarks/copies.py --mb 198

Needs the extra ``flower`` and Linux. Everything runs in this process; what a SuperLink would store lies in a folder.
A figure is the peak of the resident memory in a step, above that at its beginning, over the model's size: the copies
that the step makes beside the model itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from medley.contract import pytree
from medley.deploy.node.fleet import FleetNode, Parcel
from medley.deploy.protocol import flwr_api
from medley.deploy.protocol.checked_json import body, sealed


def resident(name: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def peak(step: Callable[[], Any]) -> tuple[int, Any]:
    """The most resident memory in a step, in bytes above that at its beginning; and its result."""
    gc.collect()
    flwr_api.trimmed()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # begins VmHWM anew
    result = step()
    return resident("VmHWM") - before, result


class OnDisk(FleetNode):
    """A node whose SuperLink is a folder."""

    def __init__(self, folder: Path) -> None:
        from flwr.proto.node_pb2 import Node

        self.folder = folder
        self._node, self.superlink = Node(node_id=7), "here"

    def _call(self, name: str, request: Any) -> Any:
        from flwr.proto.fleet_pb2 import PushMessagesResponse
        from flwr.proto.message_pb2 import PullObjectResponse, PushObjectResponse

        if name == "PushMessages":
            names = [t.object_id for t in flwr_api.iterate_object_tree(request.message_object_trees[0])]
            return PushMessagesResponse(objects_to_push=names)
        if name == "PushObject":
            (self.folder / request.object_id).write_bytes(request.object_content)
            return PushObjectResponse(stored=True)
        if name == "PullObject":
            content = (self.folder / request.object_id).read_bytes()
            return PullObjectResponse(object_found=True, object_available=True, object_content=content)
        return None


def copies(d: int, folder: Path) -> dict[str, float]:
    """Copies of a model of d numbers in float32 that each end makes."""
    from flwr.app import Message
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # what Flower sets in a task's process
    x, node = torch.randn(d), OnDisk(folder)
    keep = lambda name, content: (folder / name).write_bytes(content)

    def server_sends() -> Parcel:
        letter = {"common": flwr_api.packed({"common": {"x": x}, "buffers": None}), "own": b"own"}
        message = Message(flwr_api.records(letter), 7, "query.train")
        with flwr_api.no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            tree = flwr_api.get_object_tree(message)
            objects = flwr_api.get_all_nested_objects(message)
            flwr_api.in_turn(((name, o.deflate()) for name, o in objects.items()), keep)
        return Parcel(b"", flwr_api.remove_content_from_message(message), tree)

    def node_receives() -> Any:
        letter = flwr_api.contents(node.content(parcel))
        request = pytree.from_bytes(letter["common"], {})
        flwr_api.release(letter)
        return request

    def node_replies() -> Any:
        answer = sealed(flwr_api.packed({"reply": {"delta": received["common"]["x"]}}))
        reply = Message(flwr_api.records({"answer": answer}), reply_to=parcel.message)
        del answer
        node.push(parcel, reply, 1.0)
        return flwr_api.get_object_tree(reply)

    def server_receives() -> Any:
        names = [t.object_id for t in flwr_api.iterate_object_tree(replied)]
        objects = flwr_api.pull_objects(names, lambda name: (folder / name).read_bytes())
        reply = flwr_api.reply_of(flwr_api.inflate_object_from_contents(replied.object_id, objects))
        assert reply.answer is not None
        return pytree.from_bytes(body(reply.answer), {})

    out = dict[str, float]()
    size = d * x.element_size()
    out["the server sends"], parcel = peak(server_sends)
    out["a node receives"], received = peak(node_receives)
    out["a node replies"], replied = peak(node_replies)
    out["the server receives"], back = peak(server_receives)
    assert torch.equal(back["reply"]["delta"], x)
    return {k: round(v / size, 2) for k, v in out.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=198.0, help="the model's size in MB")
    with tempfile.TemporaryDirectory() as tmp:
        print(json.dumps(copies(round(parser.parse_args().mb * 1e6 / 4), Path(tmp))))
