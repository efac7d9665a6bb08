"""A trace goes from the producer to the task, whatever happens on the way."""

import asyncio
import json
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from horsies import Horsies, RetryPolicy, TaskError, TaskResult, each
from horsies.contrib import otel
from horsies.events import TracedWork
from horsies.testing import drain, drain_async, open_sandbox
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.workers import StartWorker
from tests.worker.steps import PATIENCE_MS


class Bench:
    """An app with a few tasks, and the spans that it made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.app = Horsies()
        otel.instrument(self.app, tracer_provider=provider)
        self.attempts = 0

        @self.app.task("double")
        def double(number: int) -> TaskResult[int, TaskError]:
            with self.tracer.start_as_current_span("within"):
                return TaskResult(ok=2 * number)

        @self.app.task("double_async")
        async def double_async(number: int) -> TaskResult[int, TaskError]:
            with self.tracer.start_as_current_span("within"):
                await asyncio.sleep(0)
            return TaskResult(ok=2 * number)

        @self.app.task("decline")
        def decline() -> TaskResult[None, TaskError]:
            return TaskResult(err=TaskError(error_code="DECLINED", message="no"))

        @self.app.task("flaky", retry_policy=RetryPolicy.fixed([0.01], auto_retry_for=[RuntimeError]))
        def flaky() -> TaskResult[None, TaskError]:
            self.attempts += 1
            if self.attempts == 1:
                raise RuntimeError("at first")
            return TaskResult(ok=None)

        @self.app.task("numbers")
        def numbers() -> TaskResult[list[int], TaskError]:
            return TaskResult(ok=[1, 2])

        self.double, self.double_async, self.decline, self.flaky, self.numbers = (
            double,
            double_async,
            decline,
            flaky,
            numbers,
        )

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found


@pytest.fixture
def bench(database: str) -> Generator[Bench]:
    made = Bench()
    with open_sandbox(made.app, database):
        yield made


def is_below(span: ReadableSpan, above: ReadableSpan) -> bool:
    parent, other = span.parent, place(above)
    return parent is not None and (parent.trace_id, parent.span_id) == (other.trace_id, other.span_id)


def place(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def test_a_run_is_below_its_send_and_the_task_s_own_spans_below_the_run(bench: Bench) -> None:
    with bench.tracer.start_as_current_span("request") as request:
        handle = bench.double.send(4)
        assert trace.get_current_span() is request
    drain()
    send, run = bench.span("send double"), bench.span("run double")
    assert is_below(send, bench.span("request"))
    assert is_below(run, send)
    assert is_below(bench.span("within"), run)
    assert (send.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(send.attributes or {}) == {
        "messaging.system": "horsies",
        "messaging.destination.name": "default",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.id": handle.task_id,
        "horsies.task.name": "double",
    }
    assert dict(run.attributes or {}) == {
        "messaging.system": "horsies",
        "messaging.destination.name": "default",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.message.id": handle.task_id,
        "horsies.task.name": "double",
        "horsies.task.attempt": 1,
    }
    assert not trace.get_current_span().get_span_context().is_valid


async def test_coroutines_are_traced_the_same(bench: Bench) -> None:
    await bench.double_async.send_async(4)
    await drain_async()
    assert is_below(bench.span("run double_async"), bench.span("send double_async"))
    assert is_below(bench.span("within"), bench.span("run double_async"))


def test_an_error_is_on_the_span_of_its_run_alone(bench: Bench) -> None:
    bench.decline.send()
    drain()
    run = bench.span("run decline")
    assert run.status.status_code is StatusCode.ERROR
    assert (run.attributes or {})["error.type"] == "DECLINED"
    assert bench.span("send decline").status.status_code is StatusCode.UNSET


def test_a_retry_belongs_to_the_same_send(bench: Bench) -> None:
    bench.flaky.send()
    drain(retries="now")
    first, second = bench.spans("run flaky")
    assert is_below(first, bench.span("send flaky"))
    assert is_below(second, bench.span("send flaky"))
    assert [(span.attributes or {})["horsies.task.attempt"] for span in (first, second)] == [1, 2]
    assert [event.name for event in first.events] == ["exception"]
    assert second.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("count", [2, 1_001])
def test_every_task_of_a_batch_carries_the_trace_of_the_one_send(
    bench: Bench, sql: psycopg.Connection, count: int
) -> None:
    bench.double.send_many([bench.double.call(n) for n in range(count)])
    send = bench.span("send double")
    assert (send.attributes or {})["messaging.batch.message_count"] == count
    carried = column(sql, "select trace from horsies.tasks")
    assert len(carried) == count
    (only,) = set(carried)
    assert f"{place(send).trace_id:032x}-{place(send).span_id:016x}" in json.loads(str(only))["traceparent"]


def test_all_tasks_of_a_workflow_are_below_its_start(bench: Bench) -> None:
    numbers = bench.numbers.node()()
    doubled = bench.double.map_node()(each(numbers))
    bench.app.workflow("twice", [numbers, doubled]).start()
    drain()
    start = bench.span("start twice")
    runs = [bench.span("run numbers"), *bench.spans("run double")]
    assert len(runs) == 3
    assert all(is_below(run, start) for run in runs)
    assert start.kind is SpanKind.PRODUCER


def test_the_trace_stays_with_a_task_however_it_ends(bench: Bench, sql: psycopg.Connection) -> None:
    bench.double.schedule(600, 1).cancel()
    bench.double.with_options(good_until=datetime.now(UTC) + timedelta(days=1)).schedule(600, 2)
    sql.execute("update horsies.tasks set good_until = now()")
    bench.double.send(3)
    bench.decline.send()
    drain()
    found = sql.execute("select status, trace is not null from horsies.all_tasks order by 1").fetchall()
    assert found == [("CANCELLED", True), ("COMPLETED", True), ("EXPIRED", True), ("FAILED", True)]


def test_a_task_that_is_replaced_carries_the_trace_of_the_send_that_replaced_it(
    bench: Bench, sql: psycopg.Connection
) -> None:
    keyed = bench.double.with_options(key="once", on_conflict="replace")
    keyed.send(1)
    keyed.send(2)
    second = bench.spans("send double")[1]
    (carried,) = column(sql, "select trace from horsies.tasks")
    assert f"{place(second).span_id:016x}" in str(carried)


def test_without_a_tracer_nothing_is_carried(basic: Any, sql: psycopg.Connection) -> None:
    basic.add.send(1, 2)
    assert column(sql, "select trace from horsies.tasks") == [None]


def test_a_tracer_that_fails_does_not_keep_tasks_from_being_sent_and_run(
    basic: Any, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def begin(self, work: TracedWork) -> Any:
            raise ZeroDivisionError(work)

    basic.app.tracer = Broken()
    basic.add.send(1, 2)
    basic.add.send(1, 2)
    assert column(sql, "select trace from horsies.tasks") == [None, None]
    assert [record.name for record in caplog.records] == ["horsies.events"]


# -- with real workers


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def watched(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    monkeypatch.setenv("HORSIES_TEST_SPANS", str(tmp_path / "spans"))
    module = load_fresh("watched")
    yield module
    module.app.close()


def test_a_trace_survives_the_death_of_a_child_and_of_a_worker(
    watched: Any, worker: StartWorker, tmp_path: Path
) -> None:
    first = worker("tests.apps.watched:app")
    crashed = watched.crash_once.send(str(tmp_path / "crashed"))
    assert crashed.get(PATIENCE_MS).is_ok()
    hanging = watched.hang_once.send(str(tmp_path / "hangs"))
    eventually((tmp_path / "hangs").exists)
    first.kill()
    worker("tests.apps.watched:app")
    assert hanging.get(PATIENCE_MS).is_ok()
    eventually(lambda: len(lines(tmp_path / "spans")) == 4, seen=lambda: lines(tmp_path / "spans"))
    by_name = {span["name"]: span for span in lines(tmp_path / "spans")}
    for name in ("crash_once", "hang_once"):
        send, run = by_name[f"send {name}"], by_name[f"run {name}"]
        assert run["parent_id"] == send["context"]["span_id"]
        assert run["context"]["trace_id"] == send["context"]["trace_id"]
        assert run["attributes"]["horsies.task.attempt"] == 2
