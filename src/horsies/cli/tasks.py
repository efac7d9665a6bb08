"""`horsies tasks`: list, show, cancel, retry and purge."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, wraps
from typing import Any, TypeAlias

import click

from horsies.app import Horsies
from horsies.cli.bulk import run_in_batches
from horsies.cli.options import (
    TimeParameter,
    any_worker,
    dry_run_option,
    full_id,
    json_option,
    on_database,
    parse_time,
    to_absolute,
    yes_option,
)
from horsies.cli.output import show_json, show_table, shown
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

# --------
# One task, shown in full.


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


def show_task_detail(info: TaskInfo, stored: TaskDetail, *, as_json: bool) -> None:
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


def _facts(info: TaskInfo, stored: TaskDetail) -> Iterator[tuple[str, object]]:
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
        yield "took", format_duration((info.finished_at - info.started_at).total_seconds())
    yield "timeout", info.timeout_ms and format_duration(info.timeout_ms / 1000)
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


# --------
# The options by which commands are told which tasks are meant.

_OPTIONS = [
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([status.value for status in TaskStatus], case_sensitive=False),
        help="In this state; may be given several times.",
    ),
    click.option("--queue", metavar="NAME", help="In this queue."),
    click.option("--task", metavar="NAME", help="Of this task."),
    click.option("--error-code", metavar="CODE", help="Ended with this error code."),
    click.option(
        "--worker", metavar="ID", help="Held, or last held, by this worker; the beginning of its id is enough."
    ),
    click.option(
        "--since", type=parse_time, metavar="WHEN", help="Ended, or if live sent, since: 2h, 7d, or 2030-12-31T18:00."
    ),
    click.option("--until", "--before", "until", type=parse_time, metavar="WHEN", help="The same, before."),
    click.option("--workflow", type=full_id, metavar="ID", help="Of this workflow, and of what is below it."),
]


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """What was asked for on the command line."""

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

    def filter(self, target: Horsies, default: Sequence[TaskStatus] = ()) -> TaskFilter:
        """How long ago something was is told by the database's clock, and once: batches later on mean the same moment."""
        now = target.broker.run(read_clock)
        return TaskFilter(
            statuses=[TaskStatus(status) for status in self.statuses] or default,
            queue_name=self.queue,
            task_name=self.task,
            error_code=self.error_code,
            worker=None if self.worker is None else any_worker(target, self.worker),
            since=to_absolute(self.since, now),
            until=to_absolute(self.until, now),
            workflow_id=self.workflow,
        )


