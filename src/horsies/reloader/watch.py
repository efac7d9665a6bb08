"""Which files of Python code have changed."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from pathlib import Path

from horsies.model.errors import HorsiesError


class ReloadError(HorsiesError):
    """Changes cannot be watched."""


class Watch:
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
