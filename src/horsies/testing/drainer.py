"""Drain: a worker in this process, for as long as something is due.

It claims with a worker's own turn, one task at a time in the order of service, prepares and concludes as a child does, and writes the
ending with the next turn. So queues, priorities, caps, pauses, retries, expiry and cancellation are the real ones. What only another
process can do is left out: a task that kills its process kills the test, and one that runs cannot be killed.
"""

import asyncio
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from horsies.app import Horsies
from horsies.db.statement import Op, load, rows
from horsies.executor.execute import CallOutcome, PreparedCall, RunningTask, fail_before_start, finish, prepare
from horsies.executor.interrupt import SOFT_STOP_SIGNAL, InterruptCoroutine, InterruptMainThread, InterruptThread
from horsies.executor.protocol import Assignment, Done
from horsies.model.codec import decode_error
from horsies.model.config import PostgresConfig
from horsies.model.errors import HorsiesError
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.model.worker_config import WorkerConfig
from horsies.tasks.claim import ClaimRequest, lanes_from_start, load_payloads, payloads_from_rows
from horsies.tasks.handle import refuse_in_event_loop
from horsies.tasks.inspect import get_info
from horsies.tasks.release import release_tasks, report_progress
from horsies.testing.database_clock import run_maintenance
from horsies.testing.sandbox import sandbox_of
from horsies.worker.batch import Batch, run_batch
from horsies.worker.capacity import ClaimLimits
from horsies.worker.child import fields_from_claim
from horsies.worker.run import claim_limits_for, served_queues
from horsies.worker.timeouts import ending_from_done
from horsies.workflows.advance import run_steps

# --------
# Calls a task's function in this very process, as a child would in its own.
#
# A `def` runs on the thread that drains, or, when a coroutine drains, on another one: there it may block, send and wait, as it may in
# a child. Its time-out strikes it by signal on the main thread and between two instructions elsewhere (`executor/interrupt.py`). An
# `async def` runs on an event loop: the caller's, or one that lives as long as the drain.


@dataclass(frozen=True, slots=True)
class DrainJob:
    """A call that is to be made now."""

    running: RunningTask
    call: PreparedCall
    context: Context

    @property
    def timeout_s(self) -> float | None:
        timeout_ms = self.running.assignment.timeout_ms
        return None if timeout_ms is None else timeout_ms / 1000


def run_job(job: DrainJob, runner: asyncio.Runner) -> CallOutcome:
    """Blocking."""
    if job.call.task.is_async:
        return runner.run(_on_loop(job), context=job.context)
    function = partial(job.context.run, job.call.function)
    if job.timeout_s is not None and threading.current_thread() is threading.main_thread():
        return _on_main_thread(job, function)
    return _on_thread(job, function)


async def run_job_async(job: DrainJob) -> CallOutcome:
    """On the running event loop."""
    loop = asyncio.get_running_loop()
    if job.call.task.is_async:
        outcome = await loop.create_task(_on_loop(job), context=job.context)
    else:
        outcome = await loop.run_in_executor(None, _on_thread, job, partial(job.context.run, job.call.function))
    draining = asyncio.current_task()
    if draining and draining.cancelling():
        raise asyncio.CancelledError  # it was meant for us, and the task has taken it for its own
    return outcome


async def _on_loop(job: DrainJob) -> CallOutcome:
    on_loop = InterruptCoroutine(job.running)
    if job.timeout_s is None:
        return await on_loop.call(job.call.function)
    wakeup_timer = asyncio.get_running_loop().call_later(job.timeout_s, _time_is_up, job.running, on_loop.stop)
    try:
        return await on_loop.call(job.call.function)
    finally:
        wakeup_timer.cancel()


def _on_thread(job: DrainJob, function: Callable[[], Any]) -> CallOutcome:
    on_thread = InterruptThread(job.running)
    with _wakeup_timer(job, on_thread.stop):
        return on_thread.call(function)


