"""The retainer: while its worker is the keeper, it sees to the days and to what is old, on a connection of its own.

Its work may take a while, and the keeper's own, watching over the living, must not wait for it.
"""

import asyncio
import logging
import random
import time
from types import TracebackType
from typing import Self

from horsies.db import days
from horsies.db.aside import Aside
from horsies.db.trouble import DatabaseError, Trouble, broker_error, trouble_of
from horsies.keeper import retain
from horsies.keeper.isolate import SetAside
from horsies.model.config import PostgresConfig
from horsies.model.retention import RetentionConfig

FIRST_S = 10.0
AGAIN_S = 60.0
"""When somebody was in the way."""
KEYS_EVERY_S = 3600.0
"""A walk over all keys costs as much as there are."""

log = logging.getLogger("horsies.keeper")


class Retainer:
    """A service of the keeper. Does nothing until it is told that it is on duty."""

    def __init__(self, group: asyncio.TaskGroup, *, database: PostgresConfig, retention: RetentionConfig) -> None:
        self._group = group
        self._database = database
        self._schema = database.schema
        self._retention = retention
        self._every_s = retention.every.total_seconds()
        self._on_duty = asyncio.Event()
        self._link: Aside | None = None
        self._keys_at = 0.0
        self._is_refused = False
        self._aside = SetAside()

    async def __aenter__(self) -> Self:
        self._retaining = self._group.create_task(self._retain())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._retaining.cancel()
        await self._close()

    def be_on_duty(self, *, whether: bool) -> None:
        """Whether its worker is the keeper now."""
        if whether:
            self._on_duty.set()
        else:
            self._on_duty.clear()

    async def _retain(self) -> None:
        next_s = FIRST_S
        while True:
            # Spread out: keepers come and go, and a whole cluster may have been started at one moment.
            await asyncio.sleep(min(next_s, self._every_s) * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret
            await self._on_duty.wait()
            try:
                next_s = AGAIN_S if await self._look() else self._every_s
            except DatabaseError as error:
                level = logging.DEBUG if trouble_of(error) is Trouble.LOST else logging.WARNING
                log.log(level, "the keeper could not look after what is old: %s", broker_error(error))
            finally:
                await self._close()

    async def _look(self) -> bool:
        """Whether anything was postponed."""
        link = self._link = Aside(self._database, "retention")
        await self._check_rights(link)
        done = [
            await self._do(link, about, duty)
            for about, duty in retain.duties(self._schema, self._retention, self._aside).items()
        ]
        if time.monotonic() >= self._keys_at and await self._do(link, "keys", retain.forget_keys):
            self._keys_at = time.monotonic() + KEYS_EVERY_S
        return any(forgotten is None or forgotten.postponed for forgotten in done)

    async def _do(self, link: Aside, about: str, duty: retain.Duty) -> retain.Forgotten | None:
        """What fails must not keep the others from being done."""
        try:
            done = await link.run(duty())
        except DatabaseError as error:
            if trouble_of(error) is Trouble.LOST:
                raise
            log.warning("the keeper could not see to %s: %s", about, broker_error(error))
            return None
        except Exception:
            log.exception("the keeper could not see to %s", about)
            return None
        if done.count:
            log.info("retention: %d %s", done.count, about)
        return done

    async def _check_rights(self, link: Aside) -> None:
        rights = await link.run(days.get_rights(self._schema))
        if not rights.suffice and not self._is_refused:
            log.warning(
                "database user %s may not make and drop the days of finished tasks, because the tables are %s's: what finishes goes to "
                "finished_default and is deleted row by row when it is old. Let workers connect as %s, or grant that role to %s "
                "together with CREATE on schema %s; or run `horsies migrate` as %s at least once a week.",
                rights.user, rights.owner, rights.owner, rights.user, self._schema, rights.owner,
            )  # fmt: skip
        self._is_refused = not rights.suffice

    async def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close(None)
