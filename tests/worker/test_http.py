"""The tiny HTTP server, and clients of every kind."""

import socket
from collections.abc import Generator
from contextlib import suppress

import pytest

from horsies.worker import http
from horsies.worker.http import Answer, serving
from tests.fixtures.eventually import eventually
from tests.fixtures.web import ask


def broken() -> Answer:
    raise ZeroDivisionError


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    monkeypatch.setattr(http, "REQUEST_S", 0.3)
    monkeypatch.setattr(http, "CLIENTS_AT_MOST", 2)
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(listener, {"/": lambda: Answer("200 OK", b"x" * 1_000_000), "/broken": broken}):
        yield int(listener.getsockname()[1])


def say(port: int, words: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(words)
        return client.makefile("rb").read()


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
    with suppress(ConnectionResetError):
        assert say(port, words) == b""
    assert ask(port, "/").status == 200


def test_clients_that_only_wait_keep_nobody_out_for_long(port: int) -> None:
    waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
    eventually(lambda: ask(port, "/").status == 200)
    for client in waiting:
        client.close()
