"""`horsies schedules`: list, show, run, pause, resume, create, change and remove."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import wraps
from operator import attrgetter
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.options import (
    all_of,
    confirm,
    database_command,
    dry_run_option,
    name_argument,
    parse_seconds,
    yes_option,
)
from horsies.cli.output import (
    Column,
    Styled,
    echo,
    show_facts,
    show_json,
    show_paused,
    show_table,
    to_text,
    wide_option,
)
from horsies.model.schedule import CronSchedule, IntervalSchedule, Overlap, TaskSchedule, pattern_from_json
from horsies.schedules.control import ScheduleInfo, ScheduleRun, ScheduleState

NEXT_SLOTS = 5


def _parse_interval(text: str) -> int:
    if not (seconds := parse_seconds(text)).is_integer():
        raise click.BadParameter(f"{text!r} is not a number of whole seconds")
    return int(seconds)


_definition_options = all_of(
    click.option("--every", type=_parse_interval, metavar="TIME", help="At an interval: 90s, 15m, 2h or 7d."),
    click.option("--cron", metavar="FIELDS", help="As in cron: '30 9 * * mon-fri' is minute, hour, day, month and weekday."),
    click.option("--args", metavar="JSON", help="The arguments of the task, as a JSON object."),
    click.option("--queue", "queue_name", metavar="NAME", help="The queue.  [default: that of the task]"),
    click.option("--timezone", metavar="NAME", help="Of the cron fields, such as Europe/Berlin.  [default: UTC]"),
    click.option("--overlap", type=click.Choice([each.value for each in Overlap]), help="At a slot while the last run has not ended.  [default: allow]"),
    click.option("--jitter", type=parse_seconds, metavar="TIME", help="Delay each slot by a random time up to this.  [default: 0]"),
    click.option("--catch-up", "max_catch_up_runs", type=click.IntRange(0, 10_000), metavar="NUMBER", help="How many missed slots to run, the newest.  [default: 1]"),
)  # fmt: skip


@click.group()
def schedules() -> None:
    """Inspect schedules, pause and resume them, run one now, or create some at run time.

    The commands show what is stored in the database. Schedulers store the schedules of their app when they start. A pause is stored too, and
    survives restarts and deployments.
    """


@database_command(
    schedules.command,
    click.option("--task", "task_name", metavar="NAME", help="Only schedules of this task."),
    click.option("--queue", "queue_name", metavar="NAME", help="Only schedules that enqueue to this queue."),
    click.option("--state", type=click.Choice([state.value for state in ScheduleState]), help="Only schedules in this state."),
    wide_option,
)  # fmt: skip
def list_(target: Horsies, *, task_name: str | None, queue_name: str | None, state: str | None, as_json: bool) -> None:
    """List schedules with their next and last slots.

    \b
    horsies schedules list --state paused
    """
    stored = target.ops.list_schedules(task_name=task_name, queue_name=queue_name)
    infos = [info for info in stored if state is None or info.state == state]
    if as_json:
        show_json({"schedules": [_to_json(info) for info in infos]})
        return
    columns = [
        Column("NAME", shrink=12), Column("APP", drop=5, shrink=8), Column("TASK", drop=3, shrink=10), Column("PATTERN", drop=1, shrink=12),
        Column("TIMEZONE", drop=4), "STATE", Column("NEXT SLOT", drop=2), Column("LAST SLOT", drop=6), Column("LAST RUN", shrink=16),
    ]  # fmt: skip
    cells = attrgetter("name", "app", "task_name", "pattern_text", "timezone", "state")
    show_table(
        columns,
        [(*cells(info), _next_slot(info), info.last_slot_at, Styled(_last_run(info), _style(info))) for info in infos],
        empty="no schedule matches; a scheduler stores the schedules of its app when it starts",
    )


@database_command(
    schedules.command,
    name_argument,
    click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="Number of past slots."),
    wide_option,
)
def show(target: Horsies, name: str, *, limit: int, as_json: bool) -> None:
    """Show the definition of a schedule, its next slots, and what was decided for the last ones.

    \b
    horsies schedules show nightly-report --limit 50
    """
    info = next(iter(target.ops.list_schedules(name=name)), None)
    if info is None:
        raise _unknown_schedule(name)
    runs = target.ops.list_schedule_runs(name, limit=limit)
    if as_json:
        show_json(_to_json(info) | {"next_slots": _next_slots(info), "runs": [asdict(run) for run in runs]})
        return
    catch_up = f"up to {info.max_catch_up_runs}" if info.catch_up_missed else "the newest"
    facts = {
        "name": info.name,
        "app": info.app,
        "state": info.state.value,
        "task": info.task_name,
        "queue": info.queue_name,
        "arguments": info.args,
        "pattern": info.pattern_text,
        "timezone": info.timezone,
        "catch-up": catch_up if info.max_catch_up_runs else "none",
        "overlap": info.overlap,
        "jitter": f"{info.jitter_ms} ms",
        "last slot": info.last_slot_at,
        "last task": info.last_task_id,
        "last run": _last_run(info),
        "next slots": _next_slots(info),
    }
    show_facts(facts)
    click.echo()
    show_table(
        [
            Column("DECIDED", drop=2),
            "OUTCOME",
            Column("SLOT", shrink=24),
            Column("TASK", is_id=True, drop=1),
            "STATUS",
            Column("FINISHED", drop=3),
            Column("ERROR", shrink=16),
        ],
        [
            [run.decided_at, run.outcome, _slot_range(run), run.task_id, run.task_status, run.finished_at, _error(run)]
            for run in runs
        ],
        empty="no slot has been due yet",
    )


@database_command(schedules.command, name_argument)
def run(target: Horsies, name: str, *, as_json: bool) -> None:
    """Enqueue a schedule's task once, now.

    Its slots do not change. This also works for a paused schedule, and while another run is active.

    \b
    horsies schedules run nightly-report
    """
    task_id = target.ops.run_schedule(name)
    if task_id is None:
        raise _unknown_schedule(name)
    if as_json:
        show_json({"name": name, "task_id": task_id})
    else:
        echo(f"enqueued task {task_id}")


@database_command(schedules.command, name_argument)
def pause_(target: Horsies, name: str, *, as_json: bool) -> None:
    """Stop a schedule from enqueuing tasks until it is resumed.

    Active runs continue. A new deployment does not end the pause; `horsies schedules resume` does.

    \b
    horsies schedules pause nightly-report
    """
    _show_paused(name, target.ops.pause_schedule(name), is_paused=True, as_json=as_json)


@database_command(schedules.command, name_argument)
def resume_(target: Horsies, name: str, *, as_json: bool) -> None:
    """Continue a paused schedule, with its first slot from now on.

    The slots of the pause are not made up for; `horsies schedules run` runs it once.

    \b
    horsies schedules resume nightly-report
    """
    _show_paused(name, target.ops.resume_schedule(name), is_paused=False, as_json=as_json)


def _show_paused(name: str, exists: bool, *, is_paused: bool, as_json: bool) -> None:  # noqa: FBT001
    if not exists:
        raise _unknown_schedule(name)
    show_paused("schedule", name, is_paused=is_paused, as_json=as_json)


def _definition_command(*options: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make a command that takes a name and the options of a definition, of which it gets those that were given, as fields of a `TaskSchedule`."""

    def decorate(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def run(
            target: Horsies, name: str, *, every: int | None, cron: str | None, as_json: bool, **options: Any
        ) -> None:
            if every is not None and cron is not None:
                raise click.UsageError("both --every and --cron are given; give one of them")
            given = {name: value for name, value in options.items() if value is not None}
            if cron is not None:
                given["pattern"] = CronSchedule(cron)
            if every is not None:
                given["pattern"] = IntervalSchedule(seconds=every)
            if "max_catch_up_runs" in given:
                given["catch_up_missed"] = given["max_catch_up_runs"] > 1
            function(target, name, given)
            (info,) = target.ops.list_schedules(name=name)
            if as_json:
                show_json(_to_json(info))
            else:
                slots = ", ".join(map(to_text, _next_slots(info)[:1])) or "none"
                echo(f"schedule {name!r} is stored: {info.pattern_text}, next slot: {slots}")

        return database_command(schedules.command, name_argument, *options, _definition_options)(run)

    return decorate


@_definition_command(click.option("--task", "task_name", metavar="NAME", required=True, help="The task to enqueue."))
def create(target: Horsies, name: str, given: dict[str, Any]) -> None:
    """Create a schedule at run time, beside those that apps declare. Any scheduler enqueues its tasks.

    Requires --app, because the task's code checks the arguments, and --every or --cron.

    \b
    horsies schedules create nightly-report --task report --cron '30 2 * * *' --timezone Europe/Berlin --args '{"days": 7}'
    """
    if "pattern" not in given:
        raise click.UsageError("give --every or --cron")
    target.ops.create_schedule(_to_schedule(target, name, given))


@_definition_command(click.option("--task", "task_name", metavar="NAME", help="Another task, which needs --args."))
def change(target: Horsies, name: str, given: dict[str, Any]) -> None:
    """Change a schedule that was created at run time. What is not given stays as it is.

    Requires --app. With another pattern or time zone, the schedule continues with the first slot from now on.

    \b
    horsies schedules change nightly-report --cron '30 3 * * *'
    """
    info = next(iter(target.ops.list_schedules(name=name)), None)
    if info is None:
        raise _unknown_schedule(name)
    kept = ("task_name", "queue_name", "timezone", "enabled", "overlap", "max_catch_up_runs", "catch_up_missed")
    stored = {field: getattr(info, field) for field in kept}
    stored |= {"pattern": pattern_from_json(info.pattern), "jitter": timedelta(milliseconds=info.jitter_ms)}
    if "task_name" not in given:
        stored["args"] = info.args
    if (stored | given).get("args") is None:
        raise click.UsageError("give --args: those of a sensitive task are hidden, and another task takes others")
    if not target.ops.change_schedule(_to_schedule(target, name, stored | given)):
        raise _unknown_schedule(name)


def _to_schedule(target: Horsies, name: str, given: Mapping[str, Any]) -> TaskSchedule:
    """Decode the arguments as the code of the task takes them. A task that is not known is reported with all other problems."""
    fields, args_json = dict(given), given.get("args")
    fields.pop("args", None)
    task = target.known_tasks.get(fields["task_name"])
    if task is not None and args_json is not None:
        args, fields["kwargs"] = task.arguments.decode(args_json)
        if args:
            raise click.UsageError(f"task {task.name!r} has parameters without names, which a schedule cannot give")
    return TaskSchedule(name=name, **fields)


@database_command(schedules.command, yes_option, name_argument, dry_run_option)
def remove(target: Horsies, name: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a schedule that was created at run time. Active runs continue.

    Asks for confirmation. One that an app declares is removed there.

    \b
    horsies schedules remove nightly-report
    """
    if not dry_run:
        confirm(f"remove schedule {name!r}?", yes=yes)
    if not (target.ops.list_schedules(name=name) if dry_run else target.ops.remove_schedule(name)):
        raise _unknown_schedule(name)
    if as_json:
        show_json({"name": name, "dry_run": dry_run, "is_removed": not dry_run})
    else:
        echo(f"would remove schedule {name!r}" if dry_run else f"schedule {name!r} is removed")


def _unknown_schedule(name: str) -> click.ClickException:
    return click.ClickException(f"there is no schedule {name!r}; see `horsies schedules list`")


def _to_json(info: ScheduleInfo) -> dict[str, Any]:
    return asdict(info) | {"state": info.state.value, "next_slot_at": _next_slot(info)}


def _next_slot(info: ScheduleInfo) -> datetime | None:
    """Return the next slot of a schedule that is active; the others have none."""
    return info.next_slot_at if info.state is ScheduleState.ACTIVE else None


def _next_slots(info: ScheduleInfo) -> list[datetime]:
    if info.state is not ScheduleState.ACTIVE:
        return []
    try:
        return info.next_slots(NEXT_SLOTS)
    except ValueError as error:
        raise click.ClickException(f"schedule {info.name!r}: {error}") from None


def _last_run(info: ScheduleInfo) -> str | None:
    """Describe how the newest run that has ended did so."""
    words = " ".join(word for word in (info.last_status, info.last_error_code) if word)
    return f"{words} ({info.failures_in_a_row} in a row)" if info.failures_in_a_row > 1 else words or None


def _style(info: ScheduleInfo) -> str:
    return "red" if info.failures_in_a_row else ""


def _error(run: ScheduleRun) -> str | None:
    return ": ".join(word for word in (run.error_code, run.message) if word) or None


def _slot_range(run: ScheduleRun) -> str:
    if run.last_slot_at is None or run.last_slot_at == run.slot_at:
        return to_text(run.slot_at)
    return f"{to_text(run.slot_at)} to {to_text(run.last_slot_at)}"
