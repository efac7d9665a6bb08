"""`horsies dev`, and what it has in common with `horsies worker --reload`."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from horsies.cli.options import app_argument, log_format_option, loglevel_option, report_errors
from horsies.db.broker import PostgresBroker
from horsies.executor.os_process import die_with_parent
from horsies.locate import is_user_code, load_app, split_locator
from horsies.logs import configure_logging
from horsies.model.config import PostgresConfig
from horsies.model.database_url import mask_passwords
from horsies.model.errors import HorsiesError
from horsies.worker.service import root_cause, signals
from horsies.worker.spawn import describe_exit

# --------
# Look at the app, run its parts, and when its code changes do so again. Code that cannot be loaded is told, and waited for.

# --------
# Which files of Python code have changed.


class ReloadError(HorsiesError):
    """Changes cannot be watched."""


class FileWatch:
    """Tells of every change below some folders."""

    def __init__(self, group: asyncio.TaskGroup, changed: Callable[[list[str]], None]) -> None:
        self._changes = _watcher()
        self._group = group
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self.folders: list[Path] = []

    def look_at(self, folders: Collection[Path]) -> None:
        """At these from now on."""
        there = sorted(folder for folder in folders if folder.is_dir())
        if there != self.folders:
            self.close()
            self.folders = there
            self._task = self._group.create_task(self._look())

    def close(self) -> None:
        if self._task:
            self._task.cancel()

    async def _look(self) -> None:
        try:
            async with aclosing(self._changes(self.folders)) as found:
                async for paths in found:
                    self._changed(sorted({Path(path).name for path in paths}))
        except OSError as error:
            where = ", ".join(map(str, self.folders))
            raise ReloadError(f"cannot watch {where}: {error}; WATCHFILES_FORCE_POLLING=1 may help") from error


def _watcher() -> Callable[[Collection[Path]], AsyncGenerator[set[str]]]:
    try:
        # An extra, whose annotations name another, trio.
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415  # pyright: ignore[reportUnknownVariableType]
    except ImportError:
        raise ReloadError('to reload on change, install watchfiles: pip install "horsies[dev]"') from None
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it counts changes at INFO

    async def changes(folders: Collection[Path]) -> AsyncGenerator[set[str]]:
        async for found in awatch(*folders, watch_filter=PythonFilter()):
            yield {path for _, path in found}

    return changes


# --------
# A command that runs as a child process until it is told to stop, and is started again when it ends by itself.

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
STEADY_S = 30.0  # whatever has run for so long gets a short pause again
LAST_OUTPUT_S = 1.0  # a process that it has left behind may hold its output open for ever
STOP_SIGNALS = 3  # a worker is asked, hurried and told to kill; then it is killed itself
READ_BYTES = 1 << 16

log = logging.getLogger("horsies.dev")


class DevProcess:
    """In a process group of its own, so that Ctrl-C reaches only who started it.

    `show` gets its output line by line; without it, the output is ours.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        show: Callable[[str], None] | None,
        pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._show = show
        self._first_pause_s = pause_s
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._asks = 0

    def ask(self) -> None:
        """To stop; once more to hurry."""
        self._stopping.set()
        if self._process:
            self._asks += 1
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM if self._asks <= STOP_SIGNALS else signal.SIGKILL)

    async def run(self) -> None:
        pause_s = self._first_pause_s
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            if time.monotonic() - began > STEADY_S:
                pause_s = self._first_pause_s
            log.warning("the %s %s by itself; starting it again in %g s", self.name, describe_exit(code), pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_once(self) -> int:
        if self._show is None:
            return await self._wait_for(await self._start(None))
        ours, theirs = os.pipe()
        with os.fdopen(ours, "rb", 0) as stream:
            try:
                process = await self._start(theirs)
            finally:
                os.close(theirs)
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(_read(stream, self._show))
                code = await self._wait_for(process)
                await asyncio.wait([reading], timeout=LAST_OUTPUT_S)
                reading.cancel()
        return code

    async def _start(self, output: int | None) -> Process:
        """On the main thread: the kernel ties its life to the thread that started it."""
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            stdout=output,
            stderr=None if output is None else STDOUT,
            process_group=0,
            env={**os.environ, **self._env},
        )

    async def _wait_for(self, process: Process) -> int:
        self._process = process
        if self._stopping.is_set():
            self.ask()  # while it was being started
        try:
            return await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            self._process = None


