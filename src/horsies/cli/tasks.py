"""`horsies tasks`: list, show, cancel, retry and purge."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import click

from horsies.app import Horsies
from horsies.cli.bulk import run_bulk
from horsies.cli.options import database_command, dry_run_option, find_id, parse_time, to_absolute, yes_option
from horsies.cli.output import Column, Styled, echo, show_json, show_table, to_age, to_text, wide_option
from horsies.model.result import TaskError
from horsies.model.sensitive import HIDDEN
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId
from horsies.model.text import printable
from horsies.model.validation import format_duration
from horsies.ops.api import CHANGES, MAX_PAGE, TaskView
from horsies.ops.bulk import BulkAction
from horsies.tasks.attempts import Attempt, AttemptLog
from horsies.tasks.control import CancelOutcome, RetryOutcome
from horsies.tasks.inspect import FINAL, LIVE, TaskDetail, TaskFilter, TaskInfo, TaskPage, TaskSummary

PAYLOAD_CHARACTERS = 4_000
STOPPED = "stopped by Ctrl-C before a task was found"

Outcome: TypeAlias = CancelOutcome | RetryOutcome
Filters: TypeAlias = dict[str, Any]
"""The options that were given for the fields of a `TaskFilter`; None or empty: not given."""

# Named like the fields of `TaskFilter`.
_FILTER_OPTIONS = (
    click.option(
        "--status", "statuses", multiple=True, help="In this status; may be repeated.",
        type=click.Choice([status.value for status in TaskStatus], case_sensitive=False),
    ),
    click.option("--queue", "queue_name", metavar="NAME", help="In this queue."),
    click.option("--task", "task_name", metavar="NAME", help="Of this task."),
    click.option("--error-code", metavar="CODE", help="Failed, or failed last, with this error code."),
    click.option("--message", metavar="TEXT", help="The message of its error, or of its last failed attempt, contains this."),
    click.option("--key", metavar="KEY", help="Sent with this idempotency key."),
    click.option("--schedule", "schedule_name", metavar="NAME", help="Enqueued by this schedule."),
    click.option("--worker", metavar="ID", help="Held, or last held, by this worker; a prefix of its id is enough."),
    click.option("--since", type=parse_time, metavar="WHEN", help="Ended (if live: sent) since: 2h, 7d, or 2030-12-31T18:00."),
    click.option("--until", "--before", "until", type=parse_time, metavar="WHEN", help="Ended (if live: sent) before."),
    click.option("--workflow", "workflow_id", metavar="ID", help="Of this workflow, including its sub-workflows."),
)  # fmt: skip
_ids_argument = click.argument("task_ids", metavar="[ID]...", nargs=-1)


@click.group()
def tasks() -> None:
    """Inspect tasks, and cancel, retry or delete them.

    Select tasks by id, or by filters, all of which must match.
    """


@database_command(
    tasks.command,
    *_FILTER_OPTIONS,
    click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True, help="Number of tasks."),
    click.option("--after", metavar="ID", help="Continue after this task, the last one of the previous page."),
    click.option("--running", is_flag=True, help="Only running tasks, the longest running first; with --queue, --task or --worker."),
    wide_option,
)  # fmt: skip
def list_(target: Horsies, *, limit: int, after: str | None, running: bool, as_json: bool, **filters: Any) -> None:
    """List tasks, live and finished, in the order they were sent, newest first.

    Code and message are those of the task's error or, if it has not ended, of its last failed attempt. A search for something rare reads many
    tasks; Ctrl-C stops it and shows what was found so far. --since makes it shorter.

    \b
    horsies tasks list --status FAILED --since 2h
    horsies tasks list --status PENDING --status RUNNING --queue mail
    horsies tasks list --message "did not answer"
    horsies tasks list --running
    """
    if running:
        page = _list_running(target, filters, after, limit)
    else:
        after = after and find_id(target, "task", after)
        page = list_page(target, _to_filter(target, filters), limit, after)
    if as_json:
        show_json(page)
        return
    now = target.ops.read_clock()
    columns = [
        Column("ID", is_id=True), Column("TASK", shrink=10), Column("QUEUE", drop=4, shrink=8), "STATUS", Column("TRIES", drop=3),
        Column("AGE", drop=2 if running else 0), Column("RUNS FOR", drop=0 if running else 5), Column("SENT", drop=8),
        Column("ENDED", drop=7), Column("CODE", shrink=10, drop=1), Column("MESSAGE", shrink=16, drop=1 if running else 0),
        Column("WORKER", is_id=True, drop=6),
    ]  # fmt: skip
    rows = [_to_row(task, now) for task in page.tasks]
    show_table(columns, rows, empty="no task matches" if page.is_complete else STOPPED)
    if page.next_after:
        stopped = "" if page.is_complete else f"stopped at tasks sent at {to_text(page.searched_until)}; "
        click.echo(f"{stopped}there are more: add --after {page.next_after}", err=True)


def _to_row(task: TaskSummary, now: datetime) -> Sequence[object]:
    style = "red" if task.status is TaskStatus.FAILED else ""
    runs_for = None if task.running_for_s is None else format_duration(task.running_for_s)
    return (
        task.id, task.task_name, task.queue_name, Styled(task.status, style), task.attempts, to_age(task.sent_at, now), runs_for,
        task.sent_at, task.finished_at, task.error_code, task.message, task.worker,
    )  # fmt: skip


def list_page(target: Horsies, task_filter: TaskFilter, limit: int, after: TaskId | None = None) -> TaskPage:
    """Read until the page is full, or Ctrl-C."""
    page = TaskPage([], after, is_complete=False)
    try:
        while not page.is_complete and len(page.tasks) < limit:
            part = target.ops.list_tasks(task_filter, limit=limit - len(page.tasks), after=page.next_after)
            page = replace(part, tasks=[*page.tasks, *part.tasks])
    except KeyboardInterrupt:
        pass
    return page


def _list_running(target: Horsies, filters: Filters, after: str | None, limit: int) -> TaskPage:
    allowed = {"queue_name", "task_name", "worker"}
    given = {name for name, value in filters.items() if value not in (None, ())}
    if after is not None or given - allowed:
        raise click.UsageError("--running takes --queue, --task, --worker and --limit, and no other filter")
    wanted = {name: filters[name] for name in given}
    if "worker" in wanted:
        wanted["worker"] = find_id(target, "worker", wanted["worker"])
    running = target.ops.list_running(limit=MAX_PAGE)
    found = [task for task in running if all(getattr(task, name) == value for name, value in wanted.items())]
    return TaskPage(found[:limit], None)


@database_command(
    tasks.command,
    click.argument("task_id", metavar="ID"),
    click.option("--payload", is_flag=True, help="Also show its arguments and its result, which may contain secrets."),
    click.option("--logs", is_flag=True, help="Also show what its attempts have logged, if it keeps logs."),
    click.option("--reveal", is_flag=True, help="Show what is hidden of a sensitive task. This is recorded in the audit."),
)  # fmt: skip
def show(target: Horsies, *, task_id: str, payload: bool, logs: bool, reveal: bool, as_json: bool) -> None:
    """Show one task: its times, its worker, its attempts and their errors.

    Arguments, results and the data of errors are shown only with --payload: the first 4000 characters, or everything with --json. The message
    of an exception and its traceback are always shown, except those of sensitive tasks: their payload, errors and logs are shown only with
    --reveal. --logs shows the newest 20 attempts of a task with keep_logs=True.

    \b
    horsies tasks show 0198c0de-1234-7abc-8def-0123456789ab
    """
    full_id = find_id(target, "task", task_id)
    limit = {} if as_json else {"characters": PAYLOAD_CHARACTERS}
    found = target.ops.show_task(full_id, payload=payload, reveal=reveal, **limit)
    if found is None:
        raise click.ClickException(f"there is no task {full_id}: never sent, not committed yet, or past its retention")
    view = found if payload else _without_error_data(found)
    attempt_logs = target.ops.list_attempt_logs(full_id, reveal=reveal) if logs else None
    if as_json:
        own = {"is_sensitive": view.is_sensitive, "history": [asdict(attempt) for attempt in view.attempts]}
        show_json(
            asdict(view.info) | asdict(view.detail) | own | ({} if attempt_logs is None else {"logs": attempt_logs})
        )
        return
    _show_task(view)
    if attempt_logs is not None:
        _show_logs(attempt_logs)
    elif any(attempt.has_logs for attempt in view.attempts):
        click.echo("\nits attempts have log lines: add --logs")


@database_command(tasks.command, _ids_argument, *_FILTER_OPTIONS, dry_run_option, yes_option)
def cancel(target: Horsies, **options: Any) -> None:
    """Cancel tasks. Tasks that have not started end at once; running ones are asked to stop, and killed after a grace period.

    \b
    horsies tasks cancel 0198c0de-1234-7abc-8def-0123456789ab
    horsies tasks cancel --task import_feed --status PENDING --dry-run
    """
    ops = target.ops
    _run_action(target, ops.cancel_tasks, ops.cancel_matching, options, verb="cancel", allowed=LIVE)


@database_command(
    tasks.command,
    _ids_argument,
    *_FILTER_OPTIONS,
    click.option(
        "--force", is_flag=True,
        help="Also retry completed tasks, tasks past their good_until (which is removed), and tasks whose key another task holds.",
    ),
    dry_run_option,
    yes_option,
)  # fmt: skip
def retry(target: Horsies, *, force: bool, **options: Any) -> None:
    """Run finished tasks again. They keep their ids, and are due now.

    Without --status, only FAILED tasks are selected. Attempts continue to count: a task that has used up its retries gets one more attempt. The
    task of a workflow node is not retried alone: see `horsies workflows retry`.

    \b
    horsies tasks retry 0198c0de-1234-7abc-8def-0123456789ab
    horsies tasks retry --task charge --error-code UPSTREAM_DOWN --since 2h
    """
    retry_ids = partial(target.ops.retry_tasks, force=force)
    retry_matching = partial(target.ops.retry_matching, force=force)
    _run_action(target, retry_ids, retry_matching, options, verb="retry", allowed=FINAL)


@database_command(
    tasks.command,
    *_FILTER_OPTIONS,
    click.option("--all", "everything", is_flag=True, help="All finished tasks, instead of a filter."),
    dry_run_option,
    yes_option,
)
def purge(target: Horsies, *, everything: bool, **options: Any) -> None:
    """Delete finished tasks earlier than their retention would. Live tasks are never deleted: see `horsies queues purge`.

    If such a task still holds a key through its key_window, the key becomes free.

    \b
    horsies tasks purge --status FAILED --before 7d --dry-run
    """
    filters = _take_filters(options)
    if _are_given(filters) is everything:
        raise click.UsageError("select tasks by a filter such as --status FAILED --before 7d, or with --all")
    action = _bulk(target.ops.purge_matching, _to_filter(target, filters))
    run_bulk(target.ops, action, verb="purge", words=_WORDS, **options)


def _run_action(
    target: Horsies,
    act: Callable[[Sequence[str]], Mapping[TaskId, Outcome]],
    act_on_matching: Callable[[TaskFilter], BulkAction],
    options: dict[str, Any],
    *,
    verb: str,
    allowed: Collection[TaskStatus],
) -> None:
    prefixes, filters = options.pop("task_ids"), _take_filters(options)
    if bool(prefixes) == _are_given(filters):
        raise click.UsageError(f"select what to {verb} by ids, or by a filter such as --task or --queue; not both")
    task_ids = [find_id(target, "task", prefix) for prefix in prefixes]
    if not task_ids:
        action = _bulk(act_on_matching, _to_filter(target, filters))
        run_bulk(target.ops, action, verb=verb, words=_WORDS, **options)
    elif options["dry_run"]:
        _show_statuses(target, task_ids, verb=verb, allowed=allowed, as_json=options["as_json"])
    else:
        outcomes = act(task_ids)
        if options["as_json"]:
            show_json({"tasks": {task_id: outcome.name for task_id, outcome in outcomes.items()}})
        else:
            echo("\n".join(f"{task_id}: {outcome.value}" for task_id, outcome in outcomes.items()))
        if not all(outcome.name in CHANGES for outcome in outcomes.values()):
            raise click.exceptions.Exit(1)


_WORDS = {outcome.name: outcome.value for outcome in (*CancelOutcome, *RetryOutcome)} | {
    "PURGED": "deleted",
    "LEFT": "started, released or ended since they were selected, and left alone",
}


def _bulk(act_on_matching: Callable[[TaskFilter], BulkAction], task_filter: TaskFilter) -> BulkAction:
    try:
        return act_on_matching(task_filter)
    except ValueError as error:  # a status that does not fit
        raise click.UsageError(str(error)) from None


def _take_filters(options: dict[str, Any]) -> Filters:
    return {field.name: options.pop(field.name) for field in fields(TaskFilter) if field.name in options}


def _are_given(filters: Filters) -> bool:
    return any(value not in (None, ()) for value in filters.values())


def _to_filter(target: Horsies, filters: Filters) -> TaskFilter:
    """Find ids by their prefixes. Convert relative times once, by the database's clock, so that later batches use the same times."""
    for option in click.get_current_context().command.params:
        if filters.get(option.name or "") == "":  # an unset shell variable: every message contains nothing
            raise click.BadParameter("it is empty; give it a value, or leave it out", param=option)
    given: Filters = dict(filters) | {"statuses": [TaskStatus(status) for status in filters["statuses"]]}
    if filters["worker"] is not None:
        given["worker"] = find_id(target, "worker", filters["worker"])
    if filters["workflow_id"] is not None:
        given["workflow_id"] = find_id(target, "workflow", filters["workflow_id"])
    now = target.ops.read_clock()
    given |= {name: to_absolute(filters[name], now) for name in ("since", "until")}
    return TaskFilter(**given)


