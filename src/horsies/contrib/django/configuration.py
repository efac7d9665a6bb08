"""Read `settings.HORSIES` and `settings.DATABASES`. All problems are reported together."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportIndexIssue=false
# (Django comes without types)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.utils import DEFAULT_DB_ALIAS

from horsies.model.config import (
    DEFAULT_SCHEMA,
    AppConfig,
    CustomQueueConfig,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    RetentionConfig,
    WorkerResilienceConfig,
)
from horsies.model.database_url import make_conninfo, unknown_parameters
from horsies.model.errors import ConfigError
from horsies.model.schedule import ScheduleConfig

OWN: Final = {"database": DEFAULT_DB_ALIAS, "modules": (), "migrate": True}
"""The options that are not those of `AppConfig` or `PostgresConfig`, with their defaults."""

OF_DATABASE: Final = {each.name for each in fields(PostgresConfig)} - {"database_url"}
OF_APP: Final = {each.name for each in fields(AppConfig)} - {"broker"}
NESTED: Final[Mapping[str, Callable[..., Any]]] = {
    "resilience": WorkerResilienceConfig,
    "recovery": RecoveryConfig,
    "retention": RetentionConfig,
    "schedule": ScheduleConfig,
}
CLIENT_OPTIONS: Final = {
    "assume_role", "autocommit", "client_encoding", "context", "cursor_factory", "isolation_level", "pool",
    "prepare_threshold", "row_factory", "server_side_binding",
}  # fmt: skip
"""What Django and psycopg take from OPTIONS, and libpq does not get."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What `settings.HORSIES` says."""

    app: AppConfig
    """Without its database."""
    database_options: Mapping[str, Any]
    alias: str
    modules: Sequence[str]
    migrates: bool


def read_configuration() -> Configuration:
    """Read `settings.HORSIES`. Raise ImproperlyConfigured with all problems."""
    given: Any = getattr(settings, "HORSIES", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"settings.HORSIES is a {type(given).__name__}; write a dict such as HORSIES = {{'keep_logs': True}}"
        )
    options = dict(cast("Mapping[Any, Any]", given))
    problems = [*_unknown_options(options)]
    own = {name: options.pop(name, default) for name, default in OWN.items()}
    modules: Any = own["modules"]
    if not isinstance(modules, list | tuple) or not all(isinstance(each, str) and each for each in modules):
        problems.append("modules is a list of the names of modules with tasks")
    if not isinstance(own["migrate"], bool):
        problems.append("migrate is True or False")
    if own["database"] not in settings.DATABASES:
        known = ", ".join(map(repr, settings.DATABASES))
        problems.append(f"database is {own['database']!r}; name one of DATABASES: {known}")
    of_database = {name: options[name] for name in OF_DATABASE & options.keys()}
    problems += _problems_of(lambda: PostgresConfig(database_url="host=any", **of_database))
    of_app = {name: options[name] for name in OF_APP & options.keys()}
    app = _app_config(of_app, problems)
    if problems or app is None:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ImproperlyConfigured(f"settings.HORSIES has {len(problems)} problems:{lines}")
    return Configuration(app, of_database, own["database"], tuple(own["modules"]), own["migrate"])


def configured_schema() -> str:
    """Return the schema of the tables. Never fails: models need it before the settings are checked."""
    given: Any = getattr(settings, "HORSIES", None)
    schema: Any = given.get("schema") if isinstance(given, Mapping) else None
    return schema if isinstance(schema, str) and schema else DEFAULT_SCHEMA


def _unknown_options(options: Mapping[Any, Any]) -> Sequence[str]:
    known = OWN.keys() | OF_APP | OF_DATABASE
    hints = {
        "database_url": "; horsies uses the database of DATABASES: name its alias with 'database'",
        "broker": "; horsies uses the database of DATABASES: name its alias with 'database'",
    }
    problems: list[str] = []
    for name in options.keys() - known:
        lower = str(name).lower()
        hint = hints.get(lower) or (f"; write {lower!r}" if lower in known else "")
        problems.append(f"there is no option {name!r}{hint or '; there are ' + ', '.join(sorted(known))}")
    return sorted(problems)


