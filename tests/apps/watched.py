"""An app with a tracer. Its processes write their spans to the file in HORSIES_TEST_SPANS, one JSON object per line."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from horsies import Horsies, RetryPolicy, TaskError, TaskResult
from horsies.contrib import otel
from horsies.model.error_codes import OperationalErrorCode
from tests.apps.settings import configured

CRASHES = RetryPolicy.fixed([0.01], auto_retry_for=[OperationalErrorCode.WORKER_CRASHED])


class Lines(SpanExporter):
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.write("".join(f"{span.to_json(indent=None)}\n" for span in spans))
        return SpanExportResult.SUCCESS


provider = TracerProvider()
if path := os.environ.get("HORSIES_TEST_SPANS"):
    provider.add_span_processor(SimpleSpanProcessor(Lines(path)))
app = Horsies(configured())
otel.instrument(app, tracer_provider=provider)


@app.task("add")
def add(left: int, right: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=left + right)


@app.task("fail")
def fail() -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="DECLINED", message="no"))


@app.task("crash")
def crash() -> TaskResult[None, TaskError]:
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


@app.task("crash_once", retry_policy=CRASHES)
def crash_once(mark: str) -> TaskResult[None, TaskError]:
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


@app.task("hang_once", retry_policy=CRASHES)
def hang_once(mark: str) -> TaskResult[None, TaskError]:
    if not Path(mark).exists():
        Path(mark).touch()
        time.sleep(60)
    return TaskResult(ok=None)
