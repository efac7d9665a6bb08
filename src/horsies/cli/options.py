"""What commands have in common: how they are told which app or database is meant, and how they ask before they destroy.

Commands at the top (`worker`, `status`, `doctor`) take the APP as an argument; those under a noun (`tasks show ID`) take it as `--app`.
"""

import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from horsies.app import Horsies
from horsies.cli.mistakes import told_plainly
from horsies.locate import load_app
from horsies.model.config import DEFAULT_SCHEMA, AppConfig, PostgresConfig
from horsies.model.worker import DEFAULT_METRICS_HOST, LOG_FORMATS

loglevel_option = click.option(
    "--loglevel",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="What is logged.",
)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="How: lines for people, or a JSON object a line. Both name the task on every line that is logged in one.",
)

metrics_port_option = click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Answer /metrics, /healthz and /readyz on this port.  [default: on none]",
)
metrics_host_option = click.option(
    "--metrics-host", default=DEFAULT_METRICS_HOST, show_default=True, help="The address of that port."
)


def _named(_context: click.Context, _parameter: click.Parameter, app: str | None) -> str:
    if app is None:
        raise click.UsageError("name the APP, such as shop.tasks:app or shop.py:app, or set $HORSIES_APP")
    return app


app_argument = click.argument("app", envvar="HORSIES_APP", metavar="APP", required=False, callback=_named)
optional_app_argument = click.argument("app", envvar="HORSIES_APP", metavar="[APP]", required=False)
app_option = click.option(
    "-a", "--app", envvar="HORSIES_APP", metavar="APP", help="The app, as module:attribute.  [default: $HORSIES_APP]"
)
database_option = click.option(
    "--database-url",
    metavar="URL",
    help="The database, instead of an app's.  [default: $HORSIES_DATABASE_URL]",
)
schema_option = click.option("--schema", help="The schema in that database.  [default: horsies]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")


def on_database(*, app: Callable[[Any], Any] = app_option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a command on an app's database, or on any: it gets a `Horsies`, whose schema is there and of this version.

    Without an app module the `Horsies` knows no tasks and no queues of its own.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(*args: Any, app: str | None, database_url: str | None, schema: str | None, **options: Any) -> Any:
            target = target_of(app, database_url, schema)
            with closing(target):
                target.broker.require_schema()
                return command(target, *args, **options)

        return app(database_option(schema_option(told_plainly(run))))

    return decorate


def target_of(app: str | None, database_url: str | None, schema: str | None = None) -> Horsies:
    """The app; or one without tasks on this database, or on that of the environment."""
    if "" in (app, database_url, schema):  # a variable that is not set must not lead to another database
        raise click.UsageError("the APP, --database-url or --schema is empty; name it, or leave it out")
    url = database_url or (None if app else os.environ.get("HORSIES_DATABASE_URL"))
    if url:
        return Horsies(AppConfig(broker=PostgresConfig(database_url=url, schema=schema or DEFAULT_SCHEMA)))
    if app is None:
        raise click.UsageError("name an APP, give --database-url, or set $HORSIES_APP or $HORSIES_DATABASE_URL")
    if schema is not None:
        raise click.UsageError("--schema goes with --database-url; an app names its own schema")
    return load_app(app)


def words_again(context: click.Context, *, without: str) -> list[str]:
    """The options of this command as they were given on the command line, for another process; all but one."""
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if isinstance(option, click.Option) and is_given and name != without:
            words.append(option.opts[-1] if option.is_flag else f"{option.opts[-1]}={context.params[name]}")
    return words


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. Where nobody can answer, --yes is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "nobody can be asked here; add --yes if you mean it, or --dry-run to see what would be done"
        )
    click.confirm(question, abort=True, err=True)
