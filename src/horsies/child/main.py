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
from typing import TYPE_CHECKING

from horsies import locate
from horsies.app import Horsies
from horsies.child.desk import Desk, Inbox
from horsies.child.guard import die_with, disown_copies, ignore_signals
from horsies.child.hooks import run_start_hooks, run_stop_hooks
from horsies.child.link import Link
from horsies.child.loop import Loop
from horsies.child.memory import rss_meter
from horsies.child.solo import Solo
from horsies.child.title import set_title
from horsies.child.wire import Boot, Booting, Message, Ready, Refused, pack
from horsies.logs import configure_logging, keep_lines_whole
from horsies.model.errors import HorsiesError

if TYPE_CHECKING:
    from horsies.child.crowd import Crowd

LEAVE_S = 5.0

log = logging.getLogger("horsies.child")


def main(fd: int) -> None:
    """A child of its own, started afresh."""
    die_with(os.getppid())
    ignore_signals()
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # what a task starts must not keep the socket open
    live(Link(fd), load)


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


def live(link: Link, load: Callable[[Boot, Callable[[str], None]], Horsies]) -> None:
    """From the first message to the last."""
    inbox = Inbox(link)
    boot, *early = inbox.receive()
    if not isinstance(boot, Boot):
        raise TypeError("a child's first message is what to load")

    def at(what: str) -> None:
        link.send(pack(Booting(what)))

    with Loop() as loop:
        disown_copies(link.close_in_copy, loop.end_in_copy)
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


def _serve(link: Link, inbox: Inbox, boot: Boot, early: list[Message], app: Horsies, loop: Loop) -> None:
    rss_mb = rss_meter()
    desk = Desk(link, inbox, boot.max_memory_mb, rss_mb)
    crew = Solo(app.known_tasks, desk, loop) if boot.concurrency == 1 else _crowd(app, desk, loop, boot.concurrency)
    set_title("idle")
    if boot.max_memory_mb is not None:
        gc.collect()  # it is measured by what it keeps
    gc.freeze()  # what is loaded stays: no collection, and not the end of the process either, need look at it
    desk.send(pack(Ready(os.getpid(), rss_mb())))
    crew.work(early)


def _crowd(app: Horsies, desk: Desk, loop: Loop, concurrency: int) -> "Crowd":
    from horsies.child.crowd import Crowd  # noqa: PLC0415 - brings asyncio

    return Crowd(app.known_tasks, desk, loop, concurrency)
