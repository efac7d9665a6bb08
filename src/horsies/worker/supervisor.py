"""The pool of child processes: as many as configured, each replaced when it dies or reaches its limits; and the check that they are alive.

**Replacement.** A child that is to be replaced stays active until a *spare* is ready to take its place: the worker never has fewer ready children than
configured. One spare is started when a child nears its limits, so there is at most one process more than configured. If children wear out faster
than one can start, there are more spares: as many as wear out in the time that a start takes, and at most as many as there are children. Children that
still exit, or finish their last tasks, count as spares. A spare takes the place of a retiring child as soon as that has a slot free.

If no replacement can be started, the old child continues beyond its task and memory limits: an old child is better than none. That is logged as an
error, and tried again after a growing pause. It also continues if children that were replaced do not finish their last tasks and so hold all spares.

**Liveness.** Each child is pinged over its socket again and again; its interpreter answers, not its task. A missing answer alone does not prove that it is
frozen: a call into C that holds the GIL does not answer and may be healthy. So by default a silent child is killed only if it also does nothing: its
process is stopped, or none of its threads has used a CPU or waited for a disk for a long time. `/proc` tells; on systems without it silence is only
reported. Only checks that follow each other regularly count. If this process was paused, its children may have been paused too: a gap starts the count
again. A child's event loop may be blocked while its interpreter answers. That is reported, and tasks that have not begun there are taken back.
"""

import asyncio
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from horsies.events import ChildDied, ChildRecycled, ChildStarted, emit, subscribers
from horsies.executor.protocol import Boot
from horsies.model.config import RecoveryConfig
from horsies.model.errors import HorsiesError
from horsies.model.payload_errors import DEFAULT_MAX_BYTES
from horsies.model.worker_config import RECYCLING_DOMINATES, StartMethod
from horsies.tasks.workers import MAX_TASKS, ChildState, ChildStatus, ChildTask, to_time
from horsies.worker.child import Child, ReportHandler, ReportsRead
from horsies.worker.service import StoppedEarly
from horsies.worker.spawn import ProcessFactory, SpawnError, watch_boot

HIGH_BASELINE: Final = 0.8
FEWEST_REPLACED: Final = 3
COST_WEIGHT: Final = 0.1
"""Of the newest child in the mean costs of recycling, when there have been more than ten."""
LINGER_S: Final = 1.0
"""A child that was replaced and still runs tasks after this time does not hold up the replacement of others."""

log = logging.getLogger("horsies.worker")


class ChildRefused(HorsiesError):  # noqa: N818 - the name says what happened
    """No child can load the app, so the worker cannot run any task."""


@dataclass(frozen=True, slots=True)
class PoolTimings:
    """`fork_s`: the fork server must answer within this. `leave_s`: a child may take this long to leave when its tasks have ended, because stop hooks can hang. `pause_s`, up to `longest_pause_s`: after
    a replacement could not be started.
    """

    boot_s: float = 120.0
    fork_s: float = 20.0
    leave_s: float = 30.0
    pause_s: float = 1.0
    longest_pause_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """`max_tasks_per_child`: None or 0 for any number. `boot` has the other limits of the children."""

    processes: int
    boot: Boot
    start_method: StartMethod
    max_tasks_per_child: int | None = None
    env: Mapping[str, str]
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    max_payload_bytes: int = DEFAULT_MAX_BYTES
    timings: PoolTimings = PoolTimings()


