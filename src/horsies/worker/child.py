"""The parent's end of one child process: its socket, its assignments, and when it is to be replaced.

A child has ended when its *process* is gone. The end of the stream alone does not prove it: a program that a task started may hold the other end open,
or user code may have closed it. In the second case the child is killed.

A child *retires* when it was assigned its `budget` of tasks, has grown too big, or abandoned a task. It gets no new tasks, and leaves when its own have
ended and the pool has a replacement.

A claim has an *assignment number* between the parent and one child. `Assignments` holds the claims of a child by that number.
"""

import asyncio
import logging
import math
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from horsies.executor.inbox import RECV_BYTES
from horsies.executor.protocol import (
    NO_ASSIGNMENT,
    Assignment,
    Began,
    Boot,
    Booting,
    Done,
    Interrupt,
    KeepRunning,
    LogLines,
    LoopAlive,
    Message,
    Ping,
    Pong,
    Progress,
    ProtocolError,
    Ready,
    Recall,
    ReportUnpacker,
    Returned,
    RunTasks,
    StartFailed,
    Stop,
    StopReason,
    pack,
)
from horsies.model.attempt_log import LoggedLine
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim
from horsies.worker.spawn import Process, ProcessFactory, describe_exit

KEPT_BYTES = 1 << 16
"""A larger payload is dropped once it is sent to the child: the parent would otherwise hold the payloads of all running tasks."""
SLOW_AFTER_S = 0.02
"""A task that has run this long is slow: what waits behind it in its child is recalled."""
SLOW_TOGETHER_S = 0.05
"""The same for many tasks that have run this long together. More, because a busy machine slows all of them, wherever they run."""
ASSIGNMENT_BYTES = 1 << 25
NO_LIMIT = sys.maxsize
"""Of the number of tasks that a child may be assigned."""
NAMES_SHOWN = 5

assigned_fields = itemgetter(*map(Claim._fields.index, Assignment._fields[1:]))
"""What is sent to a child of a claim, whose payload must have been read."""

log = logging.getLogger("horsies.worker")


class Assignments:
    """A claim is added, then begun, then ended, returned or abandoned."""

    def __init__(self) -> None:
        self.claims: dict[int, Claim] = {}
        self.begun: dict[int, float] = {}
        """When each running task began, on the monotonic clock."""
        self.kill_reasons: dict[int, TaskError] = {}
        """The errors with which tasks end if their child dies before they have ended."""
        self.abandoned: set[int] = set()
        self.groups: deque[tuple[int, int, float]] = deque()
        """Groups in which a task waits: their last assignment number, how long the child had worked when they were assigned, and when that was."""
        self.last_no = 0

    def __contains__(self, assignment_no: int) -> bool:
        return assignment_no in self.claims

    def end(self, assignment_no: int) -> Claim:
        self.begun.pop(assignment_no, None)
        self.kill_reasons.pop(assignment_no, None)
        return self.claims.pop(assignment_no)

    def remove_all(self, crash: TaskError) -> "ChildExited":
        """Remove everything, because the child is dead. A task with a kill reason counts as begun."""
        begun = self.begun.keys() | self.kill_reasons.keys()
        ended = [(claim, self.kill_reasons.get(no, crash)) for no, claim in self.claims.items() if no in begun]
        waiting = [claim for no, claim in self.claims.items() if no not in begun]
        self.claims.clear()
        self.begun.clear()
        return ChildExited(ended, waiting)

    @property
    def has_waiting(self) -> bool:
        return len(self.claims) > len(self.begun)

    def is_waiting(self, assignment_no: int) -> bool:
        return assignment_no in self.claims and assignment_no not in self.begun

    def items(self) -> list[tuple[int, Claim]]:
        return list(self.claims.items())

    def running(self) -> list[tuple[int, Claim]]:
        return [(assignment_no, self.claims[assignment_no]) for assignment_no in self.begun]

    def running_since(self) -> list[tuple[float, Claim]]:
        """Return the running tasks, with when they began on the monotonic clock."""
        return [(began_at, self.claims[assignment_no]) for assignment_no, began_at in self.begun.items()]

    def running_claim(self, assignment_no: int) -> Claim | None:
        """Return the claim with this number, if it is still running."""
        return self.claims.get(assignment_no) if assignment_no in self.begun else None


class TaskBegan(NamedTuple):
    assignment_no: int
    claim: Claim


class TaskProgress(NamedTuple):
    claim: Claim
    fraction: float | None
    message: str | None


