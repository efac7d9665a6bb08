"""The library's own error codes, grouped by who has to act on them, and the maps from exceptions to codes.

An exception gets the code of the nearest class in its MRO, first by the map of the task, then by the map of the app. An exception group gets
the code of the exceptions in it if they all have the same one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeGuard, cast

from horsies.model.result import is_error_code


class OperationalErrorCode(StrEnum):
    """A failure while a task was run."""

    UNHANDLED_ERROR = "UNHANDLED_ERROR"
    WORKER_CRASHED = "WORKER_CRASHED"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"


class ContractCode(StrEnum):
    """A task did not return what its signature promises."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    RESERVED_ERROR_CODE = "RESERVED_ERROR_CODE"


class RetrievalCode(StrEnum):
    """No result is available; the task itself may be fine."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """A task did not run to its end, for a reason other than a fault."""

    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    INTERRUPTED = "INTERRUPTED"
    """Its worker was stopped and did not wait for it."""
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_TIMEOUT = "WORKFLOW_TIMEOUT"


RESERVED_CODES: Final = frozenset(
    str(code) for family in (OperationalErrorCode, ContractCode, RetrievalCode, OutcomeCode) for code in family
) - {OperationalErrorCode.UNHANDLED_ERROR}
"""Codes that user code must not use, because policies and workflows act on them. UNHANDLED_ERROR has no such effect."""


class ExceptionMap(Mapping[type[BaseException], str]):
    """An immutable map from exception classes to error codes."""

    __slots__ = ("_codes",)

    def __init__(self, codes: Mapping[type[BaseException], str] | None = None) -> None:
        self._codes = {kind: str(code) for kind, code in (codes or {}).items()}  # a StrEnum member becomes its text

    def code_for(self, error: BaseException) -> str | None:
        """Return the code of the nearest class; None if the map contains none of them."""
        classes = type(error).__mro__
        if not _is_group(error):
            return self._first_code(classes)
        # An entry for a group class takes precedence over the exceptions in the group, and these over `Exception`.
        group_classes = [cast("type", kind) for kind in classes if issubclass(kind, BaseExceptionGroup)]
        codes = {self.code_for(inner) for inner in error.exceptions}
        return (
            self._first_code(group_classes) or (codes.pop() if len(codes) == 1 else None) or self._first_code(classes)
        )

    def _first_code(self, classes: Iterable[type[Any]]) -> str | None:
        return next((self._codes[kind] for kind in classes if kind in self._codes), None)

    def __getitem__(self, kind: type[BaseException]) -> str:
        return self._codes[kind]

    def __iter__(self) -> Iterator[type[BaseException]]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def __hash__(self) -> int:
        return hash(frozenset(self._codes.items()))

    def __repr__(self) -> str:
        entries = ", ".join(f"{kind.__name__}: {code!r}" for kind, code in self._codes.items())
        return f"{{{entries}}}"


class ErrorCodes(NamedTuple):
    """The error codes of the exceptions of one task."""

    of_task: ExceptionMap
    of_app: ExceptionMap
    default: str

    def code_for(self, error: BaseException) -> str:
        return self.of_task.code_for(error) or self.of_app.code_for(error) or self.default


def holds_for_all(error: BaseException, predicate: Callable[[BaseException], bool]) -> bool:
    """Return whether the predicate holds for this exception, or for every exception in it if it is a group."""
    return predicate(error) or (_is_group(error) and all(holds_for_all(each, predicate) for each in error.exceptions))


def mapper_problems(name: str, mapper: object) -> Iterator[str]:
    if not isinstance(mapper, Mapping):
        yield f'{name} must be a dict like {{ConnectionError: "UPSTREAM_DOWN"}}, not {type(mapper).__name__}'
        return
    for kind, code in cast("Mapping[object, object]", mapper).items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            yield f"{name} has the key {kind!r:.80}; the keys are exception classes"
        key = kind.__name__ if isinstance(kind, type) else f"{kind!r:.80}"
        yield from code_problems(f"{name}[{key}]", code)


def code_problems(name: str, code: object) -> Iterator[str]:
    if not isinstance(code, str) or not is_error_code(code):
        yield f"{name} is {code!r:.80}; write an error code in upper snake case, like 'UPSTREAM_DOWN'"
    elif code in RESERVED_CODES:
        yield f"{name} is {str(code)!r}, which is one of the library's own codes; choose another, like 'UPSTREAM_DOWN'"


def _is_group(error: BaseException) -> TypeGuard[BaseExceptionGroup[BaseException]]:
    return isinstance(error, BaseExceptionGroup)
