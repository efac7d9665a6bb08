"""`horsies status`: the whole system on one screen."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.options import database_command, json_option, optional_app_argument
from horsies.cli.output import show_json
from horsies.cli.queues import read_queues, show_queues
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
    """What the command shows."""

    server: ServerInfo
    queues: list[QueueSummary]
    workers: list[WorkerSummary]
    finished_last_hour: Mapping[TaskStatus, int] | None
    workflows: Mapping[WorkflowStatus, int]
    schedules: Mapping[ScheduleState, int]
    unknown: list[UnknownTasks]


@click.command()
@click.option("--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Repeat at this interval until Ctrl-C.")
@json_option
@database_command(app=optional_app_argument)
def status(target: Horsies, *, watch: float | None, as_json: bool) -> None:
    """Show queues, workers, and the tasks that ended in the last hour.

    With an APP, its empty queues are shown too. The command stays cheap with a backlog of millions: waiting tasks are counted up to
    100000 (a plus means more), and what takes too long to count is left out.

    \b
    horsies status shop:app --watch 2
    """
    if watch is None:
        _show(target, _read_overview(target), as_json=as_json)
        return
    try:
        while True:
            overview = _read_overview(target)
            click.clear()
            _show(target, overview, as_json=as_json)
            time.sleep(watch)
    except KeyboardInterrupt:
        click.echo()


def _read_overview(target: Horsies) -> Overview:
    run = target.broker.run
    return Overview(
        server=run(get_server_info),
        queues=read_queues(target),
        workers=run(list_workers),
        finished_last_hour=run(partial(count_finished, MINUTES)),
        workflows=run(count_workflows),
        schedules=Counter(info.state for info in run(get_schedules)),
        unknown=run(list_unknown_tasks),
    )


def _show(target: Horsies, overview: Overview, *, as_json: bool) -> None:
    if as_json:
        show_json(_to_json(overview))
        return
    server = overview.server
    click.echo(mask_passwords(target.broker.config.database_url))
    click.echo(
        f"PostgreSQL {server.server_version}, schema {target.broker.config.schema} version {server.schema_version}\n"
    )
    show_queues(target, overview.queues)
    click.echo()
    show_workers(overview.workers)
    click.echo(f"\nlast hour:  {_finished_text(overview.finished_last_hour)}")
    click.echo(f"workflows:  {_counts_text(overview.workflows) or 'none under way'}")
    click.echo(f"schedules:  {_counts_text(overview.schedules) or 'none'}")
    for unknown in overview.unknown:
        why = "no worker can read the arguments of" if unknown.is_refused else "no worker knows"
        more = "+" if unknown.count >= MAX_COUNTED else ""
        click.echo(
            f"unknown:    {unknown.count}{more} tasks wait since {unknown.since:%Y-%m-%d %H:%M:%S%z}: {why} {unknown.task_name}"
        )


def _counts_text(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _finished_text(counts: Mapping[TaskStatus, int] | None) -> str:
    if counts is None:
        return "more tasks ended today than can be counted in two seconds"
    total = sum(counts.values())
    parts = _counts_text(counts)
    return f"{total} ended, {total / MINUTES:.1f} a minute{f': {parts}' if parts else ''}"


def _to_json(overview: Overview) -> dict[str, Any]:
    oldest = max(
        (queue.oldest_waiting_s for queue in overview.queues if queue.oldest_waiting_s is not None), default=None
    )
    return asdict(overview) | {"oldest_waiting_s": oldest}
