"""`TaskResult[T, TaskError]`: what every task returns, and what a waiter receives."""

from dataclasses import dataclass
from string import ascii_uppercase, digits
from typing import TYPE_CHECKING, Any, Final, Generic, Never, NoReturn, TypeAlias, TypeVar, cast, get_args, overload

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypeIs

from horsies.model.errors import HorsiesError

MAX_RETRY_AFTER_S: Final = 24 * 24 * 3600
_CODE_CHARACTERS: Final = f"{ascii_uppercase}{digits}_"


@dataclass(frozen=True, kw_only=True)
class TaskError:
    """Why a task failed: an error code for programs, a message for people, and optional data.

    `retry_after_seconds` sets the delay before the next attempt, if the task's policy retries this code.
    """

    error_code: str
    message: str = ""
    data: Any = None
    retry_after_seconds: float | None = None

    def __post_init__(self) -> None:
        if not is_error_code(str(self.error_code)):
            raise ValueError(f"error_code {self.error_code!r} is not upper snake case; write it like 'CARD_DECLINED'")
        delay = cast("object", self.retry_after_seconds)
        if delay is not None and not (isinstance(delay, int | float) and 0 <= delay <= MAX_RETRY_AFTER_S):
            raise ValueError(f"retry_after_seconds is {delay!r}; give 0 to {MAX_RETRY_AFTER_S} seconds")
        object.__setattr__(self, "error_code", str(self.error_code))  # a StrEnum member becomes its text


@dataclass(frozen=True, kw_only=True)
class TaskFailure:
    """A task that has failed, as the task that its `on_failure` names receives it."""

    task_id: str
    task_name: str
    queue_name: str
    attempts: int
    args: dict[str, Any]
    """Its arguments by parameter name, as JSON values."""
    error: TaskError


def is_error_code(text: str) -> bool:
    """Return whether a text is in upper snake case."""
    return text != "" and text[0] in ascii_uppercase and not text.strip(_CODE_CHARACTERS)


T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", bound=TaskError, covariant=True)


class UnwrapError(HorsiesError):
    """The value of a failed result was read, or the error of a successful one."""


_MISSING: Final = object()  # distinguishes `ok=None`, which is a value, from no `ok`