async def _read(stream: object, show: Callable[[str], None]) -> None:
    """Whole lines, however long."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), stream
    )
    try:
        rest = b""
        while data := await reader.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                show(line.decode(errors="replace"))
        if rest:
            show(rest.decode(errors="replace"))
    finally:
        transport.close()


# --------
# What is to be known of an app before its parts are started. It is loaded in a process of its own: every look sees the code as it is now.


@dataclass(frozen=True, slots=True)
class AppSurvey:
    folders: list[str]
    """Where the code is that the app consists of, the outermost only."""
    database_url: str | None
    """Without its password; None: nothing is configured, the embedded PostgreSQL is wanted."""
    has_schedules: bool


async def survey_app(app: str) -> AppSurvey | str:
    """Or why the app cannot be loaded."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "horsies.cli.dev", str(os.getpid()), app),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        process_group=0,
    )
    try:
        answer, trouble = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return AppSurvey(**json.loads(answer))
    return (
        trouble.decode(errors="replace").strip() or f"loading {app} ended the process, with code {process.returncode}"
    )


def outermost(folders: set[Path]) -> list[Path]:
    return sorted(
        folder for folder in folders if not any(folder != other and folder.is_relative_to(other) for other in folders)
    )


def main(parent: str, locator: str) -> None:
    die_with_parent(int(parent))
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the app prints when it is imported is no answer
    try:
        found = _look_at(locator)
    except HorsiesError as error:
        sys.exit(str(error))
    with os.fdopen(answer, "w") as stream:
        json.dump(asdict(found), stream)


def _look_at(locator: str) -> AppSurvey:
    app = load_app(locator)
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    folders = {Path(file).resolve().parent for file in files if file and is_user_code(str(Path(file).resolve()))}
    return AppSurvey(
        folders=[str(folder) for folder in outermost(folders)],
        database_url=None if app.is_embedded else mask_passwords(app.broker.config.database_url),
        has_schedules=app.config.schedule is not None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])


RELOAD_GRACE_S = 3.0  # for tasks that run when the code changes; then they are interrupted, then killed

T = TypeVar("T")

Plan = Callable[[AppSurvey], Mapping[str, Sequence[str]]]
"""Which commands are run for such an app, by name."""


def run_parts(app: str, plan: Plan, show: Callable[[str, str], None] | None = None) -> None:
    """Until SIGINT or SIGTERM. `show` gets the output of the parts by name and line; without it, they write where we do."""
    split_locator(app)  # no change of code mends this
    try:
        asyncio.run(_until_signalled(Reloader(app, plan, show)))
    except* HorsiesError as group:
        raise root_cause(group) from None


async def _until_signalled(reloader: "Reloader") -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.stop)
    with signals(reloader.stop):
        await reloader.run()


