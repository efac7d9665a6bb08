"""`horsies`: the command line."""

import sys
from importlib import import_module

import click

COMMANDS = {
    "worker": "worker",
    "scheduler": "worker",
    "dev": "dev",
    "migrate": "migrate",
    "check": "doctor",
    "status": "status",
    "doctor": "doctor",
    "tasks": "tasks",
    "workflows": "workflows",
    "queues": "queues",
    "schedules": "schedules",
    "workers": "workers",
}
"""Each command and the module of this package that defines it."""


class Commands(click.Group):
    """Each command is imported when it is asked for: a worker would hold what all the others need for as long as it lives."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click says so
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        return getattr(import_module(f"horsies.cli.{COMMANDS[cmd_name]}"), cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="horsies")
def main() -> None:
    """A task queue and workflow engine on PostgreSQL.

    APP is package.module:attribute or path/file.py:attribute; $HORSIES_APP is used when it is left out. Exit codes: 0 good, 1
    failed, 2 wrong usage.
    """


if __name__ == "__main__":
    sys.exit(main())
