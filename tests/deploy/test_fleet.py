"""A node before servers that it must not trust, or that do not trust it: it says why, and tries again."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from medley.deploy.node.fleet import FleetNode, NotAdmitted, Unreachable
from medley.deploy.node.poll import Resident

DAY = datetime.timedelta(days=1)


def pem(key: Any, form: str) -> bytes:
    kind = getattr(serialization.PrivateFormat, form)
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def certificate(folder: Path, name: str, begin: int, end: int, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate that holds between these days from now, and its key; each is its own CA."""
    key, own = ec.generate_private_key(ec.SECP384R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(own).issuer_name(own).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now + begin * DAY).not_valid_after(now + end * DAY)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    made = builder.add_extension(alternative, False).sign(key, hashes.SHA256())
    (cert := folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (secret := folder / f"{name}.key").write_bytes(pem(key, "PKCS8"))
    return cert, secret


@contextmanager
def superlink(cert: Path, key: Path, ahead: float = 0.0) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers 401, by a clock that the node's is ``ahead`` of; its address, and its certificates, which
    may be replaced.
    """

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response_only(401)
            at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ahead)
            self.send_header("date", format_datetime(at, usegmt=True))
            self.send_header("content-length", "0")
            self.end_headers()

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)

    class Server(ThreadingHTTPServer):
        def finish_request(self, request: Any, address: Any) -> None:
            try:
                with tls.wrap_socket(request, server_side=True) as s:
                    Answer(s, address, self)
            except OSError:
                pass

    server = Server(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", [tls]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """An HTTP proxy that passes bytes on for CONNECT; its URL, and the addresses that it was asked for."""
    asked: list[str] = []

    class Pass(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            host, _, port = self.path.partition(":")
            with socket.create_connection((host, int(port))) as there:
                self.send_response_only(200)
                self.end_headers()
                self.wfile.flush()
                threading.Thread(target=self.passed, args=(there, self.connection), daemon=True).start()
                self.passed(self.connection, there)
            self.close_connection = True

        @staticmethod
        def passed(a: socket.socket, b: socket.socket) -> None:
            with suppress(OSError):
                while part := a.recv(1 << 16):
                    b.sendall(part)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pass)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (path := tmp_path / "node0").write_bytes(pem(ec.generate_private_key(ec.SECP384R1()), "OpenSSH"))
    return path


def test_a_node_goes_through_the_proxy_of_its_environment_and_trusts_the_same_certificates(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    good, other = certificate(tmp_path, "good", -1, 9), certificate(tmp_path, "other", -1, 9)
    with superlink(*good) as (address, _), proxy() as (url, asked):
        monkeypatch.setenv("HTTPS_PROXY", url)
        with pytest.raises(NotAdmitted):  # the server's own answer
            FleetNode(address, key, good[0]).activate()
        with pytest.raises(Unreachable, match="does not vouch for"):
            FleetNode(address, key, other[0]).activate()
    assert asked == [address, address]


@pytest.mark.parametrize(
    ("begin", "end", "host", "own", "why"),
    [
        (-9, -1, "127.0.0.1", True, "the certificate of {} has expired: its server"),
        (1, 9, "127.0.0.1", True, "the certificate of {} is not valid yet: check the clocks"),
        (-1, 9, "127.0.0.9", True, "the certificate of {} is for another host: give --superlink the name"),
        (-1, 9, "127.0.0.1", False, "the file given as --ca does not vouch for the certificate of {}"),
    ],
    ids=["expired", "not yet valid", "of another host", "of another CA"],
)
def test_a_node_outlives_a_certificate_that_nobody_vouches_for(
    begin: int, end: int, host: str, own: bool, why: str, key: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, tries again, and is there when the server has the right one: each ended the node for good."""
    good = certificate(tmp_path, "good", -1, 9)
    bad = certificate(tmp_path, "bad", begin, end, host)
    (ca := tmp_path / "ca").write_bytes(good[0].read_bytes() + (bad[0].read_bytes() if own else b""))
    with superlink(*bad) as (address, (tls,)):
        fleet = FleetNode(address, key, ca)
        for _ in range(2):
            with pytest.raises(Unreachable, match=rf"{why.format(address)}.*verify failed"):
                fleet.activate()
        node = Resident(fleet, None, {}, tmp_path / "memory")  # type: ignore[arg-type]
        tries = []

        def wait(seconds: float | None = None) -> bool:
            tries.append(seconds)
            if len(tries) == 3:
                tls.load_cert_chain(*good)
            if len(tries) == 5:
                node.stop()
            return node._stop.is_set()

        node._stop.wait = wait  # type: ignore[method-assign]
        node._serve()
    said = [r.getMessage() for r in caplog.records if r.name == "medley.node"]
    assert tries == [0.5, 1.0, 2.0, 4.0, 5.0]
    about = why.partition("{}")[0]
    assert [(about in s, "accept this node's key" in s) for s in said] == [(True, False), (False, True)]


@pytest.mark.parametrize(("ahead", "said"), [(60.0, "6[01] s ahead"), (-400.0, "(399|400) s behind")])
def test_a_node_that_is_refused_is_told_what_its_clock_may_be_and_what_it_is(
    ahead: float, said: str, key: Path, tmp_path: Path
) -> None:
    """The message allowed five minutes either way; Flower refuses more than 5 s ahead."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    good = certificate(tmp_path, "good", -1, 9)
    assert (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE) == (5, 300)
    with superlink(*good, ahead=ahead) as (address, _):
        wanted = f"clock, which may be 5 s ahead of the server's or 300 s behind it and is {said}"
        with pytest.raises(NotAdmitted, match=wanted):
            FleetNode(address, key, good[0]).activate()
