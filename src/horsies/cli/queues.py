"""`horsies queues`: list, pause, resume, cap and purge; `horsies limits`."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import click
from rich.text import Text

from horsies.app import Horsies
from horsies.cli.bulk import run_bulk
from horsies.cli.options import database_command, dry_run_option, name_argument, yes_option
from horsies.cli.output import (
    Column,
    Styled,
    echo,
    show_json,
    show_lines,
    show_paused,
    show_table,
    table_lines,
    terminal_size,
    to_age,
    wide_option,
)
from horsies.model.text import plural
from horsies.model.validation import format_duration
from horsies.tasks.queues import MAX_CAP, QueueSummary, check_queue_name

NO_QUEUE: Final = "no queue has a task, a worker or a pause"


@click.group()
def queues() -> None:
    """Inspect, pause, resume, cap and empty queues."""


@database_command(queues.command, wide_option)
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
        now = target.ops.read_clock()
        lines = queue_table(target, summaries, now, terminal_size()[0])
        if lines:
            show_lines(lines)
        else:
            click.echo(NO_QUEUE, err=True)


def queue_table(target: Horsies, summaries: Sequence[QueueSummary], now: datetime, width: int) -> list[Text]:
    """Return the lines of the table; none if there is no queue. Queues with a problem are in colour."""
    columns = [
        Column("QUEUE", shrink=8), "WAITING", Column("SCHEDULED", drop=4), Column("RETRYING", drop=2), Column("CLAIMED", drop=6), "RUNNING", "OLDEST", "PAUSED",
        Column("WORKERS", drop=3), Column("PRIORITY", drop=5), Column("CAP", drop=1),
    ]  # fmt: skip
    rows: list[Sequence[object]] = []
    for queue in summaries:
        waiting = f"{queue.waiting}+" if queue.more_waiting else queue.waiting
        not_due = [f"{count}+" if queue.more_not_due else count for count in (queue.scheduled, queue.retrying)]
        oldest = None if queue.oldest_waiting_s is None else format_duration(queue.oldest_waiting_s)
        settings = _settings(target, queue.name)
        cap = settings["max_concurrency"] if queue.cap is None else queue.cap
        paused = Styled(to_age(queue.paused_at, now), "yellow")
        counts = (waiting, *not_due, queue.claimed, queue.running)
        rows.append((queue.name, *counts, oldest, paused, queue.workers, settings["priority"], cap))
    return table_lines(columns, rows, width) if rows else []


@database_command(click.command, wide_option, argument=True)
def limits(target: Horsies, *, as_json: bool) -> None:
    """Show the limits on tasks in flight, what set them, and how much of them is taken: the caps of the cluster and of queues, and the slots of workers.

    With an APP, also the caps that it declares. A queue whose tasks wait although it has free capacity waits for slots.

    \b
    horsies limits shop:app
    """
    queues, registered = target.ops.list_queues(), target.ops.list_workers()
    config = target.config
    # With a prefetch buffer, the caps of queues count what runs.
    is_hard = not config.prefetch_buffer
    found: list[dict[str, Any]] = []
    in_flight = sum(queue.running + queue.claimed for queue in queues)
    waiting = sum(queue.waiting for queue in queues)
    if config.cluster_wide_cap is not None:
        found.append(_limit("cluster", "", config.cluster_wide_cap, "app", in_flight, waiting))
    slots = sum(worker.processes * worker.concurrency for worker in registered)
    running = sum(worker.tasks_running for worker in registered)
    found.append(_limit("slots", "", slots, plural(len(registered), "worker"), running, waiting))
    for queue in queues:
        declared = _settings(target, queue.name)["max_concurrency"]
        cap, set_by = (declared, "app") if queue.cap is None else (queue.cap, "operator")
        if queue.paused_at is not None:
            cap, set_by = 0, "pause"
        taken = queue.running + (queue.claimed if is_hard else 0)
        found.append(_limit("queue", queue.name, cap, "" if cap is None else set_by, taken, queue.waiting))
    if as_json:
        show_json({"limits": found})
        return
    unlimited = "none" if target.tasks else None  # without an app, its caps are not known
    columns = ["LIMIT", Column("QUEUE", shrink=12), "MAX", "SET BY", "IN FLIGHT", "FREE", "WAITING"]
    rows = [
        (
            each["kind"], each["name"] or None, unlimited if each["max"] is None else each["max"], each["set_by"] or None, each["in_flight"],
            Styled(each["free"], "yellow" if each["free"] == 0 and each["waiting"] else ""), each["waiting"],
        )
        for each in found
    ]  # fmt: skip
    show_table(columns, rows, empty="")


def _limit(kind: str, name: str, most: int | None, set_by: str, in_flight: int, waiting: int) -> dict[str, Any]:
    """Return one limit. Without a maximum nothing is free or taken."""
    free = None if most is None else max(0, most - in_flight)
    return {
        "kind": kind,
        "name": name,
        "max": most,
        "set_by": set_by,
        "in_flight": in_flight,
        "free": free,
        "waiting": waiting,
    }


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


@database_command(
    queues.command,
    name_argument,
    click.argument("cap", metavar="[N]", type=int, required=False),
    click.option("--reset", is_flag=True, help="Remove the cap: each app has its own max_concurrency again."),
)
def cap_(target: Horsies, *, name: str, cap: int | None, reset: bool, as_json: bool) -> None:
    """Let at most N tasks of a queue be in flight in the whole cluster, whatever its apps declare.

    The cap stays until it is changed or reset. Workers obey within a second; tasks that run are not stopped.

    \b
    horsies queues cap mail 5
    horsies queues cap mail --reset
    """
    if (cap is None) is not reset:
        raise click.UsageError("give the number of tasks, such as 5, or --reset to remove the cap; not both")
    _check_name(target, name)
    try:
        target.ops.set_queue_cap(name, cap)
    except ValueError as error:
        stop = f"; `horsies queues pause {name}` stops it" if cap == 0 else ""
        raise click.UsageError(
            f"{cap} is out of range; choose a number from 1 to {MAX_CAP}{stop}" if cap is not None else str(error)
        ) from None
    if as_json:
        show_json({"name": name, "cap": cap})
    else:
        echo(f"queue {name!r} has {'no cap at run time' if cap is None else f'a cap of {cap}'}")


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
    check_queue_name(name)
    if target.tasks:
        target.config.queue_named(name)
    elif name not in {queue.name for queue in target.ops.list_queues()}:
        echo(f"warning: no task, worker or pause in this database names a queue {name!r}", err=True)
