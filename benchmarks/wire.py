"""A tap on the wire: a socket between the clients and the server that forwards everything and records it.

It reads the messages of PostgreSQL's protocol, so it counts what really travelled, whatever the client library calls it. One
ReadyForQuery is the end of one round trip, however many statements were pipelined in it.
"""

import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

RECV_BYTES = 1 << 16


class Kind(Enum):
    STATEMENT = auto()
    """Text: its SQL."""
    ROUND_TRIP = auto()
    """The server is ready for more."""
    RECEIVED = auto()
    """A notification arrived. Text: its channel."""


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    who: str
    """The application name of the connection, and its number among all."""
    kind: Kind
    text: str


@dataclass(slots=True)
class Tap:
    url: str
    events: list[Event] = field(default_factory=list[Event])

    def note(self, who: str, kind: Kind, text: str = "") -> None:
        self.events.append(Event(time.monotonic(), who, kind, text))


@contextmanager
def tapped(url: str) -> Generator[Tap]:
    """Connections to the tap's own URL reach the server at this URL, which is one of a local socket."""
    parts = cast("dict[str, str]", conninfo_to_dict(url))
    server = f"{parts['host']}/.s.PGSQL.{parts['port']}"
    with (
        tempfile.TemporaryDirectory(prefix="horsies-tap-", dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as door,
    ):
        door.bind(str(Path(folder) / f".s.PGSQL.{parts['port']}"))
        door.listen()
        tap = Tap(f"postgresql://{parts['user']}@/{parts['dbname']}?host={quote(folder, safe='')}&port={parts['port']}")
        threading.Thread(target=_serve, args=(door, server, tap), daemon=True).start()
        yield tap
        door.shutdown(socket.SHUT_RDWR)


def _serve(door: socket.socket, server: str, tap: Tap) -> None:
    number = 0
    with suppress(OSError):  # the door was closed
        while True:
            client, _ = door.accept()
            number += 1
            back = socket.socket(socket.AF_UNIX)
            back.connect(server)
            conversation = _Conversation(tap, number)
            for source, target, read in (
                (client, back, conversation.from_client),
                (back, client, conversation.from_server),
            ):
                threading.Thread(target=_pass_on, args=(source, target, read), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, read: Callable[[bytes], None]) -> None:
    with suppress(OSError):
        while data := source.recv(RECV_BYTES):
            read(data)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


class _Conversation:
    """Reads both directions of one connection."""

    def __init__(self, tap: Tap, number: int) -> None:
        self._tap = tap
        self._number = number
        self._who = ""
        self._prepared: dict[str, str] = {}
        self._asked = _Messages()
        self._answered = _Messages()
        self._greeting = b""

    def from_client(self, data: bytes) -> None:
        if not self._who:
            data = self._greet(data)
        for kind, body in self._asked.feed(data):
            match kind:
                case b"Q":
                    self._tap.note(self._who, Kind.STATEMENT, _text(body))
                case b"P":
                    self._prepared[_text(body)] = _text(body[body.index(0) + 1 :])
                case b"B":  # what was prepared is named when it is used; the empty name is for one use
                    self._tap.note(self._who, Kind.STATEMENT, self._prepared[_text(body[body.index(0) + 1 :])])
                case _:
                    pass

    def from_server(self, data: bytes) -> None:
        for kind, body in self._answered.feed(data):
            match kind:
                case b"Z":
                    self._tap.note(self._who, Kind.ROUND_TRIP)
                case b"A":
                    self._tap.note(self._who, Kind.RECEIVED, _text(body[4:]))
                case _:
                    pass

    def _greet(self, data: bytes) -> bytes:
        """The first message has no kind: it names the application among its settings."""
        self._greeting += data
        if len(self._greeting) < 4 or len(self._greeting) < (length := struct.unpack_from("!I", self._greeting)[0]):
            return b""
        words = self._greeting[8:length].split(b"\0")
        settings = dict(zip(words[::2], words[1::2], strict=False))
        self._who = f"{settings.get(b'application_name', b'?').decode()} #{self._number}"
        return self._greeting[length:]


class _Messages:
    """Bytes in, whole messages out: a kind of one byte, a length, a body."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._buffer += data
        while len(self._buffer) >= 5:
            (length,) = cast("tuple[Any]", struct.unpack_from("!I", self._buffer, 1))
            if len(self._buffer) < 1 + length:
                return
            yield bytes(self._buffer[:1]), bytes(self._buffer[5 : 1 + length])
            del self._buffer[: 1 + length]


def _text(body: bytes) -> str:
    return body[: body.index(0)].decode()
