"""Sends that are observed: subscribers receive an event, and the tasks carry the trace in which they are sent."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import eq

from horsies.events import SendSpan, TasksSent, TracedWork, Tracer, begin_span, emit, end_span, subscribers
from horsies.model.task import TaskId
from horsies.tasks.enqueue import SpooledTasks, Tasks, ids_of


@dataclass(slots=True)
class TracedSend:
    """The tasks to send; the caller sets the ids that the send returned."""

    tasks: Tasks
    ids: Sequence[TaskId] = ()


@contextmanager
def observe_send(tracer: Tracer | None, tasks: Tasks) -> Generator[TracedSend]:
    """Trace a send, and emit `TasksSent` after it."""
    options, ids = next(iter(tasks)).options, ids_of(tasks)
    work = SendSpan(options.task_name, options.queue_name, ids)
    with trace_send(tracer, work) as trace:
        if trace is None:
            send = TracedSend(tasks)
        else:
            traced = options._replace(
                trace=trace
            )  # one object for all tasks: they still go by one statement, or by COPY
            send = TracedSend(
                tasks.with_options(traced)
                if isinstance(tasks, SpooledTasks)
                else [task._replace(options=traced) for task in tasks]
            )
        started = time.perf_counter()
        yield send
    if subscribers:
        # An id that differs is that of the holder of a key: a task that was sent earlier.
        new = sum(map(eq, ids, send.ids))
        emit(TasksSent(options.task_name, options.queue_name, new, time.perf_counter() - started))


@contextmanager
def trace_send(tracer: Tracer | None, work: TracedWork) -> Generator[str | None]:
    """Open a span for a send. Yields the trace that the tasks are to carry, if there is one."""
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
