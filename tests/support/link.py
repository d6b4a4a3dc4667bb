"""A link between a node and its server that is slow, or that is cut: bytes are passed on as they are, TLS included."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

CHUNK = 1 << 16


@dataclass
class Link:
    """Passes connections on to a port of this machine.

    Attributes:
        port: where the node connects to
        rate: bytes a second up, of all connections together; None for as fast as it goes
        sent: bytes that went up
    """

    port: int
    rate: float | None = None
    sent: int = 0
    is_cut: bool = False
    _open: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cut(self) -> None:
        """End all connections, and refuse new ones until `mend`."""
        self.is_cut = True
        with self._lock:
            for s in self._open:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)

    def _start(self, function: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        self._threads[-1].start()

    def mend(self) -> None:
        self.is_cut = False

    def _pass(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(CHUNK):
                if up:
                    self.sent += len(content)
                    if self.rate is not None:
                        time.sleep(len(content) / self.rate)
                target.sendall(content)
        for s in (source, target):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    @classmethod
    @contextlib.contextmanager
    def to(cls, port: int, rate: float | None = None) -> Iterator[Link]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            link = cls(listener.getsockname()[1], rate)

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        near, _ = listener.accept()
                        if link.is_cut:
                            near.close()
                            continue
                        try:
                            far = socket.create_connection(("127.0.0.1", port))
                        except ConnectionRefusedError:  # the server is down, and may come back
                            near.close()
                            continue
                        with link._lock:
                            link._open += [near, far]
                        for ends in ((near, far, True), (far, near, False)):
                            link._start(link._pass, *ends)

            link._start(accept)
            try:
                yield link
            finally:
                link.cut()
                listener.shutdown(socket.SHUT_RDWR)
                for thread in link._threads:
                    thread.join(5)
                for s in link._open:
                    s.close()
