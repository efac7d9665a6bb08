"""Do the children live? They are asked over the socket again and again; it is the interpreter that answers, not the task.

Silence alone is no proof of death: a call into C that holds the GIL is silent and healthy. So by default a silent child is killed only if
nothing in it works, either: its process is stopped, or none of its threads has used the CPU or waited for a disk for long. That is told by
`/proc`; on systems without it silence is only reported.

What counts is what was seen in looks that followed each other regularly. When this process itself was paused, its children may have been,
too: a gap starts the watch anew.

An event loop of a child may be blocked while its interpreter answers. That is reported, and what has not begun there is taken back.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from horsies.model.recovery import RecoveryConfig
from horsies.worker.member import Member

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


class Thread(NamedTuple):
    state: str
    """As in `/proc`: R, S, D, T (stopped), t (traced) and so on."""
    cpu_s: float


Threads: TypeAlias = Mapping[int, Thread]


class Doing(Enum):
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
    found: dict[int, Thread] = {}
    try:
        for entry in Path(f"/proc/{pid}/task").iterdir():
            # The name, in parentheses, may hold anything.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            found[int(entry.name)] = Thread(fields[0], (int(fields[11]) + int(fields[12])) * tick_s)
    except (OSError, ValueError, IndexError):
        return None
    return found


def doing_of(before: Threads | None, now: Threads | None, elapsed_s: float) -> Doing:
    if not now:
        return Doing.WORKS
    states = {thread.state for thread in now.values()}
    if states == {"T"}:
        return Doing.STOPPED
    if not before or states & {"D", "t"} or before.keys() != now.keys():
        return Doing.WORKS
    for number, thread in now.items():
        # Runnable twice: it works, on a machine that has no CPU for it.
        is_runnable = thread.state == before[number].state == "R"
        if is_runnable or thread.cpu_s - before[number].cpu_s >= max(BUSY_S, BUSY_SHARE * elapsed_s):
            return Doing.WORKS
    return Doing.IDLE


# -- what is made of it


class Policy(NamedTuple):
    """When to kill: see `RecoveryConfig`."""

    frozen_after: float | Literal["auto"] | None
    """In seconds; a number counts silence alone."""
    stopped_after_s: float
    interval_s: float
    idle_after_s: float = IDLE_AFTER_S

    @classmethod
    def of(cls, recovery: RecoveryConfig) -> "Policy":
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


def watched(before: Silence | None, now: float, doing: Doing, policy: Policy, *, is_stuck: bool = False) -> Silence:
    """One more look at a child that has been asked and has not answered."""
    if before is None or not 0 <= now - before.seen_at <= REGULAR * policy.interval_s:
        return Silence(now, now, stopped_since=now if doing is Doing.STOPPED else None)
    since = before.seen_at
    return Silence(
        now,
        before.silent_since,
        None if doing is Doing.WORKS else _first(before.idle_since, since),
        None if doing is not Doing.STOPPED else _first(before.stopped_since, now),
        None if not is_stuck else _first(before.stuck_since, since),
    )


def _first(former: float | None, now: float) -> float:
    return now if former is None else former


def why_kill(silence: Silence, policy: Policy) -> str | None:
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

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._silent: dict[Member, tuple[Silence, Threads | None, int]] = {}
        self._reported: set[Member] = set()
        self._blocked: set[Member] = set()

    async def watch(self, roster: Iterable[Member]) -> None:
        while True:
            await asyncio.sleep(self._policy.interval_s)
            try:
                self.look(list(roster))
            except Exception:  # a look that fails must not end the worker
                log.exception("could not look after the children")

    def look(self, roster: Iterable[Member]) -> None:
        now = time.monotonic()
        ready = {member for member in roster if member.ready.is_set()}
        self._silent = {member: seen for member, seen in self._silent.items() if member in ready}
        self._reported &= ready
        self._blocked &= ready
        for member in ready:
            if member.asked_since is None:
                self._silent.pop(member, None)
                self._reported.discard(member)
                self._look_at_loop(member, now)
            else:
                self._look_at_silent(member, now)
            member.ping(now)

    def _look_at_silent(self, member: Member, now: float) -> None:
        """It has been asked at the last look, at least, and has not said a word."""
        before, threads_before, received_before = self._silent.get(member, (None, None, 0))
        threads, received = threads_of(member.pid), member.received
        doing = doing_of(threads_before, threads, now - before.seen_at if before else 0.0)
        is_stuck = member.is_mid_frame and received - received_before < SWALLOWED_BYTES
        silence = watched(before, now, doing, self._policy, is_stuck=is_stuck)
        self._silent[member] = silence, threads, received
        silent_s = now - silence.silent_since
        if reason := why_kill(silence, self._policy):
            words = f"gave no sign of life for {silent_s:.0f} s ({reason})"
            log.error("child %d %s and is killed; it runs %s", member.pid, words, member.describe_running())
            member.kill(f"the child process (pid {member.pid}) that ran it {words} and was killed")
        elif silent_s > REPORT_AFTER_S and member not in self._reported:
            self._reported.add(member)
            log.warning(
                "child %d has given no sign of life for %.0f s; it runs %s",
                member.pid,
                silent_s,
                member.describe_running(),
            )

    def _look_at_loop(self, member: Member, now: float) -> None:
        """Its interpreter answers. An event loop that does not can begin nothing: what waits there is better off elsewhere."""
        asked = member.loop_asked_since
        if asked is None or not member.tickets.has_begun or now - asked <= BLOCKED_AFTER_S:
            self._blocked.discard(member)
            return
        if member not in self._blocked:
            self._blocked.add(member)
            log.warning(
                "the event loop of child %d has not run for %.0f s: a coroutine blocks it; it runs %s",
                member.pid,
                now - asked,
                member.describe_running(),
            )
        member.close_blocked()