class Reloader:
    def __init__(
        self,
        app: str,
        plan: Plan,
        show: Callable[[str, str], None] | None = None,
        *,
        grace_s: float = RELOAD_GRACE_S,
    ) -> None:
        self._app = app
        self._plan = plan
        self._show = show
        self._grace_s = grace_s
        self._parts: list[DevProcess] = []
        self._is_stopping = False
        self._news = asyncio.Event()
        self._env: dict[str, str] = {}
        self._told: object = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            watch = FileWatch(group, self._changed)
            watch.look_at(self._first_folders())
            while not self._is_stopping:
                self._news.clear()
                found = await self._unless_news(survey_app(self._app))
                if isinstance(found, AppSurvey):
                    watch.look_at(outermost({*map(Path, found.folders), *self._first_folders()}))
                    self._prepare(found, watch.folders)
                    await self._run(found)
                elif found is not None:
                    log.error("%s (waiting for a change)", found)
                    await self._news.wait()
            watch.close()
        log.info("stopped")

    def _first_folders(self) -> list[Path]:
        """What can be known of an app that was never loaded: where its file is, or else where we are."""
        place, _ = split_locator(self._app)
        return [Path(place).resolve().parent if place.endswith(".py") else Path.cwd()]

    async def _unless_news(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Its result; None if it is not wanted any more."""
        async with asyncio.TaskGroup() as group:
            working, news = group.create_task(work), group.create_task(self._news.wait())
            await asyncio.wait([working, news], return_when=asyncio.FIRST_COMPLETED)
            is_over = working.done()
            working.cancel()
            news.cancel()
        return working.result() if is_over else None

    def _prepare(self, found: AppSurvey, folders: list[Path]) -> None:
        """The embedded server is held by us: it would stop and start with every reload if only the parts used it."""
        url = found.database_url
        if url is None:
            self._env = {"HORSIES_DATABASE_URL": _embedded()}
            url = mask_passwords(self._env["HORSIES_DATABASE_URL"])
        else:
            self._env = {}
        if self._told != (url, folders):
            self._told = url, folders
            log.info("the database is %s", url)
            log.info("watching %s", ", ".join(map(str, folders)))

    # -- the parts

    async def _run(self, found: AppSurvey) -> None:
        """Until there are news, and all have ended."""
        self._parts = [self._part(name, command) for name, command in self._plan(found).items()]
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(part.run()) for part in self._parts]
            await self._news.wait()
            for _ in range(STOP_SIGNALS + 1):
                if self._is_stopping:
                    break  # by a signal, which is passed on as often as it comes
                self._ask_all()
                await asyncio.wait(runs, timeout=self._grace_s)
                if all(run.done() for run in runs):
                    break
        self._parts = []

    def _part(self, name: str, command: Sequence[str]) -> DevProcess:
        return DevProcess(name, command, env=self._env, show=self._shower(name))

    def _shower(self, name: str) -> Callable[[str], None] | None:
        if self._show is None:
            return None

        return partial(self._show_line, self._show, name)

    def _show_line(self, show: Callable[[str, str], None], name: str, line: str) -> None:
        try:
            show(name, line)
        except OSError:
            self.stop()  # nobody reads any more

    def _ask_all(self) -> None:
        for part in self._parts:
            part.ask()

    # -- news

    def _changed(self, names: list[str]) -> None:
        if not self._is_stopping:
            log.info("%s changed: starting anew", ", ".join(names))
            self._news.set()

    def stop(self) -> None:
        """Wait for what runs; once more: hurry."""
        if not self._is_stopping:
            log.info("stopping, once more to hurry")
        self._is_stopping = True
        self._ask_all()
        self._news.set()


def _embedded() -> str:
    """The URL of the project's server, started and migrated, and ours until we exit."""
    from horsies.embedded.project import embedded_database_url  # noqa: PLC0415 - an extra; only when nothing is configured

    url = embedded_database_url()
    with PostgresBroker.connect_with(PostgresConfig(database_url=url)) as broker:
        broker.ensure_schema_initialized()
    return url


COLOURS = {"worker": "cyan", "scheduler": "magenta", "dev": "green"}
WIDTH = max(map(len, COLOURS))


def part_command(*words: str) -> list[str]:
    """The command line of a process that dies with this one."""
    return [sys.executable, "-m", "horsies.cli.dev_part", str(os.getpid()), *words]


@click.command()
@app_argument
@click.option("--processes", type=click.IntRange(1, 1000), default=2, show_default=True, help="Children of the worker.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Tasks at once in each child."
)
@loglevel_option
@log_format_option
@report_errors
def dev(app: str, *, processes: int, concurrency: int, loglevel: str, log_format: str) -> None:
    """Run everything an app needs while you write it, in one terminal.

    A worker, a scheduler if the app has schedules, and the embedded PostgreSQL if no database is configured. When a .py file of the app
    changes, they start anew: running tasks have a few seconds to end. Code that cannot be loaded is reported, and the next change is
    waited for.

    Ctrl-C stops everything and waits for running tasks; once more interrupts them.

    Example: horsies dev shop.tasks:app
    """
    show = _shower(log_format)
    configure_logging(loglevel, log_format, _OwnLines(show))
    logging = (f"--loglevel={loglevel}", f"--log-format={log_format}")

    def plan(found: AppSurvey) -> Mapping[str, Sequence[str]]:
        worker = part_command("worker", app, f"--processes={processes}", f"--concurrency={concurrency}", *logging)
        scheduler = {"scheduler": part_command("scheduler", app, *logging)} if found.has_schedules else {}
        return {"worker": worker, **scheduler}

    run_parts(app, plan, show)


def _shower(log_format: str) -> Callable[[str, str], None]:
    def show(name: str, line: str) -> None:
        mark = "" if log_format == "json" else click.style(f"{name:<{WIDTH}} | ", fg=COLOURS[name])
        try:
            click.echo(f"{mark}{line}")
        except OSError:  # nobody reads any more: nor will they read what is still in a buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise

    return show


class _OwnLines:
    """Where our own log goes: between the lines of the parts, marked as they are."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show

    def write(self, text: str) -> None:
        with suppress(OSError):
            for line in text.splitlines():
                self._show("dev", line)
