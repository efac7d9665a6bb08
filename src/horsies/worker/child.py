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
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.payload_errors import DEFAULT_MAX_BYTES
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


class Assignments:
    """A claim is added, then begun, then ended, taken back or abandoned.

    A *kill reason* is the error with which a task ends if its child dies before the task has ended.
    """

    def __init__(self) -> None:
        self._claims: dict[int, Claim] = {}
        self._begun: dict[int, float] = {}
        """When each running task began, on the monotonic clock."""
        self._kill_reasons: dict[int, TaskError] = {}
        self._abandoned: set[int] = set()
        self._groups: deque[tuple[int, int, float]] = deque()
        """Groups in which a task waits: their last assignment number, how long the child had worked when they were assigned, and when that was."""
        self._last_no = 0

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, assignment_no: int) -> bool:
        return assignment_no in self._claims

    def __getitem__(self, assignment_no: int) -> Claim:
        return self._claims[assignment_no]

    # -- changes

    def add(self, claims: Iterable[Claim], worked_us: int) -> RunTasks:
        """Assign these to the child, whose tasks have taken `worked_us` until now. Returns the message to send."""
        if not self.has_waiting:
            self._groups.clear()
        run = RunTasks([])
        for claim in claims:
            self._last_no += 1
            run.assignments.append(assignment_from_claim(self._last_no, claim))
            self._claims[self._last_no] = claim if claim.weight <= KEPT_BYTES else claim._replace(args="", inputs=None)
        self._groups.append((self._last_no, worked_us, time.monotonic()))
        return run

    def begin(self, assignment_no: int, began_at: float) -> Claim:
        self._begun[assignment_no] = began_at
        while self._groups and self._groups[0][0] <= assignment_no:
            self._groups.popleft()
        return self._claims[assignment_no]

    def end(self, assignment_no: int) -> Claim:
        self._begun.pop(assignment_no, None)
        self._kill_reasons.pop(assignment_no, None)
        return self._claims.pop(assignment_no)

    def take_back(self, assignment_nos: Iterable[int]) -> list[Claim]:
        return [self._claims.pop(assignment_no) for assignment_no in assignment_nos]

    def set_kill_reason(self, assignment_no: int, kill_reason: TaskError) -> None:
        if assignment_no in self._claims:
            self._kill_reasons[assignment_no] = kill_reason

    def abandon(self, assignment_no: int) -> tuple[Claim, TaskError]:
        """Remove a task that does not stop. Returns the error with which it ends."""
        kill_reason = self._kill_reasons.get(assignment_no) or TaskError(
            error_code=OperationalErrorCode.WORKER_CRASHED, message="the task was abandoned because it did not stop"
        )
        self._abandoned.add(assignment_no)
        return self.end(assignment_no), kill_reason

    def forget_abandoned(self, assignment_no: int) -> None:
        """An abandoned task has ended after all; its result is ignored."""
        self._abandoned.remove(assignment_no)

    def remove_all(self, crash: TaskError) -> tuple[list[tuple[Claim, TaskError]], list[Claim]]:
        """Remove everything, because the child is dead. Returns what had begun, with its error, and what had not.

        A task with a kill reason counts as begun.
        """
        begun = self._begun.keys() | self._kill_reasons.keys()
        ended = [(claim, self._kill_reasons.get(no, crash)) for no, claim in self._claims.items() if no in begun]
        waiting = [claim for no, claim in self._claims.items() if no not in begun]
        self._claims.clear()
        self._begun.clear()
        return ended, waiting

    # -- queries

    @property
    def has_running(self) -> bool:
        return bool(self._begun)

    @property
    def has_waiting(self) -> bool:
        return len(self._claims) > len(self._begun)

    @property
    def has_only_abandoned(self) -> bool:
        return bool(self._abandoned) and not self._claims

    def items(self) -> list[tuple[int, Claim]]:
        return list(self._claims.items())

    def running(self) -> list[tuple[int, Claim]]:
        return [(assignment_no, self._claims[assignment_no]) for assignment_no in self._begun]

    def running_since(self) -> list[tuple[float, Claim]]:
        """Return the running tasks, with when they began on the monotonic clock."""
        return [(began_at, self._claims[assignment_no]) for assignment_no, began_at in self._begun.items()]

    def running_claim(self, assignment_no: int) -> Claim | None:
        """Return the claim with this number, if it is still running."""
        return self._claims.get(assignment_no) if assignment_no in self._begun else None

    def is_waiting(self, assignment_no: int) -> bool:
        return assignment_no in self._claims and assignment_no not in self._begun

    def is_abandoned(self, assignment_no: int) -> bool:
        return assignment_no in self._abandoned

    def has_kill_reason(self, assignment_no: int) -> bool:
        return assignment_no in self._kill_reasons

    def work_ahead_us(self, worked_us: int) -> int:
        """Return how long the child has worked since the first task that still waits was assigned."""
        return worked_us - self._groups[0][1] if self._groups else 0

    @property
    def waiting_since(self) -> float:
        """When the first task that still waits was assigned, on the monotonic clock."""
        return self._groups[0][2] if self._groups else math.inf


