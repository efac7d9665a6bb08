"""The entry of INSTALLED_APPS."""

from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.db.models.signals import post_migrate

from horsies.contrib.django.application import in_tests, the_app
from horsies.db.broker import PostgresBroker


class OwnTables:
    """A database router. `dumpdata` leaves our tables out: they are read-only for `loaddata`, and the rows of sensitive tasks are not for a file."""

    def allow_migrate(self, _alias: str, app_label: str, **_hints: Any) -> bool | None:
        return False if app_label == HorsiesConfig.label else None


class HorsiesConfig(AppConfig):
    """Discovers tasks, and prepares the schema with `manage.py migrate`."""

    name = "horsies.contrib.django"
    label = "horsies"
    verbose_name = "horsies"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from horsies.contrib.django import checks  # noqa: F401, PLC0415 # pyright: ignore[reportUnusedImport] - registers the checks

        post_migrate.connect(_migrate, sender=self)
        router.routers.insert(0, OwnTables())
        try:
            app = the_app()
        except ImproperlyConfigured:
            return  # `manage.py check` reports it, and so does the first module that imports the app
        app.autodiscover()


def _migrate(*, using: str, verbosity: int = 1, **_rest: Any) -> None:
    """Bring the schema of horsies to the version of this library, after the migrations of the project.

    In tests, the `flush` after each TransactionTestCase comes here, too: then the tables are emptied.
    """
    app = the_app()
    if using != app.alias or not app.configuration.migrates:
        return
    broker = app.broker
    applied = PostgresBroker(broker.config).migrate()
    if verbosity > 0 and applied:
        print(f"  Applied to the schema {broker.config.schema!r} of horsies: {', '.join(applied)}")  # noqa: T201 - as other migrations
    if in_tests() and not applied:
        from horsies.contrib.django.test_database import clear  # noqa: PLC0415 - only in tests

        clear()
        broker.close()  # what an embedded worker has left open would prevent the removal of the database
