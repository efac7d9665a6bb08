"""Drain: a worker in this process, for as long as something is due.

It claims with a worker's own turn, one task at a time in the order of service, prepares and concludes as a child does, and writes the
ending with the next turn. So queues, priorities, caps, pauses, retries, expiry and cancellation are the real ones. What only another
process can do is left out: a task that kills its process kills the test, and one that runs cannot be killed.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from horsies.app import Horsies
from horsies.child.outcome import conclude, prepare, refused
from horsies.child.running import begin, context_of, trace
from horsies.child.wire import Assignment, Done
from horsies.db.load import load
from horsies.db.op import Op, rows
from horsies.model.codec import decode_error
from horsies.model.config import PostgresConfig
from horsies.model.errors import HorsiesError
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.model.worker import WorkerConfig
from horsies.tasks.claim import Wanted, as_payloads, from_start, load_payloads
from horsies.tasks.handle import refuse_in_event_loop
from horsies.tasks.inspect import get_info
from horsies.tasks.release import release, report_progress
from horsies.testing.clockwork import keep_house
from horsies.testing.hands import Job, do, do_async
from horsies.testing.sandbox import sandbox_of
from horsies.worker.room import Limits
from horsies.worker.settings import limits_of, queues_of
from horsies.worker.stops import ending_of
from horsies.worker.tickets import fields_of
from horsies.worker.turn import Turn, take_turn
from horsies.workflows.advance import settle

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
                reply = do(step, runner) if isinstance(step, Job) else run(step)
        except StopIteration as end:
            return end.value


async def work_async(drain: "Drain", run: Callable[[Verb], Any]) -> list[Ran]:
    steps, reply = drain.steps(), None
    try:
        while True:
            step = steps.send(reply)
            reply = await (do_async(step) if isinstance(step, Job) else run(step))
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

    def steps(self) -> Generator[Verb | Job, Any, list[Ran]]:
        yield keep_house
        while self.limit is None or len(self.ran) < self.limit:
            claim: Claim | None = yield self._claim
            if claim is None:
                yield keep_house  # what came too late while others ran
                break
            if self.limit is None and len(self.ran) >= ENDLESS:
                yield from self._give_up(claim)
            yield from self._run(claim)
        return self.ran

    def _give_up(self, claim: Claim) -> Generator[Verb, Any, None]:
        yield lambda: rows(release(self.worker, [claim]))
        raise EndlessDrainError(self._busy())

    def _claim(self) -> Op[Claim | None]:
        if self.retries == "now":
            yield from rows(SQL["make_retries_due"]())
        lanes = from_start([queue.name for queue in queues_of(self.app.config, _AS_A_WORKER)])
        wanted = Wanted(self.worker, TaskStatus.RUNNING, 1, self._limits.lease_ms, caps=self._limits.caps)
        outcome = yield from take_turn(
            Turn(self.worker, self.database, self._limits.caps, [], promotes=True, wanted=[wanted], lanes=lanes)
        )
        (claims,) = outcome.claimed
        if not claims or not claims[0].is_unread:
            return claims[0] if claims else None
        found = as_payloads((yield from rows(load_payloads(self.worker, claims))))
        payload = found[claims[0].id]
        return replace(claims[0], args=payload.args, inputs=payload.inputs)

    @property
    def _limits(self) -> Limits:
        return limits_of(self.app.config, _AS_A_WORKER)

    def _run(self, claim: Claim) -> Generator[Verb | Job, Any, None]:
        running = begin(Assignment(*fields_of(1, claim)))
        reports: list[str] = []
        prepared, context = prepare(self.app.known_tasks, running), context_of(running, _noted(reports))
        raised: BaseException | None = None
        if isinstance(prepared, TaskError):
            done = context.run(refused, running, prepared)
        else:
            trace(running, context, prepared.task.tracer)
            outcome = yield Job(running, prepared, context)
            raised = outcome[1]
            done = context.run(conclude, running, prepared.task, outcome)
        status = yield lambda: self._finish(claim, done, reports)
        error = decode_error(done.error) if done.error else None
        self.ran.append(Ran(claim.task_name, claim.id, claim.queue_name, claim.attempt, status, error, raised))
        if raised is not None and _ends_more_than_the_task(raised):
            raise raised

    def _finish(self, claim: Claim, done: Done, reports: list[str]) -> Op[TaskStatus]:
        """What the task is then."""
        if reports:
            yield from rows(report_progress(self.worker, [(claim.id, claim.claim_no, reports[-1])]))
        ending = ending_of(claim, done)
        outcome = yield from take_turn(self._ending_turn(ending))
        yield from settle(outcome.unsettled)
        if claim.id in outcome.ended and not ending.may_retry:
            return ending.status
        info = yield from get_info(claim.id)
        return info.status if info else ending.status

    def _ending_turn(self, ending: Ending) -> Turn:
        caps = self._limits.caps
        return Turn(self.worker, self.database, caps, [ending], frees_capped=caps.is_any)

    def _busy(self) -> str:
        names = ", ".join(
            f"{name!r} {count} times" for name, count in Counter(r.task_name for r in self.ran).most_common(3)
        )
        return (
            f"{len(self.ran)} attempts have run, and something is still due: {names}. If tasks send each other for ever, say how "
            "far to go with drain(limit=...)"
        )


_AS_A_WORKER = WorkerConfig(processes=1)


def _ends_more_than_the_task(raised: BaseException) -> bool:
    """Ctrl-C, pytest.fail(), pytest.skip(): not for the task to keep. And a drain within this one that had no end."""
    its_own = Exception, SystemExit, GeneratorExit, asyncio.CancelledError
    return isinstance(raised, EndlessDrainError) or not isinstance(raised, its_own)


def _noted(reports: list[str]) -> Callable[[int, float | None, str | None], None]:
    def note(_ticket: int, fraction: float | None, message: str | None) -> None:
        reports.append(json.dumps({"fraction": fraction, "message": message}))

    return note