def _app_config(options: dict[str, Any], problems: list[str]) -> AppConfig | None:
    for name, kind in NESTED.items():
        if isinstance(options.get(name), Mapping):
            options[name] = _make_part(kind, options[name], name, problems)
    queues = options.get("custom_queues")
    if isinstance(queues, Sequence) and not isinstance(queues, str):
        options["custom_queues"] = [
            _make_part(CustomQueueConfig, queue, f"custom_queues[{position}]", problems)
            if isinstance(queue, Mapping)
            else queue
            for position, queue in enumerate(queues)
        ]
        options.setdefault("queue_mode", QueueMode.CUSTOM if queues else QueueMode.DEFAULT)
    if isinstance(options.get("queue_mode"), str) and options["queue_mode"] in set(QueueMode):
        options["queue_mode"] = QueueMode(options["queue_mode"])
    # Apps of one schema are distinguished by their names, and each Django project has an app at the same place.
    module = getattr(settings, "SETTINGS_MODULE", None)
    options.setdefault("name", str(module).partition(".")[0] if module else "django")
    if problems:  # a part that could not be made would be reported once more
        options = {
            name: value
            for name, value in options.items()
            if value is not None and not (isinstance(value, list) and None in value)
        }
        if "custom_queues" not in options:
            options.pop("queue_mode", None)
    made: list[AppConfig] = []
    problems += _problems_of(lambda: made.append(AppConfig(**options)))
    return made[0] if made else None


def _make_part(kind: Callable[..., Any], values: Mapping[str, Any], name: str, problems: list[str]) -> Any:
    made: list[Any] = []
    problems += [f"{name}: {problem}" for problem in _problems_of(lambda: made.append(kind(**values)))]
    return made[0] if made else None


def _problems_of(make: Callable[[], object]) -> Sequence[str]:
    try:
        make()
    except ConfigError as error:
        return error.problems
    except TypeError as error:  # an option that does not exist
        return [str(error).partition("() ")[2] or str(error)]
    return []


# -- the database


def postgres_config(alias: str, options: Mapping[str, Any]) -> PostgresConfig:
    """Make the configuration of this database of Django, as it is now. Raise ImproperlyConfigured with all problems."""
    database: Mapping[str, Any] = connections.settings[alias]
    params, problems = _libpq_params(database), list[str]()
    if connections[alias].vendor != "postgresql":
        problems.append(
            f"its ENGINE is {database['ENGINE']!r}, and horsies needs PostgreSQL; use django.db.backends.postgresql, or name the alias "
            "of a PostgreSQL database with HORSIES = {'database': ...}"
        )
    elif unknown := unknown_parameters(params):
        names = ", ".join(map(repr, unknown))
        problems.append(
            f"its OPTIONS have {names}, which libpq does not know; horsies connects with libpq, and cannot use them"
        )
    elif "dbname" not in params and "service" not in params:
        problems.append("it has neither NAME nor OPTIONS['service']; add one")
    if not problems:
        try:
            return PostgresConfig(database_url=make_conninfo(params), **options)
        except ConfigError as error:
            problems = error.problems
    raise ImproperlyConfigured(f"settings.DATABASES[{alias!r}] cannot be used by horsies: {'; '.join(problems)}")


def _libpq_params(database: Mapping[str, Any]) -> dict[str, str]:
    """Return what Django passes to libpq. A role to assume becomes an option of the session, which has the same effect."""
    given: Mapping[str, Any] = database.get("OPTIONS") or {}
    params = {name: str(value) for name, value in given.items() if name not in CLIENT_OPTIONS and value is not None}
    named = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    params |= {name: str(database[key]) for name, key in named.items() if database.get(key)}
    if database.get("NAME") is None and "service" not in params:
        params.setdefault("dbname", "postgres")  # as Django does
    if role := given.get("assume_role"):
        escaped = str(role).replace("\\", "\\\\").replace(" ", "\\ ")
        params["options"] = f"{params.get('options', '')} -c role={escaped}".strip()
    return params
