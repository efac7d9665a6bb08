"""Report why a payload is refused: the place, the value and what to change; and limit the size of payloads.

**Values in messages.** The caller of a send is shown the value that was passed. For stored arguments and for results a message has only types,
because it becomes the task's error, which is stored and shown to others.

**Size.** Large payloads are expensive in a queue: each is written to the write-ahead log, copied between processes, and read again with its row.
A large payload is reported in the log of the process that encoded it. The check is here because only the codec sees the size.
"""

import logging
import re
import reprlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from pydantic_core import ErrorDetails

from horsies.model.errors import PayloadError

Step: TypeAlias = int | str

DEFAULT_WARNING_BYTES: Final = 256 * 1024
DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024
MOST_BYTES: Final = 256 * 1024 * 1024  # quoted it may double, and PostgreSQL accepts messages of one gigabyte
MAX_NAME: Final = 200  # characters in the name of a task

NOT_JSON: Final = "not_json"
MISSING: Final = object()
"""Stands for a value that is absent."""
MAX_SHOWN: Final = 80
MAX_LINE: Final = 400
MAX_PROBLEMS: Final = 20
MAX_STEPS: Final = 12

# Problems of values that have the right type and still cannot be written.
UNWRITABLE: Final = frozenset({NOT_JSON, "recursion_loop", "string_unicode"})
# Problems whose message needs no value.
_WITHOUT_VALUE: Final = UNWRITABLE | {"missing", "json_invalid"}

# Parts of other libraries' messages, and what to do about each.
_ADVICE: Final = (
    ("surrogates not allowed", "remove the broken character, as text.encode(errors='replace').decode() does"),
    ("invalid utf-8", "give the model ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"),
    ("number out of range", "annotate a number of this length as str"),
    ("recursion limit exceeded", "it is nested too deeply: send it flatter"),
    ("maximum validation depth", "it is nested too deeply: send it flatter"),
    ("cyclic reference", "send ids in place of the objects that refer back"),
)
_INPUT_VALUE: Final = r"input_value=.*, (?=input_type=)"  # how pydantic quotes a value that it could not write

_SHORT_REPR: Final = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = MAX_SHOWN

log = logging.getLogger("horsies.payload")


class ValueChange(NamedTuple):
    """A difference between the value that was sent and the one that would arrive: where it is, and what to do about it."""

    sent: object
    arrived: object
    loc: tuple[Step, ...] = ()
    advice: str | None = None
    """None: there is no particular advice."""
    is_hidden: bool = False
    """The value is in a field that its class leaves out of its JSON or its repr, so it must not be shown."""

    def inside(self, step: Step, advice: str | None = None, *, is_hidden: bool = False) -> "ValueChange":
        """Return the same change as seen from the object that contains it, whose advice takes precedence."""
        is_hidden = is_hidden or self.is_hidden
        return self._replace(loc=(step, *self.loc), advice=advice or self.advice, is_hidden=is_hidden)


class ReportStyle(NamedTuple):
    """What a report calls the parts of a payload, and how it shows a value."""

    noun: str
    show: Callable[[object], str]


def report_problems(what: str, style: ReportStyle, problems: "Sequence[ErrorDetails]") -> str:
    lines: list[str] = []
    for problem in problems[:MAX_PROBLEMS]:
        message = problem["msg"]
        got = "" if problem["type"] in _WITHOUT_VALUE else f" (got {style.show(problem['input'])})"
        lines.append(f"\n  - {_place(style.noun, problem['loc'])}{one_line(message)}{got}{_advice(message)}")
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"\n  - and {len(problems) - MAX_PROBLEMS} more")
    return f"{what}:{''.join(lines)}"


def report_change(style: ReportStyle, change: ValueChange) -> str:
    """Describe a value and what it would arrive as. For a field that its class does not show, name only the types."""
    sent, arrived = change.sent, change.arrived
    # The repr of a model or a dataclass may show what its JSON leaves out.
    has_fields = hasattr(type(sent), "model_fields") or hasattr(type(sent), "__dataclass_fields__")
    show = type_only if change.is_hidden or has_fields else style.show
    advice = change.advice or (
        "annotate it with a type whose JSON is read as the same value again, or correct its serializer or validator"
    )
    if isinstance(sent, float) and arrived is None:  # pydantic's default for NaN in a model
        advice = "give the model ConfigDict(ser_json_inf_nan='strings')"
    return f"{_place(style.noun, change.loc)}{show(sent)} would arrive as {show(arrived)}; {advice}"


def with_advice(error: object) -> str:
    """Return another library's message on one line, with what to do about it if that is known."""
    line = one_line(re.sub(_INPUT_VALUE, "", str(error)))
    return f"{line}{_advice(line)}"


def one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..."


def short_repr(value: object) -> str:
    """Return the repr of a value, or its beginning."""
    if value is MISSING:
        return type_only(value)
    try:
        text = _SHORT_REPR.repr(value)
    except Exception:  # noqa: BLE001 - a repr of the user's own
        text = type_only(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def type_only(value: object) -> str:
    if value is None or value is MISSING:
        return "None" if value is None else "no value"
    return f"a {type(value).__name__}"


def _place(noun: str, loc: tuple[Step, ...]) -> str:
    """Format `('boxes', 0, 'width')` as `argument 'boxes[0].width': `."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc[:MAX_STEPS])
    return f"{noun} '{steps.removeprefix('.')}{'...' if len(loc) > MAX_STEPS else ''}': " if loc else ""


def _advice(text: str) -> str:
    return next((f"; {advice}" for part, advice in _ADVICE if part in text), "")


PASSED_ARGUMENT: Final = ReportStyle(noun="argument", show=short_repr)
STORED_ARGUMENT: Final = ReportStyle(noun="argument", show=type_only)
RESULT: Final = ReportStyle(noun="value at", show=type_only)


class PayloadLimits(NamedTuple):
    """The sizes above which a payload is reported (None: never) and refused."""

    warning_bytes: int | None = DEFAULT_WARNING_BYTES
    max_bytes: int = DEFAULT_MAX_BYTES


class PayloadSizeCheck:
    """Check the size of the payloads of one kind: refuse those above the limit, and report large ones.

    A payload is reported again only if it is twice as large as the last one, so that a busy producer does not fill its log.
    """

    def __init__(self, kind: str, limits: PayloadLimits | None = None) -> None:
        self._kind = kind
        self.limits = limits or PayloadLimits()
        self.small_bytes = min(self.limits.max_bytes, self.limits.warning_bytes or self.limits.max_bytes)
        """Payloads up to this size need no check."""
        self._reported_bytes = 0

    def check(self, payload: bytes, what: str) -> None:
        size, (warning_bytes, max_bytes) = len(payload), self.limits
        if size > max_bytes:
            raise PayloadError(
                f"{what}: as JSON it has {size:,} bytes, and AppConfig.max_payload_bytes is {max_bytes:,}; "
                "keep the data elsewhere and pass where it is, or raise the limit"
            )
        if warning_bytes is not None and size > warning_bytes and size >= 2 * self._reported_bytes:
            self._reported_bytes = size
            message = (
                "%s: %s bytes of JSON, above payload_warning_bytes=%s; keep large data elsewhere and pass where it is"
            )
            log.warning(message, self._kind, f"{size:,}", f"{warning_bytes:,}")