class TaskLogged(NamedTuple):
    claim: Claim
    lines: Sequence[LoggedLine]


class TaskDone(NamedTuple):
    claim: Claim
    done: Done


class TasksReturned(NamedTuple):
    """They have not begun, and will not begin in this child."""

    claims: list[Claim]


class ChildExited(NamedTuple):
    """What had begun in a dead child, each with its error, and what had not, in the order of assignment."""

    begun: list[tuple[Claim, TaskError]]
    waiting: list[Claim]


class ReportsRead(NamedTuple):
    """All that has arrived from one child was reported, or it can take more."""


ChildReport: TypeAlias = TaskBegan | TaskProgress | TaskLogged | TaskDone | TasksReturned | ChildExited | ReportsRead
ReportHandler: TypeAlias = Callable[["Child", ChildReport], None]
"""Receives what children report. Always called on the event loop."""


class Child:
    """One child process. `on_change` is called when it becomes ready, and after each report of one that retires or soon will."""

    def __init__(
        self, report: ReportHandler, boot: Boot, budget: int | None, on_change: Callable[[], None], max_payload: int
    ) -> None:
        self._report = report
        self._boot = boot
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._process: Process | None = None
        self.pid = 0  # until it has started
        self._socket: socket.socket | None = None
        """Our end, while it is open."""
        self._out = bytearray()
        self._read_error: str | None = None
        self._kill_reason: str | None = None
        self._has_reports = False
        self._worked_us = 0
        self._is_loop_blocked = False
        self._task_on_loop = NO_ASSIGNMENT
        self.unpacker = ReportUnpacker(max_payload)
        self.received_bytes = 0
        self.assignments = Assignments()
        self.recycling = RecyclePolicy(budget)
        self.ready = asyncio.Event()
        self.started_at = time.monotonic()
        self.current_step = "starting"
        self.start_error: str | None = None
        self.rss_mb = 0.0
        self.is_recalled = False
        self.began_at = 0.0
        self.stopped_at = 0.0
        self.unanswered_since: float | None = None
        """When it was pinged, if it has sent nothing since then."""
        self.loop_unanswered_since: float | None = None
        """The same for its event loop, if it has one."""
        self.loop_answers = 0
        self.is_spare = False
        """It has no place in the pool yet, and gets no tasks."""
        self.predecessor: Child | None = None
        """The child whose place it has taken, while that still runs tasks: it may use the slots that are left."""

    # -- process

    async def start(self, factory: ProcessFactory) -> None:
        self._process, ours = await factory.start()
        self.pid = self._process.pid
        ours.settimeout(0)
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._on_readable)
        self._send(self._boot)

    async def wait_for_exit(self) -> str:
        """Wait for the process and process its last messages. Return how it ended, in words."""
        assert self._process is not None  # noqa: S101 - it has been started
        code = await self._process.wait()
        while self._socket and self._read(self._socket):
            pass
        self._close()
        return describe_exit(code)

    def stop(self) -> None:
        """Ask it to leave when it has finished its assignments."""
        self.recycling.is_retired = True
        self.stopped_at = time.monotonic()
        self._send(Stop())

    def kill(self, reason: str | None = None) -> None:
        """Kill it. `reason` becomes the error message of its running tasks, except those with a kill reason of their own."""
        self._kill_reason = self._kill_reason or reason
        if self._process:
            self._process.kill()

    def kill_blocked(self) -> None:
        """Kill it because one task blocks the event loop, so that the others cannot end."""
        log.error("child %d is killed: its event loop is blocked; it runs %s", self.pid, self.describe_running())
        blocker = self.assignments.running_claim(self._task_on_loop)
        if blocker is not None and self._task_on_loop not in self.assignments.kill_reasons:
            message = f"it blocked the event loop of its child process (pid {self.pid}), which was killed"
            self.set_kill_reason(self._task_on_loop, OperationalErrorCode.WORKER_CRASHED, message)
        name = "" if blocker is None else f", {blocker.task_name},"
        self.kill(
            f"another task{name} of the same child process (pid {self.pid}) blocked its event loop; it was killed"
        )

    def report_crash(self, cause: str) -> None:
        """Report, after its death, which tasks had begun and which had not."""
        message = self._kill_reason or f"the child process (pid {self.pid}) {cause} while it ran this task"
        crash = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message=message)
        self._report(self, self.assignments.remove_all(crash))

    # -- tasks

    @property
    def budget_left(self) -> int:
        """How many more tasks it may be assigned now; `NO_LIMIT` for any number."""
        if (
            self.is_spare
            or self.is_recalled
            or self._is_loop_blocked
            or self._socket is None
            or not self.ready.is_set()
        ):
            return 0
        if self._boot.concurrency == 1 and self.assignments.begun and time.monotonic() - self.began_at > SLOW_AFTER_S:
            return 0  # its current task has taken so long that no other should wait behind it
        left, older = self.recycling.left, self.predecessor
        if older is None:
            return left
        free = self._boot.concurrency - self.load
        while older is not None:
            free -= older.load
            older = older.predecessor
        return max(0, min(left, free))

    @property
    def load(self) -> int:
        return len(self.assignments.claims)

    def stuck_behind(self, now: float, slow_after_s: float, slow_together_s: float) -> int | None:
        """Return the slow task that its unbegun tasks wait for, or `NO_ASSIGNMENT` if many tasks together are slow. None if they were recalled already.

        One task may also seem slow because the machine was busy. By the time the child reads the recall, that task has ended.
        """
        begun, groups = self.assignments.begun, self.assignments.groups
        if self.is_recalled or not begun:
            return None
        _last_no, worked_before_us, waiting_since = groups[0] if groups else (0, self._worked_us, math.inf)
        if self._boot.concurrency > 1:
            # Only what has no slot waits for others. It waits for whichever ends first, so none of them is the slow one.
            has_stopped = now - max(self.began_at, waiting_since) > slow_after_s
            is_late = now - waiting_since > slow_together_s
            return NO_ASSIGNMENT if self.load > self._boot.concurrency and (has_stopped or is_late) else None
        running_s = now - self.began_at
        # Count only the time inside tasks. What is between them takes as long in any other child.
        if running_s + (self._worked_us - worked_before_us) / 1_000_000 > slow_together_s:
            return NO_ASSIGNMENT
        return next(iter(begun)) if running_s > slow_after_s else None

    def assign(self, claims: Sequence[Claim]) -> None:
        """Send it these tasks. Their rows must be RUNNING in the database already."""
        held, now = self.assignments, time.monotonic()
        self.recycling.add(len(claims), now)
        for share in _split_by_size(claims) if len(claims) > 1 else (claims,):
            if len(held.claims) == len(held.begun):
                held.groups.clear()
            run = RunTasks([])
            for claim in share:
                held.last_no += 1
                held.claims[held.last_no] = claim
                run.assignments.append(Assignment._make((held.last_no, *assigned_fields(claim))))
            held.groups.append((held.last_no, self._worked_us, now))
            # It has the large payloads now. Only a message that is large itself can contain one.
            if self._send(run) > KEPT_BYTES:
                for assignment_no, *_ in run.assignments:
                    if (claim := held.claims[assignment_no]).weight > KEPT_BYTES:
                        held.claims[assignment_no] = claim._replace(args="", inputs=None)

    def recall(self, behind: int) -> None:
        """Ask for its unbegun tasks, which it returns. It gets no new ones until its current task has ended."""
        self.is_recalled = True
        self._send(Recall(behind))

    def describe_running(self) -> str:
        """Return the names of its running tasks, for the log."""
        names = sorted({claim.task_name for _, claim in self.assignments.running()})
        shown = ", ".join(names[:NAMES_SHOWN])
        return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown or "nothing"

    # -- liveness

    def ping(self, now: float) -> None:
        """Ask the process, and its event loop if it has one, for an answer."""
        self._send(Ping())
        self.unanswered_since = now if self.unanswered_since is None else self.unanswered_since
        if self._boot.concurrency > 1:
            self.loop_unanswered_since = now if self.loop_unanswered_since is None else self.loop_unanswered_since

    def ping_loop(self) -> int:
        """Ask the event loop for an answer. It has come when `loop_answers` differs from what is returned here."""
        self.ping(time.monotonic())
        return self.loop_answers

    def close_blocked(self) -> None:
        """Assign nothing more until its event loop runs again, and ask for its unbegun tasks."""
        self._is_loop_blocked = True
        if self.assignments.has_waiting:
            self._send(Recall(NO_ASSIGNMENT))

    # -- stopping a task

    def interrupt(self, assignment_no: int, reason: StopReason) -> None:
        """Raise an exception in the task."""
        self._send(Interrupt(assignment_no, reason))

    def set_kill_reason(self, assignment_no: int, error_code: str, message: str) -> None:
        """Set how the task ends if the child dies before it: with this error, not as crashed."""
        if assignment_no in self.assignments.claims:
            self.assignments.kill_reasons[assignment_no] = TaskError(error_code=error_code, message=message)

    def abandon(self, assignment_no: int) -> tuple[Claim, TaskError]:
        """Forget a task that does not stop, and return how it ends. The child still runs others: it retires, and is killed when they have ended."""
        error = self.assignments.kill_reasons.get(assignment_no) or TaskError(
            error_code=OperationalErrorCode.WORKER_CRASHED, message="the task was abandoned because it did not stop"
        )
        claim = self.assignments.end(assignment_no)
        self.assignments.abandoned.add(assignment_no)
        self.recycling.is_retired = True
        if not self.assignments.claims:
            self.kill()
        self._on_change()
        return claim, error

    # -- recycling

    def extend(self) -> bool:
        """Let it continue beyond its limits, because no replacement can be started. False if it cannot: it abandoned a task."""
        if self.recycling.is_retired:
            return False
        self.recycling.is_extended = True
        if self.recycling.is_too_big:
            self._send(KeepRunning())
        return True

    # -- messages

    def _on_message(self, message: Message) -> None:  # noqa: C901 - one case for each kind
        assignments = self.assignments
        self.unanswered_since = None
        # There is a Began for every task, and by itself it changes nothing that the dispatcher could act on.
        self._has_reports = self._has_reports or not isinstance(message, Began)
        match message:
            case Began(number) if number in assignments.claims and number not in assignments.begun:
                self.began_at = assignments.begun[number] = time.monotonic()
                while assignments.groups and assignments.groups[0][0] <= number:
                    assignments.groups.popleft()
                self._report(self, TaskBegan(number, assignments.claims[number]))
            case Progress(number, fraction, text):
                if number in assignments.claims:  # else it comes from a thread that outlived its task
                    self._report(self, TaskProgress(assignments.claims[number], fraction, text))
            # A task that has not begun can only have been cancelled.
            case Done(number, status) if number in assignments.begun or (
                status == TaskStatus.CANCELLED.value and number in assignments.claims
            ):
                self.is_recalled = False
                self._worked_us += message.duration_us
                if message.leaving:
                    self.recycling.set_too_big(time.monotonic())
                self._report(self, TaskDone(assignments.end(number), message))
            case Returned(numbers) if all(map(assignments.is_waiting, numbers)):
                self.recycling.assigned -= len(numbers)
                self._report(self, TasksReturned([assignments.end(number) for number in numbers]))
                # Not if it has a free slot: the end of a long task, which would reset it, may be hours away.
                self.is_recalled = self.is_recalled and self.load >= self._boot.concurrency
            case Done(number) if number in assignments.abandoned:
                assignments.abandoned.remove(number)  # it has ended after all; its result is ignored
            case LogLines(number, lines):
                if number in assignments.claims:  # else its task was abandoned
                    self._report(self, TaskLogged(assignments.claims[number], lines))
            case _:
                self._on_process_message(message)

    def _on_process_message(self, message: Message) -> None:
        match message:
            case Booting(step):
                self.current_step = step
            case Ready(_, rss_mb) if not self.ready.is_set():
                self._on_ready(rss_mb)
            case StartFailed(reason):
                self.start_error = reason
                self.kill()  # it would wait for threads that the app has started
            case Pong(task_on_loop):
                self._task_on_loop = task_on_loop
            case LoopAlive():
                self.loop_unanswered_since = None
                self.loop_answers += 1
                self._is_loop_blocked = False
            case _:
                raise ProtocolError(f"unexpected message from child: {type(message).__name__}")

    def _on_ready(self, rss_mb: float) -> None:
        self.rss_mb = rss_mb
        limit_mb = self._boot.max_memory_mb
        if limit_mb is not None and rss_mb >= limit_mb:
            self.start_error = (
                f"a child takes {rss_mb:.0f} MB before its first task, so --max-memory-per-child-mb={limit_mb:g} would "
                f"replace it after every task; allow well over {rss_mb:.0f}, or import less"
            )
            self.kill()
        else:
            now = time.monotonic()
            self.recycling.start_s, self.recycling.promoted_at = now - self.started_at, now
            self.ready.set()
            self._on_change()

    # -- socket: whole messages, without ever blocking the event loop

    @property
    def unsent_bytes(self) -> int:
        return len(self._out)

    def _on_readable(self) -> None:
        if self._socket and not self._read(self._socket):
            self._close()
            if self._read_error is None:
                self.kill()  # it may be exiting on its own, and its exit code says more than we could
            else:
                log.error("child %d %s, and is killed", self.pid, self._read_error)
                self.kill(f"the child process (pid {self.pid}) that ran it {self._read_error}, and was killed")
        if self._has_reports:
            self._has_reports = False
            if self.assignments.abandoned and not self.assignments.claims:
                self.kill()
            if self.recycling.is_near_limit(time.monotonic()):
                self._on_change()
            self._report(self, ReportsRead())

    def _read(self, ours: socket.socket) -> bool:
        """Read once. False if nothing more will come."""
        try:
            data = ours.recv(RECV_BYTES)
        except OSError:
            return False
        self.received_bytes += len(data)
        try:
            for message in self.unpacker.feed(data):
                self._on_message(message)
        except ProtocolError as error:
            self._read_error = f"sent invalid data ({error})"
            return False
        except Exception:
            # The rest of these messages is lost, and the first ones would be processed twice: do not read from this child again.
            log.exception("a report of a child could not be processed")
            self._read_error = "sent a report that could not be processed"
            return False
        return bool(data)

    def _send(self, message: Message) -> int:
        """Send a message, and return its length; to a dead child, do nothing."""
        data = pack(message)
        if self._socket and self._out:
            self._out += data
        elif self._socket:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                sent = len(data)  # the child is dying; its process reports the end
            if sent < len(data):
                self._out += data[sent:]
                self._loop.add_writer(self._socket.fileno(), self._on_writable)
        return len(data)

    def _on_writable(self) -> None:
        """Go on with what the socket did not accept before."""
        assert self._socket is not None  # noqa: S101 - `_close` removes the writer
        try:
            del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # the child is dying; its process reports the end
        if not self._out:
            self._loop.remove_writer(self._socket.fileno())
            self._report(self, ReportsRead())

    def _close(self) -> None:
        if self._socket:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._out.clear()


