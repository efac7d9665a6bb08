"""The tiny HTTP server, and clients of every kind."""

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from horsies.worker import http
from horsies.worker.http import HttpAnswer, serving
from tests.fixtures.eventually import eventually
from tests.fixtures.web import ask


def broken() -> HttpAnswer:
    raise ZeroDivisionError


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    monkeypatch.setattr(http, "REQUEST_S", 0.3)
    monkeypatch.setattr(http, "CLIENTS_AT_MOST", 2)
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(listener, {"/": lambda: HttpAnswer("200 OK", b"x" * 1_000_000), "/broken": broken}):
        yield int(listener.getsockname()[1])


@contextmanager
def served(slow: Callable[[], HttpAnswer] = broken) -> Generator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(listener, {"/": lambda: HttpAnswer("200 OK", b"quick"), "/slow": slow}):
        yield int(listener.getsockname()[1])


@contextmanager
def client_of(port: int, words: bytes) -> Generator[socket.socket]:
    """One that says this, and then nothing."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(words)
        yield client


def say(port: int, words: bytes) -> bytes:
    """All that is answered before the server closes the connection; fails if it does not close it."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        try:
            client.sendall(words)
            return client.makefile("rb").read()
        except ConnectionResetError:
            return b""  # closed while some of the words were unread


def read_until_closed(client: socket.socket) -> bytes:
    client.settimeout(10)
    try:
        return client.recv(1)
    except ConnectionResetError:
        return b""


def test_a_large_answer_arrives_whole(port: int) -> None:
    assert ask(port, "/?any=query") == (200, "x" * 1_000_000)


def test_an_unknown_path_is_told_which_there_are(port: int) -> None:
    assert ask(port, "/other") == (404, "there is /, /broken\n")


def test_a_head_gets_no_body(port: int) -> None:
    answer = say(port, b"HEAD / HTTP/1.1\r\n\r\n")
    assert b"Content-Length: 1000000" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_nothing_can_be_posted(port: int) -> None:
    assert say(port, b"POST / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")


def test_an_answer_that_cannot_be_made_is_an_error_of_the_server(port: int) -> None:
    assert ask(port, "/broken").status == 500


@pytest.mark.parametrize(
    "words", [b"", b"GET / HT", b"\x16\x03\x01" + b"\xff" * 20_000], ids=["silent", "slow", "huge"]
)
def test_a_client_that_never_asks_is_let_go(port: int, words: bytes) -> None:
    assert say(port, words) == b""
    assert ask(port, "/").status == 200


@pytest.mark.promise("D6")
def test_clients_that_only_wait_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have all the time in the world here: only a newcomer ends them, the oldest first."""
    monkeypatch.setattr(http, "REQUEST_S", 600.0)
    monkeypatch.setattr(http, "CLIENTS_AT_MOST", 4)
    with ExitStack() as stack:
        port = stack.enter_context(served())
        waiting = [stack.enter_context(client_of(port, words)) for words in (b"", b"GET / HT", b"\r", b"") * 10]
        for _ in range(3):
            assert ask(port, "/").status == 200
        assert [read_until_closed(client) for client in waiting[:-3]] == [b""] * (len(waiting) - 3)


@pytest.mark.promise("D6")
def test_clients_whose_answers_take_long_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they cost a thread each: an answer that is being made is for all who ask for it meanwhile."""
    monkeypatch.setattr(http, "CLIENTS_AT_MOST", 4)
    made, go_on = list[int](), threading.Event()

    def slow() -> HttpAnswer:
        made.append(1)
        go_on.wait(20)
        return HttpAnswer("200 OK", b"slow")

    with ExitStack() as stack:
        port = stack.enter_context(served(slow))
        asking = [stack.enter_context(client_of(port, b"GET /slow HTTP/1.1\r\n\r\n")) for _ in range(40)]
        eventually(lambda: made)
        assert ask(port, "/").status == 200
        go_on.set()
        assert asking[-1].makefile("rb").read().endswith(b"slow")
        assert made == [1]


def test_an_answer_is_made_again_for_a_later_request() -> None:
    made = list[int]()

    def counted() -> HttpAnswer:
        made.append(1)
        return HttpAnswer("200 OK", b"%d" % len(made))

    with served(counted) as port:
        assert [ask(port, "/slow").text for _ in range(3)] == ["1", "2", "3"]


def test_no_client_leaves_a_descriptor_behind(port: int) -> None:
    assert ask(port, "/").status == 200  # the server has all of its own
    before = psutil.Process().num_fds()
    for words in (b"", b"GET / HT", b"GET / HTTP/1.1\r\n\r\n") * 20:
        with client_of(port, words):
            pass
    eventually(lambda: psutil.Process().num_fds() <= before)
