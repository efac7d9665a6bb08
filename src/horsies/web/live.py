"""Fragments of pages that are sent to all open pages when they change, as server-sent events.

Each topic with its parameters has one poller in this process: a task that starts with the first viewer and ends after the last. It reads at
most once a second, renders the fragments once for all viewers, and sends those that have changed. A viewer that comes later gets the last ones
first. A viewer whose queue is full does not read: it is dropped, and its browser connects again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from horsies.model.errors import HorsiesError
from horsies.ops.api import Ops
from horsies.web.view import Renderer

Params: TypeAlias = Mapping[str, str]

INTERVAL_S: Final = 1.0
HEARTBEAT_S: Final = 15.0
READ_TIMEOUT_S: Final = 10.0
MAX_WAITING: Final = 8  # events that one viewer has not read yet
RETRY_MS: Final = 2_000  # after which a browser connects again

log = logging.getLogger("horsies.web")


@dataclass(frozen=True, slots=True)
class Topic:
    """What a live page shows: how to read it, and the template of each of its events."""

    name: str
    read: Callable[[Ops, Params], Awaitable[Mapping[str, Any] | None]]
    """Gets the query of the stream's URL. Returns the variables of the templates; None if what is shown does not exist any more."""
    fragments: Mapping[str, str]
    """Templates by the names of events."""
    interval_s: float = INTERVAL_S


@dataclass(slots=True, eq=False)
class _Poller:
    """Reads one topic for its viewers."""

    topic: Topic
    params: Params
    prefix: str
    viewers: set[asyncio.Queue[bytes]] = field(default_factory=set[asyncio.Queue[bytes]])
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes])
    task: asyncio.Task[None] | None = None


class LiveUpdates:
    """The pollers of one dashboard."""

    def __init__(self, ops: Ops, renderer: Renderer, topics: Sequence[Topic]) -> None:
        self._ops = ops
        self._renderer = renderer
        self.topics = {topic.name: topic for topic in topics}
        self._pollers: dict[tuple[str, str, tuple[tuple[str, str], ...]], _Poller] = {}

    async def stream(self, topic: Topic, prefix: str, params: Params) -> AsyncIterator[bytes]:
        """Yield events until the viewer leaves, or there will be no more."""
        key = prefix, topic.name, tuple(sorted(params.items()))
        poller = self._pollers.get(key)
        if poller is None:
            poller = self._pollers[key] = _Poller(topic, params, prefix)
        queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        poller.viewers.add(queue)
        if poller.task is None:
            poller.task = asyncio.create_task(self._poll(poller))
        try:
            yield f"retry: {RETRY_MS}\n\n".encode() + b"".join(poller.sent.values())
            while queue in poller.viewers or not queue.empty():
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        yield await queue.get()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            poller.viewers.discard(queue)
            if not poller.viewers and self._pollers.get(key) is poller:
                del self._pollers[key]
                poller.task.cancel()

    async def _poll(self, poller: _Poller) -> None:
        is_out = False
        while True:
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    data = await poller.topic.read(self._ops, poller.params)
            except (HorsiesError, TimeoutError) as error:
                is_out = True
                self._send(poller, {"outage": str(error) or "the database did not answer in time"})
            else:
                if data is None:
                    self._send(poller, {"gone": ""})
                    poller.viewers.clear()
                    return
                events = {
                    name: self._renderer.render(template, poller.prefix, **data)
                    for name, template in poller.topic.fragments.items()
                }
                self._send(poller, {"outage": "", **events} if is_out else events)
                is_out = False
            await asyncio.sleep(poller.topic.interval_s)

    def _send(self, poller: _Poller, events: Mapping[str, str]) -> None:
        """Send what has changed."""
        changed = b""
        for name, text in events.items():
            event = to_event(name, text)
            if poller.sent.get(name) != event:
                poller.sent[name] = event
                changed += event
        if changed:
            for queue in list(poller.viewers):
                try:
                    queue.put_nowait(changed)
                except asyncio.QueueFull:
                    poller.viewers.discard(queue)


def to_event(name: str, text: str) -> bytes:
    """Encode one server-sent event."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "".join([f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n"]).encode()
