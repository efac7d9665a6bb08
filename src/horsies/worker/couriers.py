"""The couriers: a few connections, each of which carries one turn at a time.

A turn is said at once where there is a connection, and what becomes of it is told by the event loop. Only to connect, and to put a connection in order
after an error, is an asyncio task needed: one for every turn would cost more than making it. But from what is called by the loop itself no
error gets any further than into the log, and the worker would lack a turn and its courier for ever. So whatever else goes wrong brings
the worker down, by way of its task group.

**Connections fail one by one.** A server may have no slot left for one more connection while it serves those that it has. So a courier that cannot connect
rests alone. The turn that waited for it leaves with the next courier that has a connection, or is handed back. A connection that has carried a
turn before and is lost is replaced at once, without a rest: one killed session is no outage.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import NamedTuple, TypeVar

from horsies.db.courier import Courier
from horsies.db.op import Op
from horsies.db.trouble import DatabaseError, Trouble, trouble_of
from horsies.model.config import PostgresConfig
from horsies.model.recovery import WorkerResilienceConfig
from horsies.worker.backoff import Rest
from horsies.worker.news import Known
from horsies.worker.turn import Outcome, Turn, take_turn

T = TypeVar("T")


class Flight(NamedTuple):
    """A turn on its way."""

    turn: Turn
    known: Known
    departed: float
    landed: "asyncio.Future[None]"


class Loss(NamedTuple):
    """A connection that was lost, or could not be made."""

    error: DatabaseError
    flight: Flight | None
    """What it carried, or should have carried; to be put back."""
    is_first: bool
    """The connection has served before. It is made anew without a pause."""


class Couriers:
    """`landed` is told of each turn, when its courier is idle again: what came of it, or why the server refused it. `lost` is told of each connection
    that is gone or cannot be made, and `connected` of each that is made.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        database: PostgresConfig,
        count: int,
        *,
        resilience: WorkerResilienceConfig,
        landed: Callable[[Flight, Outcome | DatabaseError], None],
        lost: Callable[[Loss], None],
        connected: Callable[[], None],
    ) -> None:
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._rests = {Courier(database, "worker"): Rest(resilience) for _ in range(count)}
        self._idle = list(self._rests)
        self._established: set[Courier] = set()
        self._waiting: deque[Flight] = deque()
        self._connecting: dict[Courier, asyncio.Task[None] | None] = {}
        self._landed = landed
        self._lost = lost
        self._connected = connected
        self._under_way: set[asyncio.Future[None]] = set()
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self._ward = self._group.create_task(self._close_with_the_group())

    def close(self) -> None:
        """What is under way is not heard of again."""
        self.is_open = False
        self._ward.cancel()
        for connecting in self._connecting.values():
            if connecting is not None:
                connecting.cancel()
        for courier in self._rests:
            courier.close()

    async def _close_with_the_group(self) -> None:
        """When the worker comes to its end by an error, its children's last words change nothing, and nothing more is claimed."""
        try:
            await self._loop.create_future()
        finally:
            self.is_open = False

    def can_send(self, now: float) -> bool:
        """One is idle and has a connection, or may make one now. Where none has a connection, none rests: then the worker pauses as a whole."""
        if not self._idle:
            return False
        if self._idle[-1].has_session:  # asked several times per task, and nearly always so
            return True
        return any(courier.is_ready or self._rests[courier].until <= now for courier in self._idle) or (
            not self.has_session
        )

    def can_send_at(self) -> float | None:
        """When the first of those that are idle and rest may connect again."""
        return min((self._rests[courier].until for courier in self._idle), default=None)

    @property
    def has_session(self) -> bool:
        """At least one has a connection."""
        return any(courier.is_ready for courier in self._rests)

    async def have_landed(self, within_s: float) -> bool:
        """Whether all that are under way now are back by then. Those that leave later do not matter."""
        if not self._under_way:
            return True
        _, unanswered = await asyncio.wait(self._under_way, timeout=within_s)
        return not unanswered

    def send(self, turn: Turn, known: Known) -> None:
        """By one who can."""
        flight = Flight(turn, known, time.monotonic(), self._loop.create_future())
        self._under_way.add(flight.landed)
        courier = self._take_ready()
        if courier is not None:
            self._post(courier, flight)
        else:
            self._waiting.append(flight)
            self._connect(self._take_rested())

    def _take_ready(self) -> Courier | None:
        """The one that came back last."""
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].is_ready:
                return self._idle.pop(index)
        return None

    def _take_rested(self) -> Courier:
        courier = min(self._idle, key=lambda courier: self._rests[courier].until)
        self._idle.remove(courier)
        return courier

    async def lend(self, op: Op[T]) -> T | None:
        """Run something else on an idle courier that has a connection; None if there is none."""
        courier = self._take_ready()
        if courier is None:
            return None
        try:
            return await courier.run(op)
        finally:
            self._idle.append(courier)
            if self.is_open:
                self._send_waiting()
                self._connected()

    # -- with a connection

    def _post(self, courier: Courier, flight: Flight) -> None:
        try:
            courier.post(take_turn(flight.turn), partial(self._answered, courier, flight))
        except Exception as error:  # noqa: BLE001 - see above
            self._attend(_fall(error))

    def _answered(self, courier: Courier, flight: Flight, outcome: Outcome | Exception) -> None:
        if not self.is_open:
            return
        try:
            match outcome:
                case Outcome():
                    self._established.add(courier)
                    self._land(courier, flight, outcome)
                case DatabaseError():
                    self._attend(self._recover(courier, flight, outcome))
                case _:
                    self._attend(_fall(outcome))
        except Exception as error:  # noqa: BLE001 - see above
            self._attend(_fall(error))

    async def _recover(self, courier: Courier, flight: Flight, error: DatabaseError) -> None:
        await courier.recover(error)
        if trouble_of(error) is Trouble.LOST:
            courier.close()  # it may be open, to a server that has become a standby
        if courier.is_ready:
            self._land(courier, flight, error)
            return
        is_first = courier in self._established
        self._established.discard(courier)
        if not is_first:
            self._rests[courier].begin()
        self._idle.append(courier)
        self._lose(Loss(error, flight, is_first=is_first))

    def _land(self, courier: Courier, flight: Flight, outcome: Outcome | DatabaseError) -> None:
        self._idle.append(courier)
        self._send_waiting()
        self._landed(flight, outcome)
        self._forget(flight)

    def _forget(self, flight: Flight) -> None:
        self._under_way.discard(flight.landed)
        flight.landed.set_result(None)

    # -- without one

    def _connect(self, courier: Courier) -> None:
        self._established.discard(courier)
        self._connecting[courier] = None
        self._connecting[courier] = self._attend(self._open(courier))

    async def _open(self, courier: Courier) -> None:
        """Without a turn: one that becomes free meanwhile takes it along, and nothing is lost if this takes long or fails."""
        try:
            await courier.run(_nothing())
        except DatabaseError as error:
            del self._connecting[courier]
            self._rests[courier].begin()
            self._idle.append(courier)
            # Each that waits has one that connects for it. For the last of them there is none now.
            flight = self._waiting.pop() if len(self._waiting) > len(self._connecting) else None
            self._lose(Loss(error, flight, is_first=False))
        else:
            del self._connecting[courier]
            self._rests[courier].succeeded()
            self._idle.append(courier)
            self._send_waiting()
            self._connected()

    def _send_waiting(self) -> None:
        while self._waiting and (courier := self._take_ready()) is not None:
            self._post(courier, self._waiting.popleft())

    def _lose(self, loss: Loss) -> None:
        if self.is_open:
            self._lost(loss)
        if loss.flight is not None:
            self._forget(loss.flight)

    def _attend(self, journey: Coroutine[None, None, None]) -> asyncio.Task[None] | None:
        try:
            return self._group.create_task(journey)
        except RuntimeError:  # the group is coming to its end already
            journey.close()
            return None


def _nothing() -> Op[None]:
    """Only connects."""
    return
    yield  # type: ignore[unreachable]


async def _fall(error: Exception) -> None:
    raise error
