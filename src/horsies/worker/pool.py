"""The pool: as many children as were asked for, each replaced alone when it dies or has served long enough.

*Places* are held by members; a member that is to be replaced keeps its place until a *spare* is ready to take it over: the worker
never has fewer warm children than it was told to have. There is one spare at most, so there is one more process than asked for at
most, and replacement goes one by one. A spare belongs to nobody: it takes the place of whoever is first idle and due, or dead.

When a replacement cannot be started the old child stays, beyond its count of tasks and beyond its memory: better an old child than
none. That is an error in the log, and the next try comes after a pause that grows.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from horsies.child.wire import Boot
from horsies.events import ChildDied, ChildRecycled, ChildStarted, emit, subscribers
from horsies.model.errors import HorsiesError
from horsies.model.recovery import RecoveryConfig
from horsies.model.sizes import DEFAULT_MAX_BYTES
from horsies.worker.booting import see_it_boot
from horsies.worker.liveness import Liveness, Policy
from horsies.worker.member import Member, Reports
from horsies.worker.process import Births, NotBorn, Spawn
from horsies.worker.template import Template, can_fork

BOOT_TIMEOUT_S = 120.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LEAVE_PATIENCE_S = 30.0
"""How long a child may take to leave when it has nothing more to do: stop hooks can hang."""
HIGH_BASELINE = 0.8
FEWEST_TASKS = 2

log = logging.getLogger("horsies.worker")


class ChildRefused(HorsiesError):  # noqa: N818 - it says what happened
    """No child can load the app, so there is nothing this worker could do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """`max_tasks_per_child`: None or 0 for any number. `boot` tells the children the same limits."""

    processes: int
    boot: Boot
    concurrency: int = 1
    max_tasks_per_child: int | None = None
    max_memory_per_child_mb: float | None = None
    env: Mapping[str, str]
    boot_timeout_s: float = BOOT_TIMEOUT_S
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    max_payload_bytes: int = DEFAULT_MAX_BYTES

    @property
    def recycles(self) -> bool:
        return bool(self.max_tasks_per_child) or self.max_memory_per_child_mb is not None

    def budget(self, place: int | None = None) -> int | None:
        """How many tasks a child may be given. The first ones get different shares, so that they do not grow old together."""
        if not self.max_tasks_per_child:
            return None
        share = 0 if place is None else place * self.max_tasks_per_child // self.processes
        return max(FEWEST_TASKS, self.max_tasks_per_child - share)


