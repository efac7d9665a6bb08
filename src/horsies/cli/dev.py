"""`horsies dev`, and what it has in common with `horsies worker --reload`."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import click

from horsies.cli.options import app_argument, log_format_option, loglevel_option, report_errors
from horsies.logs import configure_logging
from horsies.reloader.reload import AppSurvey, run_parts

COLOURS = {"worker": "cyan", "scheduler": "magenta", "dev": "green"}
WIDTH = max(map(len, COLOURS))


def part_command(*words: str) -> list[str]:
    """The command line of a process that dies with this one."""
    return [sys.executable, "-m", "horsies.cli.dev_part", str(os.getpid()), *words]


@click.command()
@app_argument
@click.option("--processes", type=click.IntRange(1, 1000), default=2, show_default=True, help="Children of the worker.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Tasks at once in each child."
)
@loglevel_option
@log_format_option
@report_errors
def dev(app: str, *, processes: int, concurrency: int, loglevel: str, log_format: str) -> None:
    """Run everything an app needs while you write it, in one terminal.

    A worker, a scheduler if the app has schedules, and the embedded PostgreSQL if no database is configured. When a .py file of the app
    changes, they start anew: running tasks have a few seconds to end. Code that cannot be loaded is reported, and the next change is
    waited for.

    Ctrl-C stops everything and waits for running tasks; once more interrupts them.

    Example: horsies dev shop.tasks:app
    """
    show = _shower(log_format)
    configure_logging(loglevel, log_format, _OwnLines(show))
    logging = (f"--loglevel={loglevel}", f"--log-format={log_format}")

    def plan(found: AppSurvey) -> Mapping[str, Sequence[str]]:
        worker = part_command("worker", app, f"--processes={processes}", f"--concurrency={concurrency}", *logging)
        scheduler = {"scheduler": part_command("scheduler", app, *logging)} if found.has_schedules else {}
        return {"worker": worker, **scheduler}

    run_parts(app, plan, show)


def _shower(log_format: str) -> Callable[[str, str], None]:
    def show(name: str, line: str) -> None:
        mark = "" if log_format == "json" else click.style(f"{name:<{WIDTH}} | ", fg=COLOURS[name])
        try:
            click.echo(f"{mark}{line}")
        except OSError:  # nobody reads any more: nor will they read what is still in a buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise

    return show


class _OwnLines:
    """Where our own log goes: between the lines of the parts, marked as they are."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show

    def write(self, text: str) -> None:
        with suppress(OSError):
            for line in text.splitlines():
                self._show("dev", line)
