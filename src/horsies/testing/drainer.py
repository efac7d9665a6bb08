"""Drain the sandbox: act as a worker in this process, for as long as something is due.

A drain claims one task at a time with a worker's own batch, in the order of service, prepares and finishes it as a child
process does, and saves its outcome with another batch. So queues, priorities, caps, pauses, retries, expiry and
cancellation are the real ones. What needs another process is missing: a task that kills its process kills the test, and a
running task cannot be killed.

A `def` task runs on the thread that drains or, if a coroutine drains, on another one: it may block, send and wait, as in
a child process. A timeout interrupts it by a signal on the main thread, and between two bytecode instructions elsewhere
(`executor/interrupt.py`). An `async def` task runs on an event loop: that of the caller, or one of the drain.

Inline, a send returns when its task has run. The send is a real one, and so is the run: the row is committed, and drained,
before the verb returns. So arguments and results are encoded and decoded, keys, queues and policies apply, and handles read
what is stored. Only the delays of retries are skipped. What is sent in the caller's own transaction runs with the first verb
after its COMMIT.
"""

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import uuid4

from horsies.app import Horsies
from horsies.db.broker import UnpooledBroker
from horsies.db.statement import Op, load, rows
from horsies.executor.attempt_logs import AttemptLines, handler_on_root
from horsies.executor.execute import CallOutcome, PreparedCall, RunningTask, finish, prepare
from horsies.executor.interrupt import SOFT_STOP_SIGNAL, InterruptCoroutine, InterruptMainThread, InterruptThread
from horsies.executor.protocol import Assignment, Done
from horsies.model.attempt_log import KeptLines
from horsies.model.codec import decode_error
from horsies.model.config import PostgresConfig
from horsies.model.errors import HorsiesError
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, TaskId
from horsies.model.worker_config import WorkerConfig
from horsies.tasks.claim import ClaimRequest, lanes_from_start, load_payloads, payloads_from_rows
from horsies.tasks.finish import release_tasks, report_progress
from horsies.tasks.handle import refuse_in_event_loop
from horsies.tasks.inspect import get_info
from horsies.testing.database_clock import run_maintenance
from horsies.testing.sandbox import Sandbox, TaskCalls, sandbox_of
from horsies.worker.batch import Batch, ending_from_done, run_batch
from horsies.worker.child import assigned_fields
from horsies.worker.run import claim_limits_for, served_queues
from horsies.workflows.advance import run_steps

MAX_ATTEMPTS = 1_000
MAX_DEPTH = 20  # of tasks that are run inline by sends of tasks

SQL = load(__file__)

Retries: TypeAlias = Literal["later", "now"]
"""When a failed attempt is retried: after its delay (see `clock.advance`), or immediately."""

Verb: TypeAlias = Callable[[], Op[Any]]

T = TypeVar("T")
_depth: ContextVar[int] = ContextVar("horsies_inline_depth", default=0)
_WORKER_CONFIG = WorkerConfig(processes=1)


class EndlessDrainError(HorsiesError, RuntimeError):
    """A drain did not come to an end, because tasks keep sending tasks."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that was run. `status` is the status of the task after it: PENDING if it will be retried."""

    task_name: str
    task_id: TaskId
    queue_name: str
    attempt: int
    status: TaskStatus
    error: TaskError | None = None
    raised: BaseException | None = field(default=None, compare=False)
    """What the function raised, with its traceback."""


def drain(app: Horsies | None = None, *, limit: int | None = None, retries: Retries = "later") -> list[Ran]:
    """Run what is due, and what these tasks send, until nothing is due or `limit` attempts have run. Return the attempts
    in order.
    """
    refuse_in_event_loop("drain()", "await drain_async()")
    sandbox = sandbox_of(app)
    return Drain(sandbox, limit, retries).run(sandbox.broker.run)


async def drain_async(app: Horsies | None = None, *, limit: int | None = None, retries: Retries = "later") -> list[Ran]:
    """Like `drain`, on the running event loop, which `async def` tasks share."""
    sandbox = sandbox_of(app)
    return await Drain(sandbox, limit, retries).run_async(sandbox.broker.run_async)


