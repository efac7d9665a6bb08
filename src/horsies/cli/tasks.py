"""`horsies tasks`: list, show, cancel, retry and purge."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial, wraps
from typing import Any, TypeAlias

import click

from horsies.app import Horsies
from horsies.cli.bulk import run_in_batches
from horsies.cli.options import (
    TimeParameter,
    database_command,
    dry_run_option,
    json_option,
    parse_id,
    parse_time,
    resolve_worker_id,
    to_absolute,
    yes_option,
)
from horsies.cli.output import show_json, show_table, to_text
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId
from horsies.model.validation import format_duration
from horsies.tasks.control import CancelOutcome, Requeue, RetryOutcome, cancel_tasks, purge_finished
from horsies.tasks.inspect import (
    FINAL,
    LIVE,
    TaskDetail,
    TaskFilter,
    TaskInfo,
    TaskSummary,
    get_status,
    get_task_detail,
    list_tasks,
    read_clock,
)

PAYLOAD_CHARACTERS = 4_000
MAX_CHARACTERS = 2**31 - 1  # all of them

Outcome: TypeAlias = CancelOutcome | RetryOutcome

_FILTER_OPTIONS = [
    click.option(
        "--status", "statuses", multiple=True, help="In this status; may be repeated.",
        type=click.Choice([status.value for status in TaskStatus], case_sensitive=False),
    ),
    click.option("--queue", metavar="NAME", help="In this queue."),
    click.option("--task", metavar="NAME", help="Of this task."),
    click.option("--error-code", metavar="CODE", help="Ended with this error code."),
    click.option("--worker", metavar="ID", help="Held, or last held, by this worker; a prefix of its id is enough."),
    click.option("--since", type=parse_time, metavar="WHEN", help="Ended (if live: sent) since: 2h, 7d, or 2030-12-31T18:00."),
    click.option("--until", "--before", "until", type=parse_time, metavar="WHEN", help="Ended (if live: sent) before."),
    click.option("--workflow", type=parse_id, metavar="ID", help="Of this workflow, including its sub-workflows."),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """The filters that were given on the command line."""

    statuses: Sequence[str]
    queue: str | None
    task: str | None
    error_code: str | None
    worker: str | None
    since: TimeParameter | None
    until: TimeParameter | None
    workflow: str | None

    def __bool__(self) -> bool:
        rest = (self.queue, self.task, self.error_code, self.worker, self.since, self.until, self.workflow)
        return bool(self.statuses) or any(value is not None for value in rest)

    def to_filter(self, target: Horsies, default: Sequence[TaskStatus] = ()) -> TaskFilter:
        """Convert relative times once, by the database's clock, so that later batches use the same times."""
        now = target.broker.run(read_clock)
        return TaskFilter(
            statuses=[TaskStatus(status) for status in self.statuses] or default,
            queue_name=self.queue,
            task_name=self.task,
            error_code=self.error_code,
            worker=None if self.worker is None else resolve_worker_id(target, self.worker),
            since=to_absolute(self.since, now),
            until=to_absolute(self.until, now),
            workflow_id=self.workflow,
        )


def task_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the filter options to a command, which gets them as `filters`."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        filters = FilterOptions(**{field.name: options.pop(field.name) for field in fields(FilterOptions)})
        return command(*args, filters=filters, **options)

    for option in reversed(_FILTER_OPTIONS):
        run = option(run)
    return run


@click.group()
def tasks() -> None:
    """Inspect tasks, and cancel, retry or delete them.

    Select tasks by id, or by filters, all of which must match.
    """


@tasks.command("list")
@task_filters
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Number of tasks.")
@click.option(
    "--after", type=parse_id, metavar="ID", help="Continue after this task, the last one of the previous page."
)
@json_option
@database_command()
def list_(target: Horsies, *, filters: FilterOptions, limit: int, after: str | None, as_json: bool) -> None:
    """List tasks, live and finished, in the order they were sent, newest first.

    A filter with few matches reads all tasks that are newer; --since limits this.

    \b
    horsies tasks list --status FAILED --since 2h
    horsies tasks list --status PENDING --status RUNNING --queue mail
    """
    matches = target.broker.run(partial(list_tasks, filters.to_filter(target), limit=limit + 1, after=after))
    page, last_id = matches[:limit], matches[limit - 1].id if len(matches) > limit else None
    if as_json:
        show_json({"tasks": page, "next_after": last_id})
        return
    show_table(
        ["ID", "TASK", "QUEUE", "STATUS", "ATTEMPTS", "SENT", "ENDED", "ERROR"],
        [
            (
                task.id, task.task_name, task.queue_name, task.status, task.attempts, task.sent_at, task.finished_at,
                task.error_code,
            )
            for task in page
        ],
        empty="no task matches",
    )  # fmt: skip
    if last_id:
        click.echo(f"there are more: add --after {last_id}", err=True)


