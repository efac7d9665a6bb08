"""`horsies`: the command line."""

import sys
from importlib import import_module
from io import TextIOWrapper

import click

COMMANDS = {
    "worker": "worker",
    "scheduler": "worker",
    "dev": "dev",
    "web": "web",
    "migrate": "migrate",
    "check": "doctor",
    "status": "status",
    "errors": "errors",
    "doctor": "doctor",
    "tasks": "tasks",
    "workflows": "workflows",
    "queues": "queues",
    "schedules": "schedules",
    "workers": "workers",
    "limits": "queues",
    "events": "events",
    "audit": "audit",
    "completion": "completion",
}
"""Each command and the module of this package that defines it."""


class Commands(click.Group):
    """Import each command only when it is used, so that a worker does not keep in memory what the others need."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        return getattr(import_module(f"horsies.cli.{COMMANDS[cmd_name]}"), cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="horsies")
@click.option("-A", "-a", "--app", metavar="APP", help="The app, for any command; it may also follow the command.")
@click.pass_context
def main(ctx: click.Context, app: str | None) -> None:
    """A task queue and workflow engine on PostgreSQL.

    APP is package.module:attribute or path/file.py:attribute; the default is $HORSIES_APP. Exit codes: 0
    success, 1 failure, 2 wrong usage.
    """
    ctx.obj = app
    for stream in (sys.stdout, sys.stderr):
        # Another encoding lacks characters that stored texts may have.
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
