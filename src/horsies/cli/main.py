"""`horsies`: the command line."""

import sys

import click

from horsies.cli.migrate import migrate
from horsies.cli.scheduler import scheduler
from horsies.cli.schedules import schedules
from horsies.cli.worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="horsies")
def main() -> None:
    """A task queue and workflow engine on PostgreSQL.

    APP is package.module:attribute or path/file.py:attribute; $HORSIES_APP is used when it is left out. Exit codes: 0 good, 1
    failed, 2 wrong usage.
    """


for command in (worker, scheduler, migrate, schedules):
    main.add_command(command)


if __name__ == "__main__":
    sys.exit(main())