@dataclass(slots=True)
class Drain:
    """One drain. Its steps, verbs for the database and calls of tasks, are the same for blocking and asynchronous callers."""

    sandbox: Sandbox
    limit: int | None
    retries: Retries
    max_attempts: int = MAX_ATTEMPTS
    """After which a drain without a limit counts as endless."""
    ran: list[Ran] = field(default_factory=list[Ran])
    worker: str = field(default_factory=lambda: str(uuid4()))

    @property
    def app(self) -> Horsies:
        return self.sandbox.app

    @property
    def database(self) -> PostgresConfig:
        return self.sandbox.broker.config

    def run(self, run_verb: Callable[[Verb], Any]) -> list[Ran]:
        steps, reply = self._steps(), None
        with asyncio.Runner() as runner:
            try:
                while True:
                    step = steps.send(reply)
                    reply = _call(step, runner, self.sandbox.calls) if isinstance(step, _TaskCall) else run_verb(step)
            except StopIteration:
                return self.ran

    async def run_async(self, run_verb: Callable[[Verb], Awaitable[Any]]) -> list[Ran]:
        steps, reply = self._steps(), None
        try:
            while True:
                step = steps.send(reply)
                reply = await (_call_async(step, self.sandbox.calls) if isinstance(step, _TaskCall) else run_verb(step))
        except StopIteration:
            return self.ran

    def _steps(self) -> "Generator[Verb | _TaskCall, Any, None]":
        yield run_maintenance
        while self.limit is None or len(self.ran) < self.limit:
            claim: Claim | None = yield self._claim
            if claim is None:
                yield run_maintenance  # for what has expired while others ran
                return
            if self.limit is None and len(self.ran) >= self.max_attempts:
                yield partial(rows, release_tasks(self.worker, [claim]))
                most_common = Counter(each.task_name for each in self.ran).most_common(3)
                names = ", ".join(f"{name!r} {count} times" for name, count in most_common)
                raise EndlessDrainError(
                    f"{len(self.ran)} attempts have run, and something is still due: {names}. If tasks keep sending each "
                    "other, limit the number of attempts with drain(limit=...)"
                )
            yield from self._run(claim)

    def _claim(self) -> Op[Claim | None]:
        if self.retries == "now":
            yield from rows(SQL["make_retries_due"]())
        lanes = lanes_from_start([queue.name for queue in served_queues(self.app.config, _WORKER_CONFIG)])
        limits = claim_limits_for(self.app.config, _WORKER_CONFIG)
        request = ClaimRequest(self.worker, TaskStatus.RUNNING, 1, limits.lease_ms, caps=limits.caps)
        result = yield from run_batch(
            Batch(self.worker, self.database, limits.caps, [], promotes=True, claim_requests=[request], lanes=lanes)
        )
        (claims,) = result.claimed
        if not claims or not claims[0].is_unread:
            return claims[0] if claims else None
        payload = payloads_from_rows((yield from rows(load_payloads(self.worker, claims))))[claims[0].id]
        return claims[0]._replace(args=payload.args, inputs=payload.inputs)

    def _run(self, claim: Claim) -> "Generator[Verb | _TaskCall, Any, None]":
        progress: list[str] = []

        def report(_assignment_no: int, fraction: float | None, message: str | None) -> None:
            progress.append(json.dumps({"fraction": fraction, "message": message}))

        running = RunningTask(Assignment._make((1, *assigned_fields(claim))))
        prepared = prepare(self.app.known_tasks, running, report, lambda no: AttemptLines(no, lambda _lines: None))
        raised: BaseException | None = None
        if isinstance(prepared, Done):
            done = prepared
        else:
            with handler_on_root() if running.lines else nullcontext():
                outcome = yield _TaskCall(running, prepared, prepared.context)
                raised = outcome[1]
                done = prepared.context.run(finish, running, prepared.task, outcome)
        status = yield partial(self._finish, claim, done, progress, running.lines)
        error = decode_error(done.error) if done.error else None
        self.ran.append(Ran(claim.task_name, claim.id, claim.queue_name, claim.attempt, status, error, raised))
        # Ctrl-C, pytest.fail(), pytest.skip() and the error of an inner drain end this drain, too.
        fails_the_task_only = isinstance(raised, Exception | SystemExit | GeneratorExit | asyncio.CancelledError)
        if raised is not None and (isinstance(raised, EndlessDrainError) or not fails_the_task_only):
            raise raised

    def _finish(self, claim: Claim, done: Done, progress: list[str], logged: AttemptLines | None) -> Op[TaskStatus]:
        """Save the outcome and return the status of the task."""
        if progress:
            yield from rows(report_progress(self.worker, [(claim.id, claim.claim_no, progress[-1])]))
        ending = ending_from_done(claim, done, os.getpid())
        if logged is not None and (lines := logged.take(is_over=True)):
            ending = ending._replace(log=KeptLines(lines).to_stored(claim.attempt))
        caps = claim_limits_for(self.app.config, _WORKER_CONFIG).caps
        batch = Batch(self.worker, self.database, caps, [ending], frees_capped=caps.has_limits)
        result = yield from run_batch(batch)
        yield from run_steps(result.unsettled)
        if claim.id in result.ended and not ending.may_retry:
            return ending.status
        info = yield from get_info(claim.id)
        return info.status if info else ending.status


@dataclass(frozen=True, slots=True)
class _TaskCall:
    """A call of a task's function that is to be made now."""

    running: RunningTask
    prepared: PreparedCall
    context: Context

    @property
    def timeout_s(self) -> float | None:
        timeout_ms = self.running.assignment.timeout_ms
        return None if timeout_ms is None else timeout_ms / 1000

    def stop_after_timeout(self, stop: Callable[[], object]) -> None:
        if not self.running.is_over:
            self.running.request_stop("timeout")
            stop()


