"""`horsies tasks`: list, show, cancel, retry and purge."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import click

from horsies.app import Horsies
from horsies.cli.filters import Asked, task_filters
from horsies.cli.ids import full_id
from horsies.cli.options import dry_run_option, json_option, on_database, yes_option
from horsies.cli.record import show_record, without_data
from horsies.cli.show import show_json, show_table
from horsies.cli.sweep import sweep
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId
from horsies.tasks.cancel import CancelOutcome, cancel_many
from horsies.tasks.inspect import get_status
from horsies.tasks.list import FINAL, LIVE, TaskFilter, TaskLine, list_tasks
from horsies.tasks.purge import purge as purge_endings
from horsies.tasks.retry import Retry, RetryOutcome
from horsies.tasks.show import WHOLE
from horsies.tasks.show import show as show_stored

PAYLOAD_CHARACTERS = 4_000

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
def list_(target: Horsies, *, asked: Asked, limit: int, after: str | None, as_json: bool) -> None:
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


def _cells(line: TaskLine) -> Sequence[object]:
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
    characters = 0 if not payload else WHOLE if as_json else PAYLOAD_CHARACTERS
    found = target.broker.run(partial(show_stored, task_id, characters=characters))
    if found is None:
        raise click.ClickException(f"no task {task_id} is known: never sent, not committed yet, or past its retention")
    info, stored = found
    show_record(info if payload else without_data(info), stored, as_json=as_json)


@tasks.command()
@click.argument("task_ids", type=full_id, metavar="[ID]...", nargs=-1)
@task_filters
@dry_run_option
@yes_option
@json_option
@on_database()
def cancel(target: Horsies, *, task_ids: Sequence[TaskId], asked: Asked, **how: bool) -> None:
    """Cancel tasks: what has not begun ends at once, what runs is asked to stop and killed after a grace period.

    \b
    horsies tasks cancel 0198c0de-1234-7abc-8def-0123456789ab
    horsies tasks cancel --task import_feed --status PENDING --dry-run
    """

    def act(ids: Sequence[TaskId]) -> dict[TaskId, CancelOutcome]:
        verb = partial(cancel_many, ids)
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
def retry(target: Horsies, *, task_ids: Sequence[TaskId], asked: Asked, force: bool, **how: bool) -> None:
    """Bring finished tasks back: they keep their ids, and are due now.

    Without --status those that FAILED are meant. Attempts are counted on: a task that has used up its retries gets one more attempt. A task of a
    workflow is not retried alone: see `horsies workflows retry`.

    \b
    horsies tasks retry 0198c0de-1234-7abc-8def-0123456789ab
    horsies tasks retry --task charge --error-code UPSTREAM_DOWN --since 2h
    """

    def act(ids: Sequence[TaskId]) -> dict[TaskId, RetryOutcome]:
        verb = Retry(ids, force=force)
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
def purge(target: Horsies, *, asked: Asked, everything: bool, **how: bool) -> None:
    """Delete finished tasks before their retention would. What is live is never deleted: see `horsies queues purge`.

    A key that such a task holds by its window is free afterwards.

    \b
    horsies tasks purge --status FAILED --before 7d --dry-run
    """
    if bool(asked) is everything:
        raise click.UsageError("say which: by a filter such as --status FAILED --before 7d, or --all")
    wanted = _filter_of(target, asked, "purge", FINAL, FINAL)

    def act(lines: Sequence[TaskLine]) -> Counter[str]:
        verb = partial(purge_endings, lines)
        return Counter(PURGED=target.broker.run(verb, again=verb))

    sweep(target, wanted, act, verb="purge", words={"PURGED": "deleted"}, **how)


def _act_on(
    target: Horsies,
    task_ids: Sequence[TaskId],
    asked: Asked,
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
        sweep(target, wanted, lambda lines: _counted(act([line.id for line in lines])), verb=verb, words=words, **how)
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
    target: Horsies, asked: Asked, verb: str, of: Sequence[TaskStatus], default: Sequence[TaskStatus]
) -> TaskFilter:
    if wrong := [status for status in asked.statuses if TaskStatus(status) not in of]:
        raise click.UsageError(f"{verb} is for what is {', '.join(of)}, and not for {', '.join(wrong)}")
    return asked.filter(target, default)
