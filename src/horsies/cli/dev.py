"""`horsies dev`, and the reloader that it shares with `horsies worker --reload`.

The reloader repeats three steps until SIGINT, SIGTERM or SIGHUP:

1. Survey the app. A short-lived child process loads it and reports the folders of its code, its database, and whether it has schedules. It is
   a new process each time, because Python cannot reload imported modules reliably. If the app cannot be loaded, log why and wait for a change.
2. Run the app's commands (`horsies worker`, `horsies scheduler`), each as a child process that is restarted when it exits by itself.
3. When a .py file changes, stop the commands, and start over. A worker gets SIGTERM up to three times, as if an operator had sent it: stop,
   interrupt running tasks, kill them. Then it is killed itself.

Every child has a process group of its own. Ctrl-C therefore reaches only this process, which passes it on, as often as it is pressed. The kernel
kills the children when this process dies (`horsies.cli.dev_process`).
"""

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
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from horsies.cli.dev_process import AppSurvey, child_command, outermost
from horsies.cli.options import app_command, logging_options, report_errors
from horsies.cli.web import DEFAULT_PORT, has_extra
from horsies.db.broker import PostgresBroker
from horsies.locate import split_locator
from horsies.logs import configure_logging
from horsies.model.config import PostgresConfig
from horsies.model.database_url import mask_passwords
from horsies.model.errors import HorsiesError
from horsies.worker.service import root_cause, signals
from horsies.worker.spawn import describe_exit

GRACE_S = 3.0  # between two stop signals after a change
STOP_SIGNALS = 3  # a worker stops, interrupts its tasks, kills them; then it is killed itself
FIRST_DELAY_S = 1.0  # before the restart of a command that exited by itself; doubled each time
MAX_DELAY_S = 30.0
STEADY_S = 30.0  # a command that ran for this long starts with the first delay again
# How long to read on after a command has exited: a process that it left behind may keep the pipe open.
LAST_OUTPUT_S = 1.0
READ_BYTES = 1 << 16

COLOURS = {"worker": "cyan", "scheduler": "magenta", "web": "blue", "dev": "green"}
PREFIX_WIDTH = max(map(len, COLOURS))

T = TypeVar("T")
LinePrinter: TypeAlias = Callable[[str, str], None]
"""Prints one line of output of the command with this name."""
CommandPlanner: TypeAlias = Callable[[AppSurvey], Mapping[str, Sequence[str]]]
"""Returns the command lines to run for an app, by name."""
FileWatcher: TypeAlias = Callable[..., AsyncGenerator[set[tuple[Any, str]]]]
"""`watchfiles.awatch`: yields the changes of files below some folders."""

log = logging.getLogger("horsies.dev")


@click.command()
@app_command
@click.option("--processes", type=click.IntRange(1, 1000), default=2, show_default=True, help="Children of the worker.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Tasks at once in each child."
)
@click.option("--web/--no-web", "has_web", default=True, show_default=True, help="Serve the dashboard, too.")
@click.option(
    "--web-port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True,
    help="Its port; if it is taken, a free one.",
)  # fmt: skip
@logging_options
@report_errors
def dev(
    app: str, *, processes: int, concurrency: int, has_web: bool, web_port: int, loglevel: str, log_format: str
) -> None:
    """Run everything an app needs during development, in one terminal.

    Runs a worker, a scheduler if the app has schedules, the dashboard, and the embedded PostgreSQL if no database is configured. When a .py file of the app
    changes, the commands restart; running tasks have a few seconds to end. If the code cannot be loaded, this is reported, and the next
    change is awaited.

    Ctrl-C stops everything and waits for running tasks. A second Ctrl-C interrupts them.

    \b
    horsies dev shop.tasks:app
    """
    print_line = partial(_print_line, has_prefix=log_format != "json")
    configure_logging(loglevel, log_format, _LogStream(print_line))
    if has_web and not has_extra():
        has_web = False
        log.warning('no dashboard: it needs the extra web: pip install "horsies[web]"')
    log_options = (f"--loglevel={loglevel}", f"--log-format={log_format}")

    def commands(survey: AppSurvey) -> Mapping[str, Sequence[str]]:
        sizes = (f"--processes={processes}", f"--concurrency={concurrency}")
        worker = child_command("run", "worker", app, *sizes, *log_options)
        scheduler = child_command("run", "scheduler", app, *log_options)
        web = child_command("run", "web", app, f"--port={web_port}", "--any-port", *log_options)
        return {
            "worker": worker,
            **({"scheduler": scheduler} if survey.has_schedules else {}),
            **({"web": web} if has_web else {}),
        }

    run_with_reload(app, commands, print_line)


