"""`horsies status`: the whole system on one screen."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.options import database_command
from horsies.cli.output import show_json
from horsies.cli.queues import show_queues
from horsies.cli.workers import show_workers
from horsies.model.database_url import mask_passwords
from horsies.tasks.unknown import MAX_COUNTED

MINUTES = 60


@database_command(
    click.command,
    click.option("--watch", type=click.FloatRange(0.1), metavar="SECONDS", help="Repeat at this interval until Ctrl-C."),
    argument=True,
)  # fmt: skip
def status(target: Horsies, *, watch: float | None, as_json: bool) -> None:
    """Show queues, workers, and the tasks that ended in the last hour.

    With an APP, its empty queues are shown too. The command stays cheap with a backlog of millions: waiting tasks are counted up to
    100000 (a plus means more), and what takes too long to count is left out.

    \b
    horsies status shop:app --watch 2
    """
    if watch is None:
        _show(target, clears=False, as_json=as_json)
        return
    try:
        while True:
            _show(target, clears=True, as_json=as_json)
            time.sleep(watch)
    except KeyboardInterrupt:
        click.echo()


def _show(target: Horsies, *, clears: bool, as_json: bool) -> None:
    """Read everything, then clear the screen if it is used again, and show what was read."""
    ops = target.ops
    server, queues, workers = ops.get_server_info(), ops.list_queues(), ops.list_workers()
    finished, workflows = ops.count_ended(minutes=MINUTES), ops.count_workflows()
    schedules, unknown = Counter(info.state for info in ops.list_schedules()), ops.list_unknown_tasks()
    if clears:
        click.clear()
    if as_json:
        waits = [queue.oldest_waiting_s for queue in queues if queue.oldest_waiting_s is not None]
        show_json(
            {"server": server, "queues": queues, "workers": workers, "finished_last_hour": finished, "workflows": workflows}
            | {"schedules": dict(schedules), "unknown": unknown, "oldest_waiting_s": max(waits, default=None)}
        )  # fmt: skip
        return
    schema = f"schema {target.broker.config.schema} version {server.schema_version}"
    click.echo(mask_passwords(target.broker.config.database_url))
    click.echo(f"PostgreSQL {server.server_version}, {schema}\n")
    show_queues(target, queues)
    click.echo()
    show_workers(workers)
    click.echo(f"\nlast hour:  {_finished_text(finished)}")
    click.echo(f"workflows:  {_counts_text(workflows) or 'none under way'}")
    click.echo(f"schedules:  {_counts_text(schedules) or 'none'}")
    for tasks in unknown:
        why = "no worker can read the arguments of" if tasks.is_refused else "no worker knows"
        count = f"{tasks.count}{'+' if tasks.count >= MAX_COUNTED else ''}"
        click.echo(f"unknown:    {count} tasks wait since {tasks.since:%Y-%m-%d %H:%M:%S%z}: {why} {tasks.task_name}")


def _counts_text(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _finished_text(counts: Mapping[Any, int]) -> str:
    total, parts = sum(counts.values()), _counts_text({kind: count for kind, count in counts.items() if count})
    return f"{total} ended, {total / MINUTES:.1f} a minute{f': {parts}' if parts else ''}"
