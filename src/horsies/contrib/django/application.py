"""`DjangoHorsies`: the app of a Django project, on the database of the project.

The database is looked up at each use: test runners replace the name in `settings.DATABASES` by that of the test database, also in each of their
processes, and whatever is sent from then on goes there.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, Self, TypeVar

from django.apps import apps
from django.core import mail
from django.db import connections
from django.utils.module_loading import module_has_submodule

from horsies.app import Horsies
from horsies.contrib.django.configuration import postgres_config, read_configuration
from horsies.contrib.django.connections import (
    DjangoTransactions,
    abandon_inherited,
    check_connections,
    end_connections,
)
from horsies.db.broker import PostgresBroker
from horsies.locate import import_tasks
from horsies.model.config import PostgresConfig
from horsies.ops.operation import Verb
from horsies.tasks.middleware import middleware_from

LOCATOR: Final = "horsies.contrib.django.project:app"
TEST_DATABASES: Final = "HORSIES_DJANGO_TEST_DATABASES"
"""A variable for the worker of a test: the names of the test databases by their aliases, as JSON."""

T = TypeVar("T")


class DjangoHorsies(Horsies):
    """The app that `settings.HORSIES` describes."""

    def __init__(self) -> None:
        self.configuration = read_configuration()
        super().__init__(self.configuration.app)
        self.alias = self.configuration.alias
        self.original_name: object = connections.settings[self.alias]["NAME"]
        """The name of the database before a test runner replaces it."""
        self.child_locator = LOCATOR
        self.transactions = self._transactions = DjangoTransactions(self.alias)
        self.is_discovered = False
        self.discovered_tasks: frozenset[str] = frozenset()
        """The tasks that are known when Django is set up: those that workers know."""
        self._follow_lock = threading.RLock()
        self._followed: PostgresConfig | None = None
        self._source: object = None
        self._follow()
        self.on_child_start(self._prepare_child)

    def __deepcopy__(self, _memo: object) -> Self:
        """Return the app itself: `TestCase` copies what `setUpTestData` has set, and with a handle its app."""
        return self

    # -- the database

    @property
    def broker(self) -> PostgresBroker:
        """Return the connection to the project's database, or to its test database."""
        if self.config.broker is self._followed:  # else another one was chosen, by `using` or `use_database`
            self._follow()
        return super().broker

    def run_joined(self, verb: Verb[T]) -> T:
        """Run an operation in the transaction that is open on Django's connection, if there is one. So it sees what was sent there."""
        connection = self._transactions.open_connection()
        return self.broker.run(verb, again=verb) if connection is None else self.broker.run_on(connection, verb)

    def _follow(self) -> None:
        """Take over what a test runner has changed in the settings of the database."""
        settings: Mapping[str, Any] = connections.settings[self.alias]
        source = [settings.get(key) for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")]
        source = [*source, in_tests()]
        if source == self._source:
            return
        with self._follow_lock:
            if self._broker is not None:
                self._broker.close()
            options = dict(self.configuration.database_options)
            if settings["NAME"] != self.original_name:
                options.pop("listen_url", None)  # it leads to the database whose name was replaced
            database = postgres_config(self.alias, options)
            broker = None
            if in_tests():
                # By name: it imports this module, and what only tests need.
                broker = import_module("horsies.contrib.django.test_database").DjangoTestBroker(self, database)
            self.config, self._broker = replace(self.config, broker=database), broker
            self._followed, self._source = database, source

    @property
    def child_environment(self) -> Mapping[str, str]:
        """Name the test databases, if a test has started the worker."""
        if not in_tests():
            return super().child_environment
        names = {alias: connections.settings[alias]["NAME"] for alias in connections}
        return {TEST_DATABASES: json.dumps(names)}

    # -- tasks

    def autodiscover(self) -> None:
        """Import the modules `tasks` of all INSTALLED_APPS, and those that `HORSIES["modules"]` lists."""
        modules = [
            f"{config.name}.tasks" for config in apps.get_app_configs() if module_has_submodule(config.module, "tasks")
        ]
        self.discover_tasks([*modules, *self.configuration.modules])
        import_tasks(self, "the project")
        self.discovered_tasks, self.is_discovered = frozenset(self.tasks), True

    def _prepare_child(self) -> None:
        abandon_inherited()
        # Outermost: middleware of the project may use connections, and hold a transaction open.
        own = (middleware_from(check_connections, "def"), middleware_from(end_connections, "async"))
        self.middlewares = (*own, *self.middlewares)


def in_tests() -> bool:
    """Whether a test runner has set up Django's test environment. The outbox exists only then: that is documented."""
    return hasattr(mail, "outbox")


_lock = threading.RLock()
_made: list[DjangoHorsies] = []


def the_app() -> DjangoHorsies:
    """Return the app of this project, made at the first call. Raise ImproperlyConfigured if the settings are wrong."""
    with _lock:
        if not _made:
            _made.append(DjangoHorsies())
        return _made[0]
