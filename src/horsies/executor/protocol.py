"""The whole protocol between a worker and its child processes: length-framed messages over a socketpair.

A frame is four bytes of length, one byte for the kind of message, and its fields. Arguments and results pass through as the text they
have in the database: the parent never decodes them.

*To the child* the fields are a marshalled tuple: both ends are the same interpreter on the same machine, the fields are plain numbers
and strings, and it is the fastest that Python has. *From the child* they are not, because user code runs there and can find the socket. A
few bytes that `marshal` reads can make it allocate gigabytes, or crash the process. So reports have a fixed layout (`struct`) where they are
frequent and are JSON where they are rare; every field is checked before anybody sees it. Whatever else arrives is a WireError.

A *ticket* is the parent's number for one assignment to this child. The child reports every beginning before user code
runs: what the kernel took over from a child that died is still read, so when the end of file comes the parent knows what had
begun (it crashed) and what had not (it is released).
"""

import json
import marshal
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from horsies.model.payload_errors import DEFAULT_MAX_BYTES
from horsies.model.result import MAX_RETRY_AFTER_S, is_error_code
from horsies.model.status import Misfit, TaskStatus

MAX_FRAME = 1 << 30
MAX_SMALL_REPORT: Final = 1 << 22
"""Of a report that is JSON. The longest is a list of tickets that are given back."""
MAX_REPORTED_TEXT: Final = 1 << 16
"""What a child is at, or why it cannot start, is cut to so many characters."""

Reason: TypeAlias = Literal["timeout", "cancel"]


class ProtocolError(Exception):
    """The bytes are not of this protocol: the child's end was written to by something else."""


class EmptyMessage(tuple[()]):
    """A message that says it all by its kind; sooner made than a named tuple without names."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Assignment(NamedTuple):
    assignment_no: int
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


class RunTasks(NamedTuple):
    """Run these, in this order."""

    assignments: list[Fields]


ANY: Final = 0
"""No ticket: these begin at 1."""


class Recall(NamedTuple):
    """Give back what has not begun, because this task, or `ANY`, takes long. If it has ended meanwhile there is no need."""

    behind: int


class Interrupt(NamedTuple):
    """Make this task raise, so that it can clean up and end."""

    assignment_no: int
    reason: Reason


class Ping(EmptyMessage):
    """Are you there?"""


class KeepRunning(EmptyMessage):
    """You are too big, but nobody can take your place: go on, and measure no more."""


class Stop(EmptyMessage):
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

    assignment_no: int


class Progress(NamedTuple):
    """How far this ticket is, in the task's own words."""

    assignment_no: int
    fraction: float | None
    message: str | None