def task_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options; it gets them as one `Asked`."""

    @wraps(command)
    def run(
        *args: Any,
        statuses: Sequence[str],
        queue: str | None,
        task: str | None,
        error_code: str | None,
        worker: str | None,
        since: TimeParameter | None,
        until: TimeParameter | None,
        workflow: str | None,
        **options: Any,
    ) -> Any:
        asked = FilterOptions(statuses, queue, task, error_code, worker, since, until, workflow)
        return command(*args, asked=asked, **options)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


PAYLOAD_CHARACTERS = 4_000
MAX_CHARACTERS = 2**31 - 1

Outcome: TypeAlias = CancelOutcome | RetryOutcome

force_option = click.option(
    "--force",
    is_flag=True,
    help="Also what has succeeded, what is past its good_until (which is dropped), and what lost its key to another task.",
)


@click.group()
def tasks() -> None:
    """Look at tasks, and cancel, retry or delete them.

    Tasks are named by their ids, or found by filters, which all must match.
    """


@tasks.command("list")
@task_filters
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@click.option("--after", type=full_id, metavar="ID", help="Those that come after this one in the list.")
@json_option
@on_database()
def list_(target: Horsies, *, asked: FilterOptions, limit: int, after: str | None, as_json: bool) -> None:
    """List tasks, live and finished, in the order they were sent, newest first.

    A filter that matches little looks through all that is newer; --since bounds that.

    \b
    horsies tasks list --status FAILED --since 2h
    horsies tasks list --status PENDING --status RUNNING --queue mail
    """
    found = target.broker.run(partial(list_tasks, asked.filter(target), limit=limit + 1, after=after))
    lines, last = found[:limit], found[limit - 1].id if len(found) > limit else None
    if as_json:
        show_json({"tasks": lines, "next_after": last})
        return
    headings = ["ID", "TASK", "QUEUE", "STATUS", "ATTEMPTS", "SENT", "ENDED", "ERROR"]
    show_table(headings, map(_cells, lines), empty="no task matches")
    if last:
        click.echo(f"there are more: add --after {last}", err=True)


def _cells(line: TaskSummary) -> Sequence[object]:
    return (
        line.id,
        line.task_name,
        line.queue_name,
        line.status,
        line.attempts,
        line.sent_at,
        line.finished_at,
        line.error_code,
    )


@tasks.command()
@click.argument("task_id", type=full_id, metavar="ID")
@click.option("--payload", is_flag=True, help="Show also its arguments and its result, which may hold secrets.")
@json_option
@on_database()
def show(target: Horsies, *, task_id: TaskId, payload: bool, as_json: bool) -> None:
    """Show everything that is known about one task: its times, its worker, its attempts and their errors.

    Arguments, results and the data of errors are shown only with --payload: of long ones the beginning, and with --json all. What an
    exception said, and its traceback, is shown always.

    \b
    horsies tasks show 0198c0de-1234-7abc-8def-0123456789ab
    """
    characters = 0 if not payload else MAX_CHARACTERS if as_json else PAYLOAD_CHARACTERS
    found = target.broker.run(partial(get_task_detail, task_id, characters=characters))
    if found is None:
        raise click.ClickException(f"no task {task_id} is known: never sent, not committed yet, or past its retention")
    info, stored = found
    show_task_detail(info if payload else without_data(info), stored, as_json=as_json)


@tasks.command()
@click.argument("task_ids", type=full_id, metavar="[ID]...", nargs=-1)
@task_filters
@dry_run_option
@yes_option
@json_option
@on_database()
def cancel(target: Horsies, *, task_ids: Sequence[TaskId], asked: FilterOptions, **how: bool) -> None:
    """Cancel tasks: what has not begun ends at once, what runs is asked to stop and killed after a grace period.

    \b
    horsies tasks cancel 0198c0de-1234-7abc-8def-0123456789ab
    horsies tasks cancel --task import_feed --status PENDING --dry-run
    """

    def act(ids: Sequence[TaskId]) -> dict[TaskId, CancelOutcome]:
        verb = partial(cancel_tasks, ids)
        return target.broker.run(verb, again=verb)

    good = frozenset({CancelOutcome.CANCELLED, CancelOutcome.REQUESTED})
    _act_on(target, task_ids, asked, act, good, verb="cancel", of=LIVE, default=LIVE, **how)


@tasks.command()
@click.argument("task_ids", type=full_id, metavar="[ID]...", nargs=-1)
@task_filters
@force_option
@dry_run_option
@yes_option
@json_option
@on_database()
def retry(target: Horsies, *, task_ids: Sequence[TaskId], asked: FilterOptions, force: bool, **how: bool) -> None:
    """Bring finished tasks back: they keep their ids, and are due now.

    Without --status those that FAILED are meant. Attempts are counted on: a task that has used up its retries gets one more attempt. A task of a
    workflow is not retried alone: see `horsies workflows retry`.

    \b
    horsies tasks retry 0198c0de-1234-7abc-8def-0123456789ab
    horsies tasks retry --task charge --error-code UPSTREAM_DOWN --since 2h
    """

    def act(ids: Sequence[TaskId]) -> dict[TaskId, RetryOutcome]:
        verb = Requeue(ids, force=force)
        return target.broker.run(verb, again=verb)

    good = frozenset({RetryOutcome.RETRIED})
    _act_on(target, task_ids, asked, act, good, verb="retry", of=FINAL, default=[TaskStatus.FAILED], **how)


@tasks.command()
@task_filters
@click.option("--all", "everything", is_flag=True, help="Every finished task; instead of a filter.")
@dry_run_option
@yes_option
@json_option
@on_database()
def purge(target: Horsies, *, asked: FilterOptions, everything: bool, **how: bool) -> None:
    """Delete finished tasks before their retention would. What is live is never deleted: see `horsies queues purge`.

    A key that such a task holds by its window is free afterwards.

    \b
    horsies tasks purge --status FAILED --before 7d --dry-run
    """
    if bool(asked) is everything:
        raise click.UsageError("say which: by a filter such as --status FAILED --before 7d, or --all")
    wanted = _filter_of(target, asked, "purge", FINAL, FINAL)

    def act(lines: Sequence[TaskSummary]) -> Counter[str]:
        verb = partial(purge_finished, lines)
        return Counter(PURGED=target.broker.run(verb, again=verb))

    run_in_batches(target, wanted, act, verb="purge", words={"PURGED": "deleted"}, **how)


def _act_on(
    target: Horsies,
    task_ids: Sequence[TaskId],
    asked: FilterOptions,
    act: Callable[[Sequence[TaskId]], Mapping[TaskId, Outcome]],
    good: frozenset[Outcome],
    *,
    verb: str,
    of: Sequence[TaskStatus],
    default: Sequence[TaskStatus],
    **how: bool,
) -> None:
    if bool(task_ids) == bool(asked):
        raise click.UsageError(f"say what to {verb}: by ids, or by a filter such as --task or --queue; not both")
    if not task_ids:
        words = {outcome.name: outcome.value for outcome in (*CancelOutcome, *RetryOutcome)}
        wanted = _filter_of(target, asked, verb, of, default)
        run_in_batches(
            target, wanted, lambda lines: _counted(act([line.id for line in lines])), verb=verb, words=words, **how
        )
        return
    if how["dry_run"]:
        _show_statuses(target, task_ids, verb=verb, of=of, as_json=how["as_json"])
        return
    outcomes = act(task_ids)
    if how["as_json"]:
        show_json({"tasks": {task_id: outcome.name for task_id, outcome in outcomes.items()}})
    else:
        for task_id, outcome in outcomes.items():
            click.echo(f"{task_id}: {outcome.value}")
    if not good.issuperset(outcomes.values()):
        raise click.exceptions.Exit(1)


def _show_statuses(
    target: Horsies, task_ids: Sequence[TaskId], *, verb: str, of: Sequence[TaskStatus], as_json: bool
) -> None:
    statuses = {task_id: target.broker.run(partial(get_status, task_id)) for task_id in task_ids}
    if as_json:
        show_json({"tasks": {task_id: status or "NOT_FOUND" for task_id, status in statuses.items()}})
        return
    for task_id, status in statuses.items():
        what = "not found" if status is None else f"{status}, {f'would {verb} it' if status in of else 'left as it is'}"
        click.echo(f"{task_id}: {what}")


def _counted(outcomes: Mapping[TaskId, Outcome]) -> Counter[str]:
    return Counter(outcome.name for outcome in outcomes.values())


def _filter_of(
    target: Horsies, asked: FilterOptions, verb: str, of: Sequence[TaskStatus], default: Sequence[TaskStatus]
) -> TaskFilter:
    if wrong := [status for status in asked.statuses if TaskStatus(status) not in of]:
        raise click.UsageError(f"{verb} is for what is {', '.join(of)}, and not for {', '.join(wrong)}")
    return asked.filter(target, default)
