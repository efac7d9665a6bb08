"""The pump on a real database, without children: what it claims goes into its buffer, and a test says what it hears and when."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.status import TaskStatus
from horsies.model.task import Ending
from horsies.tasks.claim import NO_CAPS
from horsies.tasks.ids import new_task_id
from horsies.tasks.unknown import KnownTasks
from horsies.worker.capacity import GATHER_FRAMED_S, ClaimLimits, PrefetchPolicy
from horsies.worker.dispatcher import Dispatcher
from horsies.worker.pending import PendingWork
from horsies.worker.quarantine import Quarantine
from horsies.worker.watermarks import Watermarks
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.journey import ME, row
from tests.fixtures.proxies import Proxy

PATIENCE_S = 20.0
IDLE = "select state = 'idle', state_change from pg_stat_activity where datname = current_database() and application_name = 'horsies worker'"
LATE, EARLY = "now() - interval '1 s'", "now() - interval '1 min'"


@dataclass(frozen=True, slots=True)
class Desk:
    dispatcher: Dispatcher
    pending: PendingWork

    async def quiet(self) -> None:
        """Until every turn is back and there is no reason for another."""
        async with asyncio.timeout(PATIENCE_S):
            # Where there is room for it, a claim from the start that is due leaves within a millisecond.
            while self.pending.in_flight or (self.pending.prefetch.buffers and self._rescan_is_due):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.001)

    @property
    def _rescan_is_due(self) -> bool:
        return self.pending.watermarks.rescan_in_s(0.0) is not None

    @property
    def claimed(self) -> set[str]:
        return {buffered.claim.id for buffered in self.pending.buffer}


@asynccontextmanager
async def open_pump(
    database: str,
    prefetch: PrefetchPolicy | None = None,
    resilience: WorkerResilienceConfig | None = None,
    batches: int = 1,
) -> AsyncGenerator[Desk]:
    """Quiet, with nothing to do. One turn at a time unless told otherwise, and each notification is acted on at once."""
    config = PostgresConfig(database_url=database)
    pending = PendingWork(
        ME,
        config,
        ClaimLimits(60_000, NO_CAPS),
        [],
        prefetch or PrefetchPolicy(8, processes=1),
        Watermarks(["default"]),
        Quarantine(WorkerResilienceConfig()),
        known_tasks=KnownTasks({"add": 1}),
    )
    async with asyncio.TaskGroup() as group:
        dispatcher = Dispatcher(
            group,
            pending,
            database=config,
            resilience=resilience or WorkerResilienceConfig(notify_poll_interval_ms=300_000),
            grace_ms=1_000,
            batches=batches,
            coalesce=1,
            request_heartbeat=lambda: None,
        )
        async with dispatcher:
            hub = Desk(dispatcher, pending)
            await hub.quiet()
            yield hub


def insert(sql: psycopg.Connection, *, priority: int = 100, enqueued_at: str = LATE) -> tuple[str, str]:
    """A row, and what its trigger tells of it."""
    query = (
        "insert into horsies.tasks (task_name, priority, enqueued_at, args) "
        f"values ('add', %s, {enqueued_at}, '{{}}') "
        "returning id::text, horsies.wakeup_payload(true, priority, enqueued_at, queue_name)"
    )
    task_id, news = row(sql, query, priority)
    return str(task_id), str(news)


async def test_news_of_a_queue_that_others_serve_costs_no_turn(database: str, sql: psycopg.Connection) -> None:
    async with open_pump(database) as hub:
        task_id, news = insert(sql)
        hub.dispatcher.on_notification(f"{news}-of-others")
        assert hub.pending.in_flight == []
        hub.dispatcher.on_notification(news)
        assert len(hub.pending.in_flight) == 1
        await hub.quiet()
        assert hub.claimed == {task_id}


async def test_what_is_heard_after_a_turn_was_made_and_before_it_leaves_is_asked_for_again(
    database: str, sql: psycopg.Connection
) -> None:
    """Its lane is none of those that the turn asks."""
    async with open_pump(database) as hub:
        first, first_news = insert(sql, priority=100)
        other, other_news = insert(sql, priority=200)
        hub.dispatcher.on_notification(first_news)
        (batch,) = hub.pending.in_flight
        assert [lane.priority for lane in batch.lanes] == [100]
        hub.dispatcher.on_notification(other_news)  # nothing of the turn has run yet: the loop was not given a moment
        await hub.quiet()
        assert hub.claimed == {first, other}


async def test_a_mark_that_is_lowered_after_a_turn_was_made_and_before_it_leaves_stays_low(
    database: str, sql: psycopg.Connection
) -> None:
    """A row of the same lane that was committed late: the turn begins behind it, and must not hide it when it comes back."""
    async with open_pump(database) as hub:
        late, late_news = insert(sql, enqueued_at=LATE)
        early, early_news = insert(sql, enqueued_at=EARLY)
        hub.dispatcher.on_notification(late_news)
        assert len(hub.pending.in_flight) == 1
        hub.dispatcher.on_notification(early_news)
        await hub.quiet()
        assert hub.claimed == {late, early}


async def test_what_may_have_been_missed_while_a_claim_from_the_start_was_out_is_looked_for_again(
    database: str, sql: psycopg.Connection
) -> None:
    """Somebody's claim held it and failed: the first look skipped it, and the news of the failure comes before its answer."""
    async with open_pump(database) as hub:
        early, _ = insert(sql, enqueued_at=EARLY)
        late, late_news = insert(sql, enqueued_at=LATE)
        hub.dispatcher.on_notification(late_news)
        await hub.quiet()
        assert hub.claimed == {late}  # there is a mark now, and the other row is behind it
        with psycopg.connect(database) as holder:
            holder.execute("select from horsies.tasks where status = 'PENDING' for update")
            _, before = row(sql, IDLE)
            hub.dispatcher.on_notification(None)
            await asyncio.sleep(0)  # the turn departs; its answer is not read before the loop is given a moment again
            eventually(lambda: (now := row(sql, IDLE))[0] and now[1] > before)
        hub.dispatcher.on_notification(None)
        await hub.quiet()
        assert hub.claimed == {late, early}