def _print_line(name: str, line: str, *, has_prefix: bool) -> None:
    prefix = click.style(f"{name:<{PREFIX_WIDTH}} | ", fg=COLOURS[name]) if has_prefix else ""
    try:
        click.echo(f"{prefix}{line}")
    except OSError:
        # The reader of our output is gone. Python would fail again when it flushes the buffer at exit, so discard that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


class _LogStream:
    """Prints the log of this process between the lines of its children, with a prefix like theirs."""

    def __init__(self, print_line: LinePrinter) -> None:
        self._print_line = print_line

    def write(self, text: str) -> None:
        with suppress(OSError):
            for line in text.splitlines():
                self._print_line("dev", line)


def run_with_reload(app: str, commands: CommandPlanner, print_line: LinePrinter | None = None) -> None:
    """Run commands for an app until a signal stops them. Without `print_line` they write to our own stdout and stderr."""
    split_locator(app)  # report a malformed locator now: no change of the code can fix it
    try:
        asyncio.run(_run_until_signalled(Reloader(app, commands, print_line)))
    except* HorsiesError as group:
        raise root_cause(group) from None


async def _run_until_signalled(reloader: "Reloader") -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.stop)
    with signals(reloader.stop):
        await reloader.run()


class Reloader:
    """Surveys an app, runs its commands, and starts over when its code changes."""

    def __init__(
        self, app: str, commands: CommandPlanner, print_line: LinePrinter | None = None, *, grace_s: float = GRACE_S
    ) -> None:
        self._app = app
        place, _ = split_locator(app)
        # What is known before the app was loaded: the folder of its file, or else the current one.
        self._initial = Path(place).resolve().parent if place.endswith(".py") else Path.cwd()
        self._commands = commands
        self._print_line = print_line
        self._grace_s = grace_s
        self._processes: list[DevProcess] = []
        self._is_stopping = False
        self._interrupted = asyncio.Event()  # the code has changed, or a stop was requested
        self._folders: list[Path] = []
        self._watching: asyncio.Task[None] | None = None
        self._logged: object = None

    async def run(self) -> None:
        watch = _load_watcher()
        async with asyncio.TaskGroup() as group:
            self._set_folders([self._initial], group, watch)
            while not self._is_stopping:
                self._interrupted.clear()
                survey = await self._unless_interrupted(survey_app(self._app))
                if isinstance(survey, AppSurvey):
                    self._set_folders(outermost({*map(Path, survey.folders), self._initial}), group, watch)
                    await self._run_commands(survey, self._prepare(survey))
                elif survey is not None:
                    log.error("%s (waiting for a change)", survey)
                    await self._interrupted.wait()
            if self._watching:
                self._watching.cancel()
        log.info("stopped")

    def stop(self) -> None:
        """Stop the commands and wait for their tasks. Called again: interrupt the tasks, then kill them."""
        if not self._is_stopping:
            log.info("stopping; repeat the signal to interrupt running tasks")
        self._is_stopping = True
        for process in self._processes:
            process.request_stop()
        self._interrupted.set()

    def _set_folders(self, folders: Collection[Path], group: asyncio.TaskGroup, watch: FileWatcher) -> None:
        """Watch these from now on, as far as they exist."""
        existing = sorted(folder for folder in folders if folder.is_dir())
        if existing != self._folders:
            if self._watching:
                self._watching.cancel()
            self._folders = existing
            self._watching = group.create_task(self._watch(watch, existing))

    async def _watch(self, watch: FileWatcher, folders: list[Path]) -> None:
        try:
            async with aclosing(watch(*folders)) as all_changes:
                async for changes in all_changes:
                    if not self._is_stopping:
                        names = sorted({Path(path).name for _, path in changes})
                        log.info("%s changed, restarting", ", ".join(names))
                        self._interrupted.set()
        except OSError as error:
            where = ", ".join(map(str, folders))
            raise ReloadError(f"cannot watch {where}: {error}; WATCHFILES_FORCE_POLLING=1 may help") from error

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result, or None if an interruption came first."""
        async with asyncio.TaskGroup() as group:
            working, interrupted = group.create_task(work), group.create_task(self._interrupted.wait())
            await asyncio.wait([working, interrupted], return_when=asyncio.FIRST_COMPLETED)
            is_done = working.done()
            working.cancel()
            interrupted.cancel()
        return working.result() if is_done else None

    def _prepare(self, survey: AppSurvey) -> dict[str, str]:
        """Start and migrate the embedded server if it is needed, and return variables for the commands.

        This process holds the server until it exits, or it would stop and start with every reload.
        """
        url, env = survey.database_url, {"HORSIES_LOG_COMPLETED": "1"}
        if url is None:
            from horsies.embedded.project import embedded_database_url  # noqa: PLC0415 - an extra; only when nothing is configured

            env["HORSIES_DATABASE_URL"] = embedded_database_url()
            with PostgresBroker.connect_with(PostgresConfig(database_url=env["HORSIES_DATABASE_URL"])) as broker:
                broker.ensure_schema_initialized()
            url = mask_passwords(env["HORSIES_DATABASE_URL"])
        if self._logged != (url, self._folders):
            self._logged = url, self._folders
            log.info("using database %s", url)
            log.info("watching %s", ", ".join(map(str, self._folders)))
        return env

    async def _run_commands(self, survey: AppSurvey, env: Mapping[str, str]) -> None:
        """Run until an interruption, and until all commands have exited."""
        self._processes = [
            DevProcess(name, command, env=env, on_line=self._line_handler(name))
            for name, command in self._commands(survey).items()
        ]
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(process.run()) for process in self._processes]
            await self._interrupted.wait()
            for _ in range(STOP_SIGNALS + 1):
                if self._is_stopping:
                    break  # stop() passes every signal on; do not hurry the commands beyond that
                for process in self._processes:
                    process.request_stop()
                await asyncio.wait(runs, timeout=self._grace_s)
                if all(run.done() for run in runs):
                    break
        self._processes = []

    def _line_handler(self, name: str) -> Callable[[str], None] | None:
        if (print_line := self._print_line) is None:
            return None

        def on_line(line: str) -> None:
            try:
                print_line(name, line)
            except OSError:
                self.stop()  # the reader of our output is gone

        return on_line


async def survey_app(app: str) -> AppSurvey | str:
    """Load the app in a child process. Return a survey, or the reason why it cannot be loaded."""
    process = await asyncio.create_subprocess_exec(
        *child_command("survey", app), stdin=DEVNULL, stdout=PIPE, stderr=PIPE, process_group=0
    )
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return AppSurvey(**json.loads(output))
    return errors.decode(errors="replace").strip() or f"loading {app} ended its process with code {process.returncode}"


class ReloadError(HorsiesError):
    """Changes of files cannot be watched."""


def _load_watcher() -> FileWatcher:
    try:
        # An extra, whose annotations name another, trio.
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415  # pyright: ignore[reportUnknownVariableType]
    except ImportError:
        raise ReloadError('to reload on change, install watchfiles: pip install "horsies[dev]"') from None
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs the number of changes at INFO
    return partial(awatch, watch_filter=PythonFilter())


class DevProcess:
    """A command that runs as a child process, and is restarted when it exits by itself, until it is asked to stop.

    `on_line` gets its output line by line. Without it, the command writes to our own stdout and stderr.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        on_line: Callable[[str], None] | None,
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._on_line = on_line
        self._first_delay_s = first_delay_s
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._stop_requests = 0

    def request_stop(self) -> None:
        """Send SIGTERM, and SIGKILL after three of them."""
        self._stopping.set()
        if self._process:
            self._stop_requests += 1
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM if self._stop_requests <= STOP_SIGNALS else signal.SIGKILL)

    async def run(self) -> None:
        delay_s = self._first_delay_s
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            if time.monotonic() - started > STEADY_S:
                delay_s = self._first_delay_s
            log.warning("%s %s, restarting in %g s", self.name, describe_exit(code), delay_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    async def _run_once(self) -> int:
        if self._on_line is None:
            return await self._wait_for(await self._start(None))
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb", 0) as stream:
            try:
                process = await self._start(write_end)
            finally:
                os.close(write_end)
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(_read_lines(stream, self._on_line))
                code = await self._wait_for(process)
                await asyncio.wait([reading], timeout=LAST_OUTPUT_S)
                reading.cancel()
        return code

    async def _start(self, output: int | None) -> Process:
        """Start it from the main thread: the kernel kills it when the thread that started it ends."""
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
            self.request_stop()  # it was requested while the process was being started
        try:
            return await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            self._process = None


async def _read_lines(stream: object, on_line: Callable[[str], None]) -> None:
    """Read whole lines, of any length; `StreamReader.readline` has a limit."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), stream
    )
    try:
        rest = b""
        while data := await reader.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace"))
        if rest:
            on_line(rest.decode(errors="replace"))
    finally:
        transport.close()
