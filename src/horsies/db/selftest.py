"""How a listener finds out whether it hears: a token that is notified over another connection must come back.

Whoever reads hears it, on whatever thread that is. What follows from it is the business of the listener's thread alone.
"""

import secrets
import time
from collections.abc import Callable

EVERY_S = 30.0
ANSWER_S = 3.0


class SelfTest:
    """Of one connection."""

    def __init__(self, first_in_s: float) -> None:
        self.due_at = time.monotonic() + first_in_s
        self.has_passed = False
        """Once at least: something can be heard here."""
        self._asked: str | None = None
        self._heard: str | None = None

    @property
    def is_due(self) -> bool:
        """It is time to ask; or, if that was done, for the answer to be there."""
        return time.monotonic() >= self.due_at

    @property
    def is_under_way(self) -> bool:
        return self._asked is not None

    def ask(self, notify: Callable[[str], object]) -> None:
        self._asked = secrets.token_hex(8)
        notify(self._asked)
        self.due_at = time.monotonic() + ANSWER_S  # from now: a busy pool may have taken its time to send it

    def hear(self, token: str) -> bool:
        """From any thread. Whether it is ours: other processes test themselves, too."""
        if token != self._asked:
            return False
        self._heard = token
        return True

    def take_answer(self) -> bool:
        """Whether it has come since the last time."""
        if self._asked is None or self._heard != self._asked:
            return False
        self.has_passed = True
        self.rest()
        return True

    def postpone(self) -> None:
        """It could not be sent; soon again."""
        self._asked = None
        self.due_at = time.monotonic() + ANSWER_S

    def rest(self) -> None:
        """Until the next test."""
        self._asked = None
        self.due_at = time.monotonic() + EVERY_S
