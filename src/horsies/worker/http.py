"""HTTP endpoints of a worker or a scheduler: `/healthz` and `/readyz` for probes, `/metrics` for Prometheus.

The server has threads of its own, so that it answers while the worker's event loop waits for its database, or hangs: that is what a probe must
find out. One request per connection; a client has a few seconds and a few kilobytes for it. No thread is waited for at the end.

**No client keeps another out.** A liveness probe without an answer restarts a healthy worker, so a new connection is never refused. If there are too many,
the oldest that has waited for its client for a second is closed, or else the oldest of all. If many clients request the same path at once, its answer
is made once for all of them, by the thread of the first: whatever hangs there, the number of threads is bounded.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from io import BytesIO
from typing import Any, Final

from horsies.app import Horsies
from horsies.model.errors import HorsiesError
from horsies.worker.health import HealthCheck

IDLE_S: Final = 1.0  # a connection that has waited this long for its client may be closed for a new one
ANSWER_S: Final = 30.0
REQUEST_BYTES: Final = 8192
BACKLOG: Final = 64
"""Connections accepted at once; fewer than `clients`, so that a quick client is served before it is the oldest."""

log = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    request_s: float = 5.0
    clients: int = 256


DEFAULT_LIMITS: Final = HttpLimits()


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[], HttpAnswer]]


def serve_endpoints(app: Horsies, health: HealthCheck, *, host: str, port: int) -> AbstractContextManager[None]:
    """Serve the endpoints inside the block. Raise if the port is not available."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)  # a resolver has no errno
        raise HorsiesError(
            f"cannot listen on {host} port {port}: {why}; choose another --metrics-port or --metrics-host"
        ) from error
    is_local = host in {"127.0.0.1", "::1", "localhost"}
    reach = " (this machine only; --metrics-host 0.0.0.0 for others)" if is_local else ""
    log.info("HTTP: /metrics, /healthz and /readyz on %s port %d%s", host, port, reach)

    def healthz() -> HttpAnswer:
        is_alive = health.is_alive()
        return _json({"status": "alive" if is_alive else "the event loop does not respond"}, is_ok=is_alive)

    def readyz() -> HttpAnswer:
        reasons = list(health.unready())
        return _json({"status": "not ready" if reasons else "ready", "reasons": reasons}, is_ok=not reasons)

    return serving(listener, {"/metrics": _metrics(app, health), "/healthz": healthz, "/readyz": readyz})


def _json(value: object, *, is_ok: bool) -> HttpAnswer:
    status = HTTPStatus.OK if is_ok else HTTPStatus.SERVICE_UNAVAILABLE
    return HttpAnswer(status, json.dumps(value).encode() + b"\n", "application/json")


def _metrics(app: Horsies, health: HealthCheck) -> Callable[[], HttpAnswer]:
    try:
        # By name: contrib is a layer above the worker, and needs an extra.
        expose = import_module("horsies.contrib.prometheus").exposition(app, lambda: health.stats())  # noqa: PLW0108 - it is set later
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        text = b"/metrics needs prometheus-client; run: pip install 'horsies[prometheus]'\n"
        return lambda: HttpAnswer(HTTPStatus.NOT_IMPLEMENTED, text)
    return lambda: HttpAnswer(HTTPStatus.OK, *expose())


# -- the server


@contextmanager
def serving(listener: socket.socket, routes: Routes, limits: HttpLimits = DEFAULT_LIMITS) -> Generator[None]:
    """Serve the routes inside the block. Each is called on the thread of a client, and may take its time."""
    server = _Server(listener, routes, limits)
    threading.Thread(target=server.serve_forever, name="horsies-http", daemon=True).start()
    try:
        yield
    finally:
        _shut_down(listener)  # wakes the server, which would look for the request to stop only twice a second
        server.shutdown()
        server.server_close()
        server.drop_all()


@dataclass(slots=True, eq=False)
class _Client:
    connection: socket.socket
    waits_since: float
    """Since when it waits for its client to send or to read; `inf` while it does not."""
    dropped: Future[Any] = field(default_factory=Future[Any])

    def drop(self) -> None:
        self.dropped.set_result(None)
        _shut_down(self.connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, routes: Routes, limits: HttpLimits) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        listener.listen(BACKLOG)
        listener.settimeout(IDLE_S)  # a client may be gone again before it is accepted
        self.routes = routes
        self.limits = limits
        self._lock = threading.Lock()
        self.clients: dict[socket.socket, _Client] = {}  # oldest first
        self._answers: dict[str, Future[HttpAnswer]] = {}  # those that are being made

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.05)  # if there are no file descriptors left, the server would try without a pause
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            while len(self.clients) >= self.limits.clients:
                before = time.monotonic() - IDLE_S
                idle = (connection for connection, client in self.clients.items() if client.waits_since < before)
                self.clients.pop(next(idle, None) or next(iter(self.clients))).drop()
            self.clients[request] = _Client(request, time.monotonic())
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self.clients.pop(request, None)
        super().shutdown_request(request)

    def drop_all(self) -> None:
        with self._lock:
            for client in self.clients.values():
                client.drop()
            self.clients.clear()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - by the base class
        """Ignore it: the client is slow, gone, or not an HTTP client; or it was dropped."""
        log.debug("HTTP: the request of %s failed", client_address)

    def answer(self, path: str, client: _Client) -> HttpAnswer | None:
        """Return the answer for a path, or None if the client is dropped before it is made."""
        if path not in self.routes:
            return HttpAnswer(HTTPStatus.NOT_FOUND, f"there is {', '.join(self.routes)}\n".encode())
        with self._lock:
            is_first = path not in self._answers
            answer = self._answers.setdefault(path, Future())
        if not is_first:
            wait({answer, client.dropped}, ANSWER_S, FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        try:
            made = self.routes[path]()
        except Exception:
            log.exception("an HTTP request could not be answered")
            made = HttpAnswer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log of the worker\n")
        with self._lock:
            del self._answers[path]
        answer.set_result(made)
        return made


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - only this one uses the handler

    def setup(self) -> None:
        """Read all of the request at once: the base class limits the time and the size of each line only."""
        super().setup()
        deadline = time.monotonic() + self.server.limits.request_s
        head = b""
        while b"\r\n\r\n" not in head:
            self.connection.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self.connection.recv(REQUEST_BYTES)
            if not data or len(head) + len(data) > REQUEST_BYTES:
                raise ConnectionError("not a complete request")
            head += data
        self.rfile = BytesIO(head)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command not in {"GET", "HEAD"}:
            self._send(HttpAnswer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n"))
            return False
        return True

    def do_GET(self) -> None:
        client = self.server.clients.get(self.connection)
        if client is None:
            return  # dropped
        client.waits_since = float("inf")
        answer = self.server.answer(self.path.partition("?")[0], client)
        client.waits_since = time.monotonic()
        if answer is not None:
            self._send(answer)

    do_HEAD = do_GET  # noqa: N815 - by the base class

    def _send(self, answer: HttpAnswer) -> None:
        self.connection.settimeout(self.server.limits.request_s)  # for all of the answer
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        # Wait until the client has closed its end: closing first could discard what it has not read.
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.recv(1)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - by the base class
        """Log no requests."""


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)
