"""The protocol between a worker and its child processes: length-prefixed frames over a socketpair.

A frame is four bytes of length, one byte for the kind of message, and its fields. Arguments and results are passed on as the text they
have in the database: the worker never decodes them.

*To the child* the fields are a marshalled tuple: both ends are the same interpreter on the same machine, the fields are plain numbers
and strings, and nothing in Python is faster. *From the child* they are not, because user code runs there and can find the socket. A
few bytes that `marshal` reads can make it allocate gigabytes, or crash the process. So reports have a fixed layout (`struct`) if they are
frequent, and are JSON if they are rare; every field is checked before it is used. Anything else that arrives is a ProtocolError.

An *assignment number* identifies one assignment of a task to this child. The child reports every start before user code
runs. The kernel still delivers what a child wrote before it died, so at the end of file the worker knows which tasks had
started (they crashed) and which had not (they are released).
"""

import json
import marshal
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from horsies.model.attempt_log import MAX_LINES, LoggedLine, is_logged_line
from horsies.model.payload_errors import DEFAULT_MAX_BYTES
from horsies.model.result import MAX_RETRY_AFTER_S, is_error_code
from horsies.model.status import Misfit, TaskStatus

MAX_FRAME = 1 << 30
MAX_SMALL_REPORT: Final = 1 << 22
"""The limit for a report in JSON. The longest is a list of returned assignments."""
MAX_REPORTED_TEXT: Final = 1 << 16
"""Texts in such reports, for example why a child cannot start, are cut to this number of characters."""

StopReason: TypeAlias = Literal["timeout", "cancel", "shutdown"]

NO_ASSIGNMENT: Final = 0
"""Assignment numbers begin at 1."""


class ProtocolError(Exception):
    """The bytes do not follow this protocol: other code has written to the child's end of the socket."""


