"""The library's own error codes, in families by who has to act on them."""

from enum import StrEnum
from typing import Final


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
