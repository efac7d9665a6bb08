"""The notifications of a worker: which of them it acts on at once, and when it calls other workers to help.

The workers that serve the same queues share the notifications (`db/listen_group.py`): one of those that listen acts on each, the others a moment later.
A worker that knows of more tasks than it can take calls the others with a notification of its own. It does so at growing intervals: in a
cluster that is busy as a whole no worker can help. The call of another worker postpones its own, but not beyond twice the interval. Once no task waits
any more, it calls for the next one that is announced without such a pause: beside a worker that is busy for minutes, others are idle.

Any client may send notifications, so they only say when to query. `ping` and `cancel` both request a heartbeat, which reads from the rows what is to be
cancelled: a message about a task without a request in its row changes nothing.
"""

import asyncio
import math
import re
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, Self

from horsies.db.broker import PostgresBroker
from horsies.db.channels import ALL_KEYS, FOR_ANY, Channel
from horsies.db.listen_group import BACKUP_S, ListenGroup
from horsies.db.statement import Op, Query, Rows, load, rows
from horsies.tasks.claim import EPOCH, NO_CAPS, Caps, Lane
from horsies.worker.dispatcher import Dispatcher

CONTROL_EVERY_S: Final = 0.05
"""Control messages lead to at most one heartbeat per interval."""
CALL_S, CALL_MAX_S = 0.005, 1.0
"""How long there must be more tasks than the worker can take before it calls, and how long the pause between two calls becomes."""
CALL_EVERY_S: Final = 0.05
"""A worker calls at most once per interval."""
MAX_DEFERRED: Final = 50

SQL = load(__file__)
_NUMBERED = re.compile(r"(-?[0-9]{1,10}|later) (-?[0-9]{1,19})(?: (.+))?", re.DOTALL)


