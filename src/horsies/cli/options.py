"""What commands share: the options that select an app or a database, confirmation, and the parsing of times and ids.

Every command takes the app as `--app`, before or after its name; top-level commands (`worker`, `status`, `doctor`) and lists also as an argument. The default is
$HORSIES_APP. Commands that do not need the code of an app also take the URL of a database: `--database-url`, $HORSIES_DATABASE_URL or $DATABASE_URL.
"""

import logging
import os
import sys
from collections.abc import Callable, Collection
from contextlib import closing
from datetime import datetime, timedelta
from functools import reduce, wraps
from typing import Any, Final, Literal, ParamSpec, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from horsies.app import Horsies
from horsies.locate import load_app
from horsies.model.config import DEFAULT_SCHEMA, AppConfig, PostgresConfig
from horsies.model.errors import HorsiesError
from horsies.model.validation import parse_duration
from horsies.model.worker_config import DEFAULT_METRICS_HOST, LOG_FORMATS
from horsies.ops.ids import ID_LENGTH, ID_PREFIX
from horsies.tasks.ids import to_id

P = ParamSpec("P")
T = TypeVar("T")

TimeParameter: TypeAlias = datetime | timedelta
"""An absolute time, or how long ago by the database's clock."""

DATABASE_VARIABLES: Final = ("HORSIES_DATABASE_URL", "DATABASE_URL")
MAX_CANDIDATES: Final = 10

