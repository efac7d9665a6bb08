"""`@app.middleware`: generator functions that run around each attempt, in real child processes."""

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from horsies import CurrentTask, Horsies, TaskDefinitionError, TaskError, TaskResult, TaskStatus
from horsies.executor.protocol import StopReason
from horsies.testing import drain, open_sandbox, run_inline
from tests.apps import surrounded
from tests.fixtures.pools import FakeDispatcher, open_pool

APP = "tests.apps.surrounded:app"
RUNNERS = pytest.mark.parametrize("concurrency", [1, 10], ids=["main thread", "threads and loop"])


async def run(dispatcher: FakeDispatcher, name: str, path: Path, fail: str = "") -> Any:
    """The result, or the error."""
    task_id = dispatcher.send(name, path=str(path), fail=fail)
    done = await dispatcher.ending(task_id)
    return done.result if done.error is None else await dispatcher.error(task_id)


@RUNNERS
async def test_middleware_sees_the_task_and_its_outcome_and_the_first_one_is_the_outermost(
    tmp_path: Path, concurrency: int
) -> None:
    seen = tmp_path / "seen"
    async with open_pool(APP, concurrency=concurrency) as dispatcher:
        assert await run(dispatcher, "name_tenant", seen) == '"acme"'
        assert seen.read_text().splitlines() == ["outer name_tenant 1", "outer saw TaskResult(ok='acme')"]
        seen.unlink()
        assert await run(dispatcher, "name_tenant_async", seen) == '"acme"'
        assert seen.read_text().splitlines() == [
            "outer name_tenant_async 1",
            "async saw TaskResult(ok='acme')",
            "outer saw TaskResult(ok='acme')",
        ]


@RUNNERS
async def test_a_returned_error_and_a_value_of_the_wrong_type_reach_the_middleware_as_they_are_stored(
    tmp_path: Path, concurrency: int
) -> None:
    seen = tmp_path / "seen"
    async with open_pool(APP, concurrency=concurrency) as dispatcher:
        assert (await run(dispatcher, "name_tenant", seen, "err"))["error_code"] == "NO_PAPER"
        assert "NO_PAPER" in seen.read_text()
        seen.unlink()
        assert (await run(dispatcher, "name_tenant", seen, "type"))["error_code"] == "RETURN_TYPE_MISMATCH"
        assert "RETURN_TYPE_MISMATCH" in seen.read_text()


@RUNNERS
@pytest.mark.parametrize("name", ["name_tenant", "name_tenant_async"])
async def test_an_exception_of_the_task_passes_through_and_stays_its_outcome_even_if_it_is_caught(
    tmp_path: Path, concurrency: int, name: str
) -> None:
    seen = tmp_path / "seen"
    async with open_pool(APP, concurrency=concurrency) as dispatcher:
        error = await run(dispatcher, name, seen, "lookup")
        assert (error["error_code"], error["message"]) == ("UNHANDLED_ERROR", "LookupError: lost")
        assert "inner caught it\n" in seen.read_text()
        assert "outer saw LookupError: lost\n" in seen.read_text()
        # Neither our frames nor those of the middleware are in the traceback.
        assert error["data"]["traceback"].count("  File ") == 1


async def test_a_stop_iteration_of_a_task_ends_it_like_any_other_exception(tmp_path: Path) -> None:
    async with open_pool(APP) as dispatcher:
        for name, message in (("name_tenant", "StopIteration"), ("name_tenant_async", "StopAsyncIteration: odd")):
            error = await run(dispatcher, name, tmp_path / "seen", "stop")
            assert error["error_code"] == "UNHANDLED_ERROR"
            assert message in error["message"], "it is not an exception of the middleware"
            assert "middleware" not in error["message"]


@RUNNERS
@pytest.mark.parametrize("name", ["name_tenant", "name_tenant_async"])
@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("before", "middleware inner raised ConnectionError: no tenant"),
        ("after", "middleware inner raised ConnectionError: no commit"),
        ("translate", "middleware inner raised RuntimeError: no such tenant"),
        ("yield", "middleware inner raised RuntimeError: it yielded a second time"),
        ("skip", "middleware skipping raised RuntimeError: it ended without a yield"),
    ],
)
async def test_an_exception_of_a_middleware_fails_the_task_and_names_the_middleware(
    tmp_path: Path, concurrency: int, name: str, fail: str, message: str
) -> None:
    seen = tmp_path / "seen"
    async with open_pool(APP, concurrency=concurrency) as dispatcher:
        error = await run(dispatcher, name, seen, fail)
        assert error["error_code"] == "UNHANDLED_ERROR"
        assert error["message"].startswith(message)
        assert "outer saw" in seen.read_text()  # the ones around it still end
        assert await run(dispatcher, name, tmp_path / "next") == '"acme"'