def _call(call: _TaskCall, runner: asyncio.Runner, calls: TaskCalls) -> CallOutcome:
    after = calls.before()
    try:
        if call.prepared.task.is_async:
            return calls.run_coroutine(runner, _call_coroutine(call), call.context)
        return _call_function(call)
    finally:
        after()


def _call_function(call: _TaskCall) -> CallOutcome:
    if call.timeout_s is None or threading.current_thread() is not threading.main_thread():
        return _call_on_thread(call)
    handler = signal.getsignal(SOFT_STOP_SIGNAL)  # replaced by InterruptMainThread
    interrupt = InterruptMainThread()
    try:
        with _timeout(call, partial(interrupt.stop, call.running)):
            return interrupt.call(call.running, partial(call.context.run, call.prepared.function))
    finally:
        signal.signal(SOFT_STOP_SIGNAL, handler)


async def _call_async(call: _TaskCall, calls: TaskCalls) -> CallOutcome:
    after = await calls.run_blocking(calls.before)
    try:
        if call.prepared.task.is_async:
            outcome = await asyncio.get_running_loop().create_task(_call_coroutine(call), context=call.context)
        else:
            outcome = await calls.run_function(partial(_call_on_thread, call))
    finally:
        await calls.run_blocking(after)
    draining = asyncio.current_task()
    if draining and draining.cancelling():
        raise asyncio.CancelledError  # the drain was cancelled, and the task has caught the exception
    return outcome


async def _call_coroutine(call: _TaskCall) -> CallOutcome:
    interrupt = InterruptCoroutine(call.running)
    if call.timeout_s is None:
        return await interrupt.call(call.prepared.function)
    timer = asyncio.get_running_loop().call_later(call.timeout_s, call.stop_after_timeout, interrupt.stop)
    try:
        return await interrupt.call(call.prepared.function)
    finally:
        timer.cancel()


def _call_on_thread(call: _TaskCall) -> CallOutcome:
    interrupt = InterruptThread(call.running)
    with _timeout(call, interrupt.stop):
        return interrupt.call(partial(call.context.run, call.prepared.function))


@contextmanager
def _timeout(call: _TaskCall, stop: Callable[[], object]) -> Generator[None]:
    if call.timeout_s is None:
        yield
        return
    timer = threading.Timer(call.timeout_s, call.stop_after_timeout, [stop])
    timer.name = "horsies-timeout"
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        call.running.is_over = True  # a thread that still sends signals stops then
        timer.cancel()
        timer.join()


# -- inline


@contextmanager
def run_inline(app: Horsies | None = None) -> Generator[list[Ran]]:
    """Within this context, run whatever is due as soon as it is sent, in this process. The list of attempts grows."""
    sandbox, ran = sandbox_of(app), list[Ran]()
    with _InlineBroker(sandbox, ran) as broker, sandbox.app.using(broker):
        yield ran
        if sandbox.calls.joins_transactions:
            broker.drain()  # what was sent in a transaction that has ended since


class _InlineBroker(UnpooledBroker):
    """Drains before and after each verb: before it, because a transaction of the caller may have been committed.

    All else is done by the broker of the sandbox.
    """

    def __init__(self, sandbox: Sandbox, ran: list[Ran]) -> None:
        super().__init__(sandbox.broker.config, resilience=sandbox.app.config.resilience)
        self._sandbox = sandbox
        self._below = sandbox.broker
        self._ran = ran

    def run(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        refuse_in_event_loop("a blocking call within run_inline()", "await task.send_async(...)")
        self.drain()
        answer = self._below.run(verb, again=again)
        self.drain()
        return answer

    async def run_async(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        await self._drain_async()
        answer = await self._below.run_async(verb, again=again)
        await self._drain_async()
        return answer

    def run_on(self, connection: object, verb: Callable[[], Op[T]]) -> T:
        answer = self._below.run_on(connection, verb)
        if self._sandbox.calls.joins_transactions:
            self.drain()
        return answer

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self.drain()
        return self._below.wait(*args, **kwargs)

    def as_completed(self, *args: Any, **kwargs: Any) -> Any:
        self.drain()
        return self._below.as_completed(*args, **kwargs)

    @asynccontextmanager
    async def waiting_async(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        await self._drain_async()
        async with self._below.waiting_async(*args, **kwargs) as futures:
            yield futures

    def drain(self) -> None:
        if self._sandbox.calls.can_drain():
            with _nested():
                self._ran += Drain(self._sandbox, None, "now").run(self._below.run)

    async def _drain_async(self) -> None:
        if await self._sandbox.calls.run_blocking(self._sandbox.calls.can_drain):
            with _nested():
                self._ran += await Drain(self._sandbox, None, "now").run_async(self._below.run_async)


@contextmanager
def _nested() -> Generator[None]:
    """Limit the depth: a task that sends runs the next one before it continues, so endless sending would fill the stack."""
    if _depth.get() >= MAX_DEPTH:
        raise EndlessDrainError(
            f"within run_inline(), {MAX_DEPTH} tasks have each sent the next; send the first one without it, and use drain(limit=...)"
        )
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)
