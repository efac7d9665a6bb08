"""`manage.py horsies …`: all commands of the command line, with the app of the project."""

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from horsies.cli.main import main
from horsies.contrib.django.application import LOCATOR


class Command(BaseCommand):
    """Pass the arguments on, as they are."""

    help = "Run a command of horsies: worker, scheduler, status, tasks, ... See `manage.py horsies --help`."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        # Django has handled these two options already, wherever they stand.
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        _known, arguments = parser.parse_known_args(argv[2:])
        try:
            self._run(arguments, f"{os.path.basename(argv[0])} {argv[1]}")  # noqa: PTH119 - a name
        except CommandError as error:
            sys.exit(f"Error: {error}")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs="*")

    def handle(self, *_args: Any, arguments: list[str], **_options: Any) -> None:
        """Serve `call_command("horsies", "status")`."""
        try:
            self._run(arguments, "horsies")
        except SystemExit as exit_:
            if exit_.code:
                raise CommandError(f"horsies {' '.join(arguments)} failed", returncode=int(exit_.code)) from exit_

    def _run(self, arguments: list[str], name: str) -> None:
        try:
            # It stays loaded, so the worker starts its fork server as a new process.
            from horsies.contrib.django import project  # noqa: F401, PLC0415 # pyright: ignore[reportUnusedImport]
        except ImproperlyConfigured as error:
            raise CommandError(error) from error
        os.environ["HORSIES_APP"] = LOCATOR
        main(arguments, prog_name=name)
