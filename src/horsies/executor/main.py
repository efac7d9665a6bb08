"""A child process from its start to its exit: load the app, then run assignments until the worker stops it.

The main thread runs the tasks: one at a time (`SequentialRunner`), or it runs an event loop for many (`ConcurrentRunner`). The socket is
always read, so that a recall is answered while a task runs and the end of the worker is noticed: by a thread beside the event
loop, or by whichever of the main thread and the standby reader is free.

A child has no database connection for the queue, and never outlives its worker.
"""

import atexit
import fcntl
import gc
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from horsies import locate
from horsies.app import Horsies
from horsies.executor.concurrent import ConcurrentRunner
from horsies.executor.inbox import Inbox, ParentSocket
from horsies.executor.os_process import (
    ChildEventLoop,
    die_with_parent,
    disown_forked_copies,
    exit_if_copy,
    flush_files,
    freeze_objects,
    ignore_signals,
    rss_meter,
    set_title,
)
from horsies.executor.protocol import Boot, Booting, Message, Ready, StartFailed, pack
from horsies.executor.sequential import SequentialRunner
from horsies.logs import configure_logging, line_buffer_stdout
from horsies.model.codec import build_codecs_at_first_use
from horsies.model.errors import HorsiesError
from horsies.model.signature import is_coroutine_function
from horsies.registry import Hook

EXIT_TIMEOUT_S = 5.0

log = logging.getLogger("horsies.executor")


def main(fd: int) -> None:
    """Run a child that is a new interpreter."""
    die_with_parent(os.getppid())
    ignore_signals()
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # programs that a task starts must not keep the socket open
    run_child(ParentSocket(fd), load)


def load(boot: Boot, report_step: Callable[[str], None]) -> Horsies:
    """Import the app and its task modules. `report_step` is called before each import."""
    set_title("loading")
    configure_logging(boot.loglevel, boot.log_format)
    line_buffer_stdout()
    if boot.path:
        sys.path[:] = boot.path  # the folder of a script is on the path of that script only
    app = locate.load_app(boot.app, imports=boot.imports, before=lambda module: report_step(f"importing {module}"))
    if boot.dsn is not None:
        app.use_database(boot.dsn)
    return app


def run_child(parent: ParentSocket, load: Callable[[Boot, Callable[[str], None]], Horsies]) -> NoReturn:
    """Run a child from the first message to the exit.

    It exits as an interpreter does (threads end, exit handlers run), but does not take its modules apart first: in a forked child that would copy all the memory
    that it shares, which takes longer than its start.
    """
    _run(parent, load)
    for finish in (getattr(threading, "_shutdown"), getattr(atexit, "_run_exitfuncs")):  # noqa: B009 - the interpreter calls these, too
        finish()
    flush_files()
    os._exit(0)


def _run(parent: ParentSocket, load: Callable[[Boot, Callable[[str], None]], Horsies]) -> None:
    boot, *received = parent.receive()
    if not isinstance(boot, Boot):
        raise TypeError(f"the first message to a child must be Boot, not {boot}")

    def report_step(step: str) -> None:
        parent.send(pack(Booting(step)))

    with ChildEventLoop() as loop:
        disown_forked_copies(parent.close_in_copy, loop.stop_in_copy)
        try:
            with build_codecs_at_first_use():
                app = load(boot, report_step)
        except HorsiesError as error:
            parent.send(pack(StartFailed(str(error))))
            return
        for name, error in _run_hooks(app.child_start_hooks, loop, report_step):
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            parent.send(pack(StartFailed(f"start hook {name} failed: {where}")))
            return
        _run_tasks(parent, boot, received, app, loop)
        set_title("leaving")
        for name, error in _run_hooks(app.child_stop_hooks, loop, report_step):
            log.error("stop hook %s failed", name, exc_info=error)
        threading.Thread(target=_exit_after_timeout, name="horsies-exit", daemon=True).start()
        if loop.is_created:
            loop.run(app.close_async())
        else:
            app.close()


def _run_hooks(
    hooks: Sequence[Hook], loop: ChildEventLoop, report_step: Callable[[str], None]
) -> Iterator[tuple[str, BaseException]]:
    """Yield each hook that fails. The next one runs when the iteration goes on."""
    for hook in hooks:
        name: str = getattr(hook, "__name__", repr(hook))
        report_step(f"running hook {name}")
        failure: BaseException | None = None
        try:
            if is_coroutine_function(hook):
                loop.run(hook())
            else:
                hook()
        except BaseException as error:  # noqa: BLE001 - user code
            failure = error
        exit_if_copy(failure)
        if failure is not None:
            yield name, failure


def _run_tasks(parent: ParentSocket, boot: Boot, received: list[Message], app: Horsies, loop: ChildEventLoop) -> None:
    rss_mb = rss_meter()
    inbox = Inbox(parent, boot.max_memory_mb, rss_mb)
    if boot.concurrency == 1:
        runner = SequentialRunner(app.known_tasks, inbox, loop)
    else:
        runner = ConcurrentRunner(app.known_tasks, inbox, loop, boot.concurrency)
    set_title("idle")
    if boot.max_memory_mb is not None:
        gc.collect()  # so that the limit applies to what the child keeps, not to garbage
    freeze_objects()  # what is loaded stays: neither a collection nor the end of the process has to traverse it
    inbox.send(pack(Ready(os.getpid(), rss_mb())))
    runner.run(received)


def _exit_after_timeout() -> None:
    """Exit although threads that tasks have started still run: the interpreter would wait for all of them."""
    time.sleep(EXIT_TIMEOUT_S)
    running = [thread.name for thread in threading.enumerate() if not thread.daemon]
    log.warning("child: exiting while threads still run: %s", ", ".join(running))
    os._exit(0)
