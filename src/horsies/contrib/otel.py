"""Traces for OpenTelemetry: `pip install horsies[otel]`, then in the module of the app:

    from horsies.contrib import otel
    otel.instrument(app)

A send is a PRODUCER span. Each attempt of its task is a CONSUMER span below it, in whichever process it runs. The start of a workflow
is the parent of all tasks of that workflow. Names and attributes follow the semantic conventions for messaging. Only the
OpenTelemetry API is used: configure the SDK in the same module, which producers and all children of a worker import.
"""

import json
from contextvars import Token
from dataclasses import dataclass
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

from horsies.app import Horsies
from horsies.events import SendSpan, TaskSpan, TracedWork, WorkflowStartSpan

SYSTEM = "horsies"
FLUSH_MS = 5_000


def instrument(app: Horsies, *, tracer_provider: TracerProvider | None = None) -> None:
    """Trace what this app sends and runs, here and in the children that import this module. A second call has no effect."""
    if app.tracer is not None:
        return
    app.tracer = OpenTelemetry(tracer_provider)

    @app.on_child_stop
    def flush() -> None:
        """Export what is buffered before the child exits. `force_flush` is a method of the SDK's provider, not of the API."""
        force_flush = getattr(tracer_provider or trace.get_tracer_provider(), "force_flush", None)
        if force_flush is not None:
            force_flush(FLUSH_MS)


@dataclass(frozen=True, slots=True)
class OpenTelemetry:
    """Implements `horsies.events.Tracer`."""

    provider: TracerProvider | None

    def begin(self, work: TracedWork) -> "Recording":
        # Looked up for each span: the SDK may be configured after this module was imported.
        tracer = trace.get_tracer("horsies", tracer_provider=self.provider)
        is_attempt = isinstance(work, TaskSpan)
        parent = propagate.extract(json.loads(work.trace)) if is_attempt and work.trace is not None else None
        kind = SpanKind.CONSUMER if is_attempt else SpanKind.PRODUCER
        name, attributes = _describe(work)
        span = tracer.start_span(name, parent, kind, attributes)
        return Recording(span, context.attach(trace.set_span_in_context(span)), is_attempt=is_attempt)


@dataclass(frozen=True, slots=True)
class Recording:
    """Implements `horsies.events.Span`."""

    span: Span
    token: Token[Any]
    is_attempt: bool

    @property
    def trace(self) -> str | None:
        """The headers that the configured propagator writes: by default trace context and baggage."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return json.dumps(carrier) if carrier else None

    def end(self, error_code: str | None, raised: BaseException | None) -> None:
        if raised is not None:
            self.span.record_exception(raised)
        if error_code is not None or raised is not None:
            kind = error_code or type(raised).__qualname__
            self.span.set_attribute("error.type", kind)
            self.span.set_status(Status(StatusCode.ERROR, str(raised) if raised is not None else kind))
        self.span.end()
        # An attempt has a context of its own, which ends with it; detaching in another one is an error.
        if not self.is_attempt:
            context.detach(self.token)


def _describe(work: TracedWork) -> tuple[str, dict[str, str | int]]:
    """Return the name and the attributes of a span."""
    match work:
        case SendSpan(task_name, queue_name, task_ids):
            count = len(task_ids)
            which = {"messaging.message.id": task_ids[0]} if count == 1 else {"messaging.batch.message_count": count}
            own = {"messaging.destination.name": queue_name, "horsies.task.name": task_name} | (which if count else {})
            operation, kind, subject = "send", "send", task_name
        case WorkflowStartSpan(workflow_name, workflow_id):
            own = {"horsies.workflow.name": workflow_name, "horsies.workflow.id": workflow_id}
            operation, kind, subject = "start", "send", workflow_name
        case TaskSpan(task_id, task_name, queue_name, attempt):
            own = {"messaging.destination.name": queue_name, "messaging.message.id": task_id}
            own |= {"horsies.task.name": task_name, "horsies.task.attempt": attempt}
            operation, kind, subject = "run", "process", task_name
    shared = {"messaging.system": SYSTEM, "messaging.operation.name": operation, "messaging.operation.type": kind}
    return f"{operation} {subject}", {**shared, **own}
