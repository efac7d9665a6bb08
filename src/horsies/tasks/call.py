"""What a task is to be called with, and where that goes."""

from typing import TYPE_CHECKING, Generic, ParamSpec, Protocol, TypeVar

from horsies.model.config import AppConfig
from horsies.model.record import Record

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker
    from horsies.events import Tracer

P = ParamSpec("P")
T = TypeVar("T")


class AppContext(Protocol):
    """Where a task's sends go: the app."""

    @property
    def config(self) -> AppConfig: ...
    @property
    def broker(self) -> "PostgresBroker": ...
    @property
    def tracer(self) -> "Tracer | None": ...
    @property
    def suppresses_sends(self) -> bool: ...


class Call(Record, Generic[P, T]):
    """What a task is to be called with, checked and encoded. Made by `task.call(...)`, for `send_many`."""

    task_name: str
    args: str