class EmptyMessage(tuple[()]):
    """A message without fields. Created faster than a named tuple."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


# -- to the child


class Boot(NamedTuple):
    """The first message: what to load, and how to run it.

    `imports` are modules besides those that the app lists. `dsn` replaces the database of the app. `path` is the worker's `sys.path`.
    """

    app: str
    loglevel: str
    concurrency: int
    max_memory_mb: float | None
    imports: list[str]
    dsn: str | None = None
    path: tuple[str, ...] = ()
    log_format: str = "text"


class Assignment(NamedTuple):
    """A task for this child. After its number, the fields are those of the claim with the same names."""

    assignment_no: int
    id: str
    task_name: str
    queue_name: str
    attempt: int
    timeout_ms: int | None
    args: str
    inputs: str | None = None
    root_id: str | None = None
    trace: str | None = None


class RunTasks(NamedTuple):
    """Run these, in this order."""

    assignments: list[Assignment]


class Recall(NamedTuple):
    """Return what has not started, because the task `behind` is slow. If that task has ended, return nothing.

    With `NO_ASSIGNMENT`, return it in any case.
    """

    behind: int


class Interrupt(NamedTuple):
    """Raise the soft stop in this task, so that it can clean up and end."""

    assignment_no: int
    reason: StopReason


class Ping(EmptyMessage):
    """Answer with a Pong."""


class KeepRunning(EmptyMessage):
    """Go on above the memory limit, and stop measuring: no other child can take over."""


class Stop(EmptyMessage):
    """Exit when all assigned tasks have ended."""


class Fork(EmptyMessage):
    """To the fork server: fork a child. Its socket comes with this message."""


# -- from the child


class Booting(NamedTuple):
    """What the child does before it is ready, and again when it exits: an import or a hook."""

    step: str


class Ready(NamedTuple):
    """The app is loaded and the start hooks have run. `rss_mb` is the memory in use after that."""

    pid: int
    rss_mb: float


class StartFailed(NamedTuple):
    """The app could not be loaded, or the process not be forked."""

    reason: str


class Began(NamedTuple):
    """User code of this assignment starts now."""

    assignment_no: int


class Progress(NamedTuple):
    """What a task reports of its own progress."""

    assignment_no: int
    fraction: float | None
    message: str | None


class LogLines(NamedTuple):
    """What a task has logged since the last such report, if it keeps logs."""

    assignment_no: int
    lines: Sequence[LoggedLine]


class Done(NamedTuple):
    """This assignment has ended. `leaving`: the child is above its memory limit; it starts nothing more and waits for Stop.

    `misfit`: the task was not started, because this child cannot run it; the error says why.
    """

    assignment_no: int
    status: str
    duration_us: int
    error_code: str | None
    result: str | None
    error: str | None
    wants_retry: bool = False
    retry_after_ms: int | None = None
    leaving: bool = False
    misfit: Misfit = Misfit.NONE


class Pong(NamedTuple):
    """The interpreter runs, whatever the task does. A call into C that holds the GIL delays it.

    `on_loop` is the assignment whose coroutine the event loop executes at this moment, or `NO_ASSIGNMENT`.
    """

    on_loop: int = NO_ASSIGNMENT


class LoopAlive(EmptyMessage):
    """The event loop has run since the last Ping. Only a child with `concurrency` above 1 sends it."""


class Returned(NamedTuple):
    """These have not started and will not start here: the answer to a recall, or sent because the child is leaving."""

    assignment_nos: list[int]


class Forked(NamedTuple):
    """From the fork server: the child is forked. A descriptor of its process comes with this message."""

    pid: int


class ForkExited(NamedTuple):
    """From the fork server: that child is dead. `code` is its exit code, or the negative number of the signal that killed it."""

    pid: int
    code: int


Order: TypeAlias = Boot | RunTasks | Recall | Interrupt | Ping | KeepRunning | Stop | Fork
_JsonReport: TypeAlias = (
    Booting | Ready | StartFailed | Progress | Pong | LoopAlive | Returned | Forked | ForkExited | LogLines
)
Report: TypeAlias = Began | Done | _JsonReport
Message: TypeAlias = Order | Report

_HEAD = struct.Struct("!IB")
_KIND_BYTES: Final = 1
_LENGTH_BYTES: Final = _HEAD.size - _KIND_BYTES
_ORDER_TYPES: Final[Sequence[Callable[..., Order]]] = (Boot, RunTasks, Recall, Interrupt, Ping, KeepRunning, Stop, Fork)
_RUN_TASKS: Final = _ORDER_TYPES.index(RunTasks)

# Reports with a fixed layout
_BEGAN, _DONE = 16, 17
_BEGAN_BODY, _BEGAN_FRAME = struct.Struct("!Q"), struct.Struct("!IBQ")
_DONE_HEAD, _DONE_FRAME = struct.Struct("!QBBQqIII"), struct.Struct("!IBQBBQqIII")
_NO_TEXT: Final = 0xFFFF_FFFF
_WANTS_RETRY, _LEAVING, _MISFIT_SHIFT = 1, 2, 2
_MISFITS: Final = tuple(Misfit)
_COMPLETED: Final = 0
_STATUSES: Final = (TaskStatus.COMPLETED.value, TaskStatus.FAILED.value, TaskStatus.CANCELLED.value)
_STATUS_NUMBERS: Final = {status: number for number, status in enumerate(_STATUSES)}


def pack(*messages: Message) -> bytes:
    """Return the frames of these messages as one byte string."""
    frames: list[bytes] = []
    for message in messages:
        kind = _KINDS[type(message)]
        if isinstance(message, Began):
            frames.append(pack_began(*message))
        elif isinstance(message, Done):
            frames.append(pack_done(message))
        elif kind < _BEGAN:
            # marshal writes plain tuples only, and assignments are named tuples.
            fields: Any = ([tuple(each) for each in message[0]],) if isinstance(message, RunTasks) else tuple(message)
            body = marshal.dumps(fields)
            frames += (_HEAD.pack(_KIND_BYTES + len(body), kind), body)
        else:
            fields = [field[:MAX_REPORTED_TEXT] if type(field) is str else field for field in message]
            body = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
            frames += (_HEAD.pack(_KIND_BYTES + len(body), kind), body)
    return b"".join(frames)


def pack_began(assignment_no: int) -> bytes:
    return _BEGAN_FRAME.pack(_KIND_BYTES + _BEGAN_BODY.size, _BEGAN, assignment_no)


def pack_done(done: Done) -> bytes:
    assignment_no, status, duration_us, code, result, error, wants_retry, retry_after_ms, leaving, misfit = done
    code_bytes = b"" if code is None else code.encode()
    # The worker rejects what cannot be decoded and replaces this child; the codec lets nothing of it through.
    result_bytes = b"" if result is None else result.encode("utf-8", "surrogatepass")
    error_bytes = b"" if error is None else error.encode("utf-8", "surrogatepass")
    head = _DONE_FRAME.pack(
        _KIND_BYTES + _DONE_HEAD.size + len(code_bytes) + len(result_bytes) + len(error_bytes),
        _DONE,
        assignment_no,
        _STATUS_NUMBERS[status],
        (_WANTS_RETRY if wants_retry else 0) | (_LEAVING if leaving else 0) | misfit << _MISFIT_SHIFT,
        duration_us,
        -1 if retry_after_ms is None else retry_after_ms,
        _NO_TEXT if code is None else len(code_bytes),
        _NO_TEXT if result is None else len(result_bytes),
        _NO_TEXT if error is None else len(error_bytes),
    )
    return b"".join((head, code_bytes, result_bytes, error_bytes))


class Unpacker:
    """Turn the byte stream from the worker into messages. Only for bytes from the worker, which are trusted."""

    def __init__(self, max_frame: int = MAX_FRAME, max_small: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._max_frame = max_frame
        self._max_small = max_small

    @property
    def is_mid_message(self) -> bool:
        """Whether a part of a message has arrived."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        buffer += data
        start, end = 0, len(buffer)
        while start + _HEAD.size <= end:
            length, kind = _HEAD.unpack_from(buffer, start)
            # Checked before the rest of the message is buffered.
            if not _KIND_BYTES <= length <= (self._max_frame if kind == _DONE else self._max_small):
                raise ProtocolError(f"a frame of {length} bytes")
            body, stop = start + _HEAD.size, start + _LENGTH_BYTES + length
            if stop > end:
                break
            yield self._unpack(kind, body, stop)
            start = stop
        del buffer[:start]

    def _unpack(self, kind: int, body: int, stop: int) -> Message:
        try:
            fields = marshal.loads(self._buffer[body:stop])  # noqa: S302 - written by our own worker, see above
            if kind == _RUN_TASKS:
                return RunTasks(list(map(Assignment._make, *fields)))
            return _ORDER_TYPES[kind](*fields)
        except (EOFError, ValueError, TypeError, IndexError) as error:
            raise ProtocolError("not a message") from error


