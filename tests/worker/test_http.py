"""The small HTTP server, with clients of every kind."""

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus

import psutil
import pytest

from horsies.worker.http import DEFAULT_LIMITS, HttpAnswer, HttpLimits, serving
from tests.fixtures.eventually import eventually
from tests.fixtures.web import fetch


def broken() -> HttpAnswer:
    raise ZeroDivisionError


@pytest.fixture
def port() -> Generator[int]:
    limits = HttpLimits(request_s=0.3, clients=2)
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(listener, {"/": lambda: HttpAnswer(HTTPStatus.OK, b"x" * 1_000_000), "/broken": broken}, limits):
        yield int(listener.getsockname()[1])


@contextmanager
def served(slow: Callable[[], HttpAnswer] = broken, limits: HttpLimits = DEFAULT_LIMITS) -> Generator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(listener, {"/": lambda: HttpAnswer(HTTPStatus.OK, b"quick"), "/slow": slow}, limits):
        yield int(listener.getsockname()[1])


@contextmanager
def client_of(port: int, words: bytes) -> Generator[socket.socket]:
    """A client that sends this, and then nothing."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(words)
        yield client


def request(port: int, words: bytes) -> bytes:
    """Return all that is answered before the server closes the connection. Fail if it does not close it."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        try:
            client.sendall(words)
            return client.makefile("rb").read()
        except ConnectionResetError:
            return b""  # closed before the whole request was read


def read_until_closed(client: socket.socket) -> bytes:
    client.settimeout(10)
    try:
        return client.recv(1)
    except ConnectionResetError:
        return b""


def test_a_large_response_arrives_completely(port: int) -> None:
    assert fetch(port, "/?any=query") == (200, "x" * 1_000_000)


def test_the_response_to_an_unknown_path_lists_the_paths(port: int) -> None:
    assert fetch(port, "/other") == (404, "there is /, /broken\n")


def test_a_head_request_gets_no_body(port: int) -> None:
    answer = request(port, b"HEAD / HTTP/1.1\r\n\r\n")
    assert b"Content-Length: 1000000" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_a_post_is_refused(port: int) -> None:
    assert request(port, b"POST / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")


def test_a_handler_that_fails_is_a_server_error(port: int) -> None:
    assert fetch(port, "/broken").status == 500


@pytest.mark.parametrize(
    "words", [b"", b"GET / HT", b"\x16\x03\x01" + b"\xff" * 20_000], ids=["silent", "slow", "huge"]
)
def test_a_client_without_a_complete_request_is_disconnected(port: int, words: bytes) -> None:
    assert request(port, words) == b""
    assert fetch(port, "/").status == 200


@pytest.mark.promise("D6")
def test_idle_clients_do_not_block_others() -> None:
    """Their time does not run out here: only a new connection ends them, the oldest first."""
    limits = HttpLimits(request_s=600.0, clients=4)
    with ExitStack() as stack:
        port = stack.enter_context(served(limits=limits))
        waiting = [stack.enter_context(client_of(port, words)) for words in (b"", b"GET / HT", b"\r", b"") * 10]
        for _ in range(3):
            assert fetch(port, "/").status == 200
        assert [read_until_closed(client) for client in waiting[:-3]] == [b""] * (len(waiting) - 3)


@pytest.mark.promise("D6")
def test_slow_responses_do_not_block_other_clients() -> None:
    """Nor do they need a thread each: one response serves all clients that request it while it is made."""
    made, may_continue = list[int](), threading.Event()

    def slow() -> HttpAnswer:
        made.append(1)
        may_continue.wait(20)
        return HttpAnswer(HTTPStatus.OK, b"slow")

    with ExitStack() as stack:
        port = stack.enter_context(served(slow, HttpLimits(clients=4)))
        asking = [stack.enter_context(client_of(port, b"GET /slow HTTP/1.1\r\n\r\n")) for _ in range(40)]
        eventually(lambda: made)
        assert fetch(port, "/").status == 200
        may_continue.set()
        assert asking[-1].makefile("rb").read().endswith(b"slow")
        assert made == [1]


def test_a_later_request_gets_a_new_response() -> None:
    made = list[int]()

    def counted() -> HttpAnswer:
        made.append(1)
        return HttpAnswer(HTTPStatus.OK, b"%d" % len(made))

    with served(counted) as port:
        assert [fetch(port, "/slow").text for _ in range(3)] == ["1", "2", "3"]


def test_no_client_leaves_a_descriptor_behind(port: int) -> None:
    assert fetch(port, "/").status == 200  # from now on the server has opened all of its own descriptors
    before = psutil.Process().num_fds()
    for words in (b"", b"GET / HT", b"GET / HTTP/1.1\r\n\r\n") * 20:
        with client_of(port, words):
            pass
    eventually(lambda: psutil.Process().num_fds() <= before)