def _split_by_size(claims: Iterable[Claim]) -> Iterator[list[Claim]]:
    """Split claims into messages of at most ASSIGNMENT_BYTES. A larger claim gets a message of its own."""
    share: list[Claim] = []
    weight = 0
    for claim in claims:
        if share and weight + claim.weight > ASSIGNMENT_BYTES:
            yield share
            share, weight = [], 0
        share.append(claim)
        weight += claim.weight
    if share:
        yield share


NEAR_LIMIT = 0.8
"""A child needs a replacement when it was assigned this share of its budget."""
START_LEAD = 2.0
"""And earlier, if the rest will not last for this many starts of a child: without a replacement it would be idle."""
PACE_KNOWN = 0.1
"""After this share of its budget the pace of a child is known. One task says nothing about the next."""


@dataclass(slots=True)
class RecyclePolicy:
    """When one child is replaced. `budget` is how many tasks it may be assigned (None: any number). Times are on the monotonic clock."""

    budget: int | None
    assigned: int = 0
    start_s: float = 0.0
    promoted_at: float = 0.0
    """When it was ready, or got its place."""
    worn_out_at: float | None = None
    is_too_big: bool = False
    is_extended: bool = False
    """It continues beyond its limits, because no replacement could be started."""
    is_retired: bool = False
    """It is replaced whatever happens."""

    def add(self, tasks: int, now: float) -> None:
        self.assigned += tasks
        if self.budget is not None and self.assigned >= self.budget and not self.is_extended:
            self.worn_out_at = now

    def set_too_big(self, now: float) -> None:
        if not self.is_too_big:
            self.is_too_big, self.worn_out_at = True, now

    @property
    def left(self) -> int:
        """How many more tasks it may be assigned: none if it is to be replaced, `NO_LIMIT` for any number."""
        if self.is_retired:
            return 0
        if self.is_extended:
            return NO_LIMIT
        if self.is_too_big:
            return 0
        return NO_LIMIT if self.budget is None else max(0, self.budget - self.assigned)

    @property
    def is_retiring(self) -> bool:
        return self.left == 0

    def life_s(self, now: float) -> float:
        if self.worn_out_at is not None:
            return self.worn_out_at - self.promoted_at
        if self.budget is None or self.assigned < max(1, self.budget * PACE_KNOWN):
            return math.inf
        return (now - self.promoted_at) * self.budget / self.assigned

    def is_near_limit(self, now: float) -> bool:
        """Whether a replacement is needed now or soon. With a budget of two, after the first task."""
        if self.is_retired or self.is_too_big:
            return True
        if self.budget is None:
            return False
        if self.assigned >= min(self.budget - 1, self.budget * NEAR_LIMIT):
            return True
        return self.life_s(now) * (1 - self.assigned / self.budget) < START_LEAD * self.start_s