def _on_main_thread(job: DrainJob, function: Callable[[], Any]) -> CallOutcome:
    before = signal.getsignal(SOFT_STOP_SIGNAL)
    main = InterruptMainThread()
    try:
        with _wakeup_timer(job, partial(main.stop, job.running)):
            return main.call(job.running, function)
    finally:
        signal.signal(SOFT_STOP_SIGNAL, before)


@contextmanager
def _wakeup_timer(job: DrainJob, stop: Callable[[], object]) -> Generator[None]:
    if job.timeout_s is None:
        yield
        return
    timer = threading.Timer(job.timeout_s, _time_is_up, [job.running, stop])
    timer.name = "horsies-alarm"
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        job.running.is_over = True  # whoever still nudges it leaves it alone
        timer.cancel()
        timer.join()


def _time_is_up(running: RunningTask, stop: Callable[[], object]) -> None:
    if not running.is_over:
        running.request_stop("timeout")
        stop()


ENDLESS = 1_000

SQL = load(__file__)

Retries: TypeAlias = Literal["later", "now"]
"""When a failed attempt is followed by the next: after its delay, for which `clock.advance` is there, or at once."""

Verb: TypeAlias = Callable[[], Op[Any]]


class EndlessDrainError(HorsiesError, RuntimeError):
    """There was always something more to do."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that was run. `status` is what the task is after it: PENDING when it will be retried."""

    task_name: str
    task_id: TaskId
    queue_name: str
    attempt: int
    status: TaskStatus
    error: TaskError | None = None
    raised: BaseException | None = field(default=None, compare=False)
    """What the function raised, with its traceback."""


def drain(app: Horsies | None = None, *, limit: int | None = None, retries: Retries = "later") -> list[Ran]:
    """Run what is due, and what that sends, until nothing is due or `limit` attempts have run; what ran, in order."""
    refuse_in_event_loop("drain()", "await drain_async()")
    sandbox = sandbox_of(app)
    return work(Drain(sandbox.app, sandbox.broker.config, limit, retries), sandbox.broker.run)


async def drain_async(app: Horsies | None = None, *, limit: int | None = None, retries: Retries = "later") -> list[Ran]:
    """The same on the running event loop, which its `async def` tasks share."""
    sandbox = sandbox_of(app)
    return await work_async(Drain(sandbox.app, sandbox.broker.config, limit, retries), sandbox.broker.run_async)


def work(drain: "Drain", run: Callable[[Verb], Any]) -> list[Ran]:
    steps, reply = drain.steps(), None
    with asyncio.Runner() as runner:
        try:
            while True:
                step = steps.send(reply)
                reply = run_job(step, runner) if isinstance(step, DrainJob) else run(step)
        except StopIteration as end:
            return end.value


async def work_async(drain: "Drain", run: Callable[[Verb], Any]) -> list[Ran]:
    steps, reply = drain.steps(), None
    try:
        while True:
            step = steps.send(reply)
            reply = await (run_job_async(step) if isinstance(step, DrainJob) else run(step))
    except StopIteration as end:
        return end.value


