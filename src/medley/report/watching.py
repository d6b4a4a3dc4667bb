"""A page that shows a run while it goes, served on 127.0.0.1 from the run's folder."""

from __future__ import annotations

import json
import math
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from ..contract.errors import MedleyError
from ..storage import run_view
from .bands import thin
from .figures import DARK, LIGHT

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
)
"""The page loads nothing from elsewhere."""

LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Names in the address of a browser on this machine. Others get an error: a page elsewhere could point its own name at
127.0.0.1 and read along.
"""


MOST = 1000
"""Rows of a history that the page draws, evenly chosen."""


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of the page about the run in ``folder``, on this port of 127.0.0.1; 0 takes any free port."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "medley"
        sys_version = ""

        def do_GET(self) -> None:
            if self.headers.get("Host", "").rsplit(":", 1)[0] not in LOCAL:
                self._answer(403, "text/plain", "this page can be opened only on this machine")
            elif self.path == "/":
                self._answer(200, "text/html", page())
            elif self.path == "/view.json":
                self._answer(*_view(folder))
            else:
                self._answer(404, "text/plain", "not found: there are / and /view.json")

        def _answer(self, code: int, kind: str, text: str) -> None:
            raw = text.encode()
            self.send_response(code)
            headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(raw))}
            headers |= {"Cache-Control": "no-store", "Content-Security-Policy": POLICY}
            headers |= {
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "DENY",
                "Referrer-Policy": "no-referrer",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing about requests."""

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    http.daemon_threads = True
    return http


def _view(folder: Path) -> tuple[int, str, str]:
    try:
        answer = run_view.view(folder).plain()
    except MedleyError as e:
        return 503, "application/json", json.dumps({"error": str(e)})
    rows = answer["history"]
    answer["history"] = [
        {k: v for k, v in rows[at].items() if not isinstance(v, float) or math.isfinite(v)}
        for at in thin(len(rows), MOST).tolist()
    ]
    return 200, "application/json", json.dumps(answer)


def page() -> str:
    """The page's HTML; its script requests the view every two seconds."""
    templates = resources.files(__package__).joinpath("templates")
    text = templates.joinpath("watch.html").read_text(encoding="utf-8")
    for mark, palette in (("/*LIGHT*/", LIGHT), ("/*DARK*/", DARK)):
        text = text.replace(mark, "".join(f"--c{k}:{c};" for k, c in enumerate(palette)))
    return text.replace("/*SCRIPT*/", templates.joinpath("watch.js").read_text(encoding="utf-8"))