@tasks.command()
@click.argument("task_id", type=parse_id, metavar="ID")
@click.option("--payload", is_flag=True, help="Also show its arguments and its result, which may contain secrets.")
@json_option
@database_command()
def show(target: Horsies, *, task_id: TaskId, payload: bool, as_json: bool) -> None:
    """Show one task: its times, its worker, its attempts and their errors.

    Arguments, results and the data of errors are shown only with --payload: the first 4000 characters, or everything with --json. The message
    of an exception and its traceback are always shown.

    \b
    horsies tasks show 0198c0de-1234-7abc-8def-0123456789ab
    """
    characters = 0 if not payload else MAX_CHARACTERS if as_json else PAYLOAD_CHARACTERS
    found = target.broker.run(partial(get_task_detail, task_id, characters=characters))
    if found is None:
        raise click.ClickException(f"there is no task {task_id}: never sent, not committed yet, or past its retention")
    info, detail = found
    _show_task(info if payload else _without_error_data(info), detail, as_json=as_json)


@tasks.command()
@click.argument("task_ids", type=parse_id, metavar="[ID]...", nargs=-1)
@task_filters
@dry_run_option
@yes_option
@json_option
@database_command()
def cancel(target: Horsies, *, task_ids: Sequence[TaskId], filters: FilterOptions, **flags: bool) -> None:
    """Cancel tasks. Tasks that have not started end at once; running ones are asked to stop, and killed after a grace period.

    \b
    horsies tasks cancel 0198c0de-1234-7abc-8def-0123456789ab
    horsies tasks cancel --task import_feed --status PENDING --dry-run
    """

    def act(ids: Sequence[TaskId]) -> dict[TaskId, CancelOutcome]:
        verb = partial(cancel_tasks, ids)
        return target.broker.run(verb, again=verb)

    success = frozenset({CancelOutcome.CANCELLED, CancelOutcome.REQUESTED})
    _run_action(target, task_ids, filters, act, success, verb="cancel", allowed=LIVE, default=LIVE, **flags)


@tasks.command()
@click.argument("task_ids", type=parse_id, metavar="[ID]...", nargs=-1)
@task_filters
@click.option(
    "--force",
    is_flag=True,
    help="Also retry completed tasks, tasks past their good_until (which is removed), and tasks whose key another task holds.",
)
@dry_run_option
@yes_option
@json_option
@database_command()
def retry(target: Horsies, *, task_ids: Sequence[TaskId], filters: FilterOptions, force: bool, **flags: bool) -> None:
    """Run finished tasks again. They keep their ids, and are due now.

    Without --status, only FAILED tasks are selected. Attempts continue to count: a task that has used up its retries gets one more attempt. The
    task of a workflow node is not retried alone: see `horsies workflows retry`.

    \b
    horsies tasks retry 0198c0de-1234-7abc-8def-0123456789ab
    horsies tasks retry --task charge --error-code UPSTREAM_DOWN --since 2h
    """

    def act(ids: Sequence[TaskId]) -> dict[TaskId, RetryOutcome]:
        verb = Requeue(ids, force=force)
        return target.broker.run(verb, again=verb)

    success = frozenset({RetryOutcome.RETRIED})
    default = [TaskStatus.FAILED]
    _run_action(target, task_ids, filters, act, success, verb="retry", allowed=FINAL, default=default, **flags)


@tasks.command()
@task_filters
@click.option("--all", "everything", is_flag=True, help="All finished tasks, instead of a filter.")
@dry_run_option
@yes_option
@json_option
@database_command()
def purge(target: Horsies, *, filters: FilterOptions, everything: bool, **flags: bool) -> None:
    """Delete finished tasks earlier than their retention would. Live tasks are never deleted: see `horsies queues purge`.

    If such a task still holds a key through its key_window, the key becomes free.

    \b
    horsies tasks purge --status FAILED --before 7d --dry-run
    """
    if bool(filters) is everything:
        raise click.UsageError("select tasks by a filter such as --status FAILED --before 7d, or with --all")
    task_filter = _checked_filter(target, filters, "purge", FINAL, FINAL)

    def act(batch: Sequence[TaskSummary]) -> Counter[str]:
        verb = partial(purge_finished, batch)
        return Counter(PURGED=target.broker.run(verb, again=verb))

    run_in_batches(target, task_filter, act, verb="purge", words={"PURGED": "deleted"}, **flags)


