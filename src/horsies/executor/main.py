"""The life of a child process: load the app, then run what comes over the socket until told to stop.

The main thread runs the tasks: one at a time (`Solo`), or it runs an event loop for many (`Crowd`). Somebody always hears the socket, so that a recall is
answered while a task runs and the end of the parent is noticed: a thread beside the event loop, or whoever is idle (`relief`).

A child holds no database connection for queue work, and never outlives its parent.
"""

import fcntl
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from horsies import locate
from horsies.app import Horsies
from horsies.executor.event_loop import ChildEventLoop
from horsies.executor.inbox import ExecutorInbox, Inbox, ParentSocket
from horsies.executor.os_process import (
    die_with,
    disown_forked_copies,
    exit_if_copy,
    ignore_signals,
    rss_meter,
    set_title,
)
from horsies.executor.protocol import Boot, Booting, Message, Ready, Refused, pack
from horsies.executor.sequential import SequentialRunner
from horsies.logs import configure_logging, keep_lines_whole
from horsies.model.errors import HorsiesError
from horsies.model.signature import is_coroutine_function
from horsies.registry import Hook

if TYPE_CHECKING:
    from horsies.executor.concurrent import ConcurrentRunner

# --------
# `@app.on_child_start` and `@app.on_child_stop`, inside the child.

log = logging.getLogger("horsies.executor")


class HookError(HorsiesError):
    """A start hook failed: the child cannot serve."""


def run_start_hooks(app: Horsies, loop: ChildEventLoop, at: Callable[[str], None]) -> None:
    """`at` hears what comes next."""
    for hook in app.child_start_hooks:
        at(f"hook {_name(hook)}")
        try:
            _run(hook, loop)
        except BaseException as error:
            raise HookError(f"start hook {_name(hook)} failed: {_where(error)}") from error


def run_stop_hooks(app: Horsies, loop: ChildEventLoop, at: Callable[[str], None]) -> None:
    """One that fails does not keep the others from running."""
    for hook in app.child_stop_hooks:
        at(f"hook {_name(hook)}")
        try:
            _run(hook, loop)
        except BaseException:
            log.exception("stop hook %s failed", _name(hook))


def _run(hook: Hook, loop: ChildEventLoop) -> None:
    try:
        if is_coroutine_function(hook):
            loop.run(hook())
        else:
            hook()
    except BaseException as error:
        exit_if_copy(error)
        raise
    exit_if_copy(None)


def _name(hook: Hook) -> str:
    return cast("str", getattr(hook, "__name__", repr(hook)))


def _where(error: BaseException) -> str:
    import traceback  # noqa: PLC0415 - hardly a child has an error to report

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


LEAVE_S = 5.0


def main(fd: int) -> None:
    """A child of its own, started afresh."""
    die_with(os.getppid())
    ignore_signals()
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # what a task starts must not keep the socket open
    live(ParentSocket(fd), load)


def load(boot: Boot, at: Callable[[str], None]) -> Horsies:
    """Import what there is to import; `at` hears what comes next."""
    set_title("loading")
    configure_logging(boot.loglevel, boot.log_format)
    keep_lines_whole()
    if boot.path:
        sys.path[:] = boot.path  # a script's folder is on its own path only
    app = locate.load_app(boot.app, imports=boot.imports, before=lambda module: at(f"importing {module}"))
    if boot.dsn is not None:
        app.use_database(boot.dsn)
    if boot.concurrency > 1 or any(task.is_async for task in app.tasks.values()):
        import_module("asyncio")  # now, when nobody waits for it, and once for all children of a template
    return app


def live(link: ParentSocket, load: Callable[[Boot, Callable[[str], None]], Horsies]) -> None:
    """From the first message to the last."""
    inbox = Inbox(link)
    boot, *early = inbox.receive()
    if not isinstance(boot, Boot):
        raise TypeError("a child's first message is what to load")

    def at(what: str) -> None:
        link.send(pack(Booting(what)))

    with ChildEventLoop() as loop:
        disown_forked_copies(link.close_in_copy, loop.end_in_copy)
        try:
            app = load(boot, at)
            run_start_hooks(app, loop, at)
        except HorsiesError as error:
            link.send(pack(Refused(str(error))))
            return
        _serve(link, inbox, boot, early, app, loop)
        set_title("leaving")
        run_stop_hooks(app, loop, at)
        threading.Thread(target=_lose_patience, name="horsies-exit", daemon=True).start()
        if loop.is_made:
            loop.run(app.close_async())
        else:
            app.close()


def _lose_patience() -> None:
    """Threads that tasks have started may never end, and a process waits for all of them."""
    time.sleep(LEAVE_S)
    others = [thread.name for thread in threading.enumerate() if not thread.daemon]
    log.warning("leaving threads behind that do not end: %s", ", ".join(others))
    os._exit(0)


def _serve(
    link: ParentSocket, inbox: Inbox, boot: Boot, early: list[Message], app: Horsies, loop: ChildEventLoop
) -> None:
    rss_mb = rss_meter()
    tasks_inbox = ExecutorInbox(link, inbox, boot.max_memory_mb, rss_mb)
    crew = (
        SequentialRunner(app.known_tasks, tasks_inbox, loop)
        if boot.concurrency == 1
        else _many(app, tasks_inbox, loop, boot.concurrency)
    )
    set_title("idle")
    if boot.max_memory_mb is not None:
        gc.collect()  # it is measured by what it keeps
    gc.freeze()  # what is loaded stays: no collection, and not the end of the process either, need look at it
    tasks_inbox.send(pack(Ready(os.getpid(), rss_mb())))
    crew.work(early)


def _many(app: Horsies, tasks_inbox: ExecutorInbox, loop: ChildEventLoop, concurrency: int) -> "ConcurrentRunner":
    from horsies.executor.concurrent import ConcurrentRunner  # noqa: PLC0415 - brings asyncio

    return ConcurrentRunner(app.known_tasks, tasks_inbox, loop, concurrency)
