"""A few connections on the event loop, each of which carries one batch at a time.

**Connections fail one by one.** A server may have no slot left for one more connection while it serves those that it has. So a connection that cannot be
made pauses alone. The batch that waited for it is sent on the next connection that is ready, or given back. A connection that has served before and
is lost is replaced at once, without a pause: one terminated session is not an outage.

**Errors in callbacks.** A batch on an open connection runs by callbacks of the event loop: an asyncio task for each would cost more than the
batch. But the loop only logs what a callback raises, and the worker would lose a batch and its connection unnoticed. So every unexpected error is
raised in the task group, which stops the worker.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from horsies.db.errors import DriverError, ErrorKind, classify
from horsies.db.loop_connection import LoopConnection
from horsies.db.statement import Op
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.worker.batch import Batch, BatchResult, run_batch
from horsies.worker.service import ConnectionPause

T = TypeVar("T")


class BatchDone(NamedTuple):
    """A batch has its result, or the error of a server that rolled it back. Its connection is idle again."""

    batch: Batch
    outcome: BatchResult | DriverError


class ConnectionLost(NamedTuple):
    """A connection was lost, or could not be made."""

    error: DriverError
    batch: Batch | None
    """The batch that it carried, or should have carried: to be put back."""
    has_served: bool
    """It is replaced without a pause."""


class ConnectionMade(NamedTuple):
    """A connection is open and idle."""


SenderReport: TypeAlias = BatchDone | ConnectionLost | ConnectionMade


class BatchSender:
    """All that happens to batches and connections goes to the one callable that `open` takes."""

    def __init__(
        self, group: asyncio.TaskGroup, database: PostgresConfig, count: int, resilience: WorkerResilienceConfig
    ) -> None:
        self._group = group
        self._pauses = {LoopConnection(database, "worker"): ConnectionPause(resilience) for _ in range(count)}
        """All connections."""
        self._idle = list(self._pauses)
        self._served: set[LoopConnection] = set()
        """Connections that have carried a batch since they were made."""
        self._waiting: deque[Batch] = deque()
        """Batches that wait for a connection that is being made."""
        self._connecting: dict[LoopConnection, asyncio.Task[None] | None] = {}
        self.is_open = False

    def open(self, report: Callable[[SenderReport], None]) -> None:
        self._report = report
        self.is_open = True
        self._closer = self._group.create_task(self._close_with_group())

    async def _close_with_group(self) -> None:
        """Stop sending batches as soon as the task group is cancelled."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.is_open = False

    def close(self) -> None:
        """Close all connections. Nothing is reported about what is in flight."""
        self.is_open = False
        self._closer.cancel()
        for connecting in self._connecting.values():
            if connecting is not None:
                connecting.cancel()
        for connection in self._pauses:
            connection.close()

    @property
    def has_session(self) -> bool:
        """At least one connection is open."""
        return any(connection.is_ready for connection in self._pauses)

    def can_send_at(self) -> float:
        """Return when `send` may be called, on the monotonic clock: when an idle connection is open or may be made; infinity if none is idle."""
        if not self._idle:
            return math.inf
        if self._idle[-1].is_ready or any(connection.is_ready for connection in self._idle):
            return 0.0
        if not self.has_session:
            return 0.0  # where none is open the worker pauses as a whole, and not each connection
        return min(self._pauses[connection].until for connection in self._idle)

    def send(self, batch: Batch) -> None:
        if self._send_on_ready_connection(batch):
            return
        self._waiting.append(batch)
        if len(self._waiting) > len(self._connecting):
            connection = min(self._idle, key=lambda connection: self._pauses[connection].until)
            self._idle.remove(connection)
            self._served.discard(connection)
            self._connecting[connection] = self._spawn(self._connect(connection))

    async def run_on_idle_connection(self, op: Op[T]) -> T | None:
        """Run another operation on an idle open connection; None if there is none."""
        connection = next((connection for connection in reversed(self._idle) if connection.is_ready), None)
        if connection is None:
            return None
        self._idle.remove(connection)
        try:
            return await connection.run(op)
        finally:
            self._return(connection, ConnectionMade())

    # -- on an open connection

    def _send_on_ready_connection(self, batch: Batch) -> bool:
        """Send it on the open connection that became idle last: the others may then stay unused. Return False if none is open."""
        for connection in reversed(self._idle):
            if connection.is_ready:
                break
        else:
            return False
        self._idle.remove(connection)
        if connection not in self._served or not connection.has_own_session:
            # It may lead to a standby that has become the primary, where other transactions have these numbers. A pooler does not tell.
            batch.caps.in_flight.since = "0"
        try:
            connection.submit(run_batch(batch), partial(self._on_answer, connection, batch))
        except Exception as error:  # noqa: BLE001 - raised in the task group
            self._spawn(_raise(error))
        return True

    def _on_answer(self, connection: LoopConnection, batch: Batch, outcome: BatchResult | Exception) -> None:
        if not self.is_open:
            return
        try:
            match outcome:
                case BatchResult():
                    self._served.add(connection)
                    self._return(connection, BatchDone(batch, outcome))
                case DriverError():
                    self._spawn(self._recover(connection, batch, outcome))
                case _:
                    self._spawn(_raise(outcome))
        except Exception as error:  # noqa: BLE001 - raised in the task group
            self._spawn(_raise(error))

    async def _recover(self, connection: LoopConnection, batch: Batch, error: DriverError) -> None:
        await connection.recover(error)
        if classify(error) is ErrorKind.CONNECTION_LOST:
            connection.close()  # it may be open, to a server that has become a standby
        if connection.is_ready:
            self._return(connection, BatchDone(batch, error))
            return
        has_served = connection in self._served
        self._served.discard(connection)
        if not has_served:
            self._pauses[connection].begin()
        self._return(connection, ConnectionLost(error, batch, has_served))

    def _return(self, connection: LoopConnection, report: SenderReport) -> None:
        """Make it idle, and report what has happened."""
        self._idle.append(connection)
        if self.is_open:
            while self._waiting and self._send_on_ready_connection(self._waiting[0]):
                self._waiting.popleft()
            self._report(report)

    # -- without a connection

    async def _connect(self, connection: LoopConnection) -> None:
        """Connect without a batch: another connection that becomes idle takes it, and nothing is lost if this takes long or fails."""
        try:
            await connection.run(_do_nothing())
        except DriverError as error:
            del self._connecting[connection]
            self._pauses[connection].begin()
            # Each waiting batch had a connection that is being made for it. For the last of them there is none now.
            batch = self._waiting.pop() if len(self._waiting) > len(self._connecting) else None
            self._return(connection, ConnectionLost(error, batch, has_served=False))
        else:
            del self._connecting[connection]
            self._pauses[connection].succeeded()
            self._return(connection, ConnectionMade())

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None] | None:
        try:
            return self._group.create_task(coroutine)
        except RuntimeError:  # the group is already shutting down
            coroutine.close()
            return None


def _do_nothing() -> Op[None]:
    return
    yield  # type: ignore[unreachable]


async def _raise(error: Exception) -> None:
    raise error
