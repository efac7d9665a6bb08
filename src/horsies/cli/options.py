"""What commands have in common: how they are told which app or database is meant, and how they ask before they destroy.

Commands at the top (`worker`, `status`, `doctor`) take the APP as an argument; those under a noun (`tasks show ID`) take it as `--app`.
"""

import os
import re
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from horsies.app import Horsies
from horsies.locate import load_app
from horsies.model.config import DEFAULT_SCHEMA, AppConfig, PostgresConfig
from horsies.model.errors import HorsiesError
from horsies.model.worker_config import DEFAULT_METRICS_HOST, LOG_FORMATS
from horsies.tasks.ids import to_id
from horsies.tasks.inspect import find_workers

# --------
# A user's mistake gets one clear message and exit code 1, never a traceback.

P = ParamSpec("P")
T = TypeVar("T")


def report_errors(command: Callable[P, T]) -> Callable[P, T]:
    @wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except HorsiesError as error:
            raise click.ClickException(str(error)) from error

    return told


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

        return app(database_option(schema_option(report_errors(run))))

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


# --------
# Moments and durations as people type them: `2h`, or a date and time.

TimeParameter: TypeAlias = datetime | timedelta
"""An absolute one, or how long ago by the database's clock."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhdw])")


def parse_time(text: str) -> TimeParameter:
    """For options. A date and time without a zone is in the machine's own, as those in tables are."""
    try:
        if _DURATION.fullmatch(text.strip()):
            return timedelta(seconds=parse_seconds(text))
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no moment; write 90s, 30m, 2h, 7d or 1w for so long ago, or 2030-12-31T18:00"
        ) from None


def parse_seconds(text: str) -> float:
    """`90s`, `15m`, `2h`; a bare number is one of seconds, as in other options."""
    found = _DURATION.fullmatch(text.strip()) or _DURATION.fullmatch(f"{text.strip()}s")
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration; write 90s, 15m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def to_absolute(given: TimeParameter | None, now: datetime) -> datetime | None:
    try:
        return now - given if isinstance(given, timedelta) else given
    except OverflowError:
        raise click.UsageError("that long ago there were no moments; take a shorter time") from None


# --------
# Ids as they are typed: those of tasks and workflows in full, those of workers as far as they are unique.

FULL = 36  # characters

_BEGINNING = re.compile(r"[0-9a-fA-F-]{1,36}")


def full_id(text: str) -> str:
    """For options and arguments."""
    try:
        return to_id(text, "id", "give it in full, as the lists show it")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def any_worker(target: Horsies, text: str) -> str:
    """A full id, of whatever worker there ever was, or the beginning of one that is known."""
    return full_id(text) if len(text) == FULL else worker_named(target, text)


def worker_named(target: Horsies, beginning: str) -> str:
    """The one worker whose id begins like this."""
    found = target.broker.run(partial(find_workers, beginning)) if _BEGINNING.fullmatch(beginning) else []
    if not found:
        raise click.ClickException(f"no worker is known whose id begins with {beginning!r}; see `horsies workers list`")
    if len(found) > 1:
        raise click.ClickException(f"{beginning!r} is the beginning of {len(found)} workers' ids: {', '.join(found)}")
    return found[0]