def _run_action(
    target: Horsies,
    task_ids: Sequence[TaskId],
    filters: FilterOptions,
    act: Callable[[Sequence[TaskId]], Mapping[TaskId, Outcome]],
    success: frozenset[Outcome],
    *,
    verb: str,
    allowed: Sequence[TaskStatus],
    default: Sequence[TaskStatus],
    **flags: bool,
) -> None:
    if bool(task_ids) == bool(filters):
        raise click.UsageError(f"select what to {verb} by ids, or by a filter such as --task or --queue; not both")
    if not task_ids:
        words = {outcome.name: outcome.value for outcome in (*CancelOutcome, *RetryOutcome)}
        task_filter = _checked_filter(target, filters, verb, allowed, default)

        def act_on_batch(batch: Sequence[TaskSummary]) -> Counter[str]:
            return Counter(outcome.name for outcome in act([task.id for task in batch]).values())

        run_in_batches(target, task_filter, act_on_batch, verb=verb, words=words, **flags)
        return
    if flags["dry_run"]:
        _show_statuses(target, task_ids, verb=verb, allowed=allowed, as_json=flags["as_json"])
        return
    outcomes = act(task_ids)
    if flags["as_json"]:
        show_json({"tasks": {task_id: outcome.name for task_id, outcome in outcomes.items()}})
    else:
        for task_id, outcome in outcomes.items():
            click.echo(f"{task_id}: {outcome.value}")
    if not success.issuperset(outcomes.values()):
        raise click.exceptions.Exit(1)


def _checked_filter(
    target: Horsies, filters: FilterOptions, verb: str, allowed: Sequence[TaskStatus], default: Sequence[TaskStatus]
) -> TaskFilter:
    if wrong := [status for status in filters.statuses if TaskStatus(status) not in allowed]:
        raise click.UsageError(f"{verb} is for tasks that are {', '.join(allowed)}, and not for {', '.join(wrong)}")
    return filters.to_filter(target, default)


def _show_statuses(
    target: Horsies, task_ids: Sequence[TaskId], *, verb: str, allowed: Sequence[TaskStatus], as_json: bool
) -> None:
    statuses = {task_id: target.broker.run(partial(get_status, task_id)) for task_id in task_ids}
    if as_json:
        show_json({"tasks": {task_id: status or "NOT_FOUND" for task_id, status in statuses.items()}})
        return
    for task_id, status in statuses.items():
        plan = f"would {verb} it" if status in allowed else "left as it is"
        click.echo(f"{task_id}: {'not found' if status is None else f'{status}, {plan}'}")


def _without_error_data(info: TaskInfo) -> TaskInfo:
    """Remove the data of a task's own errors, which may be as secret as its arguments. Tracebacks stay."""

    def bare(error: TaskError | None) -> TaskError | None:
        match error:
            case None | TaskError(data={"traceback": str()}):
                return error
            case _:
                return replace(error, data=None)

    attempts = [replace(attempt, error=bare(attempt.error)) for attempt in info.failed_attempts]
    return replace(info, error=bare(info.error), failed_attempts=attempts)


def _show_task(info: TaskInfo, detail: TaskDetail, *, as_json: bool) -> None:
    if as_json:
        show_json(asdict(info) | asdict(detail))
        return
    for name, value in _facts(info, detail):
        if value is not None:
            click.echo(f"{name:<14}{to_text(value)}")
    if info.failed_attempts:
        click.echo()
        headings = ["ATTEMPT", "STARTED", "ENDED", "WORKER", "ERROR", "MESSAGE"]
        rows = [
            (a.attempt, a.started_at, a.ended_at, a.worker, a.error_code, a.error and a.error.message)
            for a in info.failed_attempts
        ]
        show_table(headings, rows, empty="")
    for title, text in (("args", detail.args), ("result", detail.result), ("error", _error_text(info.error))):
        if text:
            click.echo(f"\n{title}:\n{text}")


def _facts(info: TaskInfo, detail: TaskDetail) -> Iterator[tuple[str, object]]:
    yield "id", info.id
    yield "task", info.task_name
    yield "queue", f"{info.queue_name}, priority {info.priority}"
    yield "status", info.status
    attempts = f"{info.attempts} ended, {detail.max_retries} retries by its policy, claim number {detail.claim_no}"
    yield "attempts", attempts
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
