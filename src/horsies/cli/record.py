"""One task, shown in full."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import click

from horsies.cli.show import show_json, show_table, shown
from horsies.model.durations import duration
from horsies.model.result import TaskError
from horsies.tasks.inspect import TaskInfo
from horsies.tasks.show import Stored


def without_data(info: TaskInfo) -> TaskInfo:
    """What a task's own errors carry may be as secret as its arguments; where an exception was raised is not."""
    attempts = [replace(attempt, error=_bare(attempt.error)) for attempt in info.failed_attempts]
    return replace(info, error=_bare(info.error), failed_attempts=attempts)


def _bare(error: TaskError | None) -> TaskError | None:
    match error:
        case None | TaskError(data={"traceback": str()}):
            return error
        case _:
            return replace(error, data=None)


def show_record(info: TaskInfo, stored: Stored, *, as_json: bool) -> None:
    if as_json:
        show_json(asdict(info) | asdict(stored))
        return
    for name, value in _facts(info, stored):
        if value is not None:
            click.echo(f"{name:<14}{shown(value)}")
    if info.failed_attempts:
        click.echo()
        headings = ["ATTEMPT", "STARTED", "ENDED", "WORKER", "ERROR", "MESSAGE"]
        rows = [
            (a.attempt, a.started_at, a.ended_at, a.worker, a.error_code, a.error and a.error.message)
            for a in info.failed_attempts
        ]
        show_table(headings, rows, empty="")
    for title, text in (("args", stored.args), ("result", stored.result), ("error", _error_text(info.error))):
        if text:
            click.echo(f"\n{title}:\n{text}")


def _facts(info: TaskInfo, stored: Stored) -> Iterator[tuple[str, object]]:
    yield "id", info.id
    yield "task", info.task_name
    yield "queue", f"{info.queue_name}, priority {info.priority}"
    yield "status", info.status
    yield (
        "attempts",
        f"{info.attempts} ended, {stored.max_retries} retries by its policy, claim number {stored.claim_no}",
    )
    yield "key", stored.key
    if stored.workflow_id:
        yield "workflow", f"{stored.workflow_id} ({stored.workflow_name or 'gone'}), node {stored.node_id or 'gone'}"
    yield "sent", info.sent_at
    yield "due", info.enqueued_at
    yield "good until", info.good_until
    yield "claimed", info.claimed_at
    yield "lease until", stored.lease_until
    yield "started", info.started_at
    yield "ended", info.finished_at
    if info.started_at and info.finished_at:
        yield "took", duration((info.finished_at - info.started_at).total_seconds())
    yield "timeout", info.timeout_ms and duration(info.timeout_ms / 1000)
    yield "cancel asked", stored.cancel_requested_at
    yield "worker", info.worker
    if info.unknown_since is not None:
        yield "unknown since", f"{info.unknown_since}, no living worker can run it"
    if info.progress:
        yield "progress", ", ".join(f"{name} {value}" for name, value in info.progress.items() if value is not None)
    yield (
        "payload",
        f"arguments {stored.args_bytes} bytes"
        + (f", result {stored.result_bytes} bytes" if stored.result_bytes is not None else ""),
    )
    yield "error", info.error_code


def _error_text(error: TaskError | None) -> str | None:
    """The message, and the traceback if it has one, as a person reads it."""
    if error is None:
        return None
    match error.data:
        case {"traceback": str() as traceback}:
            return f"{error.message}\n\n{traceback}".rstrip()
        case None:
            return str(error.message)
        case data:
            return f"{error.message}\n\n{data}"
