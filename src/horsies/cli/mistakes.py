"""A user's mistake gets one clear message and exit code 1, never a traceback."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click

from horsies.model.errors import HorsiesError

P = ParamSpec("P")
T = TypeVar("T")


def told_plainly(command: Callable[P, T]) -> Callable[P, T]:
    @wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except HorsiesError as error:
            raise click.ClickException(str(error)) from error

    return told
