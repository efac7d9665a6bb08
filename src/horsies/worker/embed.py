"""A worker started from code: `app.run_worker(WorkerConfig(...))`, and `app.worker(...)` on a thread of its own."""

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from horsies.app import Horsies
from horsies.locate import load_app
from horsies.logs import configure_logging
from horsies.model.errors import HorsiesError, LocateError
from horsies.model.worker import WorkerConfig
from horsies.tasks.handle import refuse_in_event_loop
from horsies.tasks.suppress import sends_are_suppressed
from horsies.worker.run import run_worker
from horsies.worker.service import signals_restored
from horsies.worker_thread import Worker


def run_in_process(app: Horsies, config: WorkerConfig) -> int:
    _refuse_wrong_places()
    configure_logging(config.loglevel, config.log_format)  # does nothing where the program has its own
    config, loaded = _prepared(app, config)
    with signals_restored():
        return run_worker(app, config, loaded=loaded)


def embedded(app: Horsies, config: WorkerConfig) -> Worker:
    """Make a worker for a thread of this process. What is wrong with its place is said here, where it is called."""
    _refuse_import("app.worker()")
    prepared, loaded = _prepared(app, config)
    return Worker(lambda control: run_worker(app, prepared, control, loaded=loaded))


def _prepared(app: Horsies, config: WorkerConfig) -> tuple[WorkerConfig, Horsies]:
    """What the worker runs with, and the app as its children load it."""
    if config.app_locator is None:
        config = replace(config, app_locator=locate(app))
    app.locator = app.locator or _module_locator(config.app_locator or "")
    if config.dsn is not None:
        app.use_database(config.dsn)
    return config, load_app(config.app_locator or "", imports=config.imports)


def _refuse_import(call: str) -> None:
    if sends_are_suppressed():  # a child that imports the script would be a worker itself, with children, without end
        raise HorsiesError(
            f'{call} is called while a worker imports this module; write it below `if __name__ == "__main__":`'
        )


def _refuse_wrong_places() -> None:
    _refuse_import("run_worker()")
    if threading.current_thread() is not threading.main_thread():
        raise HorsiesError("run_worker() must be called on the main thread, the only one that hears signals")
    refuse_in_event_loop("run_worker()", "horsies worker, or call it before the loop starts")


def locate(app: Horsies) -> str:
    """Where the children find this app: the module that holds it at its top level; the script itself only if no other does."""
    script = sys.modules.get("__main__")  # under multiprocessing it has a second name
    for name, module in sorted(sys.modules.items(), key=lambda item: item[1] is script):
        for attribute in _names_of(app, module):
            if module is not script:
                return f"{name}:{attribute}"
            if file := getattr(module, "__file__", None):
                return f"{Path(file).resolve()}:{attribute}"
    raise LocateError(
        "this app is not at the top level of any module, so child processes cannot find it; "
        'give WorkerConfig(app_locator="package.module:attribute")'
    )


def _module_locator(locator: str) -> str:
    """The locator by the name under which the children import a script, so that it does not depend on the folder."""
    place, _, attribute = locator.rpartition(":")
    return f"{Path(place).stem}:{attribute}" if place.endswith(".py") else locator


def _names_of(app: Horsies, module: ModuleType) -> Iterator[str]:
    for attribute, value in list(getattr(module, "__dict__", {}).items()):
        if value is app:
            yield attribute
