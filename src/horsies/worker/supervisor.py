"""The pool: as many children as were asked for, each replaced alone when it dies or has served long enough.

*Places* are held by members; a member that is to be replaced keeps its place until a *spare* is ready to take it over: the worker
never has fewer warm children than it was told to have. There is one spare at most, so there is one more process than asked for at
most, and replacement goes one by one. A spare belongs to nobody: it takes the place of whoever is first idle and due, or dead.

When a replacement cannot be started the old child stays, beyond its count of tasks and beyond its memory: better an old child than
none. That is an error in the log, and the next try comes after a pause that grows.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, TypeAlias

from horsies.events import ChildDied, ChildRecycled, ChildStarted, emit, subscribers
from horsies.executor.protocol import Boot
from horsies.model.config import RecoveryConfig
from horsies.model.errors import HorsiesError
from horsies.model.payload_errors import DEFAULT_MAX_BYTES
from horsies.worker.child import Child, ReportHandler
from horsies.worker.fork_server import ForkServer, can_fork
from horsies.worker.spawn import ProcessFactory, SpawnError, SpawnFactory, watch_boot

# --------
# Do the children live? They are asked over the socket again and again; it is the interpreter that answers, not the task.
#
# Silence alone is no proof of death: a call into C that holds the GIL is silent and healthy. So by default a silent child is killed only if
# nothing in it works, either: its process is stopped, or none of its threads has used the CPU or waited for a disk for long. That is told by
# `/proc`; on systems without it silence is only reported.
#
# What counts is what was seen in looks that followed each other regularly. When this process itself was paused, its children may have been,
# too: a gap starts the watch anew.
#
# An event loop of a child may be blocked while its interpreter answers. That is reported, and what has not begun there is taken back.

REPORT_AFTER_S: Final = 30.0
BLOCKED_AFTER_S: Final = 5.0
"""An event loop that has not run for so long is blocked."""
IDLE_AFTER_S: Final = 60.0
"""A process that is silent and does nothing for so long is frozen."""
LONGEST_INTERVAL_S: Final = 3.0
REGULAR: Final = 3.0
"""A look that comes later than so many intervals after the last one starts the watch anew."""
BUSY_SHARE: Final = 0.02
"""A thread that uses so much of a CPU works. One that only waits for the GIL wakes up 200 times a second and uses less."""
BUSY_S: Final = 0.02
"""And at least so much: the kernel counts in hundredths of a second."""
SWALLOWED_BYTES: Final = 1 << 16

log = logging.getLogger("horsies.worker")


# -- what a process does


class ThreadTimes(NamedTuple):
    state: str
    """As in `/proc`: R, S, D, T (stopped), t (traced) and so on."""
    cpu_s: float


Threads: TypeAlias = Mapping[int, ThreadTimes]


class ProcessActivity(Enum):
    """What is seen of a process between two looks."""

    WORKS = auto()
    """Something in it runs or waits for a disk, or is looked at by a debugger. Or it cannot be seen."""
    IDLE = auto()
    STOPPED = auto()


def threads_of(pid: int) -> Threads | None:
    """None where it cannot be told."""
    if sys.platform != "linux":
        return None
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    found: dict[int, ThreadTimes] = {}
    try:
        for entry in Path(f"/proc/{pid}/task").iterdir():
            # The name, in parentheses, may hold anything.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            found[int(entry.name)] = ThreadTimes(fields[0], (int(fields[11]) + int(fields[12])) * tick_s)
    except (OSError, ValueError, IndexError):
        return None
    return found


def activity_of(before: Threads | None, now: Threads | None, elapsed_s: float) -> ProcessActivity:
    if not now:
        return ProcessActivity.WORKS
    states = {thread.state for thread in now.values()}
    if states == {"T"}:
        return ProcessActivity.STOPPED
    if not before or states & {"D", "t"} or before.keys() != now.keys():
        return ProcessActivity.WORKS
    for number, thread in now.items():
        # Runnable twice: it works, on a machine that has no CPU for it.
        is_runnable = thread.state == before[number].state == "R"
        if is_runnable or thread.cpu_s - before[number].cpu_s >= max(BUSY_S, BUSY_SHARE * elapsed_s):
            return ProcessActivity.WORKS
    return ProcessActivity.IDLE


# -- what is made of it


class LivenessPolicy(NamedTuple):
    """When to kill: see `RecoveryConfig`."""

    frozen_after: float | Literal["auto"] | None
    """In seconds; a number counts silence alone."""
    stopped_after_s: float
    interval_s: float
    idle_after_s: float = IDLE_AFTER_S

    @classmethod
    def of(cls, recovery: RecoveryConfig) -> "LivenessPolicy":
        after = recovery.frozen_after_ms
        interval_s = min(recovery.heartbeat_ms / 1000, LONGEST_INTERVAL_S)
        return cls(after / 1000 if isinstance(after, int) else after, recovery.dead_after_ms / 1000, interval_s)


class Silence(NamedTuple):
    """Of one child: since when it has been seen so, without a gap. All moments are on the monotonic clock."""

    seen_at: float
    silent_since: float
    idle_since: float | None = None
    stopped_since: float | None = None
    stuck_since: float | None = None
    """It has sent the beginning of a message and not the end."""


def watched_children(
    before: Silence | None, now: float, doing: ProcessActivity, policy: LivenessPolicy, *, is_stuck: bool = False
) -> Silence:
    """One more look at a child that has been asked and has not answered."""
    if before is None or not 0 <= now - before.seen_at <= REGULAR * policy.interval_s:
        return Silence(now, now, stopped_since=now if doing is ProcessActivity.STOPPED else None)
    since = before.seen_at
    return Silence(
        now,
        before.silent_since,
        None if doing is ProcessActivity.WORKS else _first(before.idle_since, since),
        None if doing is not ProcessActivity.STOPPED else _first(before.stopped_since, now),
        None if not is_stuck else _first(before.stuck_since, since),
    )


def _first(former: float | None, now: float) -> float:
    return now if former is None else former


def why_kill(silence: Silence, policy: LivenessPolicy) -> str | None:
    """What is wrong with it, if it must be killed."""
    now = silence.seen_at
    if _is_over(silence.stuck_since, now, policy.stopped_after_s):
        return "it sent a part of a message and not the rest"  # whatever the policy is: nothing that it says can be understood
    match policy.frozen_after:
        case None:
            return None
        case "auto":
            if _is_over(silence.stopped_since, now, policy.stopped_after_s):
                return "its process was stopped"
            return "its process did nothing at all" if _is_over(silence.idle_since, now, policy.idle_after_s) else None
        case seconds:
            return f"frozen_after_ms={seconds * 1000:.0f}" if _is_over(silence.silent_since, now, seconds) else None


def _is_over(since: float | None, now: float, patience_s: float) -> bool:
    return since is not None and now - since > patience_s


# -- looking


class Liveness:
    """Looks at all children of a worker, until cancelled."""

    def __init__(self, policy: LivenessPolicy) -> None:
        self._policy = policy
        self._silent: dict[Child, tuple[Silence, Threads | None, int]] = {}
        self._reported: set[Child] = set()
        self._blocked: set[Child] = set()

    async def watch(self, children: Iterable[Child]) -> None:
        while True:
            await asyncio.sleep(self._policy.interval_s)
            try:
                self.look(list(children))
            except Exception:  # a look that fails must not end the worker
                log.exception("could not look after the children")

    def look(self, children: Iterable[Child]) -> None:
        now = time.monotonic()
        ready = {child for child in children if child.ready.is_set()}
        self._silent = {child: seen for child, seen in self._silent.items() if child in ready}
        self._reported &= ready
        self._blocked &= ready
        for child in ready:
            if child.asked_since is None:
                self._silent.pop(child, None)
                self._reported.discard(child)
                self._check_loop(child, now)
            else:
                self._check_silent(child, now)
            child.ping(now)

    def _check_silent(self, child: Child, now: float) -> None:
        """It has been asked at the last look, at least, and has not said a word."""
        before, threads_before, received_before = self._silent.get(child, (None, None, 0))
        threads, received = threads_of(child.pid), child.received
        doing = activity_of(threads_before, threads, now - before.seen_at if before else 0.0)
        is_stuck = child.is_mid_message and received - received_before < SWALLOWED_BYTES
        silence = watched_children(before, now, doing, self._policy, is_stuck=is_stuck)
        self._silent[child] = silence, threads, received
        silent_s = now - silence.silent_since
        if reason := why_kill(silence, self._policy):
            words = f"gave no sign of life for {silent_s:.0f} s ({reason})"
            log.error("child %d %s and is killed; it runs %s", child.pid, words, child.describe_running())
            child.kill(f"the child process (pid {child.pid}) that ran it {words} and was killed")
        elif silent_s > REPORT_AFTER_S and child not in self._reported:
            self._reported.add(child)
            log.warning(
                "child %d has given no sign of life for %.0f s; it runs %s",
                child.pid,
                silent_s,
                child.describe_running(),
            )

    def _check_loop(self, child: Child, now: float) -> None:
        """Its interpreter answers. An event loop that does not can begin nothing: what waits there is better off elsewhere."""
        asked = child.loop_asked_since
        if asked is None or not child.assignments.has_running or now - asked <= BLOCKED_AFTER_S:
            self._blocked.discard(child)
            return
        if child not in self._blocked:
            self._blocked.add(child)
            log.warning(
                "the event loop of child %d has not run for %.0f s: a coroutine blocks it; it runs %s",
                child.pid,
                now - asked,
                child.describe_running(),
            )
        child.close_blocked()


BOOT_TIMEOUT_S = 120.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LEAVE_PATIENCE_S = 30.0
"""How long a child may take to leave when it has nothing more to do: stop hooks can hang."""
HIGH_BASELINE = 0.8
FEWEST_TASKS = 2


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


class ChildPool:
    """Keeps `roster` filled. Entering waits until every child is ready; leaving stops them."""

    def __init__(
        self, group: asyncio.TaskGroup, children: list[Child], reports: ReportHandler, options: PoolOptions
    ) -> None:
        self._group = group
        self._children = children
        self._reports = reports
        self._options = options
        self._factory: ProcessFactory = SpawnFactory(options.env)
        if not options.recycles and can_fork():
            self._factory = ForkServer(group, options.boot, options.env, options.boot_timeout_s)
        self._places: list[Child] = []
        self._spare: Child | None = None
        self._leavers: set[Child] = set()
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
        self._watching = self._group.create_task(
            Liveness(LivenessPolicy.of(self._options.recovery)).watch(self._children)
        )
        self._reconcile()  # somebody may have died while the others were starting
        log.info("children are ready: pids %s", ", ".join(str(child.pid) for child in self._places))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After a drain they are idle and leave by themselves; after an error there is nothing to wait for."""
        if kind is not None:
            await self._end_all()
            return
        self._is_closing = True
        for child in self._children:
            if child.ready.is_set():
                self._tell_to_leave(child)
            else:
                child.kill()
        await self._until_all_are_dead()

    async def _end_all(self) -> None:
        self._is_closing = True
        for stop_requests in self._lives:
            stop_requests.cancel()
        await self._until_all_are_dead()

    async def _until_all_are_dead(self) -> None:
        if self._lives:
            await asyncio.wait(self._lives)
        if self._watching:
            self._watching.cancel()
        await self._factory.close()

    def _report_baseline(self) -> None:
        limit_mb, baseline_mb = (
            self._options.max_memory_per_child_mb,
            max((child.rss_mb for child in self._places), default=0.0),
        )
        if limit_mb is not None and baseline_mb > HIGH_BASELINE * limit_mb:
            log.warning(
                "a child takes %.0f MB before its first task, more than 80 %% of --max-memory-per-child-mb=%g: "
                "it will be replaced often",
                baseline_mb,
                limit_mb,
            )

    # -- one child's life

    def _new(self, budget: int | None) -> Child:
        child = Child(
            self._reports,
            self._options.boot,
            budget=budget,
            changed=self._reconcile,
            max_payload=self._options.max_payload_bytes,
        )
        stop_requests = self._group.create_task(self._live(child))
        self._lives.add(stop_requests)
        stop_requests.add_done_callback(self._lives.discard)
        return child

    async def _live(self, child: Child) -> None:
        try:
            await child.start(self._factory)
        except SpawnError as error:
            self._on_exit(child, str(error))
            return
        self._children.append(child)
        try:
            cause = await self._until_dead(child)
        except BaseException:
            child.kill()
            await child.wait_until_dead()
            raise
        finally:
            self._children.remove(child)
        child.report_crash(cause)
        self._on_exit(child, cause)

    async def _until_dead(self, child: Child) -> str:
        if self._is_closing:
            child.kill()
        async with asyncio.TaskGroup() as both:
            booting = both.create_task(self._see_it_boot(child))
            cause = await child.wait_until_dead()
            booting.cancel()
        return cause

    async def _see_it_boot(self, child: Child) -> None:
        await watch_boot(child, self._options.boot_timeout_s)
        if child.ready.is_set():
            self._pause_s = 0.0
            if subscribers:
                emit(ChildStarted(child.pid))

    def _on_exit(self, child: Child, cause: str) -> None:
        was_place = child in self._places
        is_expected = child in self._leavers or child.is_retiring
        self._forget(child)
        if self._is_closing:
            return
        if not child.ready.is_set():
            self._failed(child.refusal or (cause if not child.pid else self._unborn(child, cause)))
        elif not is_expected:
            log.warning("child %d %s; another takes its place", child.pid, cause)
        elif was_place:
            log.info("child %d has left: it %s", child.pid, cause)
        if subscribers and child.ready.is_set():
            emit(ChildRecycled(child.pid) if is_expected else ChildDied(child.pid, cause))
        self._reconcile()

    def _unborn(self, child: Child, cause: str) -> str:
        return f"the child process {cause} while it was {child.doing}"

    def _forget(self, child: Child) -> None:
        if child in self._places:
            self._places.remove(child)
        if child is self._spare:
            self._spare = None
        self._leavers.discard(child)

    def _failed(self, reason: str) -> None:
        """A child did not become ready. At the start that is the end; later the others go on."""
        if self._starting:
            if not self._starting.done():
                self._starting.set_exception(ChildRefused(reason))
            return
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._not_before = time.monotonic() + self._pause_s
        log.error("a replacement child did not start, the next try is in %g s: %s", self._pause_s, reason)
        asyncio.get_running_loop().call_later(self._pause_s, self._reconcile)

    @property
    def ready_count(self) -> int:
        """How many places have somebody who can work."""
        return sum(child.ready.is_set() for child in list(self._places))

    # -- replacement

    def _reconcile(self) -> None:
        """Bring the pool closer to what it should be. Called whenever something has changed, on the event loop."""
        if self._is_closing:
            return
        if self._starting:
            if all(child.ready.is_set() for child in self._places) and not self._starting.done():
                self._starting.set_result(None)
            return
        self._hand_over()
        self._fill()
        self._extend()
        self._order_spare()

    def _hand_over(self) -> None:
        """A spare that is ready takes the place of whoever is idle and due."""
        spare = self._spare
        if spare is None or not spare.ready.is_set():
            return
        if not any(child.is_retiring for child in self._places):
            next((child for child in self._places if child.retire()), None)
        due = next((child for child in self._places if child.is_retiring and not child.load), None)
        if due:
            self._places.remove(due)
            self._leavers.add(due)
            self._tell_to_leave(due)
            self._promote_spare(spare)

    def _fill(self) -> None:
        """Places of the dead go to the spare, ready or not, and then to new children."""
        while len(self._places) < self._options.processes:
            if self._spare:
                self._promote_spare(self._spare)
            elif time.monotonic() >= self._not_before:
                self._places.append(self._new(self._options.budget()))
            else:
                return

    def _promote_spare(self, spare: Child) -> None:
        spare.spare_capacity = None
        self._places.append(spare)
        self._spare = None

    def _extend(self) -> None:
        """While no replacement can be started, those who should leave go on."""
        if not self._pause_s:
            return
        for child in self._places:
            if child.is_retiring and child.extend():
                log.warning("child %d goes on beyond its limits until another can take its place", child.pid)

    def _order_spare(self) -> None:
        """One at a time, and not before the last one who was replaced is gone: memory is sized for one more child."""
        if self._spare or self._leavers or time.monotonic() < self._not_before:
            return
        if any(child.is_aged for child in self._places):
            self._spare = self._new(self._options.budget())
            self._spare.spare_capacity = self._spare_capacity

    def _spare_capacity(self) -> int:
        """What those who retire have left to do, less what they still do: together they never do more than was asked for."""
        concurrency = self._options.concurrency
        left = sum(max(0, concurrency - child.load) for child in self._places if child.is_retiring)
        return left - (self._spare.load if self._spare else 0)

    def _tell_to_leave(self, child: Child) -> None:
        child.stop()
        asyncio.get_running_loop().call_later(LEAVE_PATIENCE_S, self._lose_patience, child)

    def _lose_patience(self, child: Child) -> None:
        if child in self._children and not child.load:
            log.error(
                "child %d has not left within %g s, killing it: it is at %s", child.pid, LEAVE_PATIENCE_S, child.doing
            )
            child.kill()