_app_option = click.option(
    "-A", "-a", "--app", "app_option", metavar="APP", help="The app, as module:attribute.  [default: $HORSIES_APP]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
name_argument = click.argument("name", metavar="NAME")
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")


def report_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Report an error of horsies as one message with exit code 1, without a traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except HorsiesError as error:
            from horsies.model.text import printable  # noqa: PLC0415 - a worker does not need it

            raise click.ClickException(printable(str(error), lines=True)) from error

    return run


def all_of(*decorators: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make one decorator that applies these, the first one outermost."""
    return lambda function: reduce(lambda decorated, decorate: decorate(decorated), reversed(decorators), function)


logging_options = all_of(
    click.option(
        "--loglevel", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False), default="INFO",
        show_default=True, help="The lowest level that is logged.",
    ),
    click.option(
        "--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True,
        help="Text for people, or one JSON object per line. Both name the task on every line that a task logs.",
    ),
)  # fmt: skip
metrics_options = all_of(
    click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve /metrics, /healthz and /readyz here.  [default: off]"),
    click.option("--metrics-host", default=DEFAULT_METRICS_HOST, show_default=True, help="The address of that port."),
)  # fmt: skip
_database_options = all_of(
    click.option("--database-url", metavar="URL", help="The database, instead of an app's.  [default: $HORSIES_DATABASE_URL, $DATABASE_URL]"),
    click.option("--schema", help="The schema in that database.  [default: horsies]"),
)  # fmt: skip


def app_command(function: Callable[..., Any]) -> Any:
    """Let a top-level command take the app as an argument or an option. It gets the locator as `app`."""

    @all_of(click.argument("app", metavar="APP", required=False), _app_option)
    @wraps(function)
    def run(*args: Any, app: str | None, app_option: str | None, **given: Any) -> Any:
        locator = _name_app(app, app_option) or os.environ.get("HORSIES_APP") or _app_of_django()
        if not locator:
            raise click.UsageError("name the APP, such as shop.tasks:app or shop.py:app, or set $HORSIES_APP")
        return function(*args, app=locator, **given)

    return run


def target_command(function: Callable[..., Any], *, argument: bool = True) -> Any:
    """Let a command take an app or a database. It gets `open_target`'s parameters: `app`, `database_url` and `schema`."""
    app_argument = click.argument("app", metavar="[APP]", required=False)

    @all_of(*([app_argument] if argument else []), _app_option, _database_options)
    @wraps(function)
    def run(*args: Any, app_option: str | None, database_url: str | None, app: str | None = None, **given: Any) -> Any:
        locator = _name_app(app, app_option)
        if "" in (database_url, given.get("schema")):
            raise click.UsageError("--database-url or --schema is empty; name it, or leave it out")
        if locator and database_url:
            raise click.UsageError(f"both the app {locator} and --database-url are given; give one of them")
        if not database_url:  # what was given wins over the environment, and an app over a database
            locator = locator or os.environ.get("HORSIES_APP") or None
            urls = [] if locator else [os.environ.get(name) for name in DATABASE_VARIABLES]
            database_url = next(filter(None, urls), None)
            locator = locator or (None if database_url else _app_of_django())
        return function(*args, app=locator, database_url=database_url, **given)

    return run


def _app_of_django() -> str | None:
    """Return the app of a Django project, if the environment names its settings."""
    return "horsies.contrib.django.project:app" if os.environ.get("DJANGO_SETTINGS_MODULE") else None


def _name_app(argument: str | None, option: str | None) -> str | None:
    given = [name for name in (click.get_current_context().obj, argument, option) if name is not None]
    if "" in given:  # an unset shell variable must not select another database
        raise click.UsageError("the APP is empty; name it, or leave it out")
    if len(given) > 1:
        raise click.UsageError(f"the app is named twice, as {given[0]} and as {given[1]}; name it once")
    app = next(iter(given), None)
    if app and "://" in app:
        raise click.UsageError("the APP is the URL of a database; give it as --database-url")
    return app


def database_command(
    command: Callable[..., Any], *options: Callable[[Any], Any], argument: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Make a command, with `click.command` or that of a group, which gets a `Horsies` for the app or database that is selected.

    Its schema version is checked. Without an app module this `Horsies` has no tasks and no queues of its own. With `argument`, and of the commands that
    list something, the app may also be an argument.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def run(*args: Any, app: str | None, database_url: str | None, schema: str | None, **given: Any) -> Any:
            logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # not what Ctrl-C does to a connection
            with closing(open_target(app, database_url, schema)) as target:
                target.broker.require_schema()
                return function(target, *args, **given)

        # First, so that errors of usage are reported as such.
        reported = report_errors(target_command(run, argument=argument or function.__name__ == "list_"))
        return command(function.__name__.rstrip("_"))(all_of(*options, json_option)(reported))

    return decorate


def open_target(app: str | None, database_url: str | None, schema: str | None = None) -> Horsies:
    """Load the app, or create one without tasks on this database."""
    if database_url:
        return Horsies(AppConfig(broker=PostgresConfig(database_url=database_url, schema=schema or DEFAULT_SCHEMA)))
    if app is None:
        raise click.UsageError("name an APP, give --database-url, or set $HORSIES_APP or $HORSIES_DATABASE_URL")
    if schema is not None:
        raise click.UsageError("--schema requires --database-url; an app names its own schema")
    return load_app(app)


def given_options(context: click.Context, *, without: Collection[str]) -> list[str]:
    """Return the options that were given on the command line, except these, to pass them to another process."""
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if isinstance(option, click.Option) and is_given and name not in without:
            words.append(option.opts[-1] if option.is_flag else f"{option.opts[-1]}={context.params[name]}")
    return words


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. If stdin is not a terminal, require --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("stdin is not a terminal; pass --yes to confirm or --dry-run to preview")
    click.confirm(question, abort=True, err=True)


def parse_time(text: str) -> TimeParameter:
    """Parse an option such as `2h` (ago) or a date and time; without a zone it is local time, as in tables."""
    try:
        seconds = parse_duration(text)
        return datetime.fromisoformat(text.strip()).astimezone() if seconds is None else timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a time; write 90s, 30m, 2h, 7d or 1w for a time ago, or 2030-12-31T18:00"
        ) from None


def parse_seconds(text: str) -> float:
    """Parse `90s`, `15m` or `2h`; a bare number is in seconds, as in other options."""
    for written in (text, f"{text.strip()}s"):
        if (seconds := parse_duration(written)) is not None:
            return seconds
    raise click.BadParameter(f"{text!r} is not a duration; write 90s, 15m, 2h or 7d")


def to_absolute(time: TimeParameter | None, now: datetime) -> datetime | None:
    try:
        return now - time if isinstance(time, timedelta) else time
    except OverflowError:
        raise click.UsageError("--since/--until is out of range; use a shorter interval") from None


def parse_id(text: str) -> str:
    """Parse a complete id."""
    try:
        return to_id(text, "id", "give it in full, as the lists show it")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def find_id(target: Horsies, kind: Literal["task", "workflow", "worker"], prefix: str) -> str:
    """Return the only id with this prefix. A complete id is taken as it is, even if there is nothing with it."""
    text = prefix.strip().lower()
    if not ID_PREFIX.fullmatch(text):
        raise click.UsageError(f"{prefix!r} is not the id of a {kind}, nor the beginning of one")
    if len(text) == ID_LENGTH:
        return parse_id(text)
    ops = target.ops
    find = {"task": ops.find_task_ids, "workflow": ops.find_workflow_ids, "worker": ops.find_worker_ids}[kind]
    found = find(text, limit=MAX_CANDIDATES + 1)
    if not found:
        raise click.ClickException(f"no {kind} has an id that starts with {prefix!r}; see `horsies {kind}s list`")
    if len(found) > 1:
        lines = [*found[:MAX_CANDIDATES], *(["and more"] if len(found) > MAX_CANDIDATES else [])]
        raise click.ClickException(f"the ids of several {kind}s start with {prefix!r}:\n  " + "\n  ".join(lines))
    return found[0]
