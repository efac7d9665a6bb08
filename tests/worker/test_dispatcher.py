"""The dispatcher on a real database, without children: it claims into its buffer, and the test delivers the notifications."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.status import TaskStatus
from horsies.model.task import Ending
from horsies.tasks.claim import NO_CAPS, Caps
from horsies.tasks.ids import new_task_id
from horsies.tasks.unknown import KnownTasks
from horsies.worker.batch_sender import BatchSender
from horsies.worker.dispatcher import Dispatcher
from horsies.worker.plan import PREFETCH_BATCH_DELAY_S, ClaimLimits, DispatcherState, PrefetchPolicy
from horsies.worker.wakeups import Notifications
from horsies.worker.watermarks import Watermarks
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.journey import ME, row
from tests.fixtures.pgbouncer import StartPgBouncer
from tests.fixtures.proxies import Proxy

PATIENCE_S = 20.0
IDLE = "select state = 'idle', state_change from pg_stat_activity where datname = current_database() and application_name = 'horsies worker'"
LATE, EARLY = "now() - interval '1 s'", "now() - interval '1 min'"


@dataclass(frozen=True, slots=True)
class Fixture:
    dispatcher: Dispatcher
    state: DispatcherState

    async def wait_idle(self) -> None:
        """Wait until no batch is in flight and none is due."""
        async with asyncio.timeout(PATIENCE_S):
            # If there is capacity for it, a rescan that is due is sent within a millisecond.
            while self.state.in_flight or (self.state.prefetch.has_buffer and self._rescan_is_due):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)

    @property
    def _rescan_is_due(self) -> bool:
        return self.state.watermarks.is_rescan_wanted

    @property
    def claimed(self) -> set[str]:
        return {buffered.claim.id for buffered in self.state.buffer}


@asynccontextmanager
async def open_dispatcher(
    database: str,
    prefetch: PrefetchPolicy | None = None,
    resilience: WorkerResilienceConfig | None = None,
    batches: int = 1,
    caps: Caps = NO_CAPS,
) -> AsyncGenerator[Fixture]:
    """Start one that is idle. It sends `batches` at a time, and handles each notification at once."""
    config = PostgresConfig(database_url=database)
    resilience = resilience or WorkerResilienceConfig(notify_poll_interval_ms=300_000)
    state = DispatcherState(
        ME,
        config,
        ClaimLimits(60_000, caps),
        [],
        prefetch or PrefetchPolicy(8, processes=1),
        Watermarks(["default"]),
        known_tasks=KnownTasks({"add": 1}),
    )
    async with asyncio.TaskGroup() as group:
        dispatcher = Dispatcher(
            state,
            BatchSender(group, config, batches, resilience),
            resilience=resilience,
            grace_ms=1_000,
            coalesce=1,
            request_heartbeat=lambda: None,
            loop=asyncio.get_running_loop(),
        )
        async with dispatcher:
            fixture = Fixture(dispatcher, state)
            await fixture.wait_idle()
            yield fixture


def insert(sql: psycopg.Connection, *, priority: int = 100, enqueued_at: str = LATE) -> tuple[str, str]:
    """Insert a row. Returns its id and the payload of its notification."""
    query = (
        "insert into horsies.tasks (task_name, priority, enqueued_at, args) "
        f"values ('add', %s, {enqueued_at}, '{{}}') "
        "returning id::text, horsies.wakeup_payload(true, priority, enqueued_at, queue_name)"
    )
    task_id, payload = row(sql, query, priority)
    return str(task_id), str(payload)


async def test_a_notification_for_a_queue_of_other_workers_causes_no_batch(
    database: str, sql: psycopg.Connection
) -> None:
    async with open_dispatcher(database) as fixture:
        task_id, payload = insert(sql)
        fixture.dispatcher.on_notification(f"{payload}-of-others")
        assert not fixture.state.in_flight
        fixture.dispatcher.on_notification(payload)
        assert len(fixture.state.in_flight) == 1
        await fixture.wait_idle()
        assert fixture.claimed == {task_id}


async def test_a_task_announced_after_a_batch_was_made_is_claimed_by_the_next(
    database: str, sql: psycopg.Connection
) -> None:
    """Its lane is not among those of the batch."""
    async with open_dispatcher(database) as fixture:
        first, first_payload = insert(sql, priority=100)
        other, other_payload = insert(sql, priority=200)
        fixture.dispatcher.on_notification(first_payload)
        (batch,) = fixture.state.in_flight
        assert [lane.priority for lane in batch.lanes] == [100]
        fixture.dispatcher.on_notification(other_payload)  # the batch is not sent yet: the event loop has not run
        await fixture.wait_idle()
        assert fixture.claimed == {first, other}


async def test_a_batch_does_not_raise_a_watermark_that_was_lowered_after_it_was_made(
    database: str, sql: psycopg.Connection
) -> None:
    """A row of the same lane that was committed late: the batch claims behind it, and must not hide it."""
    async with open_dispatcher(database) as fixture:
        late, late_payload = insert(sql, enqueued_at=LATE)
        early, early_payload = insert(sql, enqueued_at=EARLY)
        fixture.dispatcher.on_notification(late_payload)
        assert len(fixture.state.in_flight) == 1
        fixture.dispatcher.on_notification(early_payload)
        await fixture.wait_idle()
        assert fixture.claimed == {late, early}


async def test_a_rescan_requested_while_another_is_in_flight_is_made(database: str, sql: psycopg.Connection) -> None:
    """A claim of another worker locked the row and failed: the first rescan skipped it, and the request arrives before its answer."""
    async with open_dispatcher(database) as fixture:
        early, _ = insert(sql, enqueued_at=EARLY)
        late, late_payload = insert(sql, enqueued_at=LATE)
        fixture.dispatcher.on_notification(late_payload)
        await fixture.wait_idle()
        assert fixture.claimed == {late}  # there is a watermark now, and the other row is behind it
        with psycopg.connect(database) as holder:
            holder.execute("select from horsies.tasks where status = 'PENDING' for update")
            _, before = row(sql, IDLE)
            fixture.dispatcher.on_notification(None)
            await asyncio.sleep(0)  # the batch is sent; its answer is not read before the event loop runs again
            eventually(lambda: (now := row(sql, IDLE))[0] and now[1] > before)
        fixture.dispatcher.on_notification(None)
        await fixture.wait_idle()
        assert fixture.claimed == {late, early}


class RecordingLoop(asyncio.SelectorEventLoop):
    """An event loop that records with which delays timers were set."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: asyncio.Queue[float] = asyncio.Queue()

    def call_later(self, delay: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        self.delays.put_nowait(delay)
        return super().call_later(delay, *args, **kwargs)


def test_an_ending_that_waits_for_a_batch_in_flight_sets_no_timer(database: str, sql: psycopg.Connection) -> None:
    """The ending of a workflow that a batch in flight advances, whose delay is over: it is sent when that batch is done."""

    async def wait_for_the_batch(delays: "asyncio.Queue[float]") -> list[float]:
        async with open_dispatcher(database, PrefetchPolicy("auto", processes=1), batches=2) as fixture:
            for _ in range(100):
                fixture.state.prefetch.observe(10)
            root_id = new_task_id()
            with sql.transaction():
                sql.execute("lock table horsies.tasks in exclusive mode")
                fixture.state.endings.append(Ending(new_task_id(), 1, TaskStatus.COMPLETED, "1", root_id=root_id))
                fixture.dispatcher.release([])
                await asyncio.to_thread(wait_until_blocked, sql)
                fixture.state.endings.append(Ending(new_task_id(), 1, TaskStatus.COMPLETED, "1", root_id=root_id))
                fixture.state.may_have_tasks = True
                while not delays.empty():
                    delays.get_nowait()
                fixture.dispatcher.release([])
                async with asyncio.timeout(PATIENCE_S):
                    timers = [await delays.get(), await delays.get()]
                assert len(fixture.state.in_flight) == len(fixture.state.endings) == 1
            await _until(lambda: not fixture.state.endings and not fixture.state.in_flight)
            return timers

    with asyncio.Runner(loop_factory=RecordingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, RecordingLoop)
        delay, after_commit = runner.run(wait_for_the_batch(loop.delays))
    assert delay == pytest.approx(PREFETCH_BATCH_DELAY_S)
    assert after_commit > 10 * PREFETCH_BATCH_DELAY_S, "the timer fires without end"


PATIENT = WorkerResilienceConfig(
    db_retry_initial_ms=60_000, db_retry_max_ms=60_000, notify_poll_interval_ms=300_000
)  # a pause that is not cut short makes the test time out


@pytest.mark.promise("W11")
async def test_a_connection_that_has_served_and_is_lost_is_replaced_without_a_pause(
    database: str, sql: psycopg.Connection
) -> None:
    async with open_dispatcher(database, resilience=PATIENT) as fixture:
        for _ in range(3):
            task_id, payload = insert(sql)
            with sql.transaction():
                sql.execute("lock table horsies.tasks in exclusive mode")
                fixture.dispatcher.on_notification(payload)
                (pid,) = await asyncio.to_thread(lambda: [wait_until_blocked(sql)])
                sql.execute("select pg_terminate_backend(%s)", [pid])
            await _until(lambda task_id=task_id: task_id in fixture.claimed)


@pytest.mark.promise("W11")
async def test_a_pause_ends_when_another_service_reaches_the_database(
    database: str, proxy: Proxy, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_dispatcher(proxy.url, resilience=PATIENT) as fixture:
        task_id, payload = insert(sql)
        proxy.cut()
        fixture.dispatcher.on_notification(payload)
        await _until(lambda: "database unavailable" in caplog.text)
        proxy.heal()
        fixture.dispatcher.on_database_reached()
        await _until(lambda: task_id in fixture.claimed)


@pytest.mark.promise("W11")
async def test_a_pause_is_never_skipped_although_others_reach_the_database(
    database: str, proxy: Proxy, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_dispatcher(proxy.url, resilience=PATIENT) as fixture:
        _, payload = insert(sql)
        proxy.cut()
        fixture.dispatcher.on_notification(payload)
        for attempt in range(1, 4):
            await _until(lambda attempt=attempt: caplog.text.count("database unavailable") == attempt)
            for _ in range(1_000):
                fixture.dispatcher.on_database_reached()
            assert caplog.text.count("database unavailable") == attempt


async def _until(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not predicate():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)


async def test_an_error_while_an_answer_is_applied_stops_the_worker(
    database: str, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would lose the batch and its connection unnoticed."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("of a test")

    async def receive_a_notification() -> None:
        async with open_dispatcher(database) as fixture:
            monkeypatch.setattr(Watermarks, "on_claimed", fail)
            monkeypatch.setattr(Watermarks, "on_rescanned", fail)
            fixture.dispatcher.on_notification(insert(sql)[1])
            await asyncio.sleep(PATIENCE_S)

    with pytest.raises(ExceptionGroup) as raised:
        await receive_a_notification()
    assert raised.group_contains(ValueError, match="of a test")
    assert await asyncio.to_thread(row, sql, "select count(*) from horsies.tasks") == (1,)


# -- another server


@pytest.mark.promise("C11")
async def test_a_cap_is_kept_when_another_server_has_taken_over(database: str, sql: psycopg.Connection) -> None:
    """Transactions have lower numbers there, if it lacks the last ones of the former server. No batch was lost."""
    async with open_dispatcher(database, caps=Caps(cluster_wide=1)) as fixture:
        sql.execute(
            "insert into horsies.tasks (task_name, args, status, claimed_by, claimed_at, started_at) "
            "values ('add', '{}', 'RUNNING', gen_random_uuid(), now(), now())"
        )
        fixture.state.limits.caps.in_flight.since = "1000000000"  # as read on the former server
        await asyncio.to_thread(terminate_idle, sql)
        await asyncio.sleep(0)
        _, payload = insert(sql)
        fixture.dispatcher.on_notification(payload)
        await fixture.wait_idle()
        assert not fixture.claimed


@pytest.mark.promise("C11")
async def test_a_cap_is_kept_when_a_pooler_leads_to_another_server(
    pgbouncer: StartPgBouncer, sql: psycopg.Connection
) -> None:
    """The connection to the pooler stays open."""
    url = await asyncio.to_thread(lambda: pgbouncer().url)
    async with open_dispatcher(url, caps=Caps(cluster_wide=1)) as fixture:
        sql.execute(
            "insert into horsies.tasks (task_name, args, status, claimed_by, claimed_at, started_at) "
            "values ('add', '{}', 'RUNNING', gen_random_uuid(), now(), now())"
        )
        fixture.state.limits.caps.in_flight.since = "1000000000"  # as read on the former server
        _, payload = insert(sql)
        fixture.dispatcher.on_notification(payload)
        await fixture.wait_idle()
        assert not fixture.claimed


def terminate_idle(sql: psycopg.Connection) -> None:
    connections = "from pg_stat_activity where datname = current_database() and application_name = 'horsies worker'"
    sql.execute(f"select pg_terminate_backend(pid) {connections}")
    eventually(lambda: row(sql, f"select count(*) {connections}") == (0,))


# -- notifications that are shared with other workers


@asynccontextmanager
async def notified(database: str, fixture: Fixture) -> AsyncGenerator[Notifications]:
    """Deliver the notifications of a listener to this dispatcher."""
    broker = PostgresBroker(PostgresConfig(database_url=database))
    try:
        with Notifications(broker, fixture.dispatcher, lambda: None) as notifications:
            assert fixture.dispatcher.group is not None
            fixture.dispatcher.group.has_capacity = lambda: True  # although it has no children
            yield notifications
    finally:
        await asyncio.to_thread(broker.close)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)


async def test_a_worker_that_begins_to_listen_promotes_what_is_due(database: str, sql: psycopg.Connection) -> None:
    """The worker that was to do it may be gone, or the notification was sent while no worker listened."""
    async with open_dispatcher(database) as fixture:
        sql.execute("alter table horsies.tasks disable trigger tasks_notify_new")
        (task_id,) = row(
            sql,
            "insert into horsies.tasks (task_name, args, ready, enqueued_at) values ('add', '{}', false, now()) returning id::text",
        )
        async with notified(database, fixture):
            await until(lambda: fixture.claimed == {task_id})


async def test_notifications_for_another_worker_are_acted_on_once_for_each_lane(
    database: str, sql: psycopg.Connection
) -> None:
    """However many there are. A rescan for them would visit all dead index entries."""
    async with (
        open_dispatcher(database) as fixture,
        open_dispatcher(database) as other,
        notified(database, fixture),
        notified(database, other),
    ):
        groups = fixture.dispatcher.group, other.dispatcher.group
        await until(lambda: all(group is not None and len(group.occupied) == 2 for group in groups))
        await until(lambda: fixture.state.notifications)  # when LISTEN comes into force
        await fixture.wait_idle()
        group, before = groups[0], fixture.state.notifications
        assert group is not None
        numbers = [number for number in range(1_000) if not group.owns(number)]
        with sql.transaction():
            for number in numbers:
                sql.execute("select pg_notify(%s, %s)", [Channel.NEW.name_in("horsies"), f"100 {number} default"])
        await until(lambda: fixture.state.notifications > before)
        assert fixture.state.notifications == before + 1
        assert [lane.watermark.microsecond for lane in fixture.state.watermarks.lanes(1)] == [numbers[0]]
