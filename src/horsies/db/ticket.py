"""What a waiter takes to the desk, what the desk tells it to do next, and what is found. Values; `desk.py` moves them."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from horsies.db.channels import Channel
from horsies.db.op import Op
from horsies.model.errors import BrokerError

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Found(Generic[A]):
    """What a read says about one key."""

    answer: A
    is_final: bool = False
    look_again_s: float | None = None
    """The answer will be another by then, announced or not."""


@dataclass(frozen=True, slots=True)
class Subject(Generic[A]):
    """What can be waited for: where it is announced, and how it is read."""

    channel: Channel
    read: Callable[[list[str]], Op[Mapping[str, Found[A]]]]
    """Finds something for every key."""


@dataclass(frozen=True, slots=True)
class Rest:
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Read(Generic[A]):
    keys: list[str]
    verb: Callable[[], Op[Mapping[str, Found[A]]]]


Waiting: TypeAlias = Generator[Rest | Read[A], Any, None]
"""Sleeps and reads, for a blocking or an asyncio seat to carry out."""


class Ticket(Generic[A]):
    """One waiter and what it waits for. The desk fills it in."""

    def __init__(self, keys: Iterable[str], *, look_from: float = 0.0) -> None:
        """`look_from`: before that moment, on the monotonic clock, only a notification is a reason to look."""
        self.look_from = look_from
        self.answers: dict[str, A] = {}
        self.open = dict.fromkeys(keys)  # without a final answer
        self.news: deque[str] = deque()  # keys in the order of their final answers; whoever waits may take them out
        self.asked: set[str] = set()  # wanted, or being read
        self.entered_at = 0.0
        self.error: BrokerError | None = None
        self.is_over = False  # its time has run out; it waits for the last look
        self.ring: Callable[[], None] = nobody

    def is_answered(self) -> bool:
        return not self.open

    def has_news(self) -> bool:
        return bool(self.news) or not self.open


def nobody() -> None:
    """The ring of a ticket whose holder does something else."""
