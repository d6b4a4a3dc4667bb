"""A stranger at the server's port: nginx and the gate as they are deployed, before a SuperLink that counts."""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from medley.deploy.server.gate import Gate
from support.deployed import ports

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
SCRIPTS = resources.files("medley.deploy") / "scripts"

needs = pytest.mark.skipif(NGINX is None or shutil.which("openssl") is None, reason="needs nginx and openssl")


def key() -> Any:
    return ec.generate_private_key(ec.SECP384R1())


def signed(of: Any, age: float = 0.0) -> dict[str, str]:
    """The headers of Flower's node with this key, whose clock is ``age`` seconds behind."""
    at = (now() - datetime.timedelta(seconds=age)).isoformat()
    coded = {"public-key": public_key_to_bytes(of.public_key()), "signature": sign_message(of, at.encode())}
    return {"flwr-timestamp": at, **{f"flwr-{k}": base64.b64encode(v).decode() for k, v in coded.items()}}


def registered(folder: Path, *keys: Any, status: str = "registered") -> Path:
    """A SuperLink's database that knows these keys."""
    with contextlib.closing(sqlite3.connect(folder / "superlink.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS node (public_key BLOB, status TEXT)")
        db.executemany("INSERT INTO node VALUES (?, ?)", [(public_key_to_bytes(k.public_key()), status) for k in keys])
    return folder / "superlink.db"


@dataclass
class Proxied:
    """nginx with a gate, and a SuperLink that counts the bytes that come."""

    port: int
    folder: Path
    member: Any
    came: list[int]

    def sent(self, path: str, headers: dict[str, str], announced: int, chunks: int) -> str:
        """The status of a request that announces a body, and sends so many parts of 64 kB of it as are taken."""
        tls = ssl.create_default_context(cafile=str(self.folder / "keys" / "server.pem"))
        head = {"host": "a", "connection": "close", "content-length": str(announced), **headers}
        text = f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in head.items()) + "\r\n"
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        with tls.wrap_socket(plain, server_hostname="127.0.0.1") as s:
            s.sendall(text.encode())
            with contextlib.suppress(OSError):
                for _ in range(chunks):
                    s.sendall(bytes(1 << 16))
            with contextlib.suppress(OSError):
                return s.recv(4096).decode().split()[1]
        return "none"

    def stored(self) -> int:
        """Bytes of bodies on the disk, files that are deleted and still open included."""
        found = [f.stat().st_size for f in (self.folder / "bodies").rglob("*") if f.is_file()]
        for fd in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if str(self.folder / "bodies") in os.readlink(fd) and "deleted" in os.readlink(fd):
                    found.append(fd.stat().st_size)
        return sum(found)


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    came, member, port = list[int](), key(), ports()

    class SuperLink(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(len(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    (tmp_path / "keys").mkdir()
    (tmp_path / "bodies").mkdir()
    tmp_path.chmod(0o755)
    for name in ("server", "link"):
        new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1", "-nodes"]
        new += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        new += ["-keyout", str(tmp_path / "keys" / f"{name}.key"), "-out", str(tmp_path / "keys" / f"{name}.pem")]
        subprocess.run(new, check=True, capture_output=True)
    link = ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "keys" / "link.pem", tmp_path / "keys" / "link.key")
    link.socket = tls.wrap_socket(link.socket, server_side=True)
    gate = Gate(registered(tmp_path, member), tmp_path / "bodies" / "gate")
    user = f"user {Path('/proc/self').owner()};" if os.geteuid() == 0 else ""
    text = (SCRIPTS / "nginx.conf").read_text(encoding="utf-8")
    words = {"USER": user, "BODIES": tmp_path / "bodies", "KEYS": tmp_path / "keys", "LISTEN": f"127.0.0.1:{port}"}
    for word, value in {**words, "LINK": link.server_port}.items():
        text = text.replace(f"@{word}@", str(value))
    (tmp_path / "nginx.conf").write_text(text)
    for server in (link, gate):
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    command = [str(NGINX), "-p", str(tmp_path), "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off;"]
    with (tmp_path / "log").open("wb") as log:
        p = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 20
        while True:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert p.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield Proxied(port, tmp_path, member, came)
    finally:
        p.send_signal(signal.SIGTERM)
        p.wait(20)
        for server in (link, gate):
            server.shutdown()
            server.server_close()


@needs
def test_no_byte_of_a_strangers_body_is_stored(proxied: Proxied) -> None:
    """Twelve connections of 900 kB each, with a signature that is none, or of a key that is not registered."""
    stranger = [
        {"flwr-signature": "x"},
        signed(key()),
        signed(proxied.member, age=310),
        signed(proxied.member, age=-60),
    ]
    codes, most = list[str](), 0
    for path in ("push-object", "push-messages"):
        threads = [
            threading.Thread(
                target=lambda h=h, path=path: codes.append(proxied.sent(f"/v1/fleet/{path}", h, 900_000, 12))
            )
            for h in [*stranger, {}, {**signed(key()), "flwr-public-key": signed(proxied.member)["flwr-public-key"]}]
        ]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            most = max(most, proxied.stored())
            time.sleep(0.005)
    assert set(codes) <= {"401", "none"}
    assert len(codes) == 12
    assert "401" in codes
    assert proxied.came == []
    assert most == 0


@needs
def test_a_registered_node_gets_through_and_is_bounded(proxied: Proxied) -> None:
    big = 3 << 20
    assert proxied.sent("/v1/fleet/push-object", signed(proxied.member), big, big >> 16) == "200"
    assert proxied.sent("/v1/fleet/pull-messages", signed(proxied.member, age=290), 1 << 16, 1) == "200"
    assert proxied.came == [big, 1 << 16]
    assert proxied.sent("/v1/fleet/push-messages", signed(proxied.member), 2 << 20, 0) == "413"
    assert proxied.sent("/v1/fleet/push-object", signed(proxied.member), 3 << 30, 0) == "413"
    assert proxied.sent("/gate", signed(proxied.member), 0, 0) == "404"


@needs
def test_requests_that_are_refused_write_no_log(proxied: Proxied) -> None:
    """Three hundred of five kinds; each had a line in the log of nginx or of the SuperLink, for good."""
    kinds = [("pull-messages", {"flwr-signature": "x"}, 10), ("nowhere", {}, 0), ("push-messages", {}, 2 << 20)]
    kinds += [("pull-messages", signed(key()), 0), ("push-object", signed(key()), 3 << 30)]
    for k in range(300):
        path, headers, size = kinds[k % 5]
        assert proxied.sent(f"/v1/fleet/{path}", headers, size, 0) in ("401", "404", "413")
    assert (proxied.folder / "log").stat().st_size < 1000
    assert proxied.came == []


def test_the_gate_lets_a_registered_key_through_within_flowers_times(tmp_path: Path) -> None:
    """Five seconds ahead of the server's clock, and 305 behind, are the ends; no header makes it fail."""
    import httpx

    member, gone = key(), key()
    registered(tmp_path, member)
    at = tmp_path / "gate"
    gate = Gate(registered(tmp_path, gone, status="unregistered"), at)
    threading.Thread(target=gate.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    good = signed(member)
    wrong = [{**good, f"flwr-{k}": v} for k in ("public-key", "signature", "timestamp") for v in ("", "x", "é", "AAAA")]
    wrong += [{k: v for k, v in good.items() if k != left} for left in good]
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(at)), base_url="http://gate") as http:
        code = lambda headers: http.get("/", headers={k: v.encode() for k, v in headers.items()}).status_code
        assert [code(signed(member, age)) for age in (-4, 0, 300)] == [204] * 3
        assert [code(signed(member, age)) for age in (-7, 307)] == [401] * 2
        assert [code(h) for h in (signed(key()), signed(gone), *wrong)] == [401] * 17
    gate.shutdown()
    gate.server_close()


STUBS = {
    "nginx": "echo 1 > logs/nginx.pid; sleep 60",
    "medley": """[ "$2" = gate ] || { echo "startup complete"; while sleep 1; do head -c 1000000 /dev/zero; done; }
      python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$4"; sleep 60""",
    "openssl": "exit 0",
}


@pytest.fixture
def server(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """server.sh with programs that do nothing but write eight megabytes."""
    for name, text in STUBS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "server.pem").touch()
    for name in ("server.sh", "nginx.conf"):
        (tmp_path / name).write_text((SCRIPTS / name).read_text(encoding="utf-8"))
    (tmp_path / "server.sh").chmod(0o755)
    return ["./server.sh"], {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock")
def test_logs_of_a_server_are_bounded_and_two_servers_have_not_one_database(server: Any, tmp_path: Path) -> None:
    """A SuperLink that writes a megabyte a second: five files of at most 0.6 MB, and what came since the last look."""
    command, env = server
    with (tmp_path / "out").open("wb") as out:
        p = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "logs" / "superlink.2").exists():
            assert p.poll() is None, (tmp_path / "out").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30)
        assert again.returncode == 2
        assert "another server.sh runs in this folder" in again.stderr
        os.killpg(p.pid, signal.SIGSTOP)  # a log that it renames is nowhere for a moment
        sizes = {f.name: f.stat().st_size for f in (tmp_path / "logs").iterdir()}
        assert max(size for name, size in sizes.items() if name in ("superlink.1", "superlink.2")) <= 600_000
        assert sum(sizes.values()) < 10_000_000
    finally:
        os.killpg(p.pid, signal.SIGCONT)
        os.killpg(p.pid, signal.SIGTERM)
        p.wait(20)
