"""Calling a task in place returns what a worker would have stored."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from horsies import ContractCode, Horsies, OperationalErrorCode, TaskCancelledError, TaskError, TaskResult
from horsies.model.error_codes import RESERVED_CODES
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.workers import StartWorker

TIMEOUT_MS = 30_000


@pytest.fixture
def mapped(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("mapped")
    yield module
    module.app.close()


def shown(result: TaskResult[Any, TaskError]) -> object:
    """Return the part of a result that does not depend on where the task ran."""
    if result.is_ok():
        return result.unwrap()
    error = result.unwrap_err()
    data: dict[str, Any] = error.data or {}
    return error.error_code, error.message, {name: data[name] for name in data.keys() - {"traceback", "task_id"}}


CALLS = [
    *(("raise_it", what) for what in ("refused", "missing", "value", "group", "mixed")),
    ("raise_mapped", "missing"),
    ("raise_default", "value"),
    *(("return_anything", what) for what in ("nothing", "number", "text", "good", "declined", "no such key")),
    ("return_anything_async", "nothing"),
    ("claim_code", "WORKER_CRASHED"),
]


def test_a_call_in_place_returns_what_a_worker_stores(mapped: Any, worker: StartWorker) -> None:
    worker("tests.apps.mapped:app")
    handles = {call: mapped.app.tasks[call[0]].send(call[1]) for call in CALLS}

    async def called(name: str, what: str) -> TaskResult[Any, TaskError]:
        returned = mapped.app.tasks[name](what)
        return await returned if mapped.app.tasks[name].is_async else returned

    here = {call: asyncio.run(called(*call)) for call in CALLS}
    there = {call: handle.get(timeout_ms=TIMEOUT_MS) for call, handle in handles.items()}
    assert {call: shown(result) for call, result in here.items()} == {
        call: shown(result) for call, result in there.items()
    }
    assert here["return_anything", "nothing"].unwrap_err().error_code == ContractCode.RETURN_TYPE_MISMATCH
    assert "call_in_place" not in here["raise_it", "value"].unwrap_err().data["traceback"]


def test_invalid_arguments_raise_at_the_call(mapped: Any) -> None:
    for name in ("raise_it", "raise_mapped"):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            mapped.app.tasks[name]()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, TaskCancelledError])
def test_exceptions_meant_for_the_caller_are_not_caught(raised: type[BaseException]) -> None:
    app = Horsies()

    @app.task("stop")
    def stop() -> TaskResult[None, TaskError]:
        raise raised

    @app.task("stop_async")
    async def stop_async() -> TaskResult[None, TaskError]:
        await asyncio.sleep(0)
        try:
            raise raised
        finally:
            if raised is TaskCancelledError:
                raise OSError("cleaning up fails, too")

    with pytest.raises(raised):
        stop()
    with pytest.raises((raised, OSError)):
        asyncio.run(stop_async())


def test_an_asyncio_timeout_is_an_ordinary_error() -> None:
    """It is raised from a CancelledError, but the cancellation is over by then."""
    app = Horsies()

    @app.task("wait")
    async def wait() -> TaskResult[None, TaskError]:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
        return TaskResult(ok=None)

    assert asyncio.run(wait()).unwrap_err().error_code == OperationalErrorCode.UNHANDLED_ERROR


def test_cancelling_a_task_during_a_call_in_place_stops_it(mapped: Any, worker: StartWorker, tmp_path: Path) -> None:
    """The request is for the calling task: it must not become the result of the call."""
    worker("tests.apps.mapped:app")
    begun = tmp_path / "begun"
    handle = mapped.call_in_place.send(str(begun))
    eventually(begun.exists, what="the inner call has begun")
    handle.cancel()
    assert handle.get(timeout_ms=TIMEOUT_MS).unwrap_err().error_code == "TASK_CANCELLED"


# -- error codes of the library


def test_returning_a_library_error_code_breaks_the_contract_and_is_not_retried(
    mapped: Any, worker: StartWorker
) -> None:
    worker("tests.apps.mapped:app")
    handles = {code: mapped.claim_code.send(code) for code in sorted(RESERVED_CODES)}
    for code, handle in handles.items():
        error = handle.get(timeout_ms=TIMEOUT_MS).unwrap_err()
        assert error.error_code == ContractCode.RESERVED_ERROR_CODE
        assert error.message.startswith(
            f"task claim_code returned the error code {code}, which is one of the library's"
        )
        assert {**error.data, "task_id": None} == {
            "task_id": None,
            "error_code": code,
            "message": "as if",
            "data": [1],
        }
        assert handle.info().attempts == 1


@pytest.mark.parametrize("code", ["UNHANDLED_ERROR", "WORKER_TIRED", "MY_TASK_TIMEOUT"])
def test_other_error_codes_belong_to_the_user(mapped: Any, code: str) -> None:
    assert mapped.claim_code(code).unwrap_err() == TaskError(error_code=code, message="as if", data=[1])


# -- the task of an error


def test_library_errors_name_their_task(mapped: Any, worker: StartWorker) -> None:
    waiting = mapped.return_anything.send("good")
    gone = mapped.return_anything.send("good")
    gone.cancel()
    unknown = mapped.app.handle("00000000-0000-7000-8000-000000000000")
    results = {handle: handle.get(timeout_ms=0) for handle in (waiting, gone, unknown)}
    worker("tests.apps.mapped:app")
    ended = [
        mapped.raise_it.send("value"),
        mapped.return_anything.send("nothing"),
        mapped.claim_code.send("WORKER_CRASHED"),
        mapped.repeat.send("x", 5_000),
    ]
    results |= {handle: handle.get(timeout_ms=TIMEOUT_MS) for handle in ended}
    assert [result.unwrap_err().data["task_id"] for result in results.values()] == [
        handle.task_id for handle in results
    ]
    declined = mapped.return_anything.send("declined").get(timeout_ms=TIMEOUT_MS)
    assert declined.unwrap_err().data == {"by": "bank"}
