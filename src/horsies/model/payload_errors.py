"""Why a payload is refused, in lines that name the place and say what to change.

Whoever passes an argument is shown its value. What a task was sent, and what it returned, are told of by their types alone: that refusal becomes the task's
error, which is stored and shown to others.
"""

import logging
import re
import reprlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from horsies.model.errors import PayloadError
from horsies.model.record import Record

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Step: TypeAlias = int | str

NOT_JSON: Final = "not_json"
MISSING: Final = object()
"""In the place of a value that is not there."""
MAX_SHOWN: Final = 80
MAX_LINE: Final = 400
MAX_PROBLEMS: Final = 20
MAX_STEPS: Final = 12

# The value has the right type and still cannot be written.
UNWRITABLE: Final = frozenset({NOT_JSON, "recursion_loop", "string_unicode"})
_SAYS_IT_ALL: Final = UNWRITABLE | {"missing", "json_invalid"}

# What others say of a fault, and what to do about it.
_ADVICE: Final = (
    ("surrogates not allowed", "remove the broken character, as text.encode(errors='replace').decode() does"),
    ("invalid utf-8", "give the model ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"),
    ("number out of range", "annotate so long a number as str"),
    ("recursion limit exceeded", "it is nested too deeply: send it flatter"),
    ("maximum validation depth", "it is nested too deeply: send it flatter"),
    ("cyclic reference", "send ids in place of the objects that refer back"),
)

# pydantic's own quoting of a value that it could not write
_QUOTED_INPUT: Final = r"input_value=.*, (?=input_type=)"

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = MAX_SHOWN


class ValueChange(NamedTuple):
    """The place of a difference, what is there on either side, and what to do about it (None: no particular advice)."""

    sent: object
    arrived: object
    loc: tuple[Step, ...] = ()
    advice: str | None = None
    is_hidden: bool = False
    """The value is in a field that its class keeps out of its JSON or its repr: it must not be shown."""

    def inside(self, step: Step, advice: str | None = None, *, is_hidden: bool = False) -> "ValueChange":
        """Return the same, seen from the object that it is a part of, whose advice comes first."""
        return ValueChange(
            self.sent, self.arrived, (step, *self.loc), advice or self.advice, is_hidden=is_hidden or self.is_hidden
        )


class ProblemReport(Record):
    """What the parts of a payload are called, and how a value is shown."""

    noun: str
    shown: Callable[[object], str]


def report_problems(what: str, telling: ProblemReport, problems: "Sequence[ErrorDetails]") -> str:
    lines = [f"\n  - {_problem_line(telling, problem)}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"\n  - and {len(problems) - MAX_PROBLEMS} more")
    return f"{what}:{''.join(lines)}"


def _problem_line(telling: ProblemReport, problem: "ErrorDetails") -> str:
    got = "" if problem["type"] in _SAYS_IT_ALL else f" (got {telling.shown(problem['input'])})"
    return f"{_place(telling.noun, problem['loc'])}{one_line(problem['msg'])}{got}{_advice(problem['msg'])}"


def _place(noun: str, loc: tuple[Step, ...]) -> str:
    """`('boxes', 0, 'width')` as `argument 'boxes[0].width': `."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc[:MAX_STEPS])
    return f"{noun} '{steps.removeprefix('.')}{'...' if len(loc) > MAX_STEPS else ''}': " if loc else ""


def report_change(telling: ProblemReport, found: ValueChange) -> str:
    """What a value would arrive as. Of a field that its class does not show, only the types are told."""
    sent, arrived = found.sent, found.arrived
    shown = type_only if found.is_hidden or _is_record(sent) else telling.shown
    advice = found.advice or (
        "annotate it with a type whose JSON is read as the same value again, or correct its serializer or validator"
    )
    if isinstance(sent, float) and arrived is None:  # what pydantic writes for NaN in a model, unless told otherwise
        advice = "give the model ConfigDict(ser_json_inf_nan='strings')"
    return f"{_place(telling.noun, found.loc)}{shown(sent)} would arrive as {shown(arrived)}; {advice}"


def _is_record(value: object) -> bool:
    """A model or a dataclass: its repr may show what its JSON leaves out."""
    return hasattr(type(value), "model_fields") or hasattr(type(value), "__dataclass_fields__")


def with_advice(error: object) -> str:
    """What somebody else says of a fault, on one line, and what to do about it if we know."""
    line = one_line(re.sub(_QUOTED_INPUT, "", str(error)))
    return f"{line}{_advice(line)}"


def _advice(text: str) -> str:
    return next((f"; {advice}" for sign, advice in _ADVICE if sign in text), "")


def one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..."


def short_repr(value: object) -> str:
    """The value, or its beginning."""
    if value is MISSING:
        return type_only(value)
    try:
        text = _SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a repr of the user's own
        text = type_only(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def type_only(value: object) -> str:
    if value is None or value is MISSING:
        return "None" if value is None else "no value"
    return f"a {type(value).__name__}"


GIVEN: Final = ProblemReport(noun="argument", shown=short_repr)
SENT: Final = ProblemReport(noun="argument", shown=type_only)
RETURNED: Final = ProblemReport(noun="value at", shown=type_only)


# --------
# How many bytes of JSON a payload may have, and who hears of a big one.
#
# A queue is a poor place for big things: each is written to the log of the database, copied between processes and read again
# by every look at its row. Something big is told of in the log of whoever wrote it, here because only the codec sees the size.

DEFAULT_WARNING_BYTES: Final = 256 * 1024
MAX_NAME: Final = 200
"""Characters of the name of a task."""
DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024
MOST_BYTES: Final = 256 * 1024 * 1024  # quoted it may double, and PostgreSQL takes messages of one gigabyte

log = logging.getLogger("horsies.payload")


class PayloadLimits(Record):
    """`warning_bytes` None: nothing is told."""

    warning_bytes: int | None = DEFAULT_WARNING_BYTES
    max_bytes: int = DEFAULT_MAX_BYTES


class PayloadSizeCheck:
    """Looks at the payloads of one kind: refuses the too big, tells of the big.

    It tells again only of one twice as big, or a busy producer would fill its log with a single fact.
    """

    def __init__(self, whose: str, limits: PayloadLimits | None = None) -> None:
        self._whose = whose
        self.limits = limits or PayloadLimits()
        self._told_bytes = 0

    def look(self, payload: bytes, what: str) -> None:
        size, limits = len(payload), self.limits
        if size > limits.max_bytes:
            raise PayloadError(
                f"{what}: as JSON it has {size:,} bytes, and AppConfig.max_payload_bytes is {limits.max_bytes:,}; "
                "keep the data elsewhere and pass where it is, or raise the limit"
            )
        if limits.warning_bytes is not None and size > limits.warning_bytes and size >= 2 * self._told_bytes:
            self._told_bytes = size
            log.warning(
                "%s: %s bytes of JSON, above payload_warning_bytes=%s; keep big data elsewhere and pass where it is",
                self._whose,
                f"{size:,}",
                f"{limits.warning_bytes:,}",
            )
