"""HTTP endpoints of a worker or a scheduler: `/healthz` and `/readyz` for probes, `/metrics` for Prometheus.

The server is small: GET and HEAD, a few fixed paths, one request per connection. It is a thread with an event loop of its own, so that it answers while
the worker's loop waits for its database, or hangs: that is what a probe must find out. Answers are made in threads that are not waited for at the end. A
client has a few seconds and a few kilobytes for its request.

**No client keeps another out.** A liveness probe without an answer restarts a healthy worker, so a new connection is never refused. If there are too many,
the oldest that has waited for its client for a second is closed, or else the oldest of all. If many clients request the same path at once, its answer
is made once for all of them: the number of threads is bounded by the number of paths.
"""

import asyncio
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from horsies.app import Horsies
from horsies.model.errors import HorsiesError
from horsies.worker.health import HealthCheck

IDLE_S: Final = 1.0  # a connection that has waited this long for its client may be closed for a new one
ANSWER_S: Final = 30.0
REQUEST_BYTES: Final = 8192
BACKLOG: Final = (
    64  # connections accepted at once; fewer than `clients`, so that a quick client is served before it is the oldest
)

log = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    request_s: float = 5.0
    clients: int = 256


DEFAULT_LIMITS: Final = HttpLimits()


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[], HttpAnswer]]


def endpoints(app: Horsies, health: HealthCheck, *, host: str, port: int | None) -> AbstractContextManager[None]:
    """Serve the endpoints inside the block; without a port, do nothing. Raise if the port is not available."""
    if port is None:
        return nullcontext()
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
    routes = {
        "/metrics": _metrics(app, health),
        "/healthz": lambda: _healthz(health),
        "/readyz": lambda: _readyz(health),
    }
    return serving(listener, routes)


def _healthz(health: HealthCheck) -> HttpAnswer:
    if health.is_alive():
        return _json("200 OK", {"status": "alive"})
    return _json("503 Service Unavailable", {"status": "the event loop does not respond"})


def _readyz(health: HealthCheck) -> HttpAnswer:
    reasons = health.unready()
    if reasons:
        return _json("503 Service Unavailable", {"status": "not ready", "reasons": reasons})
    return _json("200 OK", {"status": "ready", "reasons": []})


def _json(status: str, value: object) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(value).encode() + b"\n", "application/json")


def _metrics(app: Horsies, health: HealthCheck) -> Callable[[], HttpAnswer]:
    try:
        # By name: contrib is a layer above the worker, and needs an extra.
        expose = import_module("horsies.contrib.prometheus").exposition(app, health.stats)
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        text = b"/metrics needs prometheus-client; run: pip install 'horsies[prometheus]'\n"
        return lambda: HttpAnswer("501 Not Implemented", text)
    return lambda: HttpAnswer("200 OK", *expose())


# -- the server


@contextmanager
def serving(listener: socket.socket, routes: Routes, limits: HttpLimits = DEFAULT_LIMITS) -> Generator[None]:
    """Serve the routes inside the block. Each is called on a thread of its own, and may take its time."""
    started: Future[Callable[[], None]] = Future()
    work = _Server(routes, limits).serve(listener, started)
    thread = threading.Thread(target=asyncio.run, args=[work], name="horsies-http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        started.result()()
        thread.join(limits.request_s)


class _Server:
    def __init__(self, routes: Routes, limits: HttpLimits) -> None:
        self._routes = routes
        self._limits = limits
        self._clients: dict[asyncio.Task[None], float] = {}
        """The task of each connection, oldest first, and since when it waits for its client; `inf` while it does not."""
        self._answers: dict[str, asyncio.Future[HttpAnswer]] = {}
        """Those that are being made."""

    async def serve(self, listener: socket.socket, started: "Future[Callable[[], None]]") -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._serve_client, sock=listener, limit=REQUEST_BYTES, backlog=BACKLOG):
            started.set_result(lambda: loop.call_soon_threadsafe(stop.set) and None)
            await stop.wait()
            clients = asyncio.all_tasks() - {asyncio.current_task()}
            for task in clients:
                task.cancel()  # from Python 3.12 on, leaving the block would wait for the clients
            await asyncio.gather(*clients, return_exceptions=True)
            await asyncio.sleep(0)  # an aborted transport closes its socket in the next iteration of the loop

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._clients) >= self._limits.clients:
            self._drop_client()
        client = cast("asyncio.Task[None]", asyncio.current_task())
        self._clients[client] = time.monotonic()
        try:
            await self._exchange(client, reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client is slow, gone, or not an HTTP client; or it was dropped, or the server stops
        finally:
            self._clients.pop(client, None)
            writer.transport.abort()

    def _drop_client(self) -> None:
        """Close the oldest connection that has waited for its client for a while; if there is none, the oldest."""
        before = time.monotonic() - IDLE_S
        idle = (client for client, since in self._clients.items() if since < before)
        oldest = next(idle, None) or next(iter(self._clients))
        del self._clients[oldest]  # at once, although its task ends a little later
        oldest.cancel()

    async def _exchange(
        self, client: "asyncio.Task[None]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(self._limits.request_s):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.decode("latin-1").partition(" ")
        self._clients[client] = float("inf")
        async with asyncio.timeout(ANSWER_S):
            answer = await self._answer(method, rest.split(" ")[0].partition("?")[0])
        self._clients[client] = time.monotonic()
        async with asyncio.timeout(self._limits.request_s):
            writer.transport.set_write_buffer_limits(0)  # so that drain() waits until all is sent
            head = f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.content_type}\r\n"
            head += f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + (b"" if method == "HEAD" else answer.body))
            await writer.drain()
            writer.write_eof()
            await reader.read(
                1
            )  # wait until the client has closed its end: closing first could discard what it has not read

    async def _answer(self, method: str, path: str) -> HttpAnswer:
        if method not in {"GET", "HEAD"}:
            return HttpAnswer("405 Method Not Allowed", b"only GET and HEAD\n")
        if path not in self._routes:
            return HttpAnswer("404 Not Found", f"there is {', '.join(self._routes)}\n".encode())
        if path not in self._answers:
            answer = self._answers[path] = _in_thread(self._routes[path])
            answer.add_done_callback(lambda _: self._answers.pop(path))
        return await asyncio.shield(self._answers[path])  # other clients still wait when this one is cancelled


def _in_thread(make: Callable[[], HttpAnswer]) -> "asyncio.Future[HttpAnswer]":
    loop = asyncio.get_running_loop()
    made: asyncio.Future[HttpAnswer] = loop.create_future()

    def complete(answer: HttpAnswer) -> None:
        if not made.done():
            made.set_result(answer)

    def work() -> None:
        try:
            answer = make()
        except Exception:
            log.exception("an HTTP request could not be answered")
            answer = HttpAnswer("500 Internal Server Error", b"see the log of the worker\n")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(complete, answer)

    # Not an executor: at the end of the process its threads would be waited for.
    threading.Thread(target=work, name="horsies-http-answer", daemon=True).start()
    return made
