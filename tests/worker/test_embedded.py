"""`app.worker(...)`: a worker inside another program, which decides when it stops."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from horsies import (
    AppConfig,
    BlockingCallError,
    ConfigError,
    Horsies,
    HorsiesError,
    LocateError,
    PostgresConfig,
    TaskError,
    TaskResult,
    Worker,
    WorkerConfig,
)
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.proxies import Proxy
from tests.worker.steps import PATIENCE_MS, begun

app = Horsies()  # at the top level of a module: the children find it here

ONE = WorkerConfig(processes=1, app_locator="tests.worker.test_embedded:app")


@app.task("embedded double")
def double(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * number)


@app.task("embedded gate")
def gate(begun: str, until: str) -> TaskResult[int, TaskError]:
    from tests.apps.basic import gate  # noqa: PLC0415 - it has an app of its own

    return gate.function(begun, until)


@pytest.fixture(autouse=True)
def _on_database(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)  # for the children
    app.use_database(database)
    yield
    app.close()


@pytest.fixture
async def _closed_loop() -> AsyncGenerator[None]:
    yield
    await app.close_async()


def registered(sql: psycopg.Connection) -> list[object]:
    return column(sql, "select pid from horsies.workers")


def assert_nothing_is_left() -> None:
    assert not [thread.name for thread in threading.enumerate() if thread.name == "horsies-worker"]
    eventually(lambda: not [child for child in psutil.Process().children() if "horsies.executor" in child.cmdline()])


@pytest.mark.promise("W15")
@pytest.mark.usefixtures("_closed_loop")
async def test_a_worker_runs_beside_an_event_loop_twice_in_a_row(sql: psycopg.Connection) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for number in (1, 2):
        async with app.worker(ONE) as worker:
            assert isinstance(worker, Worker)
            assert registered(sql) == [os.getpid()]
            handle = await double.send_async(number)
            assert (await handle.get_async(PATIENCE_MS)).ok_value == 2 * number
            assert worker.exit_code is None
        assert worker.exit_code == 0
        assert registered(sql) == []
        assert_nothing_is_left()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert (await (await double.send_async(3)).status_async()) == "PENDING"  # the app's connections are still open


@pytest.mark.promise("W15")
def test_a_worker_runs_in_blocking_code_and_on_any_thread(sql: psycopg.Connection) -> None:
    def run() -> int:
        with app.worker(ONE) as worker:
            assert double.send(4).get(PATIENCE_MS).ok_value == 8
            worker.stop()
            return worker.wait(20)

    assert run() == 0
    with ThreadPoolExecutor(1) as other:
        assert other.submit(run).result() == 0
    assert registered(sql) == []
    assert_nothing_is_left()


@pytest.mark.promise("W15", "W10")
@pytest.mark.usefixtures("_closed_loop")
async def test_leaving_waits_for_running_tasks_and_a_second_stop_interrupts_them(tmp_path: Path) -> None:
    async with app.worker(ONE) as worker:
        first = await gate.send_async(str(tmp_path / "first"), str(tmp_path / "open"))
        pid = await asyncio.to_thread(begun, tmp_path / "first")
        worker.stop()
        (tmp_path / "open").touch()
        assert await worker.wait_async() == 0
    assert (await first.get_async(PATIENCE_MS)).ok_value == pid

    async with app.worker(ONE) as worker:
        second = await gate.send_async(str(tmp_path / "second"), str(tmp_path / "never"))
        await asyncio.to_thread(begun, tmp_path / "second")
        worker.stop()
        worker.stop()
    assert worker.exit_code == 3
    assert (await second.get_async(PATIENCE_MS)).err_value.error_code == "INTERRUPTED"
    assert_nothing_is_left()


@pytest.mark.usefixtures("_closed_loop")
async def test_a_cancelled_block_still_ends_its_worker_and_an_error_in_it_is_not_hidden(tmp_path: Path) -> None:
    async def serve() -> None:
        async with app.worker(ONE):
            await gate.send_async(str(tmp_path / "begun"), str(tmp_path / "never"))
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await asyncio.to_thread(begun, tmp_path / "begun")
    serving.cancel()  # leaves the block, which waits for the task that runs
    await asyncio.sleep(0)
    serving.cancel()  # interrupts it
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert_nothing_is_left()

    with pytest.raises(ZeroDivisionError):
        async with app.worker(ONE):
            raise ZeroDivisionError
    assert_nothing_is_left()


@pytest.mark.usefixtures("_closed_loop")
async def test_two_workers_may_run_side_by_side_in_one_process(sql: psycopg.Connection) -> None:
    async with app.worker(ONE), app.worker(ONE):
        assert len(registered(sql)) == 2
        handles = [await double.send_async(number) for number in range(20)]
        assert [result.ok_value for result in await app.gather_async(handles, PATIENCE_MS)] == list(range(0, 40, 2))
    assert registered(sql) == []
    assert_nothing_is_left()


# -- failed starts


@pytest.mark.usefixtures("_closed_loop")
async def test_a_worker_that_cannot_start_raises_at_the_start_of_its_block() -> None:
    with pytest.raises(HorsiesError, match="no_such_module"):
        async with app.worker(WorkerConfig(processes=1, app_locator="no_such_module:app")):
            pytest.fail("it has no children")
    with pytest.raises(ConfigError, match="there is no queue 'fourth'"):
        async with app.worker(WorkerConfig(processes=1, queues=["fourth"], app_locator=ONE.app_locator)):
            pytest.fail("it has no queue")
    assert_nothing_is_left()


def test_a_worker_that_waits_for_its_database_can_be_stopped(proxy: Proxy) -> None:
    proxy.cut()
    app.use_database(proxy.url)
    worker = app.worker(ONE)
    with ThreadPoolExecutor(1) as other:
        entering = other.submit(worker.__enter__)
        worker.stop()
        with pytest.raises(HorsiesError, match=r"ended before it was ready \(exit code 0\)"):
            entering.result(30)
    assert_nothing_is_left()


def test_a_worker_object_runs_once_and_refuses_other_uses() -> None:
    worker = app.worker(ONE)
    with pytest.raises(HorsiesError, match="has not been started"):
        worker.wait()
    with worker:
        pass
    with pytest.raises(HorsiesError, match="has run already"), worker:
        pass
    with pytest.raises(LocateError, match="app_locator"):
        Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://nobody@127.0.0.1:1/x"))).worker()
    with pytest.raises(ConfigError, match="config must be of type WorkerConfig"):
        app.worker(4)  # pyright: ignore[reportArgumentType]


async def test_blocking_forms_are_refused_in_an_event_loop() -> None:
    with pytest.raises(BlockingCallError, match=r"async with app.worker"), app.worker(ONE):
        pass
    with pytest.raises(BlockingCallError, match=r"wait_async"):
        app.worker(ONE).wait()


def test_run_worker_with_is_another_name_for_run_worker() -> None:
    with pytest.raises(ConfigError, match="config must be of type WorkerConfig, not int"):
        app.run_worker_with(4)  # pyright: ignore[reportArgumentType]


def test_a_worker_that_was_asked_to_leave_ends_its_tasks_also_when_its_program_stops_it(
    sql: psycopg.Connection, tmp_path: Path
) -> None:
    with app.worker(ONE) as worker:
        handle = gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
        begun(tmp_path / "begun")
        assert set(app.ops.request_leave([found.id for found in app.ops.list_workers()]).values()) == {True}
        eventually(lambda: column(sql, "select task_names from horsies.workers") == [[]], what="it claims no more")
        worker.stop()
        (tmp_path / "open").touch()
    assert worker.exit_code == 0
    assert handle.get(PATIENCE_MS).is_ok()