class ChildPool:
    """Keeps `children` filled. Entering waits until every child is ready; leaving stops them."""

    def __init__(
        self, group: asyncio.TaskGroup, children: list[Child], reports: ReportHandler, options: PoolOptions
    ) -> None:
        self._group = group
        self._children = children
        self._reports = reports
        self._options = options
        self._timings = options.timings
        self._factory = ProcessFactory(
            group,
            options.start_method,
            options.boot,
            options.env,
            boot_timeout_s=options.timings.boot_s,
            answer_timeout_s=options.timings.fork_s,
        )
        self._active: list[Child] = []
        self._spares: list[Child] = []
        self._leaving: set[Child] = set()
        self._runs: dict[asyncio.Task[None], Child] = {}
        self._all_ready: asyncio.Future[None] | None = None
        """Only while the pool starts."""
        self.recycling_costs = RecyclingCosts()
        self._pause_s = 0.0
        self._not_before = 0.0
        self._is_closing = False
        self._liveness: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._all_ready = asyncio.get_running_loop().create_future()
        self._active = [self._new(place) for place in range(self._options.processes)]
        try:
            await self._all_ready  # or one has failed
        except BaseException as error:
            await self.__aexit__(type(error))
            raise
        self._all_ready = None
        limit_mb = self._options.boot.max_memory_mb
        baseline_mb = max((child.rss_mb for child in self._active), default=0.0)
        if limit_mb is not None and baseline_mb > HIGH_BASELINE * limit_mb:
            log.warning(
                "a child takes %.0f MB before its first task, more than 80 %% of --max-memory-per-child-mb=%g: "
                "it will be replaced often",
                baseline_mb,
                limit_mb,
            )
        # A task of its own, not a part of the heartbeat: children must be watched also while the database is unavailable.
        liveness = Liveness(LivenessPolicy.of(self._options.recovery))
        self._liveness = self._group.create_task(liveness.watch(self._children))
        self._reconcile()  # a child may have died while the others were starting
        pids = ", ".join(str(child.pid) for child in self._active)
        log.info("children are ready: pids %s; start method %s", pids, self._options.start_method)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """After a drain the children are idle and leave on their own; after an error they are killed."""
        self._is_closing = True
        for child in self._children if kind is None else ():
            if child.ready.is_set():
                child.stop()
                self._check_leaving(child)
            else:
                child.kill()
        for run, child in self._runs.items():
            if kind is not None or not child.pid:
                run.cancel()  # without a pid: it waits for a fork server, which may hang while it loads the app
        if self._runs:
            await asyncio.wait(self._runs)
        if self._liveness:
            self._liveness.cancel()
        await self._factory.close()

    def stop_starting(self) -> None:
        """Do not wait for children that are still loading the app: the worker has claimed nothing yet."""
        if self._all_ready and not self._all_ready.done():
            self._all_ready.set_exception(StoppedEarly("asked to stop before its children were ready"))

    @property
    def ready_count(self) -> int:
        """How many active children are ready."""
        return sum(child.ready.is_set() for child in list(self._active))

    def child_states(self, clock_offset_s: float) -> list[ChildState]:
        """Describe all children, with times by the clock of the database, which is this far ahead of ours."""
        clock = time.time() + clock_offset_s - time.monotonic()
        return [self._describe(child, clock) for child in self._children]

    def _describe(self, child: Child, clock: float) -> ChildState:
        running = child.assignments.running_since()
        if not child.ready.is_set():
            state = ChildStatus.STARTING
        elif child in self._leaving or child.recycling.is_retired:
            state = ChildStatus.STOPPING
        elif child.is_spare:
            state = ChildStatus.SPARE
        else:
            state = ChildStatus.BUSY if child.load else ChildStatus.IDLE
        return ChildState(
            child.pid,
            state,
            None,
            to_time(clock + child.started_at),
            # In the order in which they began.
            [
                ChildTask(claim.id, claim.task_name, to_time(clock + began_at))
                for began_at, claim in running[:MAX_TASKS]
            ],
            running=len(running),
            waiting=child.load - len(running),
        )

    # -- one child

    def _new(self, place: int = 0) -> Child:
        options, budget = self._options, None
        if most := options.max_tasks_per_child:
            # The first children may get more tasks, so that they are not all replaced at once.
            budget = most + place * most // options.processes
        child = Child(self._reports, options.boot, budget, self._reconcile, options.max_payload_bytes)
        run = self._group.create_task(self._run(child))
        self._runs[run] = child
        run.add_done_callback(self._runs.pop)
        return child

    async def _run(self, child: Child) -> None:
        """Start a child, and wait for its end."""
        try:
            await child.start(self._factory)
        except (SpawnError, OSError) as error:  # also if no descriptor is left for its socket
            self._on_exit(child, str(error))
            return
        self._children.append(child)
        if self._is_closing:
            child.kill()
        try:
            async with asyncio.TaskGroup() as group:
                booting = group.create_task(self._watch_boot(child))
                cause = await child.wait_for_exit()
                booting.cancel()
        except BaseException:
            child.kill()
            await child.wait_for_exit()
            raise
        finally:
            self._children.remove(child)
        child.report_crash(cause)
        for successor in (*self._active, *self._leaving):
            if successor.predecessor is child:
                successor.predecessor = child.predecessor
        self._on_exit(child, cause)

    async def _watch_boot(self, child: Child) -> None:
        await watch_boot(child, self._timings.boot_s)
        if child.ready.is_set():
            self._pause_s = 0.0
            if subscribers:
                emit(ChildStarted(child.pid))

    def _on_exit(self, child: Child, cause: str) -> None:
        was_active, is_expected = child in self._active, child in self._leaving or child.recycling.is_retiring
        for children in (self._active, self._spares, self._leaving):
            with suppress(ValueError, KeyError):
                children.remove(child)
        if self._is_closing:
            return
        if not child.ready.is_set():
            how = f"the child process {cause} while it was {child.current_step}" if child.pid else cause
            self._on_start_failed(child.start_error or how)
        elif not is_expected:
            log.warning("child %d %s; another takes its place", child.pid, cause)
        elif was_active:
            log.info("child %d has left: it %s", child.pid, cause)
        if subscribers and child.ready.is_set():
            emit(ChildRecycled(child.pid) if is_expected else ChildDied(child.pid, cause))
        self._reconcile()
        self._reports(child, ReportsRead())  # a ready spare may have taken its place

    def _on_start_failed(self, reason: str) -> None:
        """End the worker if it is starting. Later, the other children continue, and this one is tried again."""
        if self._all_ready:
            if not self._all_ready.done():
                self._all_ready.set_exception(ChildRefused(reason))
            return
        self._pause_s = min(max(self._timings.pause_s, 2 * self._pause_s), self._timings.longest_pause_s)
        self._not_before = time.monotonic() + self._pause_s
        log.error("a replacement child did not start, the next try is in %g s: %s", self._pause_s, reason)
        asyncio.get_running_loop().call_later(self._pause_s, self._reconcile)

    # -- replacement

    def _reconcile(self) -> None:
        """Bring the pool closer to its target. Called on the event loop whenever something has changed."""
        if self._is_closing:
            return
        if self._all_ready:
            if all(child.ready.is_set() for child in self._active) and not self._all_ready.done():
                self._all_ready.set_result(None)
            return
        self._promote_spares()
        self._fill()
        self._extend()
        self._start_spares()

    def _promote_spares(self) -> None:
        """Give the places of retiring children that have a slot free to ready spares."""
        for spare in [spare for spare in self._spares if spare.ready.is_set()]:
            retiring = [child for child in self._active if child.recycling.is_retiring]
            if not retiring:
                retiring = [child for child in self._active if child.recycling.is_extended][:1]
                for child in retiring:
                    child.recycling.is_retired = True
            old = min(retiring, key=lambda child: child.load, default=None)
            if old is None or old.load >= self._options.boot.concurrency:
                return
            self._active.remove(old)
            self._leaving.add(old)
            self.recycling_costs.observe(old, self._options)
            old.stop()
            self._check_leaving(old)
            self._promote(spare, old if old.load else None)

    def _fill(self) -> None:
        """Replace dead children: by spares, ready or not, then by new children."""
        while len(self._active) < self._options.processes:
            if self._spares:
                self._promote(max(self._spares, key=lambda spare: spare.ready.is_set()), None)
            elif time.monotonic() >= self._not_before:
                self._active.append(self._new())
            else:
                return

    def _promote(self, spare: Child, predecessor: Child | None) -> None:
        self._spares.remove(spare)
        self._active.append(spare)
        spare.is_spare, spare.predecessor = False, predecessor
        spare.recycling.promoted_at = time.monotonic()

    def _extend(self) -> None:
        """Let retiring children continue while no replacement can be started."""
        now = time.monotonic()
        lingering = sum(child.load > 0 and now - child.stopped_at >= LINGER_S for child in self._leaving)
        if not self._pause_s and lingering < self._most_spares():
            return
        for child in self._active:
            if child.recycling.is_retiring and child.extend() and self._pause_s:
                log.warning("child %d continues beyond its limits until a replacement has started", child.pid)

    def _start_spares(self) -> None:
        """Start a spare for each child that nears its limits, as far as memory allows: what is still leaving counts."""
        now = time.monotonic()
        if now < self._not_before:
            return
        near_limit = sum(child.recycling.is_near_limit(now) for child in self._active)
        while len(self._spares) < near_limit and len(self._spares) + len(self._leaving) < self._most_spares():
            spare = self._new()
            spare.is_spare = True
            self._spares.append(spare)

    def _most_spares(self) -> int:
        now = time.monotonic()
        ages = [(child.recycling.start_s, child.recycling.life_s(now)) for child in self._active]
        return most_spares(ages, self._options.processes)

    def _check_leaving(self, child: Child, *, was_idle: bool = False) -> None:
        """Kill a child that has not left although it had no task for `leave_s`. Before that, let others go on if it keeps running tasks."""
        if child not in self._children:
            return
        loop = asyncio.get_running_loop()
        if child.load:
            loop.call_later(LINGER_S, self._on_lingering, child)
            loop.call_later(self._timings.leave_s, lambda: self._check_leaving(child))
        elif not was_idle:
            loop.call_later(self._timings.leave_s, lambda: self._check_leaving(child, was_idle=True))
        else:
            log.error(
                "child %d has not left within %g s, killing it: it is %s",
                child.pid,
                self._timings.leave_s,
                child.current_step,
            )
            child.kill()

    def _on_lingering(self, child: Child) -> None:
        if not self._is_closing:
            self._reconcile()
            self._reports(child, ReportsRead())


