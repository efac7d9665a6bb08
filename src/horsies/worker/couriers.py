"""The couriers: a few connections, each of which carries one turn at a time.

A turn is said at once where there is a connection, and what becomes of it is told by the event loop. Only to connect, and to put a connection in order
after an error, is an asyncio task needed: one for every turn would cost more than making it. But from what is called by the loop itself no
error gets any further than into the log, and the worker would lack a turn and its courier for ever. So whatever else goes wrong brings
the worker down, by way of its task group.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import NamedTuple

from horsies.db.courier import Courier
from horsies.db.trouble import DatabaseError
from horsies.model.config import PostgresConfig
from horsies.worker.news import Known
from horsies.worker.turn import Outcome, Turn, take_turn


class Flight(NamedTuple):
    """A turn on its way."""

    turn: Turn
    known: Known
    departed: float
    courier: Courier
    landed: "asyncio.Future[None]"


class Couriers:
    """`landed` is told of each turn, when its courier is idle again: what came of it, or why nothing did."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        database: PostgresConfig,
        count: int,
        *,
        landed: Callable[[Flight, Outcome | DatabaseError], None],
    ) -> None:
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._all = [Courier(database, "worker") for _ in range(count)]
        self._idle = list(self._all)
        self._landed = landed
        self._under_way: set[asyncio.Future[None]] = set()
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self._ward = self._group.create_task(self._close_with_the_group())

    def close(self) -> None:
        """What is under way is not heard of again."""
        self.is_open = False
        self._ward.cancel()
        for courier in self._all:
            courier.close()

    async def _close_with_the_group(self) -> None:
        """When the worker comes to its end by an error, its children's last words change nothing, and nothing more is claimed."""
        try:
            await self._loop.create_future()
        finally:
            self.is_open = False

    @property
    def is_any_idle(self) -> bool:
        return bool(self._idle)

    async def have_landed(self, within_s: float) -> bool:
        """Whether all that are under way now are back by then. Those that leave later do not matter."""
        if not self._under_way:
            return True
        _, unanswered = await asyncio.wait(self._under_way, timeout=within_s)
        return not unanswered

    def send(self, turn: Turn, known: Known) -> None:
        """By one who is idle."""
        courier = self._idle.pop()
        flight = Flight(turn, known, time.monotonic(), courier, self._loop.create_future())
        self._under_way.add(flight.landed)
        if not courier.is_ready:
            self._attend(self._connect_and_ask(flight))
            return
        try:
            courier.post(take_turn(turn), partial(self._answered, flight))
        except Exception as error:  # noqa: BLE001 - see above
            self._attend(_fall(error))

    async def _connect_and_ask(self, flight: Flight) -> None:
        try:
            outcome = await flight.courier.run(take_turn(flight.turn))
        except DatabaseError as error:
            self._land(flight, error)
        else:
            self._land(flight, outcome)

    def _answered(self, flight: Flight, outcome: Outcome | Exception) -> None:
        if not self.is_open:
            return
        try:
            match outcome:
                case Outcome():
                    self._land(flight, outcome)
                case DatabaseError():
                    self._attend(self._recover(flight, outcome))
                case _:
                    self._attend(_fall(outcome))
        except Exception as error:  # noqa: BLE001 - see above
            self._attend(_fall(error))

    async def _recover(self, flight: Flight, error: DatabaseError) -> None:
        await flight.courier.recover(error)
        self._land(flight, error)

    def _land(self, flight: Flight, outcome: Outcome | DatabaseError) -> None:
        self._idle.append(flight.courier)
        self._landed(flight, outcome)
        self._under_way.discard(flight.landed)
        flight.landed.set_result(None)

    def _attend(self, journey: Coroutine[None, None, None]) -> None:
        try:
            self._group.create_task(journey)
        except RuntimeError:  # the group is coming to its end already
            journey.close()


async def _fall(error: Exception) -> None:
    raise error
