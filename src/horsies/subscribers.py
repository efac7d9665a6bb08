"""The subscribers to the events of this process.

Separate from `horsies.events`: the hot path, and a child without subscribers, load only this.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

Subscriber: TypeAlias = Callable[[Any], object]

log = logging.getLogger("horsies.events")

subscribers: list[Subscriber] = []
"""Check that it is not empty before you create an event."""
_reported: set[int] = set()


def subscribe(subscriber: Subscriber) -> Subscriber:
    """Call it with every event of this process from now on. Can be used as a decorator."""
    if subscriber not in subscribers:
        subscribers.append(subscriber)
    return subscriber


def unsubscribe(subscriber: Subscriber) -> None:
    subscribers[:] = [other for other in subscribers if other != subscriber]
    _reported.discard(id(subscriber))


def emit(event: object) -> None:
    for subscriber in tuple(subscribers):  # a copy: a subscriber may subscribe or unsubscribe others
        try:
            subscriber(event)
        except Exception as error:  # noqa: BLE001 - user code must not stop the work
            log_failure_once(subscriber, error)


def log_failure_once(failed: object, error: Exception) -> None:
    if id(failed) not in _reported:
        _reported.add(id(failed))
        log.error("%r failed; its further failures are not logged", failed, exc_info=error)