class RecyclingCosts:
    """What starting children costs in relation to what they do, over the last ones that were replaced because of their limits."""

    def __init__(self) -> None:
        self._replaced = 0
        self._start_s = self._life_s = 0.0
        self._has_warned = False
        self.share: float | None = None
        """Of the time of these children, the share that their starts took. None if there was none."""

    def observe(self, child: Child, options: PoolOptions) -> None:
        """Add one child. Warn once if starts take as long as work."""
        start_s, life_s = child.recycling.start_s, child.recycling.life_s(time.monotonic())
        if not math.isfinite(life_s):
            return  # not because of its limits: it abandoned a task
        self._replaced += 1
        weight = max(1 / self._replaced, COST_WEIGHT)
        self._start_s += weight * (start_s - self._start_s)
        self._life_s += weight * (life_s - self._life_s)
        self.share = self._start_s / (self._start_s + self._life_s)
        if self._has_warned or self._replaced < FEWEST_REPLACED or self.share < RECYCLING_DOMINATES:
            return
        self._has_warned = True
        advice = {"spawn": ["--start-method forkserver or fork"], "forkserver": ["--start-method fork"], "fork": []}[
            options.start_method
        ]
        if options.max_tasks_per_child:
            # So that starts take a tenth of the time.
            enough = options.max_tasks_per_child * 9 * self._start_s / max(self._life_s, 1e-3)
            advice.append(f"--max-tasks-per-child {float(f'{enough:.1g}'):.0f} or more")
        if options.boot.max_memory_mb is not None:
            advice.append("a larger --max-memory-per-child-mb")
        log.warning(
            "recycling takes %.0f %% of the time of the children: one takes %.2f s to start and reaches its limits after %.2f s; "
            "use %s, or import less",
            100 * self.share,
            self._start_s,
            self._life_s,
            ", or ".join(advice),
        )