class Done(NamedTuple):
    """This ticket has ended. `leaving`: the child is too big; it takes nothing more, and waits to be told to stop.

    `misfit`: it was not begun, because this child cannot run it; what there is instead is the error that says why.
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
    """Here: its interpreter runs, whatever its task does. A call into C that holds the GIL keeps it silent.

    `on_loop` is the ticket of the coroutine that is at this moment executed by the event loop, or `ANY`.
    """

    on_loop: int = ANY


class LoopAlive(EmptyMessage):
    """The event loop has run since the last Ping. Only a child with an event loop of its own says so."""


class Returned(NamedTuple):
    """To a recall, or because it is leaving: these have not begun and never will here."""

    assignment_nos: list[int]


# -- to and from the template


class Fork(EmptyMessage):
    """To the template: a child, please; its socket comes with this message."""


class Forked(NamedTuple):
    """From the template: here it is; a descriptor of its process comes with this message."""

    pid: int


class ForkExited(NamedTuple):
    """From the template: that child is dead; its exit code, or the signal that killed it, negative."""

    pid: int
    code: int


Message: TypeAlias = (
    Boot
    | RunTasks
    | Recall
    | Interrupt
    | Ping
    | KeepRunning
    | Stop
    | Booting
    | Ready
    | Refused
    | Began
    | Progress
    | Done
    | Pong
    | LoopAlive
    | Returned
    | Fork
    | Forked
    | ForkExited
)

_HEAD = struct.Struct("!IB")
_KIND_BYTES: Final = 1
_LENGTH_BYTES: Final = _HEAD.size - _KIND_BYTES


def pack(*messages: Message) -> bytes:
    """Frames ready to be written, in one piece."""
    if len(messages) == 1:
        return _PACKERS[type(messages[0])](messages[0])
    return b"".join([_PACKERS[type(message)](message) for message in messages])


class Unpacker:
    """Bytes from the worker in, as they come; whole messages out. Only for what the worker has written: it is trusted."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._max_frame = max_frame

    @property
    def is_mid_message(self) -> bool:
        """A part of a message has arrived."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        buffer += data
        start, end = 0, len(buffer)
        while start + _HEAD.size <= end:
            length, kind = _HEAD.unpack_from(buffer, start)
            if not _KIND_BYTES <= length <= self._max_frame:
                raise ProtocolError(f"a frame of {length} bytes")
            body, stop = start + _HEAD.size, start + _LENGTH_BYTES + length
            if stop > end:
                self._check_kind(kind, length)
                break
            yield self._unpack(kind, body, stop)
            start = stop
        del buffer[:start]

    def _check_kind(self, kind: int, length: int) -> None:
        """Of a message whose end has not arrived yet."""

    def _unpack(self, kind: int, body: int, stop: int) -> Message:
        try:
            return _ORDERS[kind](*marshal.loads(self._buffer[body:stop]))  # noqa: S302 - written by our own worker, see above
        except (EOFError, ValueError, TypeError, KeyError) as error:
            raise ProtocolError("not a message") from error


class ReportUnpacker(Unpacker):
    """The same for bytes from a child, where user code may have written them: any bytes give messages in order, or a WireError."""

    def __init__(self, max_payload: int = DEFAULT_MAX_BYTES) -> None:
        # A result, or an error and its code, which is also in the error. Errors about results are limited by the default.
        super().__init__(2 * max(max_payload, DEFAULT_MAX_BYTES) + MAX_REPORTED_TEXT)

    def _check_kind(self, kind: int, length: int) -> None:
        if kind != _DONE and length > MAX_SMALL_REPORT:
            raise ProtocolError(f"a frame of {length} bytes")

    def _unpack(self, kind: int, body: int, stop: int) -> Message:
        if kind == _BEGAN and stop - body == _ASSIGNMENT_NO.size:
            return Began(*_ASSIGNMENT_NO.unpack_from(self._buffer, body))
        if kind == _DONE:
            return self._done(body, stop)
        self._check_kind(kind, stop - body)
        return _small_report(kind, self._buffer[body:stop])

    def _done(self, body: int, stop: int) -> Done:
        at = body + _DONE_HEAD.size
        if at > stop:
            raise ProtocolError("a report of an ending is too short")
        fields = _DONE_HEAD.unpack_from(self._buffer, body)
        assignment_no, status, flags, duration_us, retry_after_ms, code_bytes, result_bytes, error_bytes = fields
        code = error = result = None
        # Either a result, or a code and an error: the database refuses anything else, together with what other tasks report.
        if status == _COMPLETED:
            is_in_order = (
                code_bytes == error_bytes == _NO_TEXT and result_bytes == stop - at and not flags >> _MISFIT_SHIFT
            )
            result = self._text(at, stop) if is_in_order else None
        else:
            is_in_order = status < len(_STATUSES) and result_bytes == _NO_TEXT and code_bytes + error_bytes == stop - at
            if is_in_order:
                code, error = self._text(at, at + code_bytes), self._text(at + code_bytes, stop)
                is_in_order = is_error_code(code)
        if not is_in_order or not -1 <= retry_after_ms <= MAX_RETRY_AFTER_S * 1000:
            raise ProtocolError("a report of an ending is not in order")
        return Done(
            assignment_no,
            _STATUSES[status],
            duration_us,
            code,
            result,
            error,
            bool(flags & _WANTS_RETRY),
            None if retry_after_ms < 0 else retry_after_ms,
            bool(flags & _LEAVING),
            _MISFITS[flags >> _MISFIT_SHIFT & 3],
        )

    def _text(self, at: int, after: int) -> str:
        """A text that PostgreSQL can hold."""
        text = self._buffer[at:after]
        if 0 in text:
            raise ProtocolError("a report holds a text that is not in order")
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a report holds a text that is not in order") from error


# -- to the child: marshal

_Pack: TypeAlias = Callable[[Any], bytes]
_ORDERS: Final[Mapping[Any, Callable[..., Message]]] = dict(
    enumerate((Boot, RunTasks, Recall, Interrupt, Ping, KeepRunning, Stop, Fork))
)


def _order_packer(kind: int) -> _Pack:
    def pack_order(message: tuple[Any, ...]) -> bytes:
        body = marshal.dumps(tuple(message))
        return _HEAD.pack(_KIND_BYTES + len(body), kind) + body

    return pack_order


# -- from the child: fixed layouts

_BEGAN, _DONE, _FIRST_SMALL = 16, 17, 18
_ASSIGNMENT_NO = struct.Struct("!Q")
_BEGAN_FRAME = struct.Struct("!IBQ")
_DONE_LAYOUT: Final = "QBBQqIII"
_DONE_HEAD = struct.Struct(f"!{_DONE_LAYOUT}")
_DONE_FRAME = struct.Struct(f"!IB{_DONE_LAYOUT}")
_NO_TEXT: Final = 0xFFFF_FFFF
_WANTS_RETRY, _LEAVING, _MISFIT_SHIFT = 1, 2, 2
_MISFITS: Final = tuple(Misfit)
_COMPLETED: Final = 0
_STATUSES: Final = (TaskStatus.COMPLETED.value, TaskStatus.FAILED.value, TaskStatus.CANCELLED.value)
_STATUS_NUMBERS: Final = {status: number for number, status in enumerate(_STATUSES)}


def _pack_began(began: Began) -> bytes:
    return _BEGAN_FRAME.pack(_KIND_BYTES + _ASSIGNMENT_NO.size, _BEGAN, began[0])


def _pack_done(done: Done) -> bytes:
    (
        assignment_no,
        status,
        duration_us,
        error_code,
        result_text,
        error_text,
        wants_retry,
        retry_after_ms,
        leaving,
        misfit,
    ) = done
    code = b"" if error_code is None else error_code.encode()
    # What cannot be encoded is refused by the other end, and this child replaced; the codec lets none of it through.
    result = b"" if result_text is None else result_text.encode("utf-8", "surrogatepass")
    error = b"" if error_text is None else error_text.encode("utf-8", "surrogatepass")
    head = _DONE_FRAME.pack(
        _KIND_BYTES + _DONE_HEAD.size + len(code) + len(result) + len(error),
        _DONE,
        assignment_no,
        _STATUS_NUMBERS[status],
        (_WANTS_RETRY if wants_retry else 0) | (_LEAVING if leaving else 0) | misfit << _MISFIT_SHIFT,
        duration_us,
        -1 if retry_after_ms is None else retry_after_ms,
        _NO_TEXT if error_code is None else len(code),
        _NO_TEXT if result_text is None else len(result),
        _NO_TEXT if error_text is None else len(error),
    )
    return b"".join((head, code, result, error))


# -- from the child: JSON, and what each field must be

_Check: TypeAlias = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_exit_code(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 10


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1 << 64  # NaN is not


def _is_fraction(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and 0 <= value <= 1)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_REPORTED_TEXT


def _is_text_or_none(value: Any) -> bool:
    return value is None or _is_text(value)


def _are_tickets(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    assignment_nos = cast("list[Any]", value)
    return all(map(_is_number, assignment_nos)) and len(set(assignment_nos)) == len(assignment_nos)


_SMALL_REPORTS: Final[Mapping[int, tuple[Callable[..., Message], tuple[_Check, ...]]]] = dict(
    enumerate(
        (
            (Booting, (_is_text,)),
            (Ready, (_is_number, _is_size)),
            (Refused, (_is_text,)),
            (Progress, (_is_number, _is_fraction, _is_text_or_none)),
            (Pong, (_is_number,)),
            (LoopAlive, ()),
            (Returned, (_are_tickets,)),
            (Forked, (_is_number,)),
            (ForkExited, (_is_number, _is_exit_code)),
        ),
        _FIRST_SMALL,
    )
)


def _small_report(kind: int, body: bytes | bytearray) -> Message:
    known = _SMALL_REPORTS.get(kind)
    if known is None:
        raise ProtocolError(f"a report of kind {kind}")
    make, checks = known
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("not a message") from error
    if not isinstance(fields, list) or not _pass(cast("list[Any]", fields), checks):
        raise ProtocolError("a report is not in order")
    return make(*cast("list[Any]", fields))


def _pass(fields: list[Any], checks: tuple[_Check, ...]) -> bool:
    return len(fields) == len(checks) and all(check(field) for check, field in zip(checks, fields, strict=True))


def _report_packer(kind: int) -> _Pack:
    def pack_report(message: tuple[Any, ...]) -> bytes:
        fields = [field[:MAX_REPORTED_TEXT] if type(field) is str else field for field in message]
        body = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return _HEAD.pack(_KIND_BYTES + len(body), kind) + body

    return pack_report


_PACKERS: Final[Mapping[Any, _Pack]] = {
    Began: _pack_began,
    Done: _pack_done,
    **{make: _order_packer(kind) for kind, make in _ORDERS.items()},
    **{make: _report_packer(kind) for kind, (make, _checks) in _SMALL_REPORTS.items()},
}
