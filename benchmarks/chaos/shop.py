"""The app under load: its queues, its tasks, and its workflows. Every task notes its start and what it returns."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from benchmarks.chaos.notes import write_note
from horsies import (
    AppConfig,
    AsyncTask,
    CustomQueueConfig,
    Horsies,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    RetryPolicy,
    Task,
    TaskError,
    TaskResult,
    WorkerResilienceConfig,
    WorkflowSpec,
    current_task,
    each,
    from_node,
    result_from,
)

DATABASE_URL: Final = "CHAOS_DATABASE_URL"
DEAD_AFTER_MS: Final = "CHAOS_DEAD_AFTER_MS"
PREFETCH: Final = "CHAOS_PREFETCH"

BULK: Final = "bulk"
CAPPED: Final = "capped"
FLOWS: Final = "flows"
CAP: Final = 3
CAPS: Final = {CAPPED: CAP}

FLAKY: Final = "FLAKY"
BROKEN: Final = "BROKEN"
DELAYS: Final = [0.05, 0.1, 0.2, 0.4, 0.8]
AGAIN: Final = RetryPolicy.fixed(DELAYS, auto_retry_for=["WORKER_CRASHED"])
PATIENT: Final = RetryPolicy.fixed(DELAYS, auto_retry_for=["WORKER_CRASHED", FLAKY])

Pair = list[int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shop:
    app: Horsies
    steady: Task[[int, float], Pair]
    once: Task[[int, float], Pair]
    nap: AsyncTask[[int, float], Pair]
    flaky: Task[[int, int], Pair]
    capped: Task[[int, float], Pair]
    keyed: Task[[str, float], str]
    poison: Task[[int], Pair]
    leaf: Task[[int, int, float], int]
    broken: Task[[int], int]
    total: Task[[int, Sequence[int]], int]
    count: Task[[int, Sequence[TaskResult[int, TaskError]]], int]
    first: Task[[int], int]
    numbers: Task[[int, int], list[int]]

    def flows(self, number: int) -> WorkflowSpec[Any]:
        """One of four shapes, by number."""
        return (self._all, self._any, self._despite, self._map)[number % 4](number)

    def _all(self, number: int) -> WorkflowSpec[Any]:
        leaves = [self.leaf.node(node_id=f"leaf{i}")(number, i, 0.01 * i) for i in range(4)]
        total = self.total.node(node_id="total")(number, [from_node(leaf) for leaf in leaves])
        after = self.first.node(node_id="after", waits_for=[total])(number)
        return self.app.workflow("all", tasks=[*leaves, total, after], output=total)

    def _any(self, number: int) -> WorkflowSpec[Any]:
        leaves = [self.leaf.node(node_id=f"leaf{i}")(number, i, 0.02 * i) for i in range(3)]
        first = self.first.node(node_id="first", waits_for=leaves, join="any")(number)
        return self.app.workflow("any", tasks=[*leaves, first], output=first)

    def _despite(self, number: int) -> WorkflowSpec[Any]:
        good, bad = self.leaf.node(node_id="good")(number, 1, 0.01), self.broken.node(node_id="bad")(number)
        skipped = self.first.node(node_id="skipped", waits_for=[bad])(number)
        count = self.count.node(node_id="count", allow_failed_deps=True)(
            number, [result_from(node) for node in (good, bad, skipped)]
        )
        return self.app.workflow("despite", tasks=[good, bad, skipped, count], output=count)

    def _map(self, number: int) -> WorkflowSpec[Any]:
        numbers = self.numbers.node(node_id="numbers")(number, 5)
        leaves = self.leaf.map_node(node_id="leaves", max_parallel=2)(number, each(numbers), 0.01)
        total = self.total.node(node_id="total")(number, from_node(leaves))
        return self.app.workflow("map", tasks=[numbers, leaves, total], output=total)


def make_shop(url: str, *, dead_after_ms: int, prefetch: int | Literal["auto"] = 0) -> Shop:
    app = Horsies(_config(url, dead_after_ms, prefetch))
    return Shop(
        app=app,
        steady=app.task("steady", queue_name=BULK, retry_policy=AGAIN)(_steady),
        once=app.task("once", queue_name=BULK)(_once),
        nap=app.task("nap", queue_name=BULK, retry_policy=AGAIN)(_nap),
        flaky=app.task("flaky", queue_name=BULK, retry_policy=PATIENT)(_flaky),
        capped=app.task("capped", queue_name=CAPPED, retry_policy=AGAIN)(_capped),
        keyed=app.task("keyed", queue_name=BULK, retry_policy=AGAIN)(_keyed),
        poison=app.task("poison", queue_name=BULK, retry_policy=AGAIN)(_poison),
        leaf=app.task("leaf", queue_name=FLOWS, retry_policy=AGAIN)(_leaf),
        broken=app.task("broken", queue_name=FLOWS, retry_policy=AGAIN)(_broken),
        total=app.task("total", queue_name=FLOWS, retry_policy=AGAIN)(_total),
        count=app.task("count", queue_name=FLOWS, retry_policy=AGAIN)(_count),
        first=app.task("first", queue_name=FLOWS, retry_policy=AGAIN)(_first),
        numbers=app.task("numbers", queue_name=FLOWS, retry_policy=AGAIN)(_numbers),
    )


def _config(url: str, dead_after_ms: int, prefetch: int | Literal["auto"]) -> AppConfig:
    """Quick to notice and quick to try again: a run of minutes is to see many faults from beginning to end."""
    return AppConfig(
        broker=PostgresConfig(database_url=url, connect_timeout_s=5),
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[
            CustomQueueConfig(name=FLOWS, priority=10),
            CustomQueueConfig(name=CAPPED, priority=50, max_concurrency=CAP),
            CustomQueueConfig(name=BULK, priority=100),
        ],
        prefetch_buffer=prefetch,
        claim_lease_ms=2_000 if prefetch else None,
        recovery=RecoveryConfig(
            heartbeat_ms=min(500, dead_after_ms // 4), dead_after_ms=dead_after_ms, maintenance_ms=250, grace_ms=500
        ),
        resilience=WorkerResilienceConfig(
            db_retry_initial_ms=100, db_retry_max_ms=1_000, notify_poll_interval_ms=1_000
        ),
    )


def _steady(n: int, seconds: float) -> TaskResult[Pair, TaskError]:
    return _work(n, seconds)


def _once(n: int, seconds: float) -> TaskResult[Pair, TaskError]:
    return _work(n, seconds)


async def _nap(n: int, seconds: float) -> TaskResult[Pair, TaskError]:
    write_note("start")
    await asyncio.sleep(seconds)
    return _ended(TaskResult(ok=[n, current_task().attempt]))


def _flaky(n: int, failures: int) -> TaskResult[Pair, TaskError]:
    write_note("start")
    if current_task().attempt <= failures:
        return _ended(TaskResult(err=TaskError(error_code=FLAKY, message="not yet")))
    return _ended(TaskResult(ok=[n, current_task().attempt]))


def _capped(n: int, seconds: float) -> TaskResult[Pair, TaskError]:
    return _work(n, seconds)


def _keyed(key: str, seconds: float) -> TaskResult[str, TaskError]:
    write_note("start")
    time.sleep(seconds)
    return _ended(TaskResult(ok=key))


def _poison(n: int) -> TaskResult[Pair, TaskError]:
    if current_task().attempt == 1:
        write_note("start")
        write_note("dies")
        os.kill(os.getpid(), signal.SIGKILL)
    return _work(n, 0.0)


def _leaf(flow: int, i: int, seconds: float) -> TaskResult[int, TaskError]:
    _ = flow
    write_note("start")
    time.sleep(seconds)
    return _ended(TaskResult(ok=i))


def _broken(flow: int) -> TaskResult[int, TaskError]:
    _ = flow
    write_note("start")
    return _ended(TaskResult(err=TaskError(error_code=BROKEN, message="always")))


def _total(flow: int, parts: Sequence[int]) -> TaskResult[int, TaskError]:
    _ = flow
    write_note("start")
    return _ended(TaskResult(ok=sum(parts)))


def _count(flow: int, parts: Sequence[TaskResult[int, TaskError]]) -> TaskResult[int, TaskError]:
    _ = flow
    write_note("start")
    return _ended(TaskResult(ok=sum(part.is_ok() for part in parts)))


def _first(flow: int) -> TaskResult[int, TaskError]:
    write_note("start")
    return _ended(TaskResult(ok=flow))


def _numbers(flow: int, size: int) -> TaskResult[list[int], TaskError]:
    _ = flow
    write_note("start")
    return _ended(TaskResult(ok=list(range(size))))


def _work(n: int, seconds: float) -> TaskResult[Pair, TaskError]:
    write_note("start")
    time.sleep(seconds)
    return _ended(TaskResult(ok=[n, current_task().attempt]))


def _ended(result: TaskResult[T, TaskError]) -> TaskResult[T, TaskError]:
    words = f"ok {json.dumps(result.ok_value)}" if result.is_ok() else f"err {result.err_value.error_code}"
    write_note("end", words)
    return result