def most_spares(starts_and_lives: Iterable[tuple[float, float]], processes: int) -> int:
    """Return how many children wear out in the time that a start takes: at least one, at most all. Of each child, how long it started and works."""
    worn_out = sum(start_s / max(life_s, 1e-6) for start_s, life_s in starts_and_lives)
    return max(1, min(processes, math.ceil(worn_out)))


# -- liveness: what a process does

BUSY_SHARE: Final = 0.02
"""A thread that uses this share of a CPU is working. One that only waits for the GIL wakes up 200 times a second and uses less."""
BUSY_S: Final = 0.02
"""And at least this much: the kernel counts in hundredths of a second."""


class ThreadTimes(NamedTuple):
    state: str
    """As in `/proc`: R, S, D, T (stopped), t (traced) and so on."""
    cpu_s: float


Threads: TypeAlias = Mapping[int, ThreadTimes]


class ProcessActivity(Enum):
    """What a process did between two checks."""

    WORKING = auto()
    """A thread ran or waited for a disk, or a debugger has stopped it. Also if nothing can be seen."""
    IDLE = auto()
    STOPPED = auto()


def read_threads(pid: int) -> Threads | None:
    """Read the threads of a process from `/proc`; None where that is not possible."""
    if sys.platform != "linux":
        return None
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    threads: dict[int, ThreadTimes] = {}
    try:
        for entry in Path(f"/proc/{pid}/task").iterdir():
            # The fields follow the name in parentheses, which may itself contain spaces and parentheses.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            threads[int(entry.name)] = ThreadTimes(fields[0], (int(fields[11]) + int(fields[12])) * tick_s)
    except (OSError, ValueError, IndexError):
        return None
    return threads


