"""`horsies status`: how everything fares, on one screen."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.options import json_option, on_database, optional_app_argument
from horsies.cli.output import show_json
from horsies.cli.queues import lines_of, show_queues
from horsies.cli.workers import show_workers
from horsies.model.database_url import mask_passwords
from horsies.model.graph import WorkflowStatus
from horsies.model.status import TaskStatus
from horsies.schedules.control import ScheduleState, get_schedules
from horsies.tasks.inspect import WorkerSummary, list_workers
from horsies.tasks.queues import QueueSummary, ServerInfo, count_finished, count_workflows, get_server_info
from horsies.tasks.unknown import MAX_COUNTED, UnknownTasks, list_unknown_tasks

MINUTES = 60


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the screen shows."""

    server: ServerInfo
    queues: list[QueueSummary]
    workers: list[WorkerSummary]
    finished_last_hour: Mapping[TaskStatus, int] | None
    workflows: Mapping[WorkflowStatus, int]
    schedules: Mapping[ScheduleState, int]
    unknown: list[UnknownTasks]


@click.command()
@click.option("--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Show it again and again, until Ctrl-C.")
@json_option
@on_database(app=optional_app_argument)
def status(target: Horsies, *, watch: float | None, as_json: bool) -> None:
    """Show queues, workers and what has ended in the last hour.

    With an APP all of its queues are shown, also those that are empty. What takes too long to count is left out, or counted up to
    100000 and marked with a plus: a backlog of millions is no reason not to look.

    \b
    horsies status shop:app --watch 2
    """
    if watch is None:
        _show(target, _look(target), as_json=as_json)
        return
    try:
        while True:
            seen = _look(target)
            click.clear()
            _show(target, seen, as_json=as_json)
            time.sleep(watch)
    except KeyboardInterrupt:
        click.echo()


def _look(target: Horsies) -> Overview:
    run = target.broker.run
    return Overview(
        server=run(get_server_info),
        queues=lines_of(target),
        workers=run(list_workers),
        finished_last_hour=run(partial(count_finished, MINUTES)),
        workflows=run(count_workflows),
        schedules=Counter(info.state for info in run(get_schedules)),
        unknown=run(list_unknown_tasks),
    )


def _show(target: Horsies, seen: Overview, *, as_json: bool) -> None:
    if as_json:
        show_json(_plain(seen))
        return
    server = seen.server
    click.echo(f"{mask_passwords(target.broker.config.database_url)}")
    click.echo(
        f"PostgreSQL {server.server_version}, schema {target.broker.config.schema} version {server.schema_version}\n"
    )
    show_queues(target, seen.queues)
    click.echo()
    show_workers(seen.workers)
    click.echo(f"\nlast hour:  {_finished(seen.finished_last_hour)}")
    click.echo(f"workflows:  {_counted(seen.workflows) or 'none under way'}")
    click.echo(f"schedules:  {_counted(seen.schedules) or 'none'}")
    for line in seen.unknown:
        why = "no worker can read the arguments of" if line.is_refused else "no worker knows"
        more = "+" if line.count >= MAX_COUNTED else ""
        click.echo(
            f"unknown:    {line.count}{more} tasks wait since {line.since:%Y-%m-%d %H:%M:%S%z}: {why} {line.task_name}"
        )


def _counted(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _finished(counts: Mapping[TaskStatus, int] | None) -> str:
    if counts is None:
        return "too much has ended today to count it in two seconds"
    total = sum(counts.values())
    parts = _counted(counts)
    return f"{total} ended, {total / MINUTES:.1f} a minute{f': {parts}' if parts else ''}"


def _plain(seen: Overview) -> dict[str, Any]:
    oldest = max((line.oldest_waiting_s for line in seen.queues if line.oldest_waiting_s is not None), default=None)
    return asdict(seen) | {"oldest_waiting_s": oldest}
