"""Fragments of pages that are sent to all open pages when they change, as server-sent events.

Each topic with its parameters has one poller in this process: a task that starts with the first viewer and ends after the last. It renders the
fragments once for all viewers, and sends those that have changed. A viewer that comes later gets the last ones first, so nothing is missed when a browser
connects again.

**Cost.** A topic is read once a second as long as reads are cheap. Each takes a small share of the time at most: what takes long to read is read less often. All
together take no more than `BUDGET`; then all slow down in proportion, so the cost has a limit however many pages are open. Topics with parts read what is
expensive, such as statistics, less often than the rest. What several topics and pages read alike is read once (`SharedReads`).

**Viewers that do not read.** A viewer has a short queue. One whose queue is full, or that takes no bytes for some time, is dropped; its browser connects again if
there still is one.

**Shutdown.** A server that is asked to stop waits for the end of all responses, and these never end. `horsies web` closes them first. In an application of
others there is no such event: lifespan events do not reach a mounted application, and come too late. So we look whether uvicorn's handler of SIGTERM belongs to a
server that is about to exit.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final, TypeAlias, cast

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from horsies.model.errors import BrokerError, HorsiesError
from horsies.ops.api import Ops
from horsies.web.view import Renderer

Params: TypeAlias = Mapping[str, str]
_Key: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]

INTERVAL_S: Final = 1.0
SHARE: Final = 0.05  # of the time, at most, that one read takes
RARE_SHARE: Final = 0.005  # the same for what need not be new within a second
BUDGET: Final = 0.08  # the same for all reads together
MAX_REST_S: Final = 15.0  # whatever reads take
MAX_TOOK_S: Final = 1.0  # one read that had to wait for a second or more does not count as more
RARE: Final = frozenset(
    {
        "findings_async",
        "time_series_async",
        "queue_totals_async",
        "task_totals_async",
        "error_groups_async",
        "list_queues_async",
    }
)
"""These read statistics, or much."""
MIN_SHARED_S, MAX_SHARED_S = 0.5, 10.0  # for how long topics use a result
HEARTBEAT_S: Final = 15.0
CHECK_S: Final = 60.0  # after which it is checked again that the user may see this
READ_TIMEOUT_S: Final = 10.0
WRITE_TIMEOUT_S: Final = 20.0
STOP_CHECK_S: Final = 0.5
MAX_WAITING: Final = 8  # events that one viewer has not read yet
MAX_STREAMS: Final = 500
MAX_STREAMS_OF_USER: Final = 100
MAX_STREAMS_OF_SESSION: Final = 5  # browsers have six connections to a server, and need one for pages
MAX_READS: Final = 4  # at a time, so that pages find a free connection, however many topics are open
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
    share: float = SHARE
    """The share of the time that reading may take: what takes long is read less often."""
    others: Sequence[Topic] = ()
    """Further parts of the same stream, which are read at their own intervals."""


class TooManyStreamsError(Exception):
    """One user, or all, have more streams open than the server serves."""


@dataclass(slots=True, eq=False)
class _Viewer:
    """One stream."""

    user: str
    session: str
    queue: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue[bytes](MAX_WAITING))
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: bytes) -> None:
        try:
            self.queue.put_nowait(event)
        except asyncio.QueueFull:
            log.info("web: a viewer does not read its events, its stream is closed")
            self.has_ended.set()


@dataclass(slots=True, eq=False)
class _Part:
    """A read that is repeated."""

    topic: Topic
    due: float = 0.0
    read_at: float = 0.0
    is_stale: bool = True
    """It is read at once, and not from shared results: a page or an action may know more."""
    has_failed: bool = False
    _took_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=5))

    def add(self, took_s: float) -> None:
        self._took_s.append(min(took_s, MAX_TOOK_S))

    @property
    def cost_s(self) -> float:
        """The average time of the last reads without the longest: one that was slow by chance, such as the first, does not count."""
        return fmean(sorted(self._took_s)[:-1]) if len(self._took_s) > 1 else 0.0

    @property
    def period_s(self) -> float:
        return max(self.topic.interval_s, self.cost_s / self.topic.share)

    @property
    def load(self) -> float:
        """The share of the time that it takes."""
        return self.cost_s / self.period_s if self.cost_s else 0.0


@dataclass(slots=True, eq=False)
class _Poller:
    """Reads one topic for its viewers."""

    parts: Sequence[_Part]
    params: Params
    prefix: str
    viewers: set[_Viewer] = field(default_factory=set[_Viewer])
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes])
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def mark_stale(self, before: float) -> None:
        """Read again, at once, what was read before that time. A viewer that comes in the meantime does not get it."""
        for part in self.parts:
            if part.read_at <= before and not part.is_stale:
                part.is_stale = True
                for name in part.topic.fragments:
                    self.sent.pop(name, None)
                self.wake.set()

    def send(self, events: Mapping[str, str]) -> None:
        """Send what has changed."""
        changed: list[bytes] = []
        for name, text in events.items():
            event = to_event(name, text)
            if self.sent.get(name) != event:
                self.sent[name] = event
                changed.append(event)
        if changed:
            for viewer in self.viewers:
                viewer.put(b"".join(changed))


class SharedReads:
    """`Ops` of which what was read a moment ago with the same arguments is not read again, and what took long is not for a longer time.

    Topics share all reads, pages with `shares_reads` those in `RARE`: what such a page shows is at most as old as on one that is open. These are counts and
    findings, the same for all users. After an action everything is read again, and so it is for the page that shows what the action did, because another
    process may have acted. A read that fails is not kept.
    """

    def __init__(self) -> None:
        self._results: dict[str, tuple[float, object]] = {}
        """Until when they are used."""
        self._forgotten_at = 0.0

    def of(self, ops: Ops, *, is_fresh: bool, only_rare: bool = False) -> Ops:
        """Return operations that share what they read. With `is_fresh` everything is read again."""
        return cast("Ops", _SharedOps(self, ops, is_fresh=is_fresh, only_rare=only_rare))

    def forget(self) -> None:
        """Use nothing that was read until now, nor what is being read."""
        self._results.clear()
        self._forgotten_at = time.monotonic()

    def get(self, key: str) -> tuple[float, object]:
        return self._results.get(key, (0.0, None))

    def keep(self, key: str, result: object, started: float, share: float) -> None:
        ended = time.monotonic()
        for old in [old for old, (until, _) in self._results.items() if until <= ended]:
            del self._results[old]
        if started > self._forgotten_at:
            self._results[key] = ended + min(max(MIN_SHARED_S, (ended - started) / share), MAX_SHARED_S), result


class _SharedOps:
    def __init__(self, shared: SharedReads, ops: Ops, *, is_fresh: bool, only_rare: bool) -> None:
        self._shared, self._ops, self._is_fresh, self._only_rare = shared, ops, is_fresh, only_rare

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        if not name.endswith("_async") or (self._only_rare and name not in RARE):
            return found

        async def read(*args: object, **kwargs: object) -> object:
            key, started = f"{name} {args} {kwargs}", time.monotonic()
            until, result = self._shared.get(key)
            if until > started and not self._is_fresh:
                return result
            result = await found(*args, **kwargs)
            self._shared.keep(key, result, started, RARE_SHARE if name in RARE else SHARE)
            return result

        return read


class LiveUpdates:
    """The streams of one dashboard, and the pollers that feed them."""

    def __init__(self, ops: Callable[[], Ops], renderer: Renderer, topics: Sequence[Topic]) -> None:
        self._ops = ops
        self._renderer = renderer
        self.topics = {topic.name: topic for topic in topics}
        self._pollers: dict[_Key, _Poller] = {}
        self._stop_watch: asyncio.Task[None] | None = None
        self._reads = asyncio.Semaphore(MAX_READS)
        self.shared = SharedReads()
        self._users: Counter[str] = Counter()
        self._sessions: Counter[tuple[str, str]] = Counter()
        self._is_closed = False

    def open(
        self,
        topic: Topic,
        prefix: str,
        params: Params,
        owner: tuple[str, str],
        is_allowed: Callable[[], Awaitable[bool]],
    ) -> Response:
        """Return the response that streams the events of a topic. The number of streams of its owner, a user and a session, is limited.

        The user, too: without a login here, sessions can be invented.
        """
        if (
            self._users.total() >= MAX_STREAMS
            or self._users[owner[0]] >= MAX_STREAMS_OF_USER
            or self._sessions[owner] >= MAX_STREAMS_OF_SESSION
            or self._is_closed
        ):
            raise TooManyStreamsError("too many live pages are open; close some, or reload this one from time to time")
        return _EventStream(self, (prefix, topic.name, tuple(sorted(params.items()))), _Viewer(*owner), is_allowed)

    def end_streams_of(self, session: str) -> None:
        """End the streams of a session."""
        for poller in self._pollers.values():
            for viewer in poller.viewers:
                if viewer.session == session:
                    viewer.has_ended.set()

    @property
    def stream_count(self) -> int:
        return self._users.total()

    @property
    def poller_count(self) -> int:
        return len(self._pollers)

    def refresh(self) -> None:
        """Read everything again, after an action."""
        self.shared.forget()
        for poller in self._pollers.values():
            poller.mark_stale(time.monotonic())

    def join(self, key: _Key, viewer: _Viewer) -> bytes:
        """Add a viewer, and return what it is to show first: nothing that is older than the page that it has just loaded."""
        prefix, name, params = key
        poller = self._pollers.get(key)
        if poller is None:
            poller = self._pollers[key] = _Poller(
                [_Part(part) for part in (self.topics[name], *self.topics[name].others)], dict(params), prefix
            )
            poller.task = asyncio.create_task(self._poll(poller))
        poller.viewers.add(viewer)
        poller.mark_stale(time.monotonic() - INTERVAL_S)
        self._users[viewer.user] += 1
        self._sessions[viewer.user, viewer.session] += 1
        if self._stop_watch is None:
            self._stop_watch = asyncio.create_task(self._watch_server())
        return f"retry: {RETRY_MS}\n\n".encode() + b"".join(poller.sent.values())

    def leave(self, key: _Key, viewer: _Viewer) -> None:
        self._users -= Counter([viewer.user])  # without those that have none left
        self._sessions -= Counter([(viewer.user, viewer.session)])
        poller = self._pollers[key]
        poller.viewers.discard(viewer)
        if not poller.viewers:
            del self._pollers[key]
            if poller.task:
                poller.task.cancel()
        if not self._pollers and self._stop_watch:
            self._stop_watch.cancel()
            self._stop_watch = None

    async def close(self) -> None:
        """End all streams, and open no more."""
        self._is_closed = True
        tasks = [poller.task for poller in self._pollers.values() if poller.task]
        self._end_all()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end_all(self) -> None:
        for poller in self._pollers.values():
            for viewer in poller.viewers:
                viewer.has_ended.set()

    async def _watch_server(self) -> None:
        while not _is_server_stopping():  # noqa: ASYNC110 - it has no event that we could wait for
            await asyncio.sleep(STOP_CHECK_S)
        self._is_closed = True
        self._end_all()

    async def _poll(self, poller: _Poller) -> None:
        """Read and send until the last viewer leaves, or what is shown does not exist."""
        while True:
            poller.wake.clear()
            for part in poller.parts:
                if (part.is_stale or part.due <= time.monotonic()) and not await self._update(poller, part):
                    poller.send({"gone": ""})
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(part.due for part in poller.parts) - time.monotonic())):
                    await poller.wake.wait()

    async def _update(self, poller: _Poller, part: _Part) -> bool:
        """Read a part and send what has changed. Whatever fails is shown, and tried again. Return whether what is shown exists."""
        started, was_out = time.monotonic(), any(each.has_failed for each in poller.parts)
        part.has_failed = True
        try:
            async with self._reads, asyncio.timeout(READ_TIMEOUT_S):
                started = part.read_at = time.monotonic()
                ops = self.shared.of(self._ops(), is_fresh=part.is_stale)
                part.is_stale = False
                data = await part.topic.read(ops, poller.params)
            if data is None:
                return False
            events = {
                name: self._renderer.render(template, poller.prefix, **data)
                for name, template in part.topic.fragments.items()
            }
            part.has_failed = False
            is_over = was_out and not any(each.has_failed for each in poller.parts)
            poller.send({"outage": "", **events} if is_over else events)
        except HTTPException:  # what the parameters name does not exist, and never has
            return False
        except (HorsiesError, TimeoutError) as error:
            if isinstance(error, BrokerError):  # a database that is not there is no database under load
                started = time.monotonic()
            poller.send({"outage": str(error) or "the database did not answer in time"})
        except Exception:
            log.exception("web: live updates of %s failed, trying again", part.topic.name)
            poller.send({"outage": "This part of the page failed. The log of the dashboard has the reason."})
        ended = time.monotonic()
        part.add(ended - started)
        load = sum(each.load for poller in self._pollers.values() for each in poller.parts)
        rest_s = min(part.period_s * max(1.0, load / BUDGET), MAX_REST_S)
        part.due = ended + max(rest_s, part.topic.interval_s)
        return True


class _EventStream(Response):
    """Sends events until the viewer leaves, does not read, or may not see them any more."""

    def __init__(
        self, live: LiveUpdates, key: _Key, viewer: _Viewer, is_allowed: Callable[[], Awaitable[bool]]
    ) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"  # nginx would collect events
        self._live, self._key, self._viewer, self._is_allowed = live, key, viewer, is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        first = self._live.join(self._key, self._viewer)  # before anything else can run: the limits were just checked
        writing = asyncio.create_task(self._write(send, start, first))
        others = [
            asyncio.create_task(_wait_for_disconnect(receive)),
            asyncio.create_task(self._viewer.has_ended.wait()),
        ]
        try:
            await asyncio.wait([writing, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._live.leave(self._key, self._viewer)
            for task in (writing, *others):
                task.cancel()
            await asyncio.gather(writing, *others, return_exceptions=True)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(1):
                await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, start: Message, event: bytes) -> None:
        """Return when the stream is to end."""
        checked = time.monotonic()
        await send(start)
        while True:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except (TimeoutError, OSError):
                return
            if time.monotonic() - checked > CHECK_S:
                checked = time.monotonic()
                if not await self._is_allowed():
                    return
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    event = await self._viewer.queue.get()
            except TimeoutError:
                event = b": still here\n\n"


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_server_stopping() -> bool:
    """Whether this process is a uvicorn that was asked to stop."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


def to_event(name: str, text: str) -> bytes:
    """Encode one server-sent event."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "".join([f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n"]).encode()
