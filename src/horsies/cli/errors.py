"""`horsies errors`: which failures there are, grouped by task, code and message; list, show and retry them."""

import math
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import click

from horsies.app import Horsies
from horsies.cli.bulk import run_bulk
from horsies.cli.options import TimeParameter, database_command, dry_run_option, parse_time, to_absolute, yes_option
from horsies.cli.output import Column, echo, show_facts, show_json, show_table, to_age, wide_option
from horsies.cli.tasks import STOPPED, list_page
from horsies.model.text import plural
from horsies.ops.statistics import MAX_GROUPS, MAX_MINUTES, ErrorGroup
from horsies.tasks.control import RetryOutcome

NEWEST: Final = 10  # tasks of a group that `show` lists
HOUR: Final = timedelta(hours=1)

_since_option = click.option(
    "--since", type=parse_time, default="24h", show_default=True, metavar="WHEN",
    help="Failed since: 30m, 2h, or a date and time; at most 24 hours ago.",
)  # fmt: skip
_id_argument = click.argument("group_id", metavar="ID")


class ListByDefault(click.Group):
    """`horsies errors --since 2h` is `horsies errors list --since 2h`, and so is `horsies errors shop:app`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = any(option in args for option in self.get_help_option_names(ctx))
        if not args or (
            args[0] not in self.commands and args[0].startswith("-") | (":" in args[0]) and not asks_for_help
        ):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListByDefault)
def errors() -> None:
    """Inspect the failures of the last day in groups, and retry a whole group.

    A group has the same task, error code and message. Numbers and ids in messages are masked with #. Without a command, the groups are listed.
    """


@database_command(
    errors.command,
    _since_option,
    click.option("--task", "task_name", metavar="NAME", help="Only failures of this task."),
    click.option(
        "--limit", type=click.IntRange(1, MAX_GROUPS), default=50, show_default=True, help="Number of groups."
    ),
    wide_option,
)
def list_(target: Horsies, *, since: TimeParameter, task_name: str | None, limit: int, as_json: bool) -> None:
    """List the groups, the most frequent first. A plus behind a count: more have failed lately than were read.

    \b
    horsies errors
    horsies errors list --since 2h --task charge
    """
    now = target.ops.read_clock()
    groups = target.ops.error_groups(hours=_hours(since, now), limit=limit, task_name=task_name)
    if as_json:
        show_json({"error_groups": [_to_json(group) for group in groups]})
        return
    columns = [
        "ID", Column("TASK", shrink=12), "COUNT", Column("FIRST", drop=2), Column("LAST", drop=1), Column("CODE", shrink=12),
        Column("MESSAGE", shrink=26), Column("NEWEST TASK", drop=3),
    ]  # fmt: skip
    rows = [
        (
            group.id, group.task_name or "(others)", _count(group), to_age(group.first_at, now), to_age(group.last_at, now),
            group.error_code, group.message, group.example_id,
        )
        for group in groups
    ]  # fmt: skip
    show_table(columns, rows, empty="no task has failed in this time")


@database_command(errors.command, _id_argument, _since_option, wide_option)
def show(target: Horsies, *, group_id: str, since: TimeParameter, as_json: bool) -> None:
    """Show one group: its newest tasks, and the error of the last one with its traceback. A prefix of its id is enough.

    \b
    horsies errors show 3fa2b1c0
    """
    now = target.ops.read_clock()
    group = _find_group(target, group_id, since, now)
    page = list_page(target, group.to_filter(), NEWEST)
    example = target.ops.show_task(group.example_id)
    error = example and example.info.error
    match error and error.data:
        case {"traceback": str() as traceback}:
            pass
        case _:
            traceback = None
    if as_json:
        found = {"message": error.message, "traceback": traceback} if error else None
        show_json(_to_json(group) | {"tasks": page.tasks, "error": found})
        return
    show_facts(
        {
            "id": group.id,
            "task": group.task_name,
            "code": group.error_code,
            "message": group.message,
            "count": _count(group),
            "first": f"{to_age(group.first_at, now)} ago",
            "last": f"{to_age(group.last_at, now)} ago, task {group.example_id}",
        }
    )
    echo()
    columns = [
        Column("TASK", is_id=True),
        "STATUS",
        "ATTEMPTS",
        Column("QUEUE", shrink=8),
        "ENDED",
        Column("WORKER", is_id=True, drop=1),
    ]
    rows = [
        (task.id, task.status, task.attempts, task.queue_name, f"{to_age(task.finished_at, now)} ago", task.worker)
        for task in page.tasks
    ]
    gone = "none of these tasks is still FAILED: they were retried or deleted"
    show_table(columns, rows, empty=gone if page.is_complete else STOPPED)
    if error:
        echo(f"\nerror of {group.example_id}:\n{error.message}")
        if traceback:
            echo(f"\n{traceback.rstrip()}")
    echo(f"\nretry all of them: horsies errors retry {group.id}")


@database_command(
    errors.command,
    _id_argument,
    _since_option,
    click.option("--force", is_flag=True, help="Also retry tasks past their good_until, and tasks whose key another task holds."),
    dry_run_option,
    yes_option,
)  # fmt: skip
def retry(target: Horsies, *, group_id: str, since: TimeParameter, force: bool, **flags: bool) -> None:
    """Run all tasks of a group again that are still FAILED. They keep their ids, and are due now.

    First shows the group and how many tasks would be retried, and asks. See `horsies tasks retry` for what a retry does.

    \b
    horsies errors retry 3fa2b1c0 --dry-run
    horsies errors retry 3fa2b1c0 --since 2h
    """
    now = target.ops.read_clock()
    group = _find_group(target, group_id, since, now)
    if not flags["as_json"]:
        words = f"{plural(_count(group), 'failure')}, the last one {to_age(group.last_at, now)} ago"
        echo(f"{group.task_name}: {group.error_code}: {group.message} ({words})", err=True)
    action = target.ops.retry_error_group(group, force=force)
    run_bulk(target.ops, action, verb="retry", words={each.name: each.value for each in RetryOutcome}, **flags)


def _hours(since: TimeParameter, now: datetime) -> float:
    """Return how many hours ago this was. Failures are grouped for a day."""
    hours = (now - (to_absolute(since, now) or now)) / HOUR
    if hours <= 0:
        raise click.UsageError("--since is in the future; give a time ago, such as 2h")
    if math.floor(hours * 60) > MAX_MINUTES:
        raise click.UsageError(
            "failures are grouped for 24 hours; choose a later --since, or see `horsies tasks list --status FAILED --since 7d`"
        )
    return hours


def _find_group(target: Horsies, prefix: str, since: TimeParameter, now: datetime) -> ErrorGroup:
    groups = target.ops.error_groups(hours=_hours(since, now), limit=MAX_GROUPS)
    found = [group for group in groups if group.id.startswith(prefix.strip().lower())]
    if not prefix.strip() or not found:
        raise click.ClickException(f"no group of errors has an id that starts with {prefix!r}; see `horsies errors`")
    if len(found) > 1:
        lines = [f"{group.id}  {group.task_name} {group.error_code}" for group in found]
        raise click.ClickException(f"the ids of several groups start with {prefix!r}:\n  " + "\n  ".join(lines))
    if not found[0].task_name:
        raise click.ClickException(
            "this group is the rest of a minute with many kinds of errors; see `horsies tasks list --status FAILED`"
        )
    return found[0]


def _count(group: ErrorGroup) -> object:
    return group.count if group.is_complete else f"{group.count}+"


def _to_json(group: ErrorGroup) -> dict[str, Any]:
    return {"id": group.id, **asdict(group)}