@dataclass(slots=True)
class Drain:
    """The steps of one drain: verbs for the database and jobs for the hands, whoever's they are."""

    app: Horsies
    database: PostgresConfig
    limit: int | None
    retries: Retries
    ran: list[Ran] = field(default_factory=list[Ran])
    worker: str = field(default_factory=lambda: str(uuid4()))

    def steps(self) -> Generator[Verb | DrainJob, Any, list[Ran]]:
        yield run_maintenance
        while self.limit is None or len(self.ran) < self.limit:
            claim: Claim | None = yield self._claim
            if claim is None:
                yield run_maintenance  # what came too late while others ran
                break
            if self.limit is None and len(self.ran) >= ENDLESS:
                yield from self._give_up(claim)
            yield from self._run(claim)
        return self.ran

    def _give_up(self, claim: Claim) -> Generator[Verb, Any, None]:
        yield lambda: rows(release_tasks(self.worker, [claim]))
        raise EndlessDrainError(self._busy())

    def _claim(self) -> Op[Claim | None]:
        if self.retries == "now":
            yield from rows(SQL["make_retries_due"]())
        lanes = lanes_from_start([queue.name for queue in served_queues(self.app.config, _WORKER_CONFIG)])
        wanted = ClaimRequest(self.worker, TaskStatus.RUNNING, 1, self._limits.lease_ms, caps=self._limits.caps)
        outcome = yield from run_batch(
            Batch(
                self.worker, self.database, self._limits.caps, [], promotes=True, claim_requests=[wanted], lanes=lanes
            )
        )
        (claims,) = outcome.claimed
        if not claims or not claims[0].is_unread:
            return claims[0] if claims else None
        found = payloads_from_rows((yield from rows(load_payloads(self.worker, claims))))
        payload = found[claims[0].id]
        return replace(claims[0], args=payload.args, inputs=payload.inputs)

    @property
    def _limits(self) -> ClaimLimits:
        return claim_limits_for(self.app.config, _WORKER_CONFIG)

    def _run(self, claim: Claim) -> Generator[Verb | DrainJob, Any, None]:
        running = RunningTask(Assignment(*fields_from_claim(1, claim)))
        reports: list[str] = []
        prepared, context = prepare(self.app.known_tasks, running), running.task_context(_noted(reports))
        raised: BaseException | None = None
        if isinstance(prepared, TaskError):
            done = context.run(fail_before_start, running, prepared)
        else:
            running.begin_span(context, prepared.task.tracer)
            outcome = yield DrainJob(running, prepared, context)
            raised = outcome[1]
            done = context.run(finish, running, prepared.task, outcome)
        status = yield lambda: self._finish(claim, done, reports)
        error = decode_error(done.error) if done.error else None
        self.ran.append(Ran(claim.task_name, claim.id, claim.queue_name, claim.attempt, status, error, raised))
        if raised is not None and _ends_more_than_the_task(raised):
            raise raised

    def _finish(self, claim: Claim, done: Done, reports: list[str]) -> Op[TaskStatus]:
        """What the task is then."""
        if reports:
            yield from rows(report_progress(self.worker, [(claim.id, claim.claim_no, reports[-1])]))
        ending = ending_from_done(claim, done)
        outcome = yield from run_batch(self._ending_turn(ending))
        yield from run_steps(outcome.unsettled)
        if claim.id in outcome.ended and not ending.may_retry:
            return ending.status
        info = yield from get_info(claim.id)
        return info.status if info else ending.status

    def _ending_turn(self, ending: Ending) -> Batch:
        caps = self._limits.caps
        return Batch(self.worker, self.database, caps, [ending], frees_capped=caps.has_limits)

    def _busy(self) -> str:
        names = ", ".join(
            f"{name!r} {count} times" for name, count in Counter(r.task_name for r in self.ran).most_common(3)
        )
        return (
            f"{len(self.ran)} attempts have run, and something is still due: {names}. If tasks send each other for ever, say how "
            "far to go with drain(limit=...)"
        )


_WORKER_CONFIG = WorkerConfig(processes=1)


def _ends_more_than_the_task(raised: BaseException) -> bool:
    """Ctrl-C, pytest.fail(), pytest.skip(): not for the task to keep. And a drain within this one that had no end."""
    its_own = Exception, SystemExit, GeneratorExit, asyncio.CancelledError
    return isinstance(raised, EndlessDrainError) or not isinstance(raised, its_own)


def _noted(reports: list[str]) -> Callable[[int, float | None, str | None], None]:
    def note(_ticket: int, fraction: float | None, message: str | None) -> None:
        reports.append(json.dumps({"fraction": fraction, "message": message}))

    return note
