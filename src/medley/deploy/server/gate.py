"""The gate of a server: tells nginx whether a registered node signed a request, before nginx reads the body.

Flower signs a time and a public key in a request's headers, but checks them only when the whole body is in memory.
"""

from __future__ import annotations

import datetime
import sqlite3
from base64 import b64decode
from contextlib import closing
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

from ..protocol import flwr_api as flwr

REGISTERED = "SELECT 1 FROM node WHERE public_key = ? AND status != 'unregistered'"
"""Flower's own query; its tables are not documented."""


def admitted(headers: Message, database: Path) -> bool:
    """Whether a key in the SuperLink's database signed a request's headers, within the time that Flower allows."""
    key, signed = (b64decode(headers.get(f"flwr-{k}") or "", validate=True) for k in ("public-key", "signature"))
    at = headers.get("flwr-timestamp") or ""
    age = (flwr.now() - datetime.datetime.fromisoformat(at)).total_seconds()
    if not -flwr.SYSTEM_TIME_TOLERANCE < age < flwr.TIMESTAMP_TOLERANCE + flwr.SYSTEM_TIME_TOLERANCE:
        return False
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as db:
        if db.execute(REGISTERED, (key,)).fetchone() is None:
            return False
    return bool(flwr.verify_signature(flwr.bytes_to_public_key(key), at.encode("ascii"), signed))


class Gate(ThreadingMixIn, UnixStreamServer):
    """Answers each request with 204 or 401 and nothing else, on a socket that nginx's workers can open."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, database: Path, at: Path) -> None:
        self.database = database
        super().__init__(str(at), _Asked)
        at.chmod(0o666)


class _Asked(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 100
    server: Gate

    def do_GET(self) -> None:
        try:
            code = 204 if admitted(self.headers, self.server.database) else 401
        except Exception:  # headers may hold anything
            code = 401
        self.send_response_only(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: otherwise a flood of strangers' requests would fill the disk."""