class RecordingLoop(asyncio.SelectorEventLoop):
    """An event loop that records with which delays timers were set."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: asyncio.Queue[float] = asyncio.Queue()

    def call_later(self, delay: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        self.delays.put_nowait(delay)
        return super().call_later(delay, *args, **kwargs)


def test_what_waits_for_a_batch_in_flight_does_not_keep_the_worker_awake(
    database: str, sql: psycopg.Connection
) -> None:
    """An ending of a workflow that a batch is at, whose time to gather is over: it leaves when that batch is back."""

    async def wait_for_the_batch(delays: "asyncio.Queue[float]") -> list[float]:
        async with open_pump(database, PrefetchPolicy("auto", processes=1), batches=2) as hub:
            for _ in range(100):
                hub.pending.prefetch.observe(10)
            root_id = new_task_id()
            with sql.transaction():
                sql.execute("lock table horsies.tasks in exclusive mode")
                hub.pending.endings.append(Ending(new_task_id(), 1, TaskStatus.COMPLETED, "1", root_id=root_id))
                hub.dispatcher.release([])  # look
                await asyncio.to_thread(wait_until_blocked, sql)
                hub.pending.endings.append(Ending(new_task_id(), 1, TaskStatus.COMPLETED, "1", root_id=root_id))
                hub.pending.may_have_tasks = True
                while not delays.empty():
                    delays.get_nowait()
                hub.dispatcher.release([])
                async with asyncio.timeout(PATIENCE_S):
                    set_meanwhile = [await delays.get(), await delays.get()]
                assert len(hub.pending.in_flight) == len(hub.pending.endings) == 1
            await _until(lambda: not hub.pending.endings and not hub.pending.in_flight)
            return set_meanwhile

    with asyncio.Runner(loop_factory=RecordingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, RecordingLoop)
        to_gather, after_commit = runner.run(wait_for_the_batch(loop.delays))
    assert to_gather == pytest.approx(GATHER_FRAMED_S)
    assert after_commit > 10 * GATHER_FRAMED_S, "it looks again and again"


PATIENT = WorkerResilienceConfig(
    db_retry_initial_ms=60_000, db_retry_max_ms=60_000, notify_poll_interval_ms=300_000
)  # whoever sits out a pause comes too late


@pytest.mark.promise("W11")
async def test_a_connection_that_has_served_and_is_lost_is_replaced_without_a_pause(
    database: str, sql: psycopg.Connection
) -> None:
    async with open_pump(database, resilience=PATIENT) as hub:
        for _ in range(3):
            task_id, news = insert(sql)
            with sql.transaction():
                sql.execute("lock table horsies.tasks in exclusive mode")
                hub.dispatcher.on_notification(news)
                (pid,) = await asyncio.to_thread(lambda: [wait_until_blocked(sql)])
                sql.execute("select pg_terminate_backend(%s)", [pid])
            await _until(lambda task_id=task_id: task_id in hub.claimed)


@pytest.mark.promise("W11")
async def test_a_pause_ends_when_the_database_is_reached_by_somebody_else(
    database: str, proxy: Proxy, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_pump(proxy.url, resilience=PATIENT) as hub:
        task_id, news = insert(sql)
        proxy.cut()
        hub.dispatcher.on_notification(news)
        await _until(lambda: "the database does not serve" in caplog.text)
        proxy.heal()
        hub.dispatcher.on_database_reached()
        await _until(lambda: task_id in hub.claimed)


@pytest.mark.promise("W11")
async def test_a_database_that_answers_others_only_is_not_asked_without_a_pause(
    database: str, proxy: Proxy, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_pump(proxy.url, resilience=PATIENT) as hub:
        _, news = insert(sql)
        proxy.cut()
        hub.dispatcher.on_notification(news)
        for attempt in range(1, 4):
            await _until(lambda attempt=attempt: caplog.text.count("the database does not serve") == attempt)
            for _ in range(1_000):
                hub.dispatcher.on_database_reached()
            assert caplog.text.count("the database does not serve") == attempt


async def _until(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not predicate():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.001)


async def test_a_pump_that_stumbles_over_an_answer_brings_its_worker_down(
    database: str, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would lack the turn and its connection for ever, and nobody would know."""

    def stumble(*_: object, **__: object) -> None:
        raise ValueError("of a test")

    async def hear_of_work() -> None:
        async with open_pump(database) as hub:
            monkeypatch.setattr(PendingWork, "apply", stumble)
            hub.dispatcher.on_notification(insert(sql)[1])
            await asyncio.sleep(PATIENCE_S)

    with pytest.raises(ExceptionGroup) as raised:
        await hear_of_work()
    assert raised.group_contains(ValueError, match="of a test")
    assert await asyncio.to_thread(row, sql, "select count(*) from horsies.tasks") == (1,)
