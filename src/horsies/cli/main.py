"""`horsies`: the command line."""

import sys

import click

from horsies.cli.check import check
from horsies.cli.dev import dev
from horsies.cli.doctor import doctor
from horsies.cli.migrate import migrate
from horsies.cli.queues import queues
from horsies.cli.scheduler import scheduler
from horsies.cli.schedules import schedules
from horsies.cli.status import status
from horsies.cli.tasks import tasks
from horsies.cli.worker import worker
from horsies.cli.workers import workers
from horsies.cli.workflows import workflows


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="horsies")
def main() -> None:
    """A task queue and workflow engine on PostgreSQL.

    APP is package.module:attribute or path/file.py:attribute; $HORSIES_APP is used when it is left out. Exit codes: 0 good, 1
    failed, 2 wrong usage.
    """


for command in (worker, scheduler, dev, migrate, check, status, doctor, tasks, workflows, queues, schedules, workers):
    main.add_command(command)


if __name__ == "__main__":
    sys.exit(main())