_assigned_fields = itemgetter(*map(Claim._fields.index, Assignment._fields[1:]))


def assignment_from_claim(assignment_no: int, claim: Claim) -> Assignment:
    """Return what is sent to a child of this claim, whose payload must have been read."""
    return Assignment._make((assignment_no, *_assigned_fields(claim)))


ASSIGNMENT_BYTES = 1 << 25
NAMES_SHOWN = 5

log = logging.getLogger("horsies.worker")


class TaskBegan(NamedTuple):
    assignment_no: int
    claim: Claim


class TaskProgress(NamedTuple):
    claim: Claim
    fraction: float | None
    message: str | None


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


ChildReport: TypeAlias = TaskBegan | TaskProgress | TaskDone | TasksReturned | ChildExited | ReportsRead
ReportHandler: TypeAlias = Callable[["Child", ChildReport], None]
"""Receives what children report. Always called on the event loop."""


class Child:
    """One child process. `on_change` is called when it becomes ready, and after each report of one that retires or soon will."""

    def __init__(
        self,
        report: ReportHandler,
        boot: Boot,
        *,
        budget: int | None = None,
        on_change: Callable[[], None] = lambda: None,
        max_payload: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._report = report
        self._boot = boot
        self._on_change = on_change
        self._max_payload = max_payload
        self._recycling = RecyclePolicy(budget)
        self._process: Process | None = None
        self._socket: ChildSocket | None = None
        self._kill_reason: str | None = None
        self._stopped_at = 0.0
        self._started_at = time.monotonic()
        self._has_reports = False
        self._worked_us = 0
        self._is_loop_blocked = False
        self._task_on_loop = NO_ASSIGNMENT
        self.assignments = Assignments()
        self.ready = asyncio.Event()
        self.current_step = "starting"
        self.start_error: str | None = None
        self.rss_mb = 0.0
        self.is_recalled = False
        self.began_at = 0.0
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
        self._socket = ChildSocket(
            ours,
            on_message=self._on_message,
            on_reports_read=self._on_reports_read,
            on_closed=self._on_closed,
            on_drained=lambda: self._report(self, ReportsRead()),
            max_payload=self._max_payload,
        )
        self._socket.send(self._boot)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def wait_for_exit(self) -> str:
        """Wait for the process and process its last messages. Return how it ended, in words."""
        assert self._process is not None  # noqa: S101 - it has been started
        assert self._socket is not None  # noqa: S101
        code = await self._process.wait()
        self._socket.read_rest()
        return describe_exit(code)

    def stop(self) -> None:
        """Ask it to leave when it has finished its assignments."""
        self._recycling.is_retired = True
        self._stopped_at = time.monotonic()
        self._send(Stop())

    def is_lingering(self, after_s: float) -> bool:
        """Whether it still runs tasks so long after it was asked to leave."""
        return bool(self.load) and time.monotonic() - self._stopped_at >= after_s

    def kill(self, reason: str | None = None) -> None:
        """Kill it. `reason` becomes the error message of its running tasks, except those with a kill reason of their own."""
        self._kill_reason = self._kill_reason or reason
        if self._process:
            self._process.kill()

    def kill_blocked(self) -> None:
        """Kill it because one task blocks the event loop, so that the others cannot end."""
        log.error("child %d is killed: its event loop is blocked; it runs %s", self.pid, self.describe_running())
        blocker = self.assignments.running_claim(self._task_on_loop)
        if blocker is not None and not self.assignments.has_kill_reason(self._task_on_loop):
            message = f"it blocked the event loop of its child process (pid {self.pid}), which was killed"
            self.set_kill_reason(self._task_on_loop, OperationalErrorCode.WORKER_CRASHED, message)
        name = "" if blocker is None else f", {blocker.task_name},"
        self.kill(
            f"another task{name} of the same child process (pid {self.pid}) blocked its event loop; it was killed"
        )

    def report_crash(self, cause: str) -> None:
        """Report, after its death, which tasks had begun and which had not."""
        crash = TaskError(
            error_code=OperationalErrorCode.WORKER_CRASHED,
            message=self._kill_reason or f"the child process (pid {self.pid}) {cause} while it ran this task",
        )
        self._report(self, ChildExited(*self.assignments.remove_all(crash)))

    def _on_closed(self, reason: str | None) -> None:
        # Without a reason it may be exiting on its own, and its exit code says more than we could.
        if reason is None:
            self.kill()
        else:
            log.error("child %d %s, and is killed", self.pid, reason)
            self.kill(f"the child process (pid {self.pid}) that ran it {reason}, and was killed")

    # -- tasks

    @property
    def is_open(self) -> bool:
        """Whether it may be assigned tasks now."""
        return (
            self.ready.is_set()
            and not self.is_spare
            and self._socket is not None
            and self._socket.is_open
            and not self.is_recalled
            and not self._is_loop_blocked
            and not self.is_retiring
            and self.budget_left != 0
            and not self._is_slow(time.monotonic())
        )

    @property
    def budget_left(self) -> int | None:
        """How many more tasks it may be assigned; None: any number."""
        left = self._recycling.left
        if self.predecessor is None:
            return left
        capacity = max(0, self._boot.concurrency - self._place_load)
        return capacity if left is None else min(capacity, left)

    @property
    def load(self) -> int:
        return len(self.assignments)

    @property
    def _place_load(self) -> int:
        """Its load and that of all its predecessors."""
        return self.load + (self.predecessor._place_load if self.predecessor else 0)  # noqa: SLF001 - of another child

    def stuck_behind(self, now: float, slow_after_s: float, slow_together_s: float) -> int | None:
        """Return the slow task that its unbegun tasks wait for, or `NO_ASSIGNMENT` if many tasks together are slow. None if they were recalled already.

        One task may also seem slow because the machine was busy. By the time the child reads the recall, that task has ended.
        """
        if self.is_recalled or not self.assignments.has_running:
            return None
        if self._boot.concurrency > 1:
            # Only what has no slot waits for others. It waits for whichever ends first, so none of them is the slow one.
            waiting_since = self.assignments.waiting_since
            has_stopped = now - max(self.began_at, waiting_since) > slow_after_s
            is_late = now - waiting_since > slow_together_s
            return NO_ASSIGNMENT if self.load > self._boot.concurrency and (has_stopped or is_late) else None
        running_s = now - self.began_at
        # Count only the time inside tasks. What is between them takes as long in any other child.
        if running_s + self.assignments.work_ahead_us(self._worked_us) / 1_000_000 > slow_together_s:
            return NO_ASSIGNMENT
        return self.assignments.running()[0][0] if running_s > slow_after_s else None

    def _is_slow(self, now: float) -> bool:
        """Whether its current task has taken so long that no other should wait behind it."""
        return self._boot.concurrency == 1 and self.assignments.has_running and now - self.began_at > SLOW_AFTER_S

    def assign(self, claims: Sequence[Claim]) -> None:
        """Send it these tasks. Their rows must be RUNNING in the database already."""
        for share in _split_by_size(claims) if len(claims) > 1 else (claims,):
            run = self.assignments.add(share, self._worked_us)
            self._recycling.add(len(run.assignments), time.monotonic())
            self._send(run)

    def recall(self, behind: int) -> None:
        """Ask for its unbegun tasks, which it returns. It gets no new ones until its current task has ended."""
        self.is_recalled = True
        self._send(Recall(behind))

    @property
    def unsent_bytes(self) -> int:
        return self._socket.unsent_bytes if self._socket else 0

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

    @property
    def is_mid_message(self) -> bool:
        """Whether it has sent part of a message and not the rest."""
        return self._socket is not None and self._socket.is_mid_message

    @property
    def received_bytes(self) -> int:
        return self._socket.received_bytes if self._socket else 0

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
        self.assignments.set_kill_reason(assignment_no, TaskError(error_code=error_code, message=message))

    def abandon(self, assignment_no: int) -> tuple[Claim, TaskError]:
        """Forget a task that does not stop, and return how it ends. The child still runs others: it retires, and is killed when they have ended."""
        abandoned = self.assignments.abandon(assignment_no)
        self._recycling.is_retired = True
        self._kill_if_abandoned()
        self._on_change()
        return abandoned

    def _kill_if_abandoned(self) -> None:
        if self.assignments.has_only_abandoned:
            self.kill()

    # -- recycling

    @property
    def is_retiring(self) -> bool:
        """Whether it gets no new tasks, and is to be replaced."""
        return self._recycling.is_retiring

    @property
    def is_near_limit(self) -> bool:
        """Whether its replacement is needed now or soon."""
        return self._recycling.is_near_limit(time.monotonic())

    @property
    def start_s(self) -> float:
        """How long its start took."""
        return self._recycling.start_s

    @property
    def life_s(self) -> float:
        """How long it works from its promotion until it is worn out, by its pace until now."""
        return self._recycling.life_s(time.monotonic())

    def promote(self, predecessor: "Child | None") -> None:
        """Give a spare its place."""
        self.is_spare = False
        self.predecessor = predecessor
        self._recycling.promoted_at = time.monotonic()

    def forget_predecessor(self, exited: "Child") -> None:
        if self.predecessor is exited:
            self.predecessor = exited.predecessor

    def extend(self) -> bool:
        """Let it continue beyond its limits, because no replacement can be started. False if it cannot: it abandoned a task."""
        if self._recycling.is_retired:
            return False
        self._recycling.is_extended = True
        if self._recycling.is_too_big:
            self._send(KeepRunning())
        return True

    def retire(self) -> bool:
        """Retire it if it was extended: a replacement is ready now. Return whether it is retired."""
        self._recycling.is_retired = self._recycling.is_retired or self._recycling.is_extended
        return self._recycling.is_retired

    # -- messages

    def _on_message(self, message: Message) -> None:
        self.unanswered_since = None
        # There is a Began for every task, and by itself it changes nothing that the dispatcher could act on.
        self._has_reports = self._has_reports or not isinstance(message, Began)
        match message:
            case Began(assignment_no) if self.assignments.is_waiting(assignment_no):
                self.began_at = time.monotonic()
                self._report(self, TaskBegan(assignment_no, self.assignments.begin(assignment_no, self.began_at)))
            case Progress(assignment_no, fraction, text):
                if assignment_no in self.assignments:  # else it comes from a thread that outlived its task
                    self._report(self, TaskProgress(self.assignments[assignment_no], fraction, text))
            case Done() if self._may_end(message):
                self._on_done(message)
            case Returned(assignment_nos) if all(map(self.assignments.is_waiting, assignment_nos)):
                self._on_returned(assignment_nos)
            case Done(assignment_no) if self.assignments.is_abandoned(assignment_no):
                self.assignments.forget_abandoned(assignment_no)
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

    def _may_end(self, done: Done) -> bool:
        """Whether it has begun. A task that has not begun can only have been cancelled."""
        return done.assignment_no in self.assignments and (
            self.assignments.running_claim(done.assignment_no) is not None or done.status == TaskStatus.CANCELLED.value
        )

    def _on_done(self, done: Done) -> None:
        self.is_recalled = False
        self._worked_us += done.duration_us
        if done.leaving:
            self._recycling.set_too_big(time.monotonic())
        self._report(self, TaskDone(self.assignments.end(done.assignment_no), done))

    def _on_returned(self, assignment_nos: list[int]) -> None:
        self._recycling.assigned -= len(assignment_nos)
        self._report(self, TasksReturned(self.assignments.take_back(assignment_nos)))
        if self.load < self._boot.concurrency:
            self.is_recalled = False  # it has a free slot, and the end of a long task may be hours away

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
            self._recycling.start_s, self._recycling.promoted_at = now - self._started_at, now
            self.ready.set()
            self._on_change()

    def _on_reports_read(self) -> None:
        if not self._has_reports:
            return
        self._has_reports = False
        self._kill_if_abandoned()
        if self.is_near_limit:
            self._on_change()
        self._report(self, ReportsRead())

    def _send(self, message: Message) -> None:
        if self._socket:
            self._socket.send(message)


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


class ChildSocket:
    """Exchange whole messages with a child, without ever blocking the event loop.

    `on_message` gets each message, and raises ProtocolError for one that is not allowed now; `on_reports_read` follows all that arrived together.
    `on_drained`: what could not be written at once is written. `on_closed`: the other end is closed (None), or has sent something invalid (the reason).
    """

    def __init__(
        self,
        ours: socket.socket,
        *,
        on_message: Callable[[Message], None],
        on_reports_read: Callable[[], None],
        on_closed: Callable[[str | None], None],
        on_drained: Callable[[], None],
        max_payload: int = DEFAULT_MAX_BYTES,
    ) -> None:
        ours.settimeout(0)
        self._socket = ours
        self._on_message = on_message
        self._on_reports_read = on_reports_read
        self._on_closed = on_closed
        self._on_drained = on_drained
        self._unpacker = ReportUnpacker(max_payload)
        self._error: str | None = None
        self._out = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours.fileno(), self._on_readable)
        self.received_bytes = 0

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    @property
    def unsent_bytes(self) -> int:
        return len(self._out)

    @property
    def is_mid_message(self) -> bool:
        return self._unpacker.is_mid_message

    def send(self, message: Message) -> None:
        """Send a message; to a dead child, do nothing."""
        if not self.is_open:
            return
        was_empty = not self._out
        self._out += pack(message)
        if was_empty and not self._write():
            self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def read_rest(self) -> None:
        """Read what a dead child has left in the socket, and close it."""
        while self.is_open and self._read():
            pass
        self.close()

    def close(self) -> None:
        if self.is_open:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._out.clear()

    def _on_readable(self) -> None:
        if not self._read():
            self.close()
            self._on_closed(self._error)
        self._on_reports_read()

    def _read(self) -> bool:
        """Read once. False if nothing more will come."""
        try:
            data = self._socket.recv(RECV_BYTES)
            self.received_bytes += len(data)
            for message in self._unpacker.feed(data):
                self._on_message(message)
        except OSError:
            return False
        except ProtocolError as error:
            self._error = f"sent invalid data ({error})"
            return False
        except Exception:
            # The rest of these messages is lost, and the first ones would be processed twice: do not read from this child again.
            log.exception("a report of a child could not be processed")
            self._error = "sent a report that could not be processed"
            return False
        return bool(data)

    def _on_writable(self) -> None:
        if self._write():
            self._loop.remove_writer(self._socket.fileno())
            self._on_drained()

    def _write(self) -> bool:
        """Write what the socket accepts. Return whether nothing is left."""
        try:
            del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # the child is dying; its process reports the end
        return not self._out


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
        if self.left == 0:
            self.worn_out_at = now

    def set_too_big(self, now: float) -> None:
        if not self.is_too_big:
            self.is_too_big, self.worn_out_at = True, now

    @property
    def left(self) -> int | None:
        if self.budget is None or self.is_extended:
            return None
        return max(0, self.budget - self.assigned)

    @property
    def is_retiring(self) -> bool:
        return self.is_retired or (not self.is_extended and (self.is_too_big or self.left == 0))

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
