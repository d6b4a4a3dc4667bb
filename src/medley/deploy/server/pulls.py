"""Replies of large messages, each pulled by itself: a slow upload holds up no other, and is named as its client's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from ..protocol import flwr_api
from ..protocol.flwr_api import ABSENT, Reply

if TYPE_CHECKING:
    from ..protocol.flwr_api import Grid

LARGE = 1 << 20
"""Bytes of a letter from which on replies are pulled each by itself: then a slow upload holds up no other reply. For
small ones, one request for all is less work for the SuperLink."""

AT_ONCE = 32
"""The most replies to large letters that are pulled at once."""


class _Apart:
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
    apart = _Apart()
    try:
        yield apart.pull
    finally:
        apart.close()