@RUNNERS
@pytest.mark.parametrize("name", ["sleep", "sleep_async"])
@pytest.mark.parametrize(
    ("reason", "status", "code"), [("timeout", "FAILED", "TASK_TIMEOUT"), ("cancel", "CANCELLED", "TASK_CANCELLED")]
)
async def test_a_soft_stop_passes_through(
    tmp_path: Path, concurrency: int, name: str, reason: StopReason, status: str, code: str
) -> None:
    seen = tmp_path / "seen"
    async with open_pool(APP, concurrency=concurrency) as dispatcher:
        task_id = dispatcher.send(name, path=str(seen))
        await dispatcher.until(lambda: seen.exists() or None if task_id in dispatcher.begun else None)
        child, assignment_no = await dispatcher.beginning(task_id)
        child.interrupt(assignment_no, reason)
        done = await dispatcher.ending(task_id)
        assert (done.status, done.error_code) == (status, code)
        assert "outer saw" in seen.read_text()


async def test_a_copy_of_the_process_that_a_task_forks_does_not_run_the_end_of_the_middleware(tmp_path: Path) -> None:
    async with open_pool(APP) as dispatcher:
        assert await run(dispatcher, "fork", seen := tmp_path / "seen") is not None
        assert seen.read_text().count("outer saw") == 1


# -- in the tests of users, and called directly


def test_middleware_runs_in_a_drain_around_each_attempt_and_its_exceptions_are_retried(
    database: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    with open_sandbox(surrounded.app, database):
        surrounded.name_tenant.send(str(seen), "after")
        statuses = [ran.status for ran in drain(retries="now")]
    assert statuses == [TaskStatus.PENDING, TaskStatus.FAILED]
    assert seen.read_text().count("outer name_tenant") == 2


def test_middleware_runs_inline(database: str, tmp_path: Path) -> None:
    with open_sandbox(surrounded.app, database), run_inline():
        handle = surrounded.name_tenant.send(str(tmp_path / "seen"))
        assert handle.get(timeout_ms=0).unwrap() == "acme"


def test_a_task_that_is_called_directly_runs_without_middleware(tmp_path: Path) -> None:
    assert surrounded.name_tenant(str(tmp_path / "seen"), "err").is_err()
    assert not (tmp_path / "seen").exists()


# -- definition


def test_what_cannot_be_a_middleware_is_refused_with_what_to_write() -> None:
    app = Horsies()

    def plain(task: CurrentTask) -> Iterator[None]:
        return iter(())

    @contextmanager
    def managed(task: CurrentTask) -> Generator[None]:
        yield

    async def loop(task: CurrentTask) -> AsyncIterator[None]:
        yield

    def bare() -> Iterator[None]:
        yield

    cases: list[tuple[Any, str]] = [
        (plain, "not a generator function; write @app.middleware above a function with one `yield`"),
        (managed, "`with manager: yield`"),
        (loop, r'write @app.middleware\(around="async"\)'),
        (bare, r"write `def .*bare\(task: CurrentTask\)`"),
        (7, "not a generator function"),
    ]
    for function, message in cases:
        with pytest.raises(TaskDefinitionError, match=message):
            app.middleware(function)
    with pytest.raises(TaskDefinitionError, match='give "all", "def" or "async"'):
        app.middleware(around="both")(bare)  # pyright: ignore[reportArgumentType]
    assert app.middlewares == ()


def test_a_middleware_is_still_the_function_that_it_was() -> None:
    app = Horsies()

    @app.middleware
    def scope(task: CurrentTask) -> Generator[None, TaskResult[Any, TaskError], None]:
        yield

    @app.middleware(around="def")
    def another(task: CurrentTask) -> Iterator[None]:
        yield

    assert [each.function for each in app.middlewares] == [scope, another]
    assert app.check().middleware == [f"{__name__}.{name}" for name in (scope.__qualname__, another.__qualname__)]
