"""A send that somebody watches: subscribers hear of it, and its tasks carry the trace in which they are sent."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from horsies.events import SendSpan, TasksSent, TracedWork, Tracer, begin_span, emit, end_span, subscribers
from horsies.model.task import NewTask, TaskId


@dataclass(slots=True)
class TracedSend:
    """What is to be sent, and then the ids of what was."""

    tasks: Sequence[NewTask]
    ids: Sequence[TaskId] = ()


@contextmanager
def observe(tracer: Tracer | None, tasks: Sequence[NewTask]) -> Generator[TracedSend]:
    options = tasks[0].options
    work = SendSpan(options.task_name, options.queue_name, [task.id for task in tasks])
    with trace_send(tracer, work) as trace:
        send = TracedSend(tasks if trace is None else _carrying(trace, tasks))
        began = time.perf_counter()
        yield send
    if subscribers:
        # A key may have stood for another task, which was sent before.
        new = sum(task.id == task_id for task, task_id in zip(tasks, send.ids, strict=True))
        emit(TasksSent(options.task_name, options.queue_name, new, time.perf_counter() - began))


@contextmanager
def trace_send(tracer: Tracer | None, work: TracedWork) -> Generator[str | None]:
    """What is sent in it carries this along, if anything."""
    span = None if tracer is None else begin_span(tracer, work)
    if span is None:
        yield None
        return
    try:
        yield span.trace
    except BaseException as error:
        end_span(span, raised=error)
        raise
    end_span(span)


def _carrying(trace: str, tasks: Sequence[NewTask]) -> list[NewTask]:
    """All on the same options still: they go by one statement, or by COPY."""
    options = tasks[0].options._replace(trace=trace)
    return [task._replace(options=options) for task in tasks]