def _show_statuses(
    target: Horsies, task_ids: Sequence[str], *, verb: str, allowed: Collection[TaskStatus], as_json: bool
) -> None:
    statuses = target.ops.get_statuses(task_ids)
    if as_json:
        show_json({"tasks": {task_id: status or "NOT_FOUND" for task_id, status in statuses.items()}})
        return
    for task_id, status in statuses.items():
        plan = f"would {verb} it" if status in allowed else "left as it is"
        click.echo(f"{task_id}: {'not found' if status is None else f'{status}, {plan}'}")


def _without_error_data(view: TaskView) -> TaskView:
    """Remove the data of a task's own errors, which may be as secret as its arguments. Tracebacks stay."""

    def bare(error: TaskError | None) -> TaskError | None:
        match error:
            case None | TaskError(data={"traceback": str()}):
                return error
            case _:
                return replace(error, data=None)

    info = view.info
    failed = [replace(attempt, error=bare(attempt.error)) for attempt in info.failed_attempts]
    attempts = [replace(attempt, error=bare(attempt.error)) for attempt in view.attempts]
    return replace(view, info=replace(info, error=bare(info.error), failed_attempts=failed), attempts=attempts)


def _show_task(view: TaskView) -> None:
    info, detail = view.info, view.detail
    for name, value in _facts(info, detail):
        if value is not None:
            click.echo(f"{name:<14}{to_text(value)}")
    if view.is_sensitive:
        click.echo(f"{'sensitive':<14}yes")
    if view.attempts:
        click.echo()
        headings = [
            "ATTEMPT", "OUTCOME", Column("STARTED", drop=3), "TOOK", Column("WORKER", is_id=True, drop=2), Column("CHILD", drop=1),
            Column("ERROR", shrink=10), Column("MESSAGE", shrink=16),
        ]  # fmt: skip
        show_table(headings, map(_attempt_cells, view.attempts), empty="")
    # Why a task waits for its retry is said in full, too.
    failed = None if info.error else next((each for each in reversed(view.attempts) if each.error), None)
    of_attempt = (f"error of attempt {failed.number}", _error_text(failed.error)) if failed else ("", None)
    for title, text in (
        ("args", detail.args),
        ("result", detail.result),
        ("error", _error_text(info.error)),
        of_attempt,
    ):
        if text:
            click.echo(f"\n{title}:\n{text}")