class Pool:
    """Keeps `roster` filled. Entering waits until every child is ready; leaving stops them."""

    def __init__(self, group: asyncio.TaskGroup, roster: list[Member], reports: Reports, options: PoolOptions) -> None:
        self._group = group
        self._roster = roster
        self._reports = reports
        self._options = options
        self._births: Births = Spawn(options.env)
        if not options.recycles and can_fork():
            self._births = Template(group, options.boot, options.env, options.boot_timeout_s)
        self._places: list[Member] = []
        self._spare: Member | None = None
        self._leavers: set[Member] = set()
        self._lives: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Future[None] | None = None
        self._pause_s = 0.0
        self._not_before = 0.0
        self._is_closing = False
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._starting = asyncio.get_running_loop().create_future()
        self._places = [self._new(self._options.budget(place)) for place in range(self._options.processes)]
        try:
            await self._starting  # until all are ready, or one has failed
        except BaseException:
            await self._end_all()
            raise
        self._starting = None
        self._report_baseline()
        # On its own, and not at the heartbeat: children are to be watched also while the database is away.
        self._watching = self._group.create_task(Liveness(Policy.of(self._options.recovery)).watch(self._roster))
        self._tend()  # somebody may have died while the others were starting
        log.info("children are ready: pids %s", ", ".join(str(member.pid) for member in self._places))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After a drain they are idle and leave by themselves; after an error there is nothing to wait for."""
        if kind is not None:
            await self._end_all()
            return
        self._is_closing = True
        for member in self._roster:
            if member.ready.is_set():
                self._tell_to_leave(member)
            else:
                member.kill()
        await self._until_all_are_dead()

    async def _end_all(self) -> None:
        self._is_closing = True
        for life in self._lives:
            life.cancel()
        await self._until_all_are_dead()

    async def _until_all_are_dead(self) -> None:
        if self._lives:
            await asyncio.wait(self._lives)
        if self._watching:
            self._watching.cancel()
        await self._births.close()

    def _report_baseline(self) -> None:
        limit_mb, baseline_mb = (
            self._options.max_memory_per_child_mb,
            max((member.rss_mb for member in self._places), default=0.0),
        )
        if limit_mb is not None and baseline_mb > HIGH_BASELINE * limit_mb:
            log.warning(
                "a child takes %.0f MB before its first task, more than 80 %% of --max-memory-per-child-mb=%g: "
                "it will be replaced often",
                baseline_mb,
                limit_mb,
            )

    # -- one child's life

    def _new(self, budget: int | None) -> Member:
        member = Member(
            self._reports,
            self._options.boot,
            budget=budget,
            changed=self._tend,
            max_payload=self._options.max_payload_bytes,
        )
        life = self._group.create_task(self._live(member))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)
        return member

    async def _live(self, member: Member) -> None:
        try:
            await member.start(self._births)
        except NotBorn as error:
            self._bury(member, str(error))
            return
        self._roster.append(member)
        try:
            cause = await self._until_dead(member)
        except BaseException:
            member.kill()
            await member.wait_until_dead()
            raise
        finally:
            self._roster.remove(member)
        member.bequeath(cause)
        self._bury(member, cause)

    async def _until_dead(self, member: Member) -> str:
        if self._is_closing:
            member.kill()
        async with asyncio.TaskGroup() as both:
            booting = both.create_task(self._see_it_boot(member))
            cause = await member.wait_until_dead()
            booting.cancel()
        return cause

    async def _see_it_boot(self, member: Member) -> None:
        await see_it_boot(member, self._options.boot_timeout_s)
        if member.ready.is_set():
            self._pause_s = 0.0
            if subscribers:
                emit(ChildStarted(member.pid))

    def _bury(self, member: Member, cause: str) -> None:
        was_place = member in self._places
        is_expected = member in self._leavers or member.is_retiring
        self._forget(member)
        if self._is_closing:
            return
        if not member.ready.is_set():
            self._failed(member.refusal or (cause if not member.pid else self._unborn(member, cause)))
        elif not is_expected:
            log.warning("child %d %s; another takes its place", member.pid, cause)
        elif was_place:
            log.info("child %d has left: it %s", member.pid, cause)
        if subscribers and member.ready.is_set():
            emit(ChildRecycled(member.pid) if is_expected else ChildDied(member.pid, cause))
        self._tend()

    def _unborn(self, member: Member, cause: str) -> str:
        return f"the child process {cause} while it was {member.doing}"

    def _forget(self, member: Member) -> None:
        if member in self._places:
            self._places.remove(member)
        if member is self._spare:
            self._spare = None
        self._leavers.discard(member)

    def _failed(self, reason: str) -> None:
        """A child did not become ready. At the start that is the end; later the others go on."""
        if self._starting:
            if not self._starting.done():
                self._starting.set_exception(ChildRefused(reason))
            return
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._not_before = time.monotonic() + self._pause_s
        log.error("a replacement child did not start, the next try is in %g s: %s", self._pause_s, reason)
        asyncio.get_running_loop().call_later(self._pause_s, self._tend)

    @property
    def ready_count(self) -> int:
        """How many places have somebody who can work."""
        return sum(member.ready.is_set() for member in list(self._places))

    # -- replacement

    def _tend(self) -> None:
        """Bring the pool closer to what it should be. Called whenever something has changed, on the event loop."""
        if self._is_closing:
            return
        if self._starting:
            if all(member.ready.is_set() for member in self._places) and not self._starting.done():
                self._starting.set_result(None)
            return
        self._hand_over()
        self._fill()
        self._reprieve()
        self._order_spare()

    def _hand_over(self) -> None:
        """A spare that is ready takes the place of whoever is idle and due."""
        spare = self._spare
        if spare is None or not spare.ready.is_set():
            return
        if not any(member.is_retiring for member in self._places):
            next((member for member in self._places if member.retire()), None)
        due = next((member for member in self._places if member.is_retiring and not member.load), None)
        if due:
            self._places.remove(due)
            self._leavers.add(due)
            self._tell_to_leave(due)
            self._seat(spare)

    def _fill(self) -> None:
        """Places of the dead go to the spare, ready or not, and then to new children."""
        while len(self._places) < self._options.processes:
            if self._spare:
                self._seat(self._spare)
            elif time.monotonic() >= self._not_before:
                self._places.append(self._new(self._options.budget()))
            else:
                return

    def _seat(self, spare: Member) -> None:
        spare.spare_room = None
        self._places.append(spare)
        self._spare = None

    def _reprieve(self) -> None:
        """While no replacement can be started, those who should leave go on."""
        if not self._pause_s:
            return
        for member in self._places:
            if member.is_retiring and member.reprieve():
                log.warning("child %d goes on beyond its limits until another can take its place", member.pid)

    def _order_spare(self) -> None:
        """One at a time, and not before the last one who was replaced is gone: memory is sized for one more child."""
        if self._spare or self._leavers or time.monotonic() < self._not_before:
            return
        if any(member.is_aged for member in self._places):
            self._spare = self._new(self._options.budget())
            self._spare.spare_room = self._spare_room

    def _spare_room(self) -> int:
        """What those who retire have left to do, less what they still do: together they never do more than was asked for."""
        concurrency = self._options.concurrency
        left = sum(max(0, concurrency - member.load) for member in self._places if member.is_retiring)
        return left - (self._spare.load if self._spare else 0)

    def _tell_to_leave(self, member: Member) -> None:
        member.stop()
        asyncio.get_running_loop().call_later(LEAVE_PATIENCE_S, self._lose_patience, member)

    def _lose_patience(self, member: Member) -> None:
        if member in self._roster and not member.load:
            log.error(
                "child %d has not left within %g s, killing it: it is at %s", member.pid, LEAVE_PATIENCE_S, member.doing
            )
            member.kill()
