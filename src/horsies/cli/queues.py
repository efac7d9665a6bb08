"""`horsies queues`: list, pause, resume and purge."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.bulk import run_bulk
from horsies.cli.options import database_command, dry_run_option, name_argument, yes_option
from horsies.cli.output import show_json, show_paused, show_table
from horsies.model.validation import format_duration
from horsies.tasks.queues import QueueSummary


@click.group()
def queues() -> None:
    """Inspect, pause, resume and empty queues."""


@database_command(queues.command)
def list_(target: Horsies, *, as_json: bool) -> None:
    """List queues with the numbers of their tasks.

    Waiting tasks are counted up to 100000; a plus means more. With --app, all queues of the app are listed, with their priorities and caps.

    \b
    horsies queues list --app shop:app
    """
    summaries = target.ops.list_queues()
    if as_json:
        show_json({"queues": [asdict(queue) | _settings(target, queue.name) for queue in summaries]})
    else:
        show_queues(target, summaries)


def show_queues(target: Horsies, summaries: Sequence[QueueSummary]) -> None:
    headings = ["QUEUE", "WAITING", "SCHEDULED", "RETRYING", "CLAIMED", "RUNNING", "OLDEST", "PAUSED", "WORKERS"]
    extra = ["PRIORITY", "CAP"] if target.tasks else []
    rows: list[Sequence[object]] = []
    for queue in summaries:
        waiting = f"{queue.waiting}+" if queue.more_waiting else queue.waiting
        not_due = [f"{count}+" if queue.more_not_due else count for count in (queue.scheduled, queue.retrying)]
        oldest = None if queue.oldest_waiting_s is None else format_duration(queue.oldest_waiting_s)
        settings = _settings(target, queue.name).values() if extra else ()
        counts = (waiting, *not_due, queue.claimed, queue.running)
        rows.append((queue.name, *counts, oldest, queue.paused_at, queue.workers, *settings))
    show_table([*headings, *extra], rows, empty="no queue has a task, a worker or a pause")


def _settings(target: Horsies, name: str) -> dict[str, Any]:
    """Return what the app declares for a queue; None each if it declares nothing."""
    queue = next((queue for queue in target.config.queues if target.tasks and queue.name == name), None)
    return {"priority": queue and queue.priority, "max_concurrency": queue and queue.max_concurrency}


@database_command(queues.command, name_argument)
def pause(target: Horsies, *, name: str, as_json: bool) -> None:
    """Stop all workers from claiming from a queue until it is resumed. Running tasks continue, and sends are accepted.

    \b
    horsies queues pause mail --app shop:app
    """
    _check_name(target, name)
    target.ops.pause_queue(name)
    show_paused("queue", name, is_paused=True, as_json=as_json)


@database_command(queues.command, name_argument)
def resume(target: Horsies, *, name: str, as_json: bool) -> None:
    """Let workers claim from a paused queue again.

    \b
    horsies queues resume mail --app shop:app
    """
    _check_name(target, name)
    target.ops.resume_queue(name)
    show_paused("queue", name, is_paused=False, as_json=as_json)


@database_command(queues.command, name_argument, dry_run_option, yes_option)
def purge(target: Horsies, *, name: str, **flags: bool) -> None:
    """Cancel all tasks of a queue that have not started, including delayed tasks and retries.

    No task disappears: the tasks end as CANCELLED, waiting callers are notified, and workflows continue as after any cancelled node. Running
    tasks are left alone. Pause the queue first if it must stay empty.

    \b
    horsies queues purge mail --dry-run
    """
    _check_name(target, name)
    words = {"CANCELLED": "cancelled", "LEFT": "started or ended before they could be cancelled, and left alone"}
    run_bulk(target.ops, target.ops.purge_queue(name), verb="cancel", words=words, **flags)


def _check_name(target: Horsies, name: str) -> None:
    """Refuse a queue that the app does not have. Without an app, an unknown name may be right or misspelt: warn."""
    if target.tasks:
        target.config.queue_named(name)
    elif name not in {queue.name for queue in target.ops.list_queues()}:
        click.echo(f"warning: no task, worker or pause in this database names a queue {name!r}", err=True)