def compare_threads(before: Threads | None, now: Threads | None, elapsed_s: float) -> ProcessActivity:
    if not now:
        return ProcessActivity.WORKING
    states = {thread.state for thread in now.values()}
    if states == {"T"}:
        return ProcessActivity.STOPPED
    if not before or states & {"D", "t"} or before.keys() != now.keys():
        return ProcessActivity.WORKING
    for number, thread in now.items():
        # Runnable at both checks: it works, on a machine without a free CPU.
        is_runnable = thread.state == before[number].state == "R"
        if is_runnable or thread.cpu_s - before[number].cpu_s >= max(BUSY_S, BUSY_SHARE * elapsed_s):
            return ProcessActivity.WORKING
    return ProcessActivity.IDLE


# -- liveness: the decision

REPORT_AFTER_S: Final = 30.0
BLOCKED_AFTER_S: Final = 5.0
"""An event loop that has not run for so long is blocked."""
LONGEST_INTERVAL_S: Final = 3.0
REGULAR_INTERVALS: Final = 3.0
"""A check that comes later than this many intervals after the last one starts the count again."""
PROGRESS_BYTES: Final = 1 << 16


class LivenessPolicy(NamedTuple):
    """When a child is killed: see `RecoveryConfig`."""

    frozen_after: float | Literal["auto"] | None
    """A number of seconds counts silence alone."""
    stopped_after_s: float
    interval_s: float
    idle_after_s: float = 60.0

    @classmethod
    def of(cls, recovery: RecoveryConfig) -> "LivenessPolicy":
        after = recovery.frozen_after_ms
        interval_s = min(recovery.heartbeat_ms / 1000, LONGEST_INTERVAL_S)
        return cls(after / 1000 if isinstance(after, int) else after, recovery.dead_after_ms / 1000, interval_s)


class Silence(NamedTuple):
    """Since when one child has been seen in each condition, without a gap. All times are on the monotonic clock."""

    seen_at: float
    silent_since: float
    idle_since: float | None = None
    stopped_since: float | None = None
    stuck_since: float | None = None
    """It has sent part of a message and not the rest."""


