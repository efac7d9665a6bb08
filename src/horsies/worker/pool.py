"""The pool: as many children as were asked for, each replaced alone when it dies."""

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from horsies.child.wire import Boot
from horsies.model.errors import HorsiesError
from horsies.worker.member import Member, Reports

REBOOT_PAUSE_S = 5.0
LEAVE_S = 5.0
"""How long a child that has nothing left to do may take to exit."""

log = logging.getLogger("horsies.worker")


class ChildRefused(HorsiesError):  # noqa: N818 - it says what happened
    """No child can load the app, so there is nothing this worker could do."""


class Pool:
    """Keeps `roster` filled. Entering waits until every child is ready; leaving stops them."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        roster: list[Member],
        reports: Reports,
        *,
        processes: int,
        boot: Boot,
        env: Mapping[str, str],
    ) -> None:
        self._group = group
        self._roster = roster
        self._reports = reports
        self._processes = processes
        self._boot = boot
        self._env = env
        self._closing = False

    async def __aenter__(self) -> Self:
        first = [await self._start() for _ in range(self._processes)]
        self._keepers = [self._group.create_task(self._keep(member)) for member in first]
        try:
            await asyncio.gather(*(member.ready.wait() for member in first))
        except asyncio.CancelledError:  # one of them refused: none will do
            self._kill()
            raise
        log.info("children are ready: pids %s", ", ".join(str(member.pid) for member in first))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After a drain they are idle and leave by themselves; after an error there is nothing to wait for."""
        self._closing = True
        if kind is None:
            for member in self._roster:
                member.stop()
        else:
            self._kill()
        _, staying = await asyncio.wait(self._keepers, timeout=LEAVE_S)
        if staying:
            log.warning("%d children do not leave (a thread that a task started?): killing them", len(staying))
            self._kill()
            await asyncio.wait(staying)

    def _kill(self) -> None:
        for member in self._roster:
            member.kill()

    async def _start(self) -> Member:
        member = Member(self._reports)
        await member.start(self._boot, self._env)
        self._roster.append(member)
        return member

    async def _keep(self, member: Member) -> None:
        """Watch over one place in the pool, whoever holds it."""
        is_first = True
        while True:
            cause = await member.wait_until_dead()
            self._roster.remove(member)
            member.bequeath(cause)
            if self._closing:
                return
            if not member.ready.is_set():
                self._reports_no_start(member, cause, is_first=is_first)
                await asyncio.sleep(REBOOT_PAUSE_S)
            else:
                log.warning("child %d %s; another takes its place", member.pid, cause)
            member = await self._start()
            is_first = False

    def _reports_no_start(self, member: Member, cause: str, *, is_first: bool) -> None:
        reason = member.refusal or f"the child process {cause} while it was loading {self._boot.app}"
        if is_first:
            raise ChildRefused(reason)
        log.error("a replacement child did not start, the next try is in %g s: %s", REBOOT_PAUSE_S, reason)
