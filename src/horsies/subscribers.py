"""Who watches this process: all that the hot path, and a child that nobody watches, have to load of `horsies.events`."""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

Subscriber: TypeAlias = Callable[[Any], object]

log = logging.getLogger("horsies.events")

subscribers: list[Subscriber] = []
"""Ask whether there is any before an event is made."""
_broken: set[int] = set()


def subscribe(subscriber: Subscriber) -> Subscriber:
    """It hears everything that happens in this process from now on. Can be used as a decorator."""
    if subscriber not in subscribers:
        subscribers.append(subscriber)
    return subscriber


def unsubscribe(subscriber: Subscriber) -> None:
    subscribers[:] = [other for other in subscribers if other != subscriber]
    _broken.discard(id(subscriber))


def emit(event: object) -> None:
    for subscriber in tuple(subscribers):  # others may come and go meanwhile
        try:
            subscriber(event)
        except Exception as error:  # noqa: BLE001 - user code, and the work goes on
            report_broken_subscriber(subscriber, error)


def report_broken_subscriber(culprit: object, error: Exception) -> None:
    if id(culprit) not in _broken:
        _broken.add(id(culprit))
        log.error("%r failed; this is said once, and the work goes on without it", culprit, exc_info=error)
