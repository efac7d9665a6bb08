"""What a worker or a scheduler answers over HTTP: `/healthz` and `/readyz` for those who restart it or send it work, `/metrics` for Prometheus."""

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
from typing import cast

from horsies.app import Horsies
from horsies.model.errors import HorsiesError
from horsies.worker.health import HealthCheck

# --------
# A tiny HTTP server: GET and HEAD, a few fixed paths, one request per connection.
#
# It is a thread with an event loop of its own, so that it answers while the worker's waits for its database, or hangs: that is what it is asked for. Answers are
# made in threads that nobody waits for at the end. A client has a few seconds and a few kilobytes for its request.
#
# **No client keeps another out.** A liveness probe that is not answered restarts a healthy worker, so a newcomer is never refused. When there are too many connections,
# the oldest that has waited for its client for a second is closed, or else the oldest of all. However many ask for the same path at once, its answer is made once, for all of them: the
# number of threads is bounded by the number of paths.

REQUEST_S = 5.0
IDLE_S = 1.0  # a client that is heard of less often than that may be let go for another
ANSWER_S = 30.0
REQUEST_BYTES = 8192
CLIENTS_AT_MOST = 256
BACKLOG = 64  # accepted in one round: one that asks at once is read before as many others as there may be have come

log = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[], HttpAnswer]]


@contextmanager
def serving(listener: socket.socket, routes: Routes) -> Generator[None]:
    """What makes an answer is called on a thread of its own, and may take its time."""
    started: Future[Callable[[], None]] = Future()
    work = _Server(routes).serve(listener, started)
    thread = threading.Thread(target=asyncio.run, args=[work], name="horsies-http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        started.result()()
        thread.join(REQUEST_S)


class _Server:
    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._clients: dict[asyncio.Task[None], float] = {}
        """What serves each connection, oldest first, and since when it waits for the client; `inf` while it does not."""
        self._being_made: dict[str, asyncio.Future[HttpAnswer]] = {}

    async def serve(self, listener: socket.socket, started: "Future[Callable[[], None]]") -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._serve_one, sock=listener, limit=REQUEST_BYTES, backlog=BACKLOG):
            started.set_result(lambda: loop.call_soon_threadsafe(stop.set) and None)
            await stop.wait()
            clients = asyncio.all_tasks() - {asyncio.current_task()}
            for task in clients:
                task.cancel()  # or some Pythons would wait for the clients
            await asyncio.gather(*clients, return_exceptions=True)
            await asyncio.sleep(0)  # a transport that was aborted closes its socket in the next round

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._clients) >= CLIENTS_AT_MOST:
            self._drop_one()
        me = cast("asyncio.Task[None]", asyncio.current_task())
        self._clients[me] = time.monotonic()
        try:
            await self._converse(me, reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # a client that is slow, or gone, or no client of ours; or we leave
        finally:
            self._clients.pop(me, None)
            writer.transport.abort()

    def _drop_one(self) -> None:
        """The oldest that has waited for its client for a while; else the oldest."""
        before = time.monotonic() - IDLE_S
        idle = (client for client, since in self._clients.items() if since < before)
        oldest = next(idle, None) or next(iter(self._clients))
        del self._clients[oldest]  # now, though it ends in a moment only
        oldest.cancel()

    async def _converse(
        self, me: "asyncio.Task[None]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(REQUEST_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.decode("latin-1").partition(" ")
        self._clients[me] = float("inf")
        async with asyncio.timeout(ANSWER_S):
            answer = await self._answer(method, rest.split(" ")[0].partition("?")[0])
        self._clients[me] = time.monotonic()
        async with asyncio.timeout(REQUEST_S):
            writer.transport.set_write_buffer_limits(0)  # drained means sent
            writer.write(_packed(answer, with_body=method != "HEAD"))
            await writer.drain()
            writer.write_eof()
            await reader.read(1)  # until the client has closed, too: what it has not read would be lost

    async def _answer(self, method: str, path: str) -> HttpAnswer:
        if method not in {"GET", "HEAD"}:
            return HttpAnswer("405 Method Not Allowed", b"only GET and HEAD\n")
        if path not in self._routes:
            return HttpAnswer("404 Not Found", f"there is {', '.join(self._routes)}\n".encode())
        if path not in self._being_made:
            made = self._being_made[path] = _in_thread(self._routes[path])
            made.add_done_callback(lambda _: self._being_made.pop(path))
        return await asyncio.shield(self._being_made[path])  # the others still wait when one of them gives up


def _in_thread(make: Callable[[], HttpAnswer]) -> "asyncio.Future[HttpAnswer]":
    loop = asyncio.get_running_loop()
    made: asyncio.Future[HttpAnswer] = loop.create_future()

    def settle(answer: HttpAnswer) -> None:
        if not made.done():
            made.set_result(answer)

    def work() -> None:
        try:
            answer = make()
        except Exception:
            log.exception("an HTTP request could not be answered")
            answer = HttpAnswer("500 Internal Server Error", b"see the log of the worker\n")
        with suppress(RuntimeError):  # nobody is there any more
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=work, name="horsies-http-answer", daemon=True).start()
    return made


def _packed(answer: HttpAnswer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    return head + answer.body if with_body else head


def endpoints(app: Horsies, checkup: HealthCheck, *, host: str, port: int | None) -> AbstractContextManager[None]:
    """They answer within it, if they are wanted. Raises if the port cannot be had."""
    if port is None:
        return nullcontext()
    listener = _bound(host, port)
    log.info("HTTP: /metrics, /healthz and /readyz on %s port %d%s", host, port, _reach(host))
    return serving(
        listener,
        {
            "/metrics": _metrics(app, checkup),
            "/healthz": lambda: _healthz(checkup),
            "/readyz": lambda: _readyz(checkup),
        },
    )


def _reach(host: str) -> str:
    """What a default that is safe leaves to be done where probes and scrapers come from other machines."""
    return (
        " (this machine only; --metrics-host 0.0.0.0 for others)" if host in {"127.0.0.1", "::1", "localhost"} else ""
    )


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)  # not of a resolver
        raise HorsiesError(
            f"cannot answer on {host} port {port}: {why}; choose another --metrics-port or --metrics-host"
        ) from error


def _healthz(checkup: HealthCheck) -> HttpAnswer:
    if checkup.is_alive():
        return _json("200 OK", {"status": "alive"})
    return _json("503 Service Unavailable", {"status": "the event loop does not turn"})


def _readyz(checkup: HealthCheck) -> HttpAnswer:
    reasons = checkup.unready()
    if reasons:
        return _json("503 Service Unavailable", {"status": "not ready", "reasons": reasons})
    return _json("200 OK", {"status": "ready", "reasons": []})


def _metrics(app: Horsies, checkup: HealthCheck) -> Callable[[], HttpAnswer]:
    try:
        # By name: what hangs on a worker stands above it, and comes with an extra.
        expose = import_module("horsies.contrib.prometheus").exposition(app, checkup.stats)
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        words = b"/metrics needs prometheus-client; run: pip install 'horsies[prometheus]'\n"
        return lambda: HttpAnswer("501 Not Implemented", words)
    return lambda: HttpAnswer("200 OK", *expose())


def _json(status: str, value: object) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(value).encode() + b"\n", "application/json")
