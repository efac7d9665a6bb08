"""The statuses of a task, and the reasons why a worker cannot run it."""

from enum import IntEnum, StrEnum


class TaskStatus(StrEnum):
    """The status of a task."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    is_final: bool
    """Whether the task has ended: a final status does not change."""

    def __init__(self, text: str) -> None:
        self.is_final = text not in {"PENDING", "CLAIMED", "RUNNING"}


class Misfit(IntEnum):
    """Why a worker cannot run a task that it has claimed. A worker with another release of the app may be able to."""

    NONE = 0
    UNKNOWN = 1
    """The worker has no task of this name."""
    PARAMETERS = 2
    """The parameters in the payload are not those of the task."""
    VALUES = 3
    """An argument cannot be decoded."""
