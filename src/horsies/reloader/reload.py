"""Look at the app, run its parts, and when its code changes do so again. Code that cannot be loaded is told, and waited for."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from horsies.db.broker import PostgresBroker
from horsies.locate import parted
from horsies.model.config import PostgresConfig
from horsies.model.database_url import mask_passwords
from horsies.model.errors import HorsiesError
from horsies.reloader.part import ASKS, Part
from horsies.reloader.survey import Survey, outermost, survey
from horsies.reloader.watch import Watch
from horsies.worker.service import cause_of, signals

RELOAD_GRACE_S = 3.0  # for tasks that run when the code changes; then they are interrupted, then killed

log = logging.getLogger("horsies.dev")
T = TypeVar("T")

Plan = Callable[[Survey], Mapping[str, Sequence[str]]]
"""Which commands are run for such an app, by name."""


def run_parts(app: str, plan: Plan, show: Callable[[str, str], None] | None = None) -> None:
    """Until SIGINT or SIGTERM. `show` gets the output of the parts by name and line; without it, they write where we do."""
    parted(app)  # no change of code mends this
    try:
        asyncio.run(_until_signalled(Reloader(app, plan, show)))
    except* HorsiesError as group:
        raise cause_of(group) from None


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
        self._parts: list[Part] = []
        self._is_stopping = False
        self._news = asyncio.Event()
        self._env: dict[str, str] = {}
        self._told: object = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            watch = Watch(group, self._changed)
            watch.look_at(self._first_folders())
            while not self._is_stopping:
                self._news.clear()
                found = await self._unless_news(survey(self._app))
                if isinstance(found, Survey):
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
        place, _ = parted(self._app)
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

    def _prepare(self, found: Survey, folders: list[Path]) -> None:
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

    async def _run(self, found: Survey) -> None:
        """Until there are news, and all have ended."""
        self._parts = [self._part(name, command) for name, command in self._plan(found).items()]
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(part.run()) for part in self._parts]
            await self._news.wait()
            for _ in range(ASKS + 1):
                if self._is_stopping:
                    break  # by a signal, which is passed on as often as it comes
                self._ask_all()
                await asyncio.wait(runs, timeout=self._grace_s)
                if all(run.done() for run in runs):
                    break
        self._parts = []

    def _part(self, name: str, command: Sequence[str]) -> Part:
        return Part(name, command, env=self._env, show=self._shower(name))

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
    from horsies.dev.embedded import embedded_database_url  # noqa: PLC0415 - an extra; only when nothing is configured

    url = embedded_database_url()
    with PostgresBroker.connect_with(PostgresConfig(database_url=url)) as broker:
        broker.ensure_schema_initialized()
    return url
