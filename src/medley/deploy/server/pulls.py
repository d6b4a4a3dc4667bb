"""Replies of large messages, each pulled by itself: a slow upload holds up no other, and is named as its client's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

from ..protocol import flwr_api
from ..protocol.flwr_api import ABSENT, Reply

if TYPE_CHECKING:
    from ..protocol.flwr_api import Grid

LARGE = 1 << 20
"""Bytes of a letter from which on replies are pulled each by itself: then a slow upload holds up no other reply. For
small ones, one request for all is less work for the SuperLink."""

FEW = 3
"""Objects of a reply of one piece: the message, its table of records, and the record; such replies are not counted."""

AT_ONCE = 32
"""The most replies to large letters that are pulled at once."""


class Arrivals:
    """How much of each large reply has come, counted at the grid's client, which Flower does not document.

    Attributes:
        objects: the numbers of objects of replies that have been announced, by the id of the message that they answer
        sizes: the bytes of these that have come
    """

    def __init__(self) -> None:
        self.objects, self.sizes = dict[str, int](), Counter[str]()
        self._of = dict[str, str]()
        self._client: Any = None

    def watch(self, grid: Grid) -> None:
        """Count what this grid pulls, if it is one of Flower's."""
        client = getattr(grid, "_runtime_client", None)
        if client is None or client is self._client:
            return
        self._client = client
        messages, content = client.PullMessages, client.PullObject

        def announced(request: Any) -> Any:
            found = messages(request)
            for m, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                names = {t.object_id for t in flwr_api.iterate_object_tree(tree)}
                if len(names) > FEW:
                    self.objects[m.metadata.reply_to_message_id] = len(names)
                    self._of |= dict.fromkeys(names, m.metadata.reply_to_message_id)
            return found

        def came(request: Any) -> Any:
            found = content(request)
            if (m := self._of.get(request.object_id)) is not None:
                self.sizes[m] += len(found.object_content)
            return found

        client.PullMessages, client.PullObject = announced, came

    def forget(self, message: str) -> None:
        """Count the reply to this message no longer: it is here whole."""
        self._of = {name: m for name, m in [*self._of.items()] if m != message}
        self.objects.pop(message, None)
        self.sizes.pop(message, None)

    def texts(self, waiting: Mapping[str, int]) -> dict[int, str]:
        """How much has come of the replies to messages that are waited for, by node."""
        counts = {m: c for m in waiting if (c := self.objects.get(m))}
        return {waiting[m]: flwr_api.so_much(self.sizes[m], c - 2) for m, c in counts.items()}


class Apart:
    """Pulls replies each in a thread of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="medley-pull")
        self._busy = dict[str, Future[list[Reply]]]()
        self._closed = Event()

    def pull(self, grid: Grid, messages: Iterable[str], until: float, nodes: Collection[int]) -> list[Reply]:
        """The replies that have arrived whole, as `pull`, after at most half a second."""
        for m in {*messages} - self._busy.keys():
            self._busy[m] = self._pool.submit(flwr_api.pull, grid, [m], until, nodes, self._closed.is_set)
        wait(self._busy.values(), ABSENT, FIRST_COMPLETED)
        done = [m for m, future in self._busy.items() if future.done()]
        return [reply for m in done for reply in self._busy.pop(m).result()]

    def close(self) -> None:
        """End all pulls."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def puller(is_large: bool) -> Iterator[Callable[..., list[Reply]]]:
    """`pull` for replies to letters that are `LARGE` or not."""
    if not is_large:
        yield flwr_api.pull
        return
    apart = Apart()
    try:
        yield apart.pull
    finally:
        apart.close()
