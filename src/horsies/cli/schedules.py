"""`horsies schedules`: look at what is enqueued by itself, hold it, let it go on, run it now."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.options import json_option, on_database
from horsies.cli.output import show_json, show_table, shown
from horsies.db.statement import Op
from horsies.schedules.control import (
    ScheduleInfo,
    ScheduleRun,
    ScheduleState,
    get_schedule_runs,
    get_schedules,
    pause_schedule,
    resume_schedule,
    run_schedule,
)
from horsies.tasks.ids import new_task_id

SLOTS = 5

name_argument = click.argument("name", metavar="NAME")


@click.group()
def schedules() -> None:
    """Look at schedules, pause and resume them, run one now.

    What is shown is what is stored: schedulers put it there when they start. A pause is stored too, and outlives restarts and deployments.
    """


@schedules.command("list")
@click.option("--task", "task_name", metavar="NAME", help="Only schedules of this task.")
@click.option("--queue", "queue_name", metavar="NAME", help="Only schedules that enqueue to this queue.")
@click.option(
    "--state", type=click.Choice([state.value for state in ScheduleState]), help="Only schedules in this state."
)
@json_option
@on_database()
def list_(target: Horsies, *, task_name: str | None, queue_name: str | None, state: str | None, as_json: bool) -> None:
    """List the schedules, with their next and their last slot.

    \b
    Example:
      horsies schedules list --state paused
    """
    found = target.broker.run(partial(get_schedules, None, task_name, queue_name))
    found = [info for info in found if state is None or info.state == state]
    if as_json:
        show_json({"schedules": [_as_json(info) for info in found]})
        return
    show_table(
        ["NAME", "APP", "TASK", "PATTERN", "TIMEZONE", "STATE", "NEXT SLOT", "LAST SLOT"],
        [
            [
                info.name, info.app, info.task_name, info.pattern_text, info.timezone, info.state.value,
                _next_slot(info), info.last_slot_at,
            ]
            for info in found
        ],
        empty="there are no such schedules; a scheduler stores those that its app declares when it starts",
    )  # fmt: skip


@schedules.command()
@name_argument
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="So much of its history.")
@json_option
@on_database()
def show(target: Horsies, name: str, *, limit: int, as_json: bool) -> None:
    """Show a schedule: its definition, its next slots, and what became of the last ones.

    \b
    Example:
      horsies schedules show nightly-report --limit 50
    """
    info = next(iter(target.broker.run(partial(get_schedules, name))), None)
    if info is None:
        raise _unknown(name)
    runs = target.broker.run(partial(get_schedule_runs, name, limit))
    if as_json:
        show_json(_as_json(info) | {"next_slots": _next_slots(info), "runs": [asdict(run) for run in runs]})
        return
    for heading, value in _facts(info):
        click.echo(f"{heading:<12} {shown(value)}")
    click.echo()
    show_table(
        ["DECIDED", "OUTCOME", "SLOT", "TASK"],
        [[run.decided_at, run.outcome, _slots(run), run.task_id] for run in runs],
        empty="nothing has been due yet",
    )


@schedules.command()
@name_argument
@json_option
@on_database()
def run(target: Horsies, name: str, *, as_json: bool) -> None:
    """Enqueue a schedule's task once, now.

    Its slots stay as they are. Works for a paused schedule, too, and while another run is going.

    \b
    Example:
      horsies schedules run nightly-report
    """
    task_id = new_task_id()
    verb = partial(run_schedule, name, task_id)
    if not target.broker.run(verb, again=verb):
        raise _unknown(name)
    if as_json:
        show_json({"name": name, "task_id": task_id})
    else:
        click.echo(f"enqueued task {task_id}")


@schedules.command("pause")
@name_argument
@json_option
@on_database()
def pause_(target: Horsies, name: str, *, as_json: bool) -> None:
    """Let a schedule enqueue nothing until it is resumed.

    Runs that are going are not touched. A new deployment does not end the pause; `horsies schedules resume` does.

    \b
    Example:
      horsies schedules pause nightly-report
    """
    _switch(target, name, partial(pause_schedule, name), is_paused=True, as_json=as_json)


@schedules.command("resume")
@name_argument
@json_option
@on_database()
def resume_(target: Horsies, name: str, *, as_json: bool) -> None:
    """Let a paused schedule go on, with its first slot from now on.

    What it would have enqueued during the pause is not made up for; `horsies schedules run` does that, once.

    \b
    Example:
      horsies schedules resume nightly-report
    """
    _switch(target, name, partial(resume_schedule, name), is_paused=False, as_json=as_json)


def _switch(target: Horsies, name: str, verb: Callable[[], Op[bool]], *, is_paused: bool, as_json: bool) -> None:
    if not target.broker.run(verb, again=verb):
        raise _unknown(name)
    if as_json:
        show_json({"name": name, "is_paused": is_paused})
    else:
        click.echo(f"schedule {name!r} is {'paused' if is_paused else 'not paused'}")


def _unknown(name: str) -> click.ClickException:
    return click.ClickException(f"there is no schedule {name!r}; `horsies schedules list` shows those there are")


def _as_json(info: ScheduleInfo) -> dict[str, Any]:
    return asdict(info) | {"state": info.state.value, "next_slot_at": _next_slot(info)}


def _facts(info: ScheduleInfo) -> list[tuple[str, object]]:
    catch_up = f"up to {info.max_catch_up_runs}" if info.catch_up_missed else "the newest"
    return [
        ("name", info.name),
        ("app", info.app),
        ("state", info.state.value),
        ("task", info.task_name),
        ("queue", info.queue_name),
        ("arguments", info.args),
        ("pattern", info.pattern_text),
        ("timezone", info.timezone),
        ("catch-up", catch_up if info.max_catch_up_runs else "none"),
        ("overlap", info.overlap),
        ("jitter", f"{info.jitter_ms} ms"),
        ("last slot", info.last_slot_at),
        ("last task", info.last_task_id),
        ("next slots", _next_slots(info)),
    ]


def _next_slot(info: ScheduleInfo) -> datetime | None:
    return info.next_slot_at if info.state is ScheduleState.ACTIVE else None


def _next_slots(info: ScheduleInfo) -> list[datetime]:
    if info.state is not ScheduleState.ACTIVE:
        return []
    try:
        return info.next_slots(SLOTS)
    except ValueError as error:
        raise click.ClickException(f"schedule {info.name!r}: {error}") from None


def _slots(run: ScheduleRun) -> str:
    if run.last_slot_at is None or run.last_slot_at == run.slot_at:
        return shown(run.slot_at)
    return f"{shown(run.slot_at)} to {shown(run.last_slot_at)}"