class ReportUnpacker(Unpacker):
    """The same for bytes from a child, which user code may have written: yields valid messages, or raises ProtocolError."""

    def __init__(self, max_payload: int = DEFAULT_MAX_BYTES) -> None:
        # A result, or an error and its code, which is also in the error. The default limits errors about results.
        super().__init__(2 * max(max_payload, DEFAULT_MAX_BYTES) + MAX_REPORTED_TEXT, MAX_SMALL_REPORT)

    def _unpack(self, kind: int, body: int, stop: int) -> Message:
        if kind == _BEGAN and stop - body == _BEGAN_BODY.size:
            return Began(*_BEGAN_BODY.unpack_from(self._buffer, body))
        if kind != _DONE:
            return self._unpack_json(kind, body, stop)
        at = body + _DONE_HEAD.size
        if at > stop:
            raise ProtocolError("the report of an ending is too short")
        fields = _DONE_HEAD.unpack_from(self._buffer, body)
        assignment_no, status, flags, duration_us, retry_after_ms, code_bytes, result_bytes, error_bytes = fields
        is_completed = status == _COMPLETED
        # Either a result, or a code and an error: the database rejects anything else, and with it the whole batch.
        if is_completed:
            is_valid = (
                code_bytes == error_bytes == _NO_TEXT and result_bytes == stop - at and not flags >> _MISFIT_SHIFT
            )
            code_bytes = 0
        else:
            is_valid = status < len(_STATUSES) and result_bytes == _NO_TEXT and code_bytes + error_bytes == stop - at
        if not is_valid or not -1 <= retry_after_ms <= MAX_RETRY_AFTER_S * 1000:
            raise ProtocolError("the report of an ending is not valid")
        raw_text = self._buffer[at + code_bytes : stop]
        try:
            code, text = self._buffer[at : at + code_bytes].decode(), raw_text.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a report contains a text that is not valid") from error
        if 0 in raw_text or not (is_completed or is_error_code(code)):  # PostgreSQL cannot store a zero byte
            raise ProtocolError("the report of an ending is not valid")
        return Done(
            assignment_no,
            _STATUSES[status],
            duration_us,
            error_code=None if is_completed else code,
            result=text if is_completed else None,
            error=None if is_completed else text,
            wants_retry=bool(flags & _WANTS_RETRY),
            retry_after_ms=None if retry_after_ms < 0 else retry_after_ms,
            leaving=bool(flags & _LEAVING),
            misfit=_MISFITS[flags >> _MISFIT_SHIFT & 3],
        )

    def _unpack_json(self, kind: int, body: int, stop: int) -> Message:
        if kind not in _JSON_REPORTS:
            raise ProtocolError(f"a report of unknown kind {kind}")
        message_type, checks = _JSON_REPORTS[kind]
        try:
            values: Any = json.loads(self._buffer[body:stop])
        except (ValueError, RecursionError) as error:
            raise ProtocolError("not a message") from error
        fields = cast("list[Any]", values)
        is_valid = isinstance(values, list) and len(fields) == len(checks)
        if not is_valid or not all(check(field) for check, field in zip(checks, fields, strict=True)):
            raise ProtocolError("a report is not valid")
        if message_type is LogLines:
            fields[1] = [LoggedLine._make(line) for line in fields[1]]
        return message_type(*fields)


