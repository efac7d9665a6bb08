"""What type checkers infer for user code. Checked by pyright and mypy, never run.

Each wrong line carries the rule by which either must report it: an ignore that nothing needs is an error itself.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_never, assert_type
from uuid import UUID

from horsies import (
    AppCheck,
    AppConfig,
    AsyncTask,
    Call,
    CurrentTask,
    Err,
    Horsies,
    Ok,
    Result,
    RetryPolicy,
    Sender,
    Task,
    TaskError,
    TaskFailure,
    TaskHandle,
    TaskInfo,
    TaskResult,
    TaskStatus,
    Worker,
    WorkerConfig,
    is_err,
    is_ok,
)

app = Horsies(AppConfig(exception_mapper={ConnectionError: "UPSTREAM_DOWN"}, max_payload_bytes=1_000_000))


class Thumbnail(TypedDict):
    width: int


# -- decoration: the signature is kept, the verbs are added


@app.task("resize", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["BUSY", OSError]), timeout_ms=1_000)
def resize(image_id: int, *, width: int = 800) -> TaskResult[Thumbnail, TaskError]:
    return TaskResult(ok={"width": image_id * width})


@app.task("fetch", exception_mapper={OSError: "SYSTEM"}, default_unhandled_error_code="FETCH_FAILED")
async def fetch(url: str, *parts: int, **headers: str) -> TaskResult[bytes | None, TaskError]:
    return TaskResult(ok=f"{url}{parts}{headers}".encode())


@app.task("tick")
def tick() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


def decoration() -> None:
    @app.task("bare")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
    def bare(value: int) -> int:
        return value

    app.task("typo", queue="media")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.task("mapped", exception_mapper={OSError: 7})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    app.task("mapped", exception_mapper={int: "X"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    assert bare


# -- a call in place


async def calls() -> None:
    assert_type(tick, Task[[], None])
    assert_type(resize(1, width=2), Result[Thumbnail])
    coroutine = fetch("https://…", 1, 2, accept="*")
    coroutine = assert_type(coroutine, Coroutine[Any, Any, Result[bytes | None]])
    assert_type(await fetch("https://…"), Result[bytes | None])
    resize("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize(1, 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- send follows the signature


async def sends() -> None:
    assert_type(resize.send(1), TaskHandle[Thumbnail])
    assert_type(resize.send(image_id=1, width=2), TaskHandle[Thumbnail])
    assert_type(tick.send(), TaskHandle[None])
    assert_type(fetch.send("https://…", 1, accept="*"), TaskHandle[bytes | None])
    assert_type(await resize.send_async(1, width=2), TaskHandle[Thumbnail])

    resize.send()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.send("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.send(1, 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.send(1, wdith=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.send(1, width="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tick.send(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fetch.send(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch.send("https://…", "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await resize.send_async("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def later() -> None:
    assert_type(resize.schedule(0.5, 1, width=2), TaskHandle[Thumbnail])
    assert_type(resize.schedule(timedelta(minutes=5), 1), TaskHandle[Thumbnail])
    assert_type(await resize.schedule_async(60, image_id=1), TaskHandle[Thumbnail])

    resize.schedule(60)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.schedule("60", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.schedule(60, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await resize.schedule_async(60, 1, 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def many() -> None:
    assert_type(tick.call(), Call[[], None])
    assert_type(resize.send_many([resize.call(1), resize.call(2, width=3)]), Sequence[TaskHandle[Thumbnail]])
    assert_type(resize.send_many(resize.call(number) for number in range(9)), Sequence[TaskHandle[Thumbnail]])
    assert_type(await resize.send_many_async([resize.call(1)]), Sequence[TaskHandle[Thumbnail]])

    resize.call("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.call(1, wdith=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.send_many([1, 2])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    resize.send_many([tick.call()])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    resize.send_many(resize.call(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def options(connection: object) -> None:
    assert_type(tick.with_options(priority=1), Sender[[], None])
    urgent = resize.with_options(priority=1, queue_name="media", good_until=datetime.now(UTC), connection=connection)
    assert_type(urgent.send(1, width=2), TaskHandle[Thumbnail])
    assert_type(await urgent.send_async(1), TaskHandle[Thumbnail])
    assert_type(urgent.schedule(5, 1), TaskHandle[Thumbnail])
    assert_type(urgent.send_many([resize.call(1)]), Sequence[TaskHandle[Thumbnail]])
    once = resize.with_options(key="image-1", on_conflict="replace", key_window=timedelta(hours=1))
    assert_type(once.send(1), TaskHandle[Thumbnail])

    urgent.send("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    urgent.schedule(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.with_options(prio=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    resize.with_options(eta=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.with_options(key="k", on_conflict="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- handles


async def handles(handle: TaskHandle[Thumbnail]) -> None:
    assert_type(handle.task_id, str)
    assert_type(handle.get(), Result[Thumbnail])
    assert_type(handle.get(timeout_ms=5_000), Result[Thumbnail])
    assert_type(await handle.get_async(5_000), Result[Thumbnail])
    assert_type(handle.status(), TaskStatus | None)
    assert_type(await handle.info_async(), TaskInfo | None)

    narrow: TaskHandle[int] = handle  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    wide: TaskHandle[object] = handle  # a handle only gives
    handle.get("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert narrow is wide


async def stored_ids(task_id: str) -> None:
    assert_type(app.handle(task_id), TaskHandle[Any])
    assert_type(app.handle(UUID(task_id), resize), TaskHandle[Thumbnail])
    assert_type(app.handle(task_id, fetch), TaskHandle[bytes | None])

    app.handle(7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    app.handle(task_id, "resize")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def several(handles: list[TaskHandle[Thumbnail]]) -> None:
    assert_type(app.gather(handles), list[Result[Thumbnail]])
    assert_type(app.gather(tuple(handles)), tuple[Result[Thumbnail], ...])
    three = (handles[0], tick.send(), fetch.send("a"))
    assert_type(app.gather(three), tuple[Result[Thumbnail], Result[None], Result[bytes | None]])
    thumbnail, nothing = await app.gather_async((handles[0], tick.send()), timeout_ms=5)
    assert_type((thumbnail, nothing), tuple[Result[Thumbnail], Result[None]])
    eight = (handles[0], *three, *three, tick.send())
    assert_type(app.gather(eight)[7], Result[None])
    assert_type(await app.gather_async(handles, timeout_ms=5_000), list[Result[Thumbnail]])
    for handle in app.as_completed(handles, timeout_ms=5_000):
        assert_type(handle, TaskHandle[Thumbnail])
    async for handle in app.as_completed_async(handles):
        assert_type(handle, TaskHandle[Thumbnail])

    app.gather(handles[0])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    app.gather(["id"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await app.gather_async(handles, "5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


# -- results


def results(result: TaskResult[Thumbnail, TaskError]) -> None:
    assert_type(result.is_ok(), bool)
    assert_type(result.ok_value, Thumbnail)
    assert_type(result.unwrap(), Thumbnail)
    assert_type(result.err_value, TaskError)
    assert_type(result.unwrap_err(), TaskError)
    assert_type(result.ok, Thumbnail | None)
    assert_type(result.err, TaskError | None)

    assert result.ok_value["height"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    assert result.value  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def matched(result: TaskResult[int, TaskError]) -> int:
    match result:
        case TaskResult(err=TaskError(error_code="WAIT_TIMEOUT")):
            return 0
        case TaskResult(err=TaskError() as error):
            assert_type(error, TaskError)
            return -1
        case TaskResult(ok=int() as value):
            assert_type(value, int)
            return value
        case _:
            raise AssertionError(result)


def told_apart(handle: TaskHandle[int]) -> int:
    """What `get()` returns has two kinds, so a `match` of both is complete."""
    match handle.get():
        case Ok(value):
            return assert_type(value, int)
        case Err(error):
            raise RuntimeError(assert_type(error, TaskError).message)


def asked(handle: TaskHandle[int]) -> int:
    result = handle.get()
    if is_err(result):
        return len(assert_type(result, Err[TaskError]).error.message)
    assert is_ok(result)
    return assert_type(result, Ok[int]).value


@app.task("total")
def total(parts: list[Result[int]]) -> Result[int]:
    return Ok(sum(part.value for part in parts if is_ok(part)))


def made() -> None:
    good: TaskResult[int, TaskError] = Ok(1)
    bad: Result[int] = Err(TaskError(error_code="X"))
    assert_type(total(parts=[bad]), Result[int])
    assert is_ok(good)
    Err("X")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def made_by_keyword() -> None:
    good: TaskResult[int, TaskError] = TaskResult(ok=1)
    bad: TaskResult[int, TaskError] = TaskResult(err=TaskError(error_code="X"))
    TaskResult(1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    TaskResult(ok=1, err=TaskError(error_code="X"))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    TaskResult(err="X")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    TaskError("X")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    good.ok = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert bad


def mismatched() -> TaskResult[int, TaskError]:
    return TaskResult(ok="1")  # type: ignore[arg-type]  # pyright: ignore[reportReturnType, reportUnknownVariableType]


def subtypes(task: Task[..., int], async_task: AsyncTask[..., int]) -> None:
    """A function can take any task of a type, and keeps its return type."""
    assert_type(task.send(1, 2), TaskHandle[int])
    assert_type(async_task.send(), TaskHandle[int])
    assert_type(task.with_options(priority=1).send(anything=1), TaskHandle[int])


def status_words(status: TaskStatus) -> bool:
    """A match over all of them is exhaustive."""
    match status:
        case TaskStatus.PENDING | TaskStatus.CLAIMED | TaskStatus.RUNNING:
            return False
        case TaskStatus.COMPLETED | TaskStatus.FAILED | TaskStatus.CANCELLED | TaskStatus.EXPIRED:
            return True
        case _:
            assert_never(status)


async def operation() -> None:
    async with app.worker(WorkerConfig(processes=2)) as worker:
        assert_type(worker, Worker)
        assert_type(await worker.wait_async(), int)
    assert_type(app.check(), AppCheck)
    app.worker(processes=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.task(task_name="resize it")(resize.function)


# -- names and options of other task queues are reported as unknown, although their errors say what to write


def other_queues(handle: TaskHandle[int]) -> None:
    resize.delay(7)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    resize.with_options(countdown=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    handle.ready()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    app.send_task("resize")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    app.task("bound", bind=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- a task that is enqueued on failure takes the failure


@app.task("tell")
def tell(failure: TaskFailure, *, how: str = "mail") -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{how} {failure.error.message}")


def on_failure() -> None:
    app.task("charge", on_failure=tell)
    app.task("charge", on_failure="tell")
    app.task("charge", on_failure=resize)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- middleware: the function is kept, and the result of the task is known


@app.middleware
def observed(task: CurrentTask) -> Generator[None, TaskResult[Any, TaskError], None]:
    result = yield
    assert_type(result, TaskResult[Any, TaskError])
    assert_type(task.arguments, Mapping[str, Any])


@app.middleware(around="async")
async def observed_async(_task: CurrentTask) -> AsyncIterator[None]:
    yield


def middleware() -> None:
    function: Callable[[CurrentTask], Generator[None, TaskResult[Any, TaskError], None]] = observed
    app.middleware(around="sync")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

    @app.middleware  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
    def plain(_task: CurrentTask) -> None: ...

    assert [function, plain]
