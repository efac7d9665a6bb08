"""The whole protocol between a worker and its child processes: length-framed messages over a socketpair.

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
from typing import Any, Final, Literal, NamedTuple, TypeAlias

MAX_FRAME = 1 << 30
_LENGTH = struct.Struct("!I")

Reason: TypeAlias = Literal["timeout", "cancel"]


class WireError(Exception):
    """The bytes are not of this protocol: the child's end was written to by something else."""


class Word(tuple[()]):
    """A message that says it all by its kind; sooner made than a named tuple without names."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Assignment(NamedTuple):
    ticket: int
    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    timeout_ms: int | None
    args: str
    inputs: str | None = None
    root_id: str | None = None
    trace: str | None = None


# -- to the child


class Boot(NamedTuple):
    """First: what to load, and how to run it. `imports` are modules beside those that the app names itself; `dsn` is where its
    tasks send to, if not where the app says; `path` is where the worker itself finds modules.
    """

    app: str
    loglevel: str
    concurrency: int
    max_memory_mb: float | None
    imports: list[str]
    dsn: str | None = None
    path: tuple[str, ...] = ()
    log_format: str = "text"


Fields: TypeAlias = tuple[int, str, str, str, int, int | None, str, str | None, str | None, str | None]
"""Of an `Assignment`: a plain tuple is what marshal writes."""


class Run(NamedTuple):
    """Run these, in this order."""

    assignments: list[Fields]


ANY: Final = 0
"""No ticket: these begin at 1."""


class Recall(NamedTuple):
    """Give back what has not begun, because this task, or `ANY`, takes long. If it has ended meanwhile there is no need."""

    behind: int


class Interrupt(NamedTuple):
    """Make this task raise, so that it can clean up and end."""

    ticket: int
    reason: Reason


class Ping(Word):
    """Are you there?"""


class Stay(Word):
    """You are too big, but nobody can take your place: go on, and measure no more."""


class Stop(Word):
    """Leave when you are done."""


# -- from the child


class Booting(NamedTuple):
    """What it is at before it is ready, and again when it leaves: an import or a hook."""

    what: str


class Ready(NamedTuple):
    """The app is loaded, and the hooks have run; its memory now that all has settled."""

    pid: int
    rss_mb: float


class Refused(NamedTuple):
    """The app could not be loaded, and why."""

    reason: str


class Began(NamedTuple):
    """User code of this ticket starts now."""

    ticket: int


class Progress(NamedTuple):
    """How far this ticket is, in the task's own words."""

    ticket: int
    fraction: float | None
    message: str | None


class Done(NamedTuple):
    """This ticket has ended. `leaving`: the child is too big; it takes nothing more, and waits to be told to stop."""

    ticket: int
    status: str
    duration_us: int
    error_code: str | None
    result: str | None
    error: str | None
    wants_retry: bool = False
    retry_after_ms: int | None = None
    leaving: bool = False


class Pong(Word):
    """Here: its interpreter runs, whatever its task does. A call into C that holds the GIL keeps it silent."""


class Returned(NamedTuple):
    """To a recall, or because it is leaving: these have not begun and never will here."""

    tickets: list[int]


# -- to and from the template


class Fork(Word):
    """To the template: a child, please; its socket comes with this message."""


class Forked(NamedTuple):
    """From the template: here it is; a descriptor of its process comes with this message."""

    pid: int


class Reaped(NamedTuple):
    """From the template: that child is dead; its exit code, or the signal that killed it, negative."""

    pid: int
    code: int


_Kind: TypeAlias = Callable[..., "Message"]
Message: TypeAlias = (
    Boot
    | Run
    | Recall
    | Interrupt
    | Ping
    | Stay
    | Stop
    | Booting
    | Ready
    | Refused
    | Began
    | Progress
    | Done
    | Pong
    | Returned
    | Fork
    | Forked
    | Reaped
)
_MESSAGES: dict[Any, _Kind] = dict(
    enumerate(
        (
            Boot,
            Run,
            Recall,
            Interrupt,
            Ping,
            Stay,
            Stop,
            Booting,
            Ready,
            Refused,
            Began,
            Progress,
            Done,
            Pong,
            Returned,
            Fork,
            Forked,
            Reaped,
        )
    )
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
