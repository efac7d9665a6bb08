"""The options by which commands are told which tasks are meant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.ids import any_worker, full_id
from horsies.cli.moments import Moment, absolute, moment
from horsies.model.status import TaskStatus
from horsies.tasks.list import TaskFilter, read_clock

_OPTIONS = [
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([status.value for status in TaskStatus], case_sensitive=False),
        help="In this state; may be given several times.",
    ),
    click.option("--queue", metavar="NAME", help="In this queue."),
    click.option("--task", metavar="NAME", help="Of this task."),
    click.option("--error-code", metavar="CODE", help="Ended with this error code."),
    click.option(
        "--worker", metavar="ID", help="Held, or last held, by this worker; the beginning of its id is enough."
    ),
    click.option(
        "--since", type=moment, metavar="WHEN", help="Ended, or if live sent, since: 2h, 7d, or 2030-12-31T18:00."
    ),
    click.option("--until", "--before", "until", type=moment, metavar="WHEN", help="The same, before."),
    click.option("--workflow", type=full_id, metavar="ID", help="Of this workflow, and of what is below it."),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for on the command line."""

    statuses: Sequence[str]
    queue: str | None
    task: str | None
    error_code: str | None
    worker: str | None
    since: Moment | None
    until: Moment | None
    workflow: str | None

    def __bool__(self) -> bool:
        rest = (self.queue, self.task, self.error_code, self.worker, self.since, self.until, self.workflow)
        return bool(self.statuses) or any(value is not None for value in rest)

    def filter(self, target: Horsies, default: Sequence[TaskStatus] = ()) -> TaskFilter:
        """How long ago something was is told by the database's clock, and once: batches later on mean the same moment."""
        now = target.broker.run(read_clock)
        return TaskFilter(
            statuses=[TaskStatus(status) for status in self.statuses] or default,
            queue_name=self.queue,
            task_name=self.task,
            error_code=self.error_code,
            worker=None if self.worker is None else any_worker(target, self.worker),
            since=absolute(self.since, now),
            until=absolute(self.until, now),
            workflow_id=self.workflow,
        )


def task_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options; it gets them as one `Asked`."""

    @wraps(command)
    def run(
        *args: Any,
        statuses: Sequence[str],
        queue: str | None,
        task: str | None,
        error_code: str | None,
        worker: str | None,
        since: Moment | None,
        until: Moment | None,
        workflow: str | None,
        **options: Any,
    ) -> Any:
        asked = Asked(statuses, queue, task, error_code, worker, since, until, workflow)
        return command(*args, asked=asked, **options)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run
