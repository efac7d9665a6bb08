"""`horsies queues`: list, pause, resume and purge."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.bulk import run_in_batches
from horsies.cli.options import dry_run_option, json_option, on_database, yes_option
from horsies.cli.output import show_json, show_table
from horsies.db.statement import Op
from horsies.model.status import TaskStatus
from horsies.model.validation import format_duration
from horsies.tasks.control import cancel_unstarted_tasks
from horsies.tasks.inspect import TaskFilter, TaskSummary
from horsies.tasks.queues import QueueSummary, list_queues, pause_queue, resume_queue

name_argument = click.argument("name", metavar="NAME")


@click.group()
def queues() -> None:
    """Look at queues, pause and resume them, and empty them."""


@queues.command("list")
@json_option
@on_database()
def list_(target: Horsies, *, as_json: bool) -> None:
    """List queues with what waits in them.

    What waits is counted up to 100000, and then marked with a plus. With --app, all queues of the app are listed, with their priorities and caps.

    \b
    horsies queues list --app shop:app
    """
    lines = lines_of(target)
    if as_json:
        show_json({"queues": [asdict(line) | _settings(target, line.name) for line in lines]})
    else:
        show_queues(target, lines)


def lines_of(target: Horsies) -> list[QueueSummary]:
    """The queues that the database knows, and those of the app."""
    known = {line.name: line for line in target.broker.run(list_queues)}
    declared = {queue.name: QueueSummary(queue.name) for queue in target.config.queues} if target.tasks else {}
    return sorted((declared | known).values(), key=lambda line: line.name)


def show_queues(target: Horsies, lines: Sequence[QueueSummary]) -> None:
    headings = ["QUEUE", "WAITING", "DELAYED", "CLAIMED", "RUNNING", "OLDEST", "PAUSED", "WORKERS"]
    extra = ["PRIORITY", "CAP"] if target.tasks else []
    rows = ((*_cells(line), *(_settings(target, line.name).values() if extra else ())) for line in lines)
    show_table([*headings, *extra], rows, empty="no queue has a task, a worker or a switch")


def _cells(line: QueueSummary) -> Sequence[object]:
    waiting = f"{line.waiting}+" if line.more_waiting else line.waiting
    delayed = f"{line.delayed}+" if line.more_delayed else line.delayed
    oldest = None if line.oldest_waiting_s is None else format_duration(line.oldest_waiting_s)
    return (line.name, waiting, delayed, line.claimed, line.running, oldest, line.paused_at, line.workers)


def _settings(target: Horsies, name: str) -> dict[str, Any]:
    """Of a queue that the app declares."""
    queue = next((queue for queue in target.config.queues if target.tasks and queue.name == name), None)
    return {"priority": queue and queue.priority, "max_concurrency": queue and queue.max_concurrency}


@queues.command()
@name_argument
@json_option
@on_database()
def pause(target: Horsies, *, name: str, as_json: bool) -> None:
    """Let no worker claim from a queue until it is resumed. What runs goes on, and sends are accepted.

    \b
    horsies queues pause mail --app shop:app
    """
    _switch(target, name, partial(pause_queue, name), is_paused=True, as_json=as_json)


@queues.command()
@name_argument
@json_option
@on_database()
def resume(target: Horsies, *, name: str, as_json: bool) -> None:
    """Let workers claim from a paused queue again.

    \b
    horsies queues resume mail --app shop:app
    """
    _switch(target, name, partial(resume_queue, name), is_paused=False, as_json=as_json)


def _switch(target: Horsies, name: str, verb: Callable[[], Op[None]], *, is_paused: bool, as_json: bool) -> None:
    _check_name(target, name)
    target.broker.run(verb, again=verb)
    if as_json:
        show_json({"name": name, "is_paused": is_paused})
    else:
        click.echo(f"queue {name!r} is {'paused' if is_paused else 'not paused'}")


@queues.command()
@name_argument
@dry_run_option
@yes_option
@json_option
@on_database()
def purge(target: Horsies, *, name: str, **how: bool) -> None:
    """Cancel everything in a queue that has not begun, delayed tasks and retries included.

    Nothing vanishes: the tasks end as CANCELLED, those who wait for them are told, and workflows go on as after any cancelled node. What runs is left
    alone. Pause the queue first if it must stay empty.

    \b
    horsies queues purge mail --dry-run
    """
    _check_name(target, name)

    def act(lines: Sequence[TaskSummary]) -> Counter[str]:
        verb = partial(cancel_unstarted_tasks, [line.id for line in lines])
        gone = len(target.broker.run(verb, again=verb))
        return Counter(CANCELLED=gone, LEFT=len(lines) - gone)

    wanted = TaskFilter(queue_name=name, statuses=[TaskStatus.PENDING, TaskStatus.CLAIMED])
    words = {"CANCELLED": "cancelled", "LEFT": "begun or ended meanwhile, and left alone"}
    run_in_batches(target, wanted, act, verb="cancel", words=words, **how)


def _check_name(target: Horsies, name: str) -> None:
    """An app knows its queues. Without one, a name that nobody has heard of may be right, or misspelt."""
    if target.tasks:
        target.config.queue_named(name)
    elif name not in {line.name for line in target.broker.run(list_queues)}:
        click.echo(f"warning: no task, worker or switch in this database knows a queue {name!r}", err=True)
