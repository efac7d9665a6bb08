"""The whole protocol between a worker and one of its children: length-framed messages over a socketpair.

A frame is four bytes of length and a marshalled tuple `(kind, *fields)`. `marshal` because both ends are the same
interpreter on the same machine, the fields are plain numbers and strings, and it is the fastest that Python has. Arguments
and results pass through as the text they have in the database: the parent never decodes them.

A *ticket* is the parent's number for one assignment to this child. The child reports every beginning before user code
runs: what the kernel took over from a child that died is still read, so when the end of file comes the parent knows what had
begun (it crashed) and what had not (it is released).
"""

import marshal
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

MAX_FRAME = 1 << 30
_LENGTH = struct.Struct("!I")


class WireError(Exception):
    """The bytes are not of this protocol: the child's end was written to by something else."""


class Assignment(NamedTuple):
    ticket: int
    task_id: str
    task_name: str
    attempt: int
    args: str


class Boot(NamedTuple):
    """To the child, first: what to load."""

    app: str
    loglevel: str


class Run(NamedTuple):
    """To the child: run these, in this order."""

    assignments: list[tuple[int, str, str, int, str]]  # the fields of `Assignment`


class Recall(NamedTuple):
    """To the child: give back what has not begun."""


class Stop(NamedTuple):
    """To the child: leave when you are done."""


class Ready(NamedTuple):
    """From the child: the app is loaded."""

    pid: int


class Refused(NamedTuple):
    """From the child: the app could not be loaded, and why."""

    reason: str


class Began(NamedTuple):
    """From the child: user code of this ticket starts now."""

    ticket: int


class Done(NamedTuple):
    """From the child: this ticket has ended."""

    ticket: int
    status: str
    duration_us: int
    error_code: str | None
    result: str | None
    error: str | None


class Returned(NamedTuple):
    """From the child, to a recall: these have not begun and never will here."""

    tickets: list[int]


Message: TypeAlias = Boot | Run | Recall | Stop | Ready | Refused | Began | Done | Returned
_MESSAGES: dict[Any, Callable[..., Message]] = dict(
    enumerate((Boot, Run, Recall, Stop, Ready, Refused, Began, Done, Returned))
)
_KINDS: dict[Any, int] = {message: kind for kind, message in _MESSAGES.items()}


def pack(*messages: Message) -> bytes:
    """Frames ready to be written, in one piece."""
    frames: list[bytes] = []
    for message in messages:
        body = marshal.dumps((_KINDS[type(message)], *message))
        frames += (_LENGTH.pack(len(body)), body)
    return b"".join(frames)


class Unpacker:
    """Bytes in, as they come; whole messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        self._buffer += data
        start = 0
        while (body_at := start + _LENGTH.size) <= len(self._buffer):
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME:
                raise WireError(f"a frame of {length} bytes")
            if body_at + length > len(self._buffer):
                break
            yield _unpack(self._buffer[body_at : body_at + length])
            start = body_at + length
        del self._buffer[:start]


def _unpack(body: bytes | bytearray) -> Message:
    try:
        kind, *fields = marshal.loads(body)  # noqa: S302 - from our own child, of our own user, see above
        return _MESSAGES[kind](*fields)
    except (EOFError, ValueError, TypeError, KeyError) as error:
        raise WireError("not a message") from error
