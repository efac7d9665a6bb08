"""Ids as they are typed: those of tasks and workflows in full, those of workers as far as they are unique."""

import re
from functools import partial

import click

from horsies.app import Horsies
from horsies.tasks.ids import as_id
from horsies.tasks.workers import find_workers

FULL = 36  # characters

_BEGINNING = re.compile(r"[0-9a-fA-F-]{1,36}")


def full_id(text: str) -> str:
    """For options and arguments."""
    try:
        return as_id(text, "id", "give it in full, as the lists show it")
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
