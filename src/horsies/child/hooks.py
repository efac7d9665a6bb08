"""`@app.on_child_start` and `@app.on_child_stop`, inside the child."""

import logging
from collections.abc import Callable
from typing import cast

from horsies.app import Horsies
from horsies.child.guard import end_if_copy
from horsies.child.loop import Loop
from horsies.definitions import Hook
from horsies.model.annotations import is_coroutine_function
from horsies.model.errors import HorsiesError

log = logging.getLogger("horsies.child")


class HookError(HorsiesError):
    """A start hook failed: the child cannot serve."""


def run_start_hooks(app: Horsies, loop: Loop, at: Callable[[str], None]) -> None:
    """`at` hears what comes next."""
    for hook in app.child_start_hooks:
        at(f"hook {_name(hook)}")
        try:
            _run(hook, loop)
        except BaseException as error:
            raise HookError(f"start hook {_name(hook)} failed: {_where(error)}") from error


def run_stop_hooks(app: Horsies, loop: Loop, at: Callable[[str], None]) -> None:
    """One that fails does not keep the others from running."""
    for hook in app.child_stop_hooks:
        at(f"hook {_name(hook)}")
        try:
            _run(hook, loop)
        except BaseException:
            log.exception("stop hook %s failed", _name(hook))


def _run(hook: Hook, loop: Loop) -> None:
    try:
        if is_coroutine_function(hook):
            loop.run(hook())
        else:
            hook()
    except BaseException as error:
        end_if_copy(error)
        raise
    end_if_copy(None)


def _name(hook: Hook) -> str:
    return cast("str", getattr(hook, "__name__", repr(hook)))


def _where(error: BaseException) -> str:
    import traceback  # noqa: PLC0415 - hardly a child has an error to report

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
