"""The library's own error codes, in families by who has to act on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, TypeGuard, cast

from horsies.model.record import Record
from horsies.model.result import is_error_code


class OperationalErrorCode(StrEnum):
    """Something broke while a task was being run."""

    UNHANDLED_ERROR = "UNHANDLED_ERROR"
    WORKER_CRASHED = "WORKER_CRASHED"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"


class ContractCode(StrEnum):
    """A task did not do what its signature says."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    RESERVED_ERROR_CODE = "RESERVED_ERROR_CODE"


class RetrievalCode(StrEnum):
    """A result could not be had; the task itself may be well."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """A task ended without running to its end, for a reason that is not a fault."""

    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    INTERRUPTED = "INTERRUPTED"
    """Its worker was told to stop and could not wait until it ended."""
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_TIMEOUT = "WORKFLOW_TIMEOUT"


RESERVED_CODES: Final = frozenset(
    str(code) for family in (OperationalErrorCode, ContractCode, RetrievalCode, OutcomeCode) for code in family
) - {OperationalErrorCode.UNHANDLED_ERROR}
"""What no code of the user's may give an error; UNHANDLED_ERROR says nothing that is not so."""


# Exceptions are mapped to error codes by the nearest class in their MRO, first in the map of the task, then in the map of
# the app. An exception group counts as one of its members when all members map to the same code.


class ExceptionMap(Mapping[type[BaseException], str]):
    """Exception classes and their error codes; cannot be changed."""

    __slots__ = ("_codes",)

    def __init__(self, codes: Mapping[type[BaseException], str] | None = None) -> None:
        self._codes = {kind: str(code) for kind, code in (codes or {}).items()}  # a StrEnum member becomes its text

    def code_for(self, error: BaseException) -> str | None:
        """The code of the nearest class; None when the map knows none of them."""
        classes = type(error).__mro__
        if not is_group(error):
            return self._first(classes)
        return self._first(filter(_is_group_class, classes)) or self._agreed(error) or self._first(classes)

    def _first(self, classes: Iterable[type[Any]]) -> str | None:
        return next((self._codes[kind] for kind in classes if kind in self._codes), None)

    def _agreed(self, group: BaseExceptionGroup[BaseException]) -> str | None:
        codes = {self.code_for(member) for member in group.exceptions}
        return codes.pop() if len(codes) == 1 else None

    def __getitem__(self, kind: type[BaseException]) -> str:
        return self._codes[kind]

    def __iter__(self) -> Iterator[type[BaseException]]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def __hash__(self) -> int:
        return hash(frozenset(self._codes.items()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{kind.__name__}: {code!r}" for kind, code in self._codes.items())
        return f"{{{shown}}}"


class ErrorCodes(Record):
    """What one task's exceptions are called."""

    of_task: ExceptionMap
    of_app: ExceptionMap
    default: str

    def code_for(self, error: BaseException) -> str:
        return self.of_task.code_for(error) or self.of_app.code_for(error) or self.default


def _is_group_class(kind: type[Any]) -> bool:
    return issubclass(kind, BaseExceptionGroup)


def is_group(error: BaseException) -> TypeGuard[BaseExceptionGroup[BaseException]]:
    return isinstance(error, BaseExceptionGroup)


def every_member(error: BaseException, holds: Callable[[BaseException], bool]) -> bool:
    """It holds for this exception, or for all that are in it if it is a group."""
    return holds(error) or (is_group(error) and all(every_member(member, holds) for member in error.exceptions))


def mapper_problems(name: str, mapper: object) -> Iterator[str]:
    if not isinstance(mapper, Mapping):
        yield f'{name} must be a dict like {{ConnectionError: "UPSTREAM_DOWN"}}, not {type(mapper).__name__}'
        return
    for kind, code in cast("Mapping[object, object]", mapper).items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            yield f"{name} has the key {kind!r:.80}; the keys are exception classes"
        shown = kind.__name__ if isinstance(kind, type) else f"{kind!r:.80}"
        yield from code_problems(f"{name}[{shown}]", code)


def code_problems(name: str, code: object) -> Iterator[str]:
    if not isinstance(code, str) or not is_error_code(code):
        yield f"{name} is {code!r:.80}; write an error code in upper snake case, like 'UPSTREAM_DOWN'"
    elif code in RESERVED_CODES:
        yield f"{name} is {str(code)!r}, which is one of the library's own codes; choose another, like 'UPSTREAM_DOWN'"