def observe_silence(
    before: Silence | None, now: float, activity: ProcessActivity, policy: LivenessPolicy, *, is_stuck: bool = False
) -> Silence:
    """Add one check of a child that has not answered its ping."""
    if before is None or not 0 <= now - before.seen_at <= REGULAR_INTERVALS * policy.interval_s:
        return Silence(now, now, stopped_since=now if activity is ProcessActivity.STOPPED else None)

    def earlier(since: float | None, default: float) -> float:
        return default if since is None else since

    # Idle and stuck describe the time since the last check. Stopped is only known of this moment.
    return Silence(
        now,
        before.silent_since,
        None if activity is ProcessActivity.WORKING else earlier(before.idle_since, before.seen_at),
        None if activity is not ProcessActivity.STOPPED else earlier(before.stopped_since, now),
        None if not is_stuck else earlier(before.stuck_since, before.seen_at),
    )


def why_kill(silence: Silence, policy: LivenessPolicy) -> str | None:
    """Return what is wrong with a child if it must be killed."""

    def lasts_longer(since: float | None, limit_s: float) -> bool:
        return since is not None and silence.seen_at - since > limit_s

    if lasts_longer(silence.stuck_since, policy.stopped_after_s):  # whatever the policy: nothing it sends can be read
        return "it sent a part of a message and not the rest"
    match policy.frozen_after:
        case None:
            return None
        case "auto":
            if lasts_longer(silence.stopped_since, policy.stopped_after_s):
                return "its process was stopped"
            return "its process did nothing at all" if lasts_longer(silence.idle_since, policy.idle_after_s) else None
        case seconds:
            return f"frozen_after_ms={seconds * 1000:.0f}" if lasts_longer(silence.silent_since, seconds) else None


# -- liveness: the checks


class Liveness:
    """Checks all children of a worker, until cancelled."""

    def __init__(self, policy: LivenessPolicy) -> None:
        self._policy = policy
        self._silent = WeakKeyDictionary[Child, tuple[Silence, Threads | None, int]]()
        self._reported = WeakSet[Child]()
        self._blocked = WeakSet[Child]()

    async def watch(self, children: Iterable[Child]) -> None:
        while True:
            await asyncio.sleep(self._policy.interval_s)
            try:
                self.check(list(children))
            except Exception:  # a failed check must not end the worker
                log.exception("the children could not be checked")

    def check(self, children: Iterable[Child]) -> None:
        now = time.monotonic()
        for child in [child for child in children if child.ready.is_set()]:
            if child.unanswered_since is None:
                self._silent.pop(child, None)
                self._reported.discard(child)
                self._check_loop(child, now)
            else:
                self._check_silent(child, now)
            child.ping(now)

    def _check_silent(self, child: Child, now: float) -> None:
        before, threads_before, bytes_before = self._silent.get(child, (None, None, 0))
        threads, received_bytes = read_threads(child.pid), child.received_bytes
        activity = compare_threads(threads_before, threads, now - before.seen_at if before else 0.0)
        is_stuck = child.unpacker.is_mid_message and received_bytes - bytes_before < PROGRESS_BYTES
        silence = observe_silence(before, now, activity, self._policy, is_stuck=is_stuck)
        self._silent[child] = silence, threads, received_bytes
        silent_s = now - silence.silent_since
        if reason := why_kill(silence, self._policy):
            event = f"has not answered for {silent_s:.0f} s ({reason})"
            log.error("child %d %s and is killed; it runs %s", child.pid, event, child.describe_running())
            child.kill(f"the child process (pid {child.pid}) that ran it {event} and was killed")
        elif silent_s > REPORT_AFTER_S and child not in self._reported:
            self._reported.add(child)
            log.warning(
                "child %d has not answered for %.0f s; it runs %s", child.pid, silent_s, child.describe_running()
            )

    def _check_loop(self, child: Child, now: float) -> None:
        """Check the event loop of a child whose interpreter answers. A blocked loop cannot begin any task: take them back."""
        since = child.loop_unanswered_since
        if since is None or not child.load or now - since <= BLOCKED_AFTER_S:
            self._blocked.discard(child)
            return
        if child not in self._blocked:
            self._blocked.add(child)
            log.warning(
                "the event loop of child %d has not run for %.0f s: a coroutine blocks it; it runs %s",
                child.pid,
                now - since,
                child.describe_running(),
            )
        child.close_blocked()