# -- reports in JSON, and a check for each field


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_REPORTED_TEXT


def _are_assignment_nos(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(map(_is_number, numbers := cast("list[Any]", value)))
        and len(set(numbers)) == len(numbers)
    )


def _are_logged_lines(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(lines := cast("list[Any]", value)) <= MAX_LINES
        and all(map(is_logged_line, lines))
    )


_JSON_REPORTS: Final[Mapping[int, tuple[Callable[..., Message], tuple[Callable[[Any], bool], ...]]]] = {
    18: (Booting, (_is_text,)),
    19: (Ready, (_is_number, lambda size: isinstance(size, int | float) and 0 <= size < 1 << 64)),  # False for NaN
    20: (StartFailed, (_is_text,)),
    21: (
        Progress,
        (
            _is_number,
            lambda fraction: fraction is None or (isinstance(fraction, int | float) and 0 <= fraction <= 1),
            lambda text: text is None or _is_text(text),
        ),
    ),
    22: (Pong, (_is_number,)),
    23: (LoopAlive, ()),
    24: (Returned, (_are_assignment_nos,)),
    25: (Forked, (_is_number,)),
    26: (ForkExited, (_is_number, lambda code: type(code) is int and abs(code) < 1 << 10)),
    27: (LogLines, (_is_number, _are_logged_lines)),
}
_KINDS: Final[Mapping[Any, int]] = {
    **{message_type: kind for kind, message_type in enumerate(_ORDER_TYPES)},
    Began: _BEGAN,
    Done: _DONE,
    **{message_type: kind for kind, (message_type, _checks) in _JSON_REPORTS.items()},
}