class TaskResult(Generic[T_co, E_co]):
    """Either `TaskResult(ok=value)` or `TaskResult(err=TaskError(...))`; immutable.

    Every result is an `Ok` or an `Err`, to distinguish them with `match` or `is_ok(result)`. `ok_value`, `err_value`, `unwrap()` and
    `unwrap_err()` raise `UnwrapError` if the result is of the other kind.
    """

    __match_args__ = ("ok", "err")
    __slots__ = ("_err", "_ok")

    _ok: T_co | None
    _err: E_co | None

    if TYPE_CHECKING:

        @overload
        def __init__(self, *, ok: T_co) -> None: ...
        @overload
        def __init__(self, *, err: E_co) -> None: ...
        def __init__(self, *, ok: object = ..., err: object = ...) -> None: ...

    else:

        def __new__(cls, *, ok: object = _MISSING, err: object = _MISSING) -> "TaskResult[Any, Any]":
            if (ok is _MISSING) == (err is _MISSING):
                raise TypeError("TaskResult takes exactly one of ok= and err=")
            return Ok(ok) if err is _MISSING else Err(err)

    def is_ok(self) -> bool:
        """Whether the task succeeded. Its value may be None."""
        return self._err is None

    def is_err(self) -> bool:
        """Whether the task failed."""
        return self._err is not None

    @property
    def ok(self) -> T_co | None:
        """The value; None if there is an error."""
        return self._ok

    @property
    def err(self) -> E_co | None:
        """The error; None if the task succeeded."""
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
        """Return the value; raise UnwrapError with the error's message if there is none."""
        if self._err is not None:
            raise UnwrapError(f"the task ended in error {self._err.error_code}: {self._err.message}")
        return cast("T_co", self._ok)

    def unwrap_err(self) -> E_co:
        """Return the error; raise UnwrapError if there is none."""
        if self._err is None:
            raise UnwrapError(f"the task succeeded with {self._ok!r}; there is no error")
        return self._err

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a TaskResult cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a TaskResult cannot be changed")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Encode a result as `{"ok": value}` or `{"err": error}`, each by its own annotation."""
        ok_type, err_type = get_args(source) or (Any, TaskError)
        halves = core_schema.typed_dict_schema(
            {
                "ok": core_schema.typed_dict_field(handler.generate_schema(ok_type), required=False),
                "err": core_schema.typed_dict_field(handler.generate_schema(err_type), required=False),
            },
            extra_behavior="forbid",
        )

        def to_halves(result: object) -> dict[str, Any]:
            if not isinstance(result, TaskResult):
                raise PydanticCustomError("task_result", "Input should be a TaskResult")
            known = cast("TaskResult[Any, TaskError]", result)
            return {"ok": known.ok} if known.is_ok() else {"err": known.err}

        def from_halves(found: dict[str, Any]) -> "TaskResult[Any, TaskError]":
            if len(found) != 1:
                raise PydanticCustomError("task_result", "Input should have one of 'ok' and 'err'")
            return TaskResult(**found)

        read = core_schema.no_info_after_validator_function(from_halves, halves)
        return core_schema.json_or_python_schema(
            json_schema=read,
            python_schema=core_schema.no_info_before_validator_function(to_halves, read),
            serialization=core_schema.wrap_serializer_function_ser_schema(
                lambda result, write: write(to_halves(result)), schema=halves
            ),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._ok, self._err)  # by default, copy and pickle would set attributes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        mine, theirs = (self._ok, self._err), (cast("Any", other)._ok, cast("Any", other)._err)
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self._ok, self._err))

    def __repr__(self) -> str:
        return f"TaskResult(ok={self._ok!r})" if self._err is None else f"TaskResult(err={self._err!r})"


class Ok(TaskResult[T_co, Never]):
    """The result of a task that succeeded: the same as `TaskResult(ok=value)`."""

    __match_args__ = ("value",)
    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, value: T_co) -> None: ...

    else:

        def __new__(cls, value: T_co) -> "Ok[T_co]":
            result = object.__new__(cls)
            object.__setattr__(result, "_ok", value)
            object.__setattr__(result, "_err", None)
            return result

    @property
    def value(self) -> T_co:
        """The value of the task."""
        return cast("T_co", self._ok)


class Err(TaskResult[Never, E_co]):
    """The result of a task that failed: the same as `TaskResult(err=error)`."""

    __match_args__ = ("error",)
    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, error: E_co) -> None: ...

    else:

        def __new__(cls, error: E_co) -> "Err[E_co]":
            if not isinstance(error, TaskError):
                raise TypeError(f"TaskResult(err=...) takes a TaskError, not {type(error).__name__}")
            result = object.__new__(cls)
            object.__setattr__(result, "_ok", None)
            object.__setattr__(result, "_err", error)
            return result

    @property
    def error(self) -> E_co:
        """The error of the task."""
        return cast("E_co", self._err)


T = TypeVar("T")
E = TypeVar("E", bound=TaskError)

Result: TypeAlias = Ok[T] | Err[TaskError]
"""What `get()` returns: a `TaskResult[T, TaskError]` whose two kinds type checkers know, so that a `match` of both is complete."""


def is_ok(result: TaskResult[T, Any]) -> TypeIs[Ok[T]]:
    """Return whether the task succeeded. Type checkers know afterwards that there is a `value`."""
    return isinstance(result, Ok)


def is_err(result: TaskResult[Any, E]) -> TypeIs[Err[E]]:
    """Return whether the task failed. Type checkers know afterwards that there is an `error`."""
    return isinstance(result, Err)


def _rebuild(ok: object, err: TaskError | None) -> TaskResult[object, TaskError]:
    return Ok(ok) if err is None else Err(err)