class Notifications:
    """Passes notifications to the dispatcher, on its event loop. Subscribed while it is entered."""

    def __init__(self, broker: PostgresBroker, dispatcher: Dispatcher, request_heartbeat: Callable[[], None]) -> None:
        queues = list(dispatcher.queues)
        self._listener = broker.listener()
        self._dispatcher = dispatcher
        self._queues = frozenset(queues)
        self._loop = asyncio.get_running_loop()
        self._own_thread = threading.get_ident()
        self._reading = ExitStack()
        self._request_heartbeat = request_heartbeat
        self._heartbeat_at = 0.0
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._group = dispatcher.group = ListenGroup(
            f"{broker.config.schema} {sorted(queues)}",
            (Channel.NEW, Channel.CONTROL),
            poll=look_for_work(dispatcher.worker, queues, dispatcher.caps),
            has_capacity=lambda: not dispatcher.is_full,
        )
        self._surplus: Lane | None = None
        self._call_pause_s = CALL_S
        self._call_timer: asyncio.TimerHandle | None = None
        self._call_by = 0.0
        """When this worker calls at the latest, whatever calls it receives: they may be forged."""
        self._called_at = -math.inf
        self._nothing_waits_at = -1
        """How many notifications had arrived when a call found that no task waits."""
        dispatcher.on_surplus = self._on_surplus
        self._deferred: dict[tuple[str, str | None], tuple[int, str]] = {}
        """By priority and queue: the earliest time, and its payload."""
        self._deferred_timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._listener.join(self._group)
        self._listener.subscribe(Channel.NEW, None, self._on_new)
        self._listener.subscribe(Channel.CONTROL, self._dispatcher.worker, self._on_control)
        self._reading.enter_context(self._listener.read_on_this_loop())
        return self

    def __exit__(self, *_exception: object) -> None:
        self._reading.close()
        self._listener.unsubscribe(Channel.NEW, None, self._on_new)
        self._listener.unsubscribe(Channel.CONTROL, self._dispatcher.worker, self._on_control)
        self._listener.leave(self._group)
        self._surplus = None
        for timer in (self._heartbeat_timer, self._call_timer, self._deferred_timer):
            if timer is not None:
                timer.cancel()

    def resign(self) -> None:
        """Leave new tasks to the others: this worker stops."""
        self._listener.resign(self._group)

    # -- from the thread that reads

    def _on_control(self, payload: str | None) -> None:
        match (payload or "").split(" "):
            case [""] | [_, "cancel", _] | [_, "ping"]:
                self._loop.call_soon_threadsafe(self._heartbeat_soon)
            case _:
                pass

    # -- on the loop

    def _heartbeat_soon(self) -> None:
        if self._heartbeat_timer is None:  # else it serves this request, too
            self._heartbeat_timer = self._loop.call_at(self._heartbeat_at, self._heartbeat_now)

    def _heartbeat_now(self) -> None:
        self._heartbeat_timer, self._heartbeat_at = None, self._loop.time() + CONTROL_EVERY_S
        self._request_heartbeat()

    def _on_new(self, payload: str | None) -> None:
        """Act on it now if it is this worker's turn, and otherwise a moment later."""
        if threading.get_ident() != self._own_thread:
            # Usually the listener reads on this loop. Its own thread takes over where that is not possible.
            self._loop.call_soon_threadsafe(self._on_new, payload)
            return
        if payload is None and self._listener.is_listening:
            self._dispatcher.on_database_reached()
            self._dispatcher.promote_in(0.0)  # a `later` may have been missed, too
        for_any = payload is not None and payload.startswith(FOR_ANY)
        payload = payload and payload.removeprefix(FOR_ANY)
        numbered = _NUMBERED.fullmatch(payload or "")
        if numbered and numbered[3] is not None and numbered[3] not in self._queues:
            return
        if for_any and self._call_timer is not None:  # another worker has called
            self._call_timer.cancel()
            at = min(self._loop.time() + self._call_pause_s, self._call_by)
            self._call_timer = self._loop.call_at(at, self._call_for_help)
        if payload is None or numbered is None or for_any or self._group.owns(int(numbered[2])):
            self._dispatcher.on_notification(payload)
            return
        # A claim starts at the earliest of a lane. If there are very many lanes, the rest is left to a rescan, with the limits of any hint.
        lane = numbered[1], numbered[3]
        if lane not in self._deferred and len(self._deferred) >= MAX_DEFERRED:
            lane, payload = ("", None), ALL_KEYS
        number = int(numbered[2])
        self._deferred[lane] = min(self._deferred.get(lane, (number, payload)), (number, payload))
        if self._deferred_timer is None:
            self._deferred_timer = self._loop.call_later(BACKUP_S, self._act_for_others)

    def _act_for_others(self) -> None:
        deferred, self._deferred, self._deferred_timer = self._deferred, {}, None
        for _number, payload in deferred.values():
            self._dispatcher.on_notification(payload)

    def _on_surplus(self, lane: Lane | None) -> None:
        """A lane in which there may be more; None: there are no more tasks than this worker can take.

        It calls only if the surplus lasts: a claim that took all that it could has not seen whether there is more, and with short tasks the next one
        is faster than any other worker.
        """
        if lane is not None and self._dispatcher.notifications == self._nothing_waits_at:
            lane = None
        self._surplus = lane
        if lane is None:
            self._call_pause_s = CALL_S
        elif self._call_timer is None:
            now = self._loop.time()
            self._call_by = max(now + 2 * self._call_pause_s, self._called_at + CALL_EVERY_S)
            at = max(now + self._call_pause_s, self._called_at + CALL_EVERY_S)
            self._call_timer = self._loop.call_at(at, self._call_for_help)

    def _call_for_help(self) -> None:
        self._call_timer = None
        if self._surplus is not None:
            self._call_pause_s = min(2 * self._call_pause_s, CALL_MAX_S)
            if self._group.has_others:
                self._called_at = self._loop.time()
                self._listener.run_soon(partial(self._call, self._surplus, self._dispatcher.notifications))
            self._on_surplus(self._surplus)

    def _call(self, lane: Lane, notifications: int) -> Op[None]:
        """Runs on the thread of the listener."""
        if not (yield from call_for_help(self._queues, lane, self._dispatcher.caps)):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_nothing_waits, notifications)

    def _on_nothing_waits(self, notifications: int) -> None:
        if notifications == self._dispatcher.notifications:  # else a task may have been announced since
            self._nothing_waits_at = notifications
            self._on_surplus(None)


# -- statements


def look_for_work(worker: str, queues: Collection[str], caps: Caps = NO_CAPS) -> Query:
    """Return what a worker that does not listen asks: whether there is a task for it, and whether one of its own is to be cancelled."""
    return SQL["look_for_work"](worker=worker, **_waiting_params(queues, caps))


def call_for_help(queues: Collection[str], lane: Lane, caps: Caps = NO_CAPS) -> Op[Rows]:
    """Call the other workers, if there are tasks that no worker has claimed. Returns no row if there are none."""
    microseconds = int((lane.watermark - EPOCH).total_seconds() * 1_000_000)
    payload = f"{FOR_ANY}{lane.priority} {microseconds} {lane.queue_name}"
    return rows(SQL["call_for_help"](payload=payload, **_waiting_params(queues, caps)))


def _waiting_params(queues: Collection[str], caps: Caps) -> dict[str, object]:
    of_queues, counted = [caps.queues.get(queue) for queue in queues], [status.value for status in caps.counted]
    return {"queues": list(queues), "caps": of_queues, "counted": counted, "cluster_wide_cap": caps.cluster_wide}