def _show_logs(logs: Sequence[AttemptLog]) -> None:
    if not logs:
        click.echo("\nno log lines are stored: its attempts have not logged, or the task has no keep_logs=True")
    for log in logs:
        click.echo(f"\nlog of attempt {log.attempt} (claim number {log.claim_no}):")
        if log.is_hidden:
            click.echo(f"  {HIDDEN}")
            continue
        expected = 1
        for line in log.lines:
            if line.number > expected:
                click.echo(f"  ... {line.number - expected} lines were left out ...")
            expected = line.number + 1
            at = "-" if line.at is None else f"{line.at.astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3]
            text = f"{line.message}\n{line.exception}" if line.exception else line.message
            # Later lines of a text are indented: they cannot pass for a line of their own.
            shown = "\n    ".join(map(printable, text.splitlines()))
            click.echo(f"  {at} {printable(line.level)} {printable(line.logger)}: {shown}")


def _attempt_cells(attempt: Attempt) -> Sequence[object]:
    took = None if attempt.duration_s is None else format_duration(attempt.duration_s)
    place = attempt.worker, attempt.child_pid
    return attempt.number, attempt.outcome, attempt.started_at, took, *place, attempt.error_code, attempt.message


def _facts(info: TaskInfo, detail: TaskDetail) -> Iterator[tuple[str, object]]:
    yield "id", info.id
    yield "task", info.task_name
    yield "queue", f"{info.queue_name}, priority {info.priority}"
    yield "status", info.status
    yield (
        "attempts",
        f"{info.attempts} ended, {detail.max_retries} retries by its policy, claim number {detail.claim_no}",
    )
    yield "key", detail.key
    if detail.workflow_id:
        yield "workflow", f"{detail.workflow_id} ({detail.workflow_name or 'gone'}), node {detail.node_id or 'gone'}"
    yield "sent", info.sent_at
    yield "due", info.enqueued_at
    yield "good until", info.good_until
    yield "claimed", info.claimed_at
    yield "lease until", detail.lease_until
    yield "started", info.started_at
    yield "ended", info.finished_at
    if info.started_at and info.finished_at:
        yield "took", format_duration((info.finished_at - info.started_at).total_seconds())
    yield "timeout", info.timeout_ms and format_duration(info.timeout_ms / 1000)
    yield "cancel asked", detail.cancel_requested_at
    yield "worker", info.worker
    if info.unknown_since is not None:
        yield "unknown since", f"{info.unknown_since}, no live worker can run it"
    if info.progress:
        yield "progress", ", ".join(f"{name} {value}" for name, value in info.progress.items() if value is not None)
    result = "" if detail.result_bytes is None else f", result {detail.result_bytes} bytes"
    yield "payload", f"arguments {detail.args_bytes} bytes{result}"
    yield "error", info.error_code


def _error_text(error: TaskError | None) -> str | None:
    """Format the message, and the traceback or the data if there are any."""
    if error is None:
        return None
    match error.data:
        case None:
            return str(error.message)
        case {"traceback": str() as traceback}:
            return f"{error.message}\n\n{traceback}".rstrip()
        case data:
            return f"{error.message}\n\n{data}"
