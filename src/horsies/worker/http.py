"""A tiny HTTP server: GET and HEAD, a few fixed paths, one request per connection.

It is a thread with an event loop of its own, so that it answers while the worker's waits for its database, or hangs: that is what it is asked for. Answers are
made in threads that nobody waits for at the end. A client has a few seconds and a few kilobytes for its request, and there are not many at once.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass

REQUEST_S = 5.0
ANSWER_S = 30.0
REQUEST_BYTES = 8192
CLIENTS_AT_MOST = 32

log = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True)
class Answer:
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[], Answer]]


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
        self._clients = 0

    async def serve(self, listener: socket.socket, started: "Future[Callable[[], None]]") -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._serve_one, sock=listener, limit=REQUEST_BYTES):
            started.set_result(lambda: loop.call_soon_threadsafe(stop.set) and None)
            await stop.wait()
            clients = asyncio.all_tasks() - {asyncio.current_task()}
            for task in clients:
                task.cancel()  # or some Pythons would wait for the clients
            await asyncio.gather(*clients, return_exceptions=True)
            await asyncio.sleep(0)  # a transport that was aborted closes its socket in the next round

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= CLIENTS_AT_MOST:
                await self._converse(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # a client that is slow, or gone, or no client of ours; or we leave
        finally:
            self._clients -= 1
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.decode("latin-1").partition(" ")
        async with asyncio.timeout(ANSWER_S):
            answer = await self._answer(method, rest.split(" ")[0].partition("?")[0])
        async with asyncio.timeout(REQUEST_S):
            writer.transport.set_write_buffer_limits(0)  # drained means sent
            writer.write(_packed(answer, with_body=method != "HEAD"))
            await writer.drain()
            writer.write_eof()
            await reader.read(1)  # until the client has closed, too: what it has not read would be lost

    async def _answer(self, method: str, path: str) -> Answer:
        if method not in {"GET", "HEAD"}:
            return Answer("405 Method Not Allowed", b"only GET and HEAD\n")
        if path not in self._routes:
            return Answer("404 Not Found", f"there is {', '.join(self._routes)}\n".encode())
        return await _in_thread(self._routes[path])


async def _in_thread(make: Callable[[], Answer]) -> Answer:
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Answer] = loop.create_future()

    def settle(answer: Answer) -> None:
        if not made.done():
            made.set_result(answer)

    def work() -> None:
        try:
            answer = make()
        except Exception:
            log.exception("an HTTP request could not be answered")
            answer = Answer("500 Internal Server Error", b"see the log of the worker\n")
        with suppress(RuntimeError):  # nobody is there any more
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=work, name="horsies-http-answer", daemon=True).start()
    return await made


def _packed(answer: Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    return head + answer.body if with_body else head
