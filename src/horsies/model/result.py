"""`TaskResult[T, TaskError]`: what every task returns, and what every wait yields."""

from string import ascii_uppercase, digits
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast, get_args, overload

from horsies.model.errors import HorsiesError
from horsies.model.record import Record

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MAX_RETRY_AFTER_S: Final = 24 * 24 * 3600
_CODE_CHARACTERS: Final = f"{ascii_uppercase}{digits}_"


class TaskError(Record):
    """Why a task did not succeed: a code to decide by, words to read, data to work with.

    `retry_after_seconds` moves the next attempt, if the task's policy makes one for this code.
    """

    error_code: str
    message: str = ""
    data: Any = None
    retry_after_seconds: float | None = None

    def __post_init__(self) -> None:
        if not is_error_code(str(self.error_code)):
            raise ValueError(f"error_code {self.error_code!r} is not upper snake case; write it like 'CARD_DECLINED'")
        if self.retry_after_seconds is not None and not _is_pause(self.retry_after_seconds):
            raise ValueError(
                f"retry_after_seconds is {self.retry_after_seconds!r}; give 0 to {MAX_RETRY_AFTER_S} seconds"
            )
        object.__setattr__(self, "error_code", str(self.error_code))  # a StrEnum member becomes its text


def is_error_code(text: str) -> bool:
    """Upper snake case."""
    return text != "" and text[0] in ascii_uppercase and not text.strip(_CODE_CHARACTERS)


def _is_pause(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= MAX_RETRY_AFTER_S


T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", bound=TaskError, covariant=True)


class UnwrapError(HorsiesError):
    """The other half of a `TaskResult` was asked for."""


class _Missing:
    """Tells `ok=None`, a good result, from no `ok` at all."""


_MISSING: Final = _Missing()


class TaskResult(Generic[T_co, E_co]):
    """Either `TaskResult(ok=value)` or `TaskResult(err=TaskError(...))`; immutable.

    `ok` and `err` are for `match`; code that knows which half it wants uses `ok_value`, `err_value`,
    `unwrap()` or `unwrap_err()`, which raise `UnwrapError` when it is the other one.
    """

    __match_args__ = ("ok", "err")
    __slots__ = ("_err", "_ok")

    _ok: T_co | None
    _err: E_co | None

    @overload
    def __init__(self, *, ok: T_co) -> None: ...
    @overload
    def __init__(self, *, err: E_co) -> None: ...
    def __init__(self, *, ok: object = _MISSING, err: object = _MISSING) -> None:
        if (ok is _MISSING) == (err is _MISSING):
            raise TypeError("TaskResult takes exactly one of ok= and err=")
        if err is not _MISSING and not isinstance(err, TaskError):
            raise TypeError(f"TaskResult(err=...) takes a TaskError, not {type(err).__name__}")
        object.__setattr__(self, "_ok", None if ok is _MISSING else ok)
        object.__setattr__(self, "_err", None if err is _MISSING else err)

    def is_ok(self) -> bool:
        """It has a good value, which may be None."""
        return self._err is None

    def is_err(self) -> bool:
        """It has an error."""
        return self._err is not None

    @property
    def ok(self) -> T_co | None:
        """The good value; None when there is an error."""
        return self._ok

    @property
    def err(self) -> E_co | None:
        """The error; None when there is none."""
        return self._err

    @property
    def ok_value(self) -> T_co:
        """The same as `unwrap()`."""
        return self.unwrap()

    @property
    def err_value(self) -> E_co:
        """The same as `unwrap_err()`."""
        return self.unwrap_err()

    def unwrap(self) -> T_co:
        """The good value; raises UnwrapError, in the error's words, when there is none."""
        if self._err is not None:
            raise UnwrapError(f"the task ended in error {self._err.error_code}: {self._err.message}")
        return cast("T_co", self._ok)

    def unwrap_err(self) -> E_co:
        """The error; raises UnwrapError when there is none."""
        if self._err is None:
            raise UnwrapError(f"the task succeeded with {self._ok!r}; there is no error")
        return self._err

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a TaskResult cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a TaskResult cannot be changed")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        from horsies.model.result_schema import halves_schema  # noqa: PLC0415 - pydantic asks, so pydantic is there

        good, bad = get_args(source) or (Any, TaskError)
        return halves_schema(good, bad, handler, halved=_halved, joined=lambda halves: cls(**halves))

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self._ok, self._err)  # the usual way of copy and pickle sets attributes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        mine, theirs = (self._ok, self._err), (cast("Any", other)._ok, cast("Any", other)._err)
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self._ok, self._err))

    def __repr__(self) -> str:
        return f"TaskResult(ok={self._ok!r})" if self._err is None else f"TaskResult(err={self._err!r})"


def _remade(ok: object, err: TaskError | None) -> TaskResult[object, TaskError]:
    return TaskResult(ok=ok) if err is None else TaskResult(err=err)


def _halved(result: object) -> dict[str, Any] | None:
    if not isinstance(result, TaskResult):
        return None
    known = cast("TaskResult[Any, TaskError]", result)
    return {"ok": known.ok} if known.is_ok() else {"err": known.err}
