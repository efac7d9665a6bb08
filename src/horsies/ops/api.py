"""`Ops`: what `app.ops` offers. Every method has a twin for asyncio code with `_async` at the end of its name."""

from __future__ import annotations

import getpass
import os
import socket
from asyncio import to_thread
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Op
from horsies.model.config import DEFAULT_APP_NAME
from horsies.model.graph import Graph, NodeStatus, WorkflowStatus
from horsies.model.schedule import TaskSchedule
from horsies.model.sensitive import hide_error, hide_message
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId
from horsies.ops.audit import AuditEntry, audited, list_actions
from horsies.ops.bulk import BulkAction
from horsies.ops.events import Event, list_events
from horsies.ops.ids import find_ids
from horsies.ops.operation import Verb, operation
from horsies.ops.statistics import (
    EndedTotals,
    ErrorGroup,
    MinutePoint,
    TotalsOrder,
    count_ended,
    get_error_groups,
    get_time_series,
    get_totals,
)
from horsies.registry import Registry
from horsies.schedules import control as schedules
from horsies.schedules.control import ScheduleInfo, ScheduleRun
from horsies.schedules.sync import prepare_schedule
from horsies.tasks import control, inspect, queues, unknown, workers
from horsies.tasks.attempts import Attempt, AttemptLog, get_attempts, hide_attempt, list_attempt_logs
from horsies.tasks.control import CancelOutcome, Requeue, RetryOutcome
from horsies.tasks.ids import new_task_id, to_task_id, to_workflow_id
from horsies.tasks.inspect import (
    FINAL,
    LIVE,
    SafeTaskFilter,
    TaskCount,
    TaskDetail,
    TaskFilter,
    TaskInfo,
    TaskPage,
    TaskSummary,
    WorkerState,
    WorkerSummary,
)
from horsies.tasks.queues import QueueSummary, ServerInfo
from horsies.tasks.unknown import UnknownTasks
from horsies.tasks.workers import ChildState, DeadWorker, to_worker_id
from horsies.workflows import control as workflow_control
from horsies.workflows import inspect as workflow_inspect
from horsies.workflows.inspect import NodePage, NodeRow, RunState, RunSummary, RunTree, WorkflowPage
from horsies.workflows.render import States

if TYPE_CHECKING:
    from horsies.doctor.findings import CheckContext, Finding

MAX_PAGE = 10_000
MAX_SLOTS = 1_000
MAX_LOGS = 100  # of attempts, each of up to 128 KiB
MAX_INDEX = 2**31 - 1
MAX_CAUSES = 10  # paused runs of a page whose failed node is read
ALL_CHARACTERS = 2**31 - 1
PURGED = "PURGED"
LEFT = "LEFT"  # a task that has started, was released, or has ended since it was selected


@dataclass(frozen=True, slots=True)
class TaskView:
    """Everything that is stored about one task."""

    info: TaskInfo
    detail: TaskDetail
    attempts: Sequence[Attempt] = ()
    """Oldest first, with the one that runs, and the last one of a task that has ended."""
    is_sensitive: bool = False
    """Its payload, and the messages and data of its errors, are left out unless `reveal` was given."""


class Ops:
    """Inspect and operate the tasks, queues, workers, workflows and schedules of one database.

    `actor` names who acts, in the audit: `app.ops.acting_as("alice")`.
    """

    def __init__(self, app: Registry, actor: str | None = None, *, broker: PostgresBroker | None = None) -> None:
        self._app = app
        self._broker = broker
        self.actor = actor or f"{_user_name()}@{socket.gethostname()}"

    @property
    def broker(self) -> PostgresBroker:
        """The connection that operations use: that of the app, unless they were given one of their own."""
        return self._broker or self._app.broker

    def acting_as(self, actor: str) -> Ops:
        """Return the same operations, recorded under this name."""
        return Ops(self._app, actor, broker=self._broker)

    # -- tasks

    @operation
    def list_tasks(
        self, filters: TaskFilter | None = None, *, limit: int = 50, after: TaskId | None = None
    ) -> Verb[TaskPage]:
        """List tasks in the order they were sent, newest first. `after` is the `next_after` of the previous page.

        A page that would need too many rows to be read ends early: see `TaskPage.is_complete`.
        """

        def run() -> Op[TaskPage]:
            page = yield from inspect.list_tasks(self._safe(filters), limit=max(1, min(limit, MAX_PAGE)), after=after)
            return replace(page, tasks=self._without_hidden_messages(page.tasks))

        return run

    list_tasks_async = list_tasks.for_asyncio

    @operation
    def list_running(self, *, limit: int = 50) -> Verb[list[TaskSummary]]:
        """List the running tasks, those that have run for the longest first."""

        def run() -> Op[list[TaskSummary]]:
            return self._without_hidden_messages((yield from inspect.list_running(max(1, min(limit, MAX_PAGE)))))

        return run

    list_running_async = list_running.for_asyncio

    @operation
    def count_tasks(self, filters: TaskFilter | None = None) -> Verb[int]:
        """Count all matching tasks, in steps. With few conditions this reads all tasks: `preview_count` is for screens, and `since` skips days."""
        return partial(inspect.count_tasks, self._safe(filters))

    count_tasks_async = count_tasks.for_asyncio

    @operation
    def preview_count(self, filters: TaskFilter | None = None, *, newest: int | None = None) -> Verb[TaskCount]:
        """Count the matching tasks among the newest ones. `is_complete` says whether these are all.

        `newest` live tasks and as many finished ones are read; at most, and if it is None, 5 000 of each.
        """
        return partial(inspect.count_newest, self._safe(filters), None if newest is None else max(1, newest))

    preview_count_async = preview_count.for_asyncio

    @operation
    def show_task(
        self, task_id: str, *, payload: bool = False, characters: int = ALL_CHARACTERS, reveal: bool = False
    ) -> Verb[TaskView | None]:
        """Read one task; None if it does not exist. With `payload` also this many characters of its arguments and of its result.

        Of a sensitive task, the payload and what its errors say are left out. `reveal` includes them, and is recorded in the audit.
        """
        full_id = to_task_id(task_id)

        def run() -> Op[TaskView | None]:
            found = yield from inspect.get_task_detail(full_id, characters=characters if payload else 0)
            attempts = yield from get_attempts(full_id)
            if found is None or attempts is None:
                return None
            info, detail = found
            history, is_sensitive = attempts
            view = TaskView(info, detail, history, is_sensitive or self._is_sensitive(info.task_name))
            return view if reveal or not view.is_sensitive else _hide_payload(view)

        return audited(self.actor, "reveal task", full_id, run, lambda view: int(view is not None)) if reveal else run

    show_task_async = show_task.for_asyncio

    def _without_hidden_messages(self, tasks: Sequence[TaskSummary]) -> list[TaskSummary]:
        """Hide what errors of tasks say that only the code of the app calls sensitive; for the others the query does."""
        return [
            replace(task, message=hide_message(task.error_code, task.message), is_sensitive=True)
            if self._is_sensitive(task.task_name)
            else task
            for task in tasks
        ]

    def _safe(self, filters: TaskFilter | None) -> TaskFilter:
        """Return a filter that does not tell what errors of sensitive tasks contain."""
        if filters is None or (filters.message is None and filters.error_summary is None):
            return filters or TaskFilter()
        given = {field.name: getattr(filters, field.name) for field in fields(TaskFilter)}
        return SafeTaskFilter(**given, sensitive=self._sensitive_names())

    def _sensitive_names(self) -> list[str]:
        return [name for name in self._app.known_tasks if self._is_sensitive(name)]

    def _is_sensitive(self, task_name: str) -> bool:
        """Whether the code of the app says so, if there is code: the row may have been written by hand, or before the task was declared sensitive."""
        task = self._app.known_tasks.get(task_name)
        return task is not None and task.is_sensitive

    @operation
    def list_attempt_logs(
        self,
        task_id: str,
        *,
        claim_no: int | None = None,
        before: int | None = None,
        limit: int = 20,
        reveal: bool = False,
    ) -> Verb[list[AttemptLog]]:
        """Read what the attempts of a task have logged, if it keeps logs: the newest attempts, oldest first. `claim_no` selects one of them.

        For the page before, give the `claim_no` of the first one as `before`. Running attempts have no lines yet. Those of a sensitive task are left
        out. `reveal` includes them, and is recorded in the audit.
        """
        full_id = to_task_id(task_id)
        verb: Verb[list[AttemptLog]] = partial(
            list_attempt_logs,
            full_id,
            claim_no=claim_no,
            before=before,
            limit=max(1, min(limit, MAX_LOGS)),
            reveal=reveal,
            is_sensitive=self._is_sensitive,
        )
        return audited(self.actor, "reveal logs of task", full_id, verb, len) if reveal else verb

    list_attempt_logs_async = list_attempt_logs.for_asyncio

    @operation
    def cancel_tasks(self, task_ids: Sequence[str]) -> Verb[Mapping[TaskId, CancelOutcome]]:
        """Cancel these tasks. Those that have not started end at once; running ones are asked to stop."""
        ids = [to_task_id(task_id) for task_id in task_ids]
        verb: Verb[Mapping[TaskId, CancelOutcome]] = partial(control.cancel_tasks, ids)
        return audited(self.actor, "cancel tasks", ", ".join(ids), verb, _count_changes)

    cancel_tasks_async = cancel_tasks.for_asyncio

    @operation
    def retry_tasks(self, task_ids: Sequence[str], *, force: bool = False) -> Verb[Mapping[TaskId, RetryOutcome]]:
        """Run these finished tasks again, under their own ids. `force` also retries those that `RetryOutcome` refuses."""
        ids = [to_task_id(task_id) for task_id in task_ids]
        verb: Verb[Mapping[TaskId, RetryOutcome]] = Requeue(ids, force=force)
        return audited(self.actor, "retry tasks", ", ".join(ids), verb, _count_changes)

    retry_tasks_async = retry_tasks.for_asyncio

    def cancel_matching(self, filters: TaskFilter) -> BulkAction:
        """Cancel all live tasks that match, in batches: see `BulkAction`.

        With statuses in the filter, a task that has started since it was selected is not stopped unless RUNNING is among them; and if only RUNNING is, tasks
        that were released since are left alone.
        """

        def act(batch: Sequence[TaskSummary]) -> Verb[Mapping[str, int]]:
            return _counting(partial(control.cancel_tasks, [task.id for task in batch]))

        if filters.statuses and TaskStatus.RUNNING not in filters.statuses:
            act = partial(_cancel_some, CancelOutcome.CANCELLED, control.cancel_unstarted_tasks)
        elif {*filters.statuses} == {TaskStatus.RUNNING}:
            act = partial(_cancel_some, CancelOutcome.REQUESTED, control.cancel_running_tasks)
        return self._bulk(filters, act, "cancel tasks", LIVE, default=LIVE)

    def retry_matching(self, filters: TaskFilter, *, force: bool = False) -> BulkAction:
        """Retry all finished tasks that match, in batches. Without statuses in the filter: those that failed."""

        def act(batch: Sequence[TaskSummary]) -> Verb[Mapping[str, int]]:
            claim_nos = {task.id: task.claim_no for task in batch}
            return _counting(Requeue(claim_nos, force=force, claim_nos=claim_nos))

        return self._bulk(filters, act, "retry tasks", FINAL, default=[TaskStatus.FAILED])

    def purge_matching(self, filters: TaskFilter) -> BulkAction:
        """Delete all finished tasks that match, in batches. Live tasks are never deleted."""

        def act(batch: Sequence[TaskSummary]) -> Verb[Mapping[str, int]]:
            def run() -> Op[Mapping[str, int]]:
                return {PURGED: (yield from control.purge_finished(batch))}

            return run

        return self._bulk(filters, act, "purge tasks", FINAL, default=FINAL)

    def retry_error_group(self, group: ErrorGroup, *, force: bool = False) -> BulkAction:
        """Retry the failures of an error group, exactly: those that `group.to_filter()` selects. A filter can list, count and purge them, too."""
        return self.retry_matching(group.to_filter(), force=force)

    @operation
    def get_statuses(self, task_ids: Sequence[str]) -> Verb[Mapping[TaskId, TaskStatus | None]]:
        """Read the statuses of these tasks; None for those that do not exist."""
        ids = [to_task_id(task_id) for task_id in task_ids]

        def run() -> Op[Mapping[TaskId, TaskStatus | None]]:
            found = yield from inspect.get_statuses(ids)
            return {task_id: found.get(task_id) for task_id in ids}

        return run

    get_statuses_async = get_statuses.for_asyncio

    @operation
    def list_unknown_tasks(self) -> Verb[list[UnknownTasks]]:
        """List the tasks that no live worker can run, by name."""
        return unknown.list_unknown_tasks

    list_unknown_tasks_async = list_unknown_tasks.for_asyncio

    @operation
    def find_task_ids(self, prefix: str, *, limit: int = 10) -> Verb[list[str]]:
        """Return the first ids of tasks that start with this."""
        return partial(find_ids, "tasks", prefix, limit=max(1, min(limit, MAX_PAGE)))

    find_task_ids_async = find_task_ids.for_asyncio

    def _bulk(
        self,
        filters: TaskFilter,
        act: Callable[[Sequence[TaskSummary]], Verb[Mapping[str, int]]],
        action: str,
        allowed: Sequence[TaskStatus],
        default: Sequence[TaskStatus],
    ) -> BulkAction:
        if wrong := [status for status in filters.statuses if status not in allowed]:
            raise ValueError(f"{action}: for tasks that are {', '.join(allowed)}, and not for {', '.join(wrong)}")
        selected = filters if filters.statuses else replace(filters, statuses=default)
        return BulkAction(self.broker, self._safe(selected), act, CHANGES, self.actor, action, describe_filter(filters))

    # -- queues

    @operation
    def list_queues(self, *, not_due: bool = True) -> Verb[list[QueueSummary]]:
        """List the queues that have a task, a pause, a worker, or that the app declares, by name.

        `not_due=False` does not count scheduled and retrying tasks, nor find a queue that has nothing else: their rows take as long to read as all the rest.
        """

        return self._with_declared_queues(partial(queues.list_queues, not_due=not_due))

    list_queues_async = list_queues.for_asyncio

    @operation
    def list_queue_states(self) -> Verb[list[QueueSummary]]:
        """The same in a millisecond: at most 1 000 waiting tasks of each queue are counted, and none that are not due."""
        return self._with_declared_queues(partial(queues.list_queues, queues.MAX_COUNTED_QUICKLY, not_due=False))

    list_queue_states_async = list_queue_states.for_asyncio

    def _with_declared_queues(self, verb: Verb[list[QueueSummary]]) -> Verb[list[QueueSummary]]:
        def run() -> Op[list[QueueSummary]]:
            found = {queue.name: queue for queue in (yield from verb())}
            # Without tasks it is not the app of anyone, but only a way to the database.
            own = self._app.config.queues if self._app.tasks else ()
            declared = {queue.name: QueueSummary(queue.name) for queue in own}
            return [queue for _, queue in sorted((declared | found).items())]

        return run

    @operation
    def pause_queue(self, name: str) -> Verb[None]:
        """Stop all workers from claiming tasks of this queue, until it is resumed. Sends are accepted."""
        queues.check_queue_name(name)
        return audited(self.actor, "pause queue", name, partial(queues.pause_queue, name), _one)

    pause_queue_async = pause_queue.for_asyncio

    @operation
    def resume_queue(self, name: str) -> Verb[None]:
        """Let workers claim tasks of this queue again."""
        return audited(self.actor, "resume queue", name, partial(queues.resume_queue, name), _one)

    resume_queue_async = resume_queue.for_asyncio

    @operation
    def set_queue_cap(self, name: str, max_concurrency: int | None) -> Verb[None]:
        """Let at most this many tasks of a queue be in flight in the whole cluster, whatever apps declare. None: each app's own cap again.

        Workers claim no more than that from now on; what runs is not stopped.
        """
        queues.check_cap(name, max_concurrency)
        action = "reset cap of queue" if max_concurrency is None else f"set cap of queue to {max_concurrency}"
        return audited(self.actor, action, name, partial(queues.set_queue_cap, name, max_concurrency), _one)

    set_queue_cap_async = set_queue_cap.for_asyncio

    @operation
    def record_stop(self, action: str, target: str) -> Verb[None]:
        """Record in the audit that an action on many tasks is stopped before its end. What it has done until then is in its own row."""

        def run() -> Op[None]:
            yield from ()  # its iteration is stopped, in the process that has it

        return audited(self.actor, f"stop: {action}", target, run, _one)

    record_stop_async = record_stop.for_asyncio

    def purge_queue(self, name: str) -> BulkAction:
        """Cancel all tasks of a queue that have not started, in batches. Running tasks are left alone."""

        act = partial(_cancel_some, CancelOutcome.CANCELLED, control.cancel_unstarted_tasks)
        unstarted = [TaskStatus.PENDING, TaskStatus.CLAIMED]
        return self._bulk(TaskFilter(queue_name=name), act, "purge queue", unstarted, default=unstarted)

    # -- workers

    @operation
    def list_workers(self) -> Verb[list[WorkerSummary]]:
        """List the registered workers, oldest first."""
        return inspect.list_workers

    list_workers_async = list_workers.for_asyncio

    @operation
    def list_worker_states(self, worker_id: str, *, limit: int = 20) -> Verb[list[WorkerState]]:
        """Read the health of one worker over time, newest first. It is kept for a day, also of workers that are gone."""
        return partial(inspect.get_worker_states, worker_id, limit=max(1, min(limit, MAX_PAGE)))

    list_worker_states_async = list_worker_states.for_asyncio

    @operation
    def request_heartbeats(self, worker_ids: Sequence[str], *, again: bool = False) -> Verb[Mapping[str, datetime]]:
        """Request a heartbeat from these workers. Returns when the last ones were, of those that are registered.

        `again` repeats a request whose notification may be lost; the audit has only the first one.
        """
        ids = [to_worker_id(worker_id) for worker_id in worker_ids]
        verb: Verb[Mapping[str, datetime]] = partial(inspect.request_heartbeat, ids)
        return verb if again else audited(self.actor, "ping workers", ", ".join(ids), verb, len)

    request_heartbeats_async = request_heartbeats.for_asyncio

    @operation
    def get_heartbeats(self, worker_ids: Sequence[str]) -> Verb[Mapping[str, datetime]]:
        """Read when the last heartbeats of these workers were, of those that are registered."""
        return partial(inspect.get_heartbeats, [to_worker_id(worker_id) for worker_id in worker_ids])

    get_heartbeats_async = get_heartbeats.for_asyncio

    @operation
    def find_worker_ids(self, prefix: str, *, limit: int = 10) -> Verb[list[str]]:
        """Return the first ids of workers, also of those that left less than a day ago, that start with this."""
        return partial(find_ids, "workers", prefix, limit=max(1, min(limit, MAX_PAGE)))

    find_worker_ids_async = find_worker_ids.for_asyncio

    @operation
    def list_dead_workers(self, *, hours: int = 24, limit: int = 100) -> Verb[list[DeadWorker]]:
        """List the workers that died in the last hours, the newest first, and what has become of the tasks that they held."""
        return partial(workers.list_dead_workers, hours, max(1, min(limit, MAX_PAGE)))

    list_dead_workers_async = list_dead_workers.for_asyncio

    @operation
    def request_leave(self, worker_ids: Sequence[str]) -> Verb[Mapping[str, bool]]:
        """Ask workers to claim no more tasks, finish those that run, and exit with 0, as at the first SIGTERM. Returns which are registered.

        To ask twice changes nothing. A supervisor that restarts workers (systemd, Kubernetes) starts another one.
        """
        ids = list(dict.fromkeys(to_worker_id(worker_id) for worker_id in worker_ids))
        verb: Verb[Mapping[str, bool]] = partial(workers.request_leave, ids)
        return audited(self.actor, "ask workers to leave", ", ".join(ids), verb, lambda found: sum(found.values()))

    request_leave_async = request_leave.for_asyncio

    @operation
    def list_children(self, worker_id: str) -> Verb[list[ChildState]]:
        """List the child processes of a worker, with what each runs, as of its last heartbeat: see `request_heartbeats`. Without a worker: none."""
        return partial(workers.list_children, to_worker_id(worker_id))

    list_children_async = list_children.for_asyncio

    # -- workflows

    @operation
    def list_workflows(
        self,
        *,
        statuses: Sequence[WorkflowStatus] = (),
        name: str | None = None,
        error_code: str | None = None,
        message: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Verb[WorkflowPage]:
        """List runs of workflows that are not part of another one, newest first. `after` is the `next_after` of the previous page.

        `error_code` and `message` (text that it contains, in upper or lower case) refer to the error of the run. A paused run has none of its own:
        it is listed with that of its first failed node.
        """

        def run() -> Op[WorkflowPage]:
            page = yield from workflow_inspect.list_runs(
                limit=max(1, min(limit, MAX_PAGE)),
                statuses=statuses,
                name=name,
                error_code=error_code,
                message=message,
                since=since,
                until=until,
                after=after,
            )
            paused = [
                each.id
                for each in page.runs
                if each.status is WorkflowStatus.PAUSED and NodeStatus.FAILED in each.node_counts
            ]
            failed = yield from workflow_inspect.list_first_failures(paused[:MAX_CAUSES])
            causes = {each: self._without_hidden_error(node).error for each, node in failed.items()}
            return replace(page, runs=[replace(each, error=each.error or causes.get(each.id)) for each in page.runs])

        return run

    list_workflows_async = list_workflows.for_asyncio

    @operation
    def show_workflow(self, workflow_id: str) -> Verb[RunTree]:
        """Read a run with its nodes and sub-workflows. Raises `NodeNotFoundError` if it does not exist."""
        return partial(workflow_inspect.get_run_tree, to_workflow_id(workflow_id))

    show_workflow_async = show_workflow.for_asyncio

    @operation
    def get_workflow_summary(self, workflow_id: str) -> Verb[RunSummary | None]:
        """Read a run without its nodes; None if it does not exist."""
        return partial(workflow_inspect.get_run_summary, to_workflow_id(workflow_id))

    get_workflow_summary_async = get_workflow_summary.for_asyncio

    @operation
    def get_workflow_graph(self, workflow_id: str) -> Verb[tuple[Graph, States]]:
        """Read the graph of a run and the state of each node, to draw it. Raises `NodeNotFoundError` if it does not exist."""
        return partial(workflow_inspect.get_graph_view, to_workflow_id(workflow_id))

    get_workflow_graph_async = get_workflow_graph.for_asyncio

    @operation
    def get_workflow_state(self, workflow_id: str) -> Verb[RunState | None]:
        """Read how far a run and each of its nodes are, in a form that is small enough to be read every second; None if it does not exist."""
        return partial(workflow_inspect.get_run_state, to_workflow_id(workflow_id))

    get_workflow_state_async = get_workflow_state.for_asyncio

    @operation
    def list_workflow_nodes(
        self,
        workflow_id: str,
        *,
        statuses: Sequence[NodeStatus] = (),
        text: str | None = None,
        limit: int = 100,
        first: int = 0,
    ) -> Verb[NodePage]:
        """List the nodes of a run in order, without those of sub-workflows; those of a map are its items. `first` is the `next_first` of the previous page.

        `text` is contained in the id of the node or the name of its task. What the errors of sensitive tasks say is left out.
        """
        run_id = to_workflow_id(workflow_id)
        most = max(1, min(limit, MAX_PAGE))

        def run() -> Op[NodePage]:
            page = yield from workflow_inspect.list_nodes(
                run_id, statuses=statuses, text=text, first=max(0, min(first, MAX_INDEX)), limit=most
            )
            return replace(page, nodes=[self._without_hidden_error(node) for node in page.nodes])

        return run

    list_workflow_nodes_async = list_workflow_nodes.for_asyncio

    def _without_hidden_error(self, node: NodeRow) -> NodeRow:
        if node.task_name is None or not self._is_sensitive(node.task_name):
            return node
        return replace(node, error=hide_error(node.error), is_sensitive=True)

    @operation
    def count_workflows(self) -> Verb[Mapping[WorkflowStatus, int]]:
        """Count the runs that have not ended and are not part of another one, by status, up to 100 000."""
        return queues.count_workflows

    count_workflows_async = count_workflows.for_asyncio

    @operation
    def find_workflow_ids(self, prefix: str, *, limit: int = 10) -> Verb[list[str]]:
        """Return the first ids of workflows that start with this."""
        return partial(find_ids, "workflows", prefix, limit=max(1, min(limit, MAX_PAGE)))

    find_workflow_ids_async = find_workflow_ids.for_asyncio

    @operation
    def pause_workflow(self, workflow_id: str) -> Verb[bool]:
        """Start no further node. Running tasks continue. Returns whether it was running."""
        run_id = to_workflow_id(workflow_id)
        return audited(self.actor, "pause workflow", run_id, partial(workflow_control.pause, run_id))

    pause_workflow_async = pause_workflow.for_asyncio

    @operation
    def resume_workflow(self, workflow_id: str) -> Verb[bool]:
        """Continue a paused run. Returns whether it was paused."""
        run_id = to_workflow_id(workflow_id)
        return audited(self.actor, "resume workflow", run_id, partial(workflow_control.resume, run_id))

    resume_workflow_async = resume_workflow.for_asyncio

    @operation
    def cancel_workflow(self, workflow_id: str) -> Verb[bool]:
        """Set the run to CANCELLED at once; running tasks are asked to stop. Returns whether it had not ended."""
        run_id = to_workflow_id(workflow_id)
        return audited(self.actor, "cancel workflow", run_id, partial(workflow_control.cancel, run_id))

    cancel_workflow_async = cancel_workflow.for_asyncio

    @operation
    def retry_workflow(self, workflow_id: str) -> Verb[bool]:
        """Run everything again that failed or was skipped. Returns whether there was anything."""
        run_id = to_workflow_id(workflow_id)
        return audited(self.actor, "retry workflow", run_id, partial(workflow_control.retry, run_id))

    retry_workflow_async = retry_workflow.for_asyncio

    # -- schedules

    @operation
    def list_schedules(
        self, *, name: str | None = None, task_name: str | None = None, queue_name: str | None = None
    ) -> Verb[list[ScheduleInfo]]:
        """List the stored schedules, by name. Those of sensitive tasks have no `args`."""

        def run() -> Op[list[ScheduleInfo]]:
            found = yield from schedules.get_schedules(name, task_name, queue_name)
            return [replace(info, args=None) if self._is_sensitive(info.task_name) else info for info in found]

        return run

    list_schedules_async = list_schedules.for_asyncio

    @operation
    def list_schedule_runs(self, name: str, *, limit: int = 20) -> Verb[Sequence[ScheduleRun]]:
        """Read what became of the slots of a schedule, newest first."""
        return partial(schedules.get_schedule_runs, name, max(1, min(limit, MAX_PAGE)))

    list_schedule_runs_async = list_schedule_runs.for_asyncio

    @operation
    def list_recent_runs(self, names: Sequence[str], *, limit: int = 5) -> Verb[Mapping[str, Sequence[ScheduleRun]]]:
        """Read what became of the newest slots of each of these schedules, newest first."""
        return partial(schedules.get_recent_runs, names, max(1, min(limit, MAX_PAGE)))

    list_recent_runs_async = list_recent_runs.for_asyncio

    @operation
    def next_slots(self, name: str, *, count: int = 5) -> Verb[Sequence[datetime]]:
        """Return when a schedule is due next, up to 1 000 times; none if it does not exist, is paused or is disabled.

        Raises ValueError for a pattern or a time zone that this process does not know.
        """
        return partial(schedules.get_next_slots, name, max(0, min(count, MAX_SLOTS)))

    next_slots_async = next_slots.for_asyncio

    @operation
    def pause_schedule(self, name: str) -> Verb[bool]:
        """Stop enqueuing tasks of this schedule until it is resumed. Returns whether it exists."""
        return audited(self.actor, "pause schedule", name, partial(schedules.pause_schedule, name))

    pause_schedule_async = pause_schedule.for_asyncio

    @operation
    def resume_schedule(self, name: str) -> Verb[bool]:
        """Continue with the first slot from now on. Returns whether it exists."""
        return audited(self.actor, "resume schedule", name, partial(schedules.resume_schedule, name))

    resume_schedule_async = resume_schedule.for_asyncio

    @operation
    def run_schedule(self, name: str) -> Verb[TaskId | None]:
        """Enqueue the task of a schedule once, now. Returns the id of the task; None if there is no such schedule."""
        task_id = new_task_id()

        def run() -> Op[TaskId | None]:
            return task_id if (yield from schedules.run_schedule(name, task_id)) else None

        return audited(self.actor, "run schedule", name, run, lambda sent: int(sent is not None))

    run_schedule_async = run_schedule.for_asyncio

    @operation
    def create_schedule(self, schedule: TaskSchedule) -> Verb[None]:
        """Create a schedule at run time, beside those that apps declare. Any scheduler enqueues its tasks, until it is removed.

        The app must have the task: its queue, retries and timeout are stored with the schedule. Raises ConfigError with all problems, also if there is
        another schedule of this name.
        """
        new = prepare_schedule(schedule, self._app.config, self._app.known_tasks)
        return audited(self.actor, "create schedule", schedule.name, partial(schedules.create_schedule, new), _one)

    create_schedule_async = create_schedule.for_asyncio

    @operation
    def change_schedule(self, schedule: TaskSchedule) -> Verb[bool]:
        """Replace a schedule that was created at run time by this one. Returns whether it exists. Raises ConfigError if an app declares it.

        With the same pattern and time zone its next slot stays; otherwise it continues with the first slot from now on.
        """
        new = prepare_schedule(schedule, self._app.config, self._app.known_tasks)
        return audited(self.actor, "change schedule", schedule.name, partial(schedules.change_schedule, new))

    change_schedule_async = change_schedule.for_asyncio

    @operation
    def remove_schedule(self, name: str) -> Verb[bool]:
        """Delete a schedule that was created at run time. Returns whether it exists. Raises ConfigError if an app declares it."""
        return audited(self.actor, "remove schedule", name, partial(schedules.remove_schedule, name))

    remove_schedule_async = remove_schedule.for_asyncio

    # -- statistics

    @operation
    def time_series(
        self, *, minutes: int = 60, queue_name: str | None = None, task_name: str | None = None
    ) -> Verb[list[MinutePoint]]:
        """Count the tasks that ended in each of the last minutes (up to a day), with how long they waited and ran. The current minute is last."""
        return partial(get_time_series, minutes, queue_name, task_name)

    time_series_async = time_series.for_asyncio

    @operation
    def count_ended(
        self, *, minutes: int = 60, queue_name: str | None = None, task_name: str | None = None
    ) -> Verb[Mapping[TaskStatus, int]]:
        """Count the tasks that ended in the current minute and those before it, by status: the sums of `time_series`."""
        return partial(count_ended, minutes, queue_name, task_name)

    count_ended_async = count_ended.for_asyncio

    @operation
    def queue_totals(self, *, minutes: int = 60) -> Verb[list[EndedTotals]]:
        """Sum up what ended in the last minutes (up to a day) by queue: counts, and percentiles of how long tasks waited and ran."""
        return partial(get_totals, minutes, by_queue=True)

    queue_totals_async = queue_totals.for_asyncio

    @operation
    def task_totals(
        self, *, minutes: int = 60, queue_name: str | None = None, order: TotalsOrder = TotalsOrder.COUNT
    ) -> Verb[list[EndedTotals]]:
        """Sum up what ended in the last minutes (up to a day) by task: those that ended, failed, or took most come first."""
        return partial(get_totals, minutes, by_queue=False, queue_name=queue_name, order=order)

    task_totals_async = task_totals.for_asyncio

    @operation
    def error_groups(
        self, *, hours: float = 24, limit: int = 50, task_name: str | None = None
    ) -> Verb[list[ErrorGroup]]:
        """Group the failures of the last hours (up to a day) by task, error code and message, the most frequent first."""
        return partial(get_error_groups, hours, limit, task_name, self._sensitive_names())

    error_groups_async = error_groups.for_asyncio

    # -- events

    @operation
    def list_events(
        self,
        *,
        since: datetime,
        limit: int = 100,
        failures: bool = False,
        task_name: str | None = None,
        queue_name: str | None = None,
    ) -> Verb[list[Event]]:
        """Read what has happened since a time, oldest first, at most the newest `limit` events: what ended, workers that started or died, and actions.

        With `failures`, only failed tasks and workflows, and dead workers. With a task or a queue, only its tasks, among the newest 5 000 that ended.
        """
        return partial(
            list_events,
            since,
            limit=max(1, min(limit, MAX_PAGE)),
            failures=failures,
            task_name=task_name,
            queue_name=queue_name,
            sensitive=self._sensitive_names(),
        )

    list_events_async = list_events.for_asyncio

    # -- findings

    def findings(self, *, all_checks: bool = False) -> list[Finding]:
        """Return what is wrong with tasks, queues, workers, workflows and schedules, the worst first, each with its cause and its fix.

        This takes a few milliseconds. With `all_checks`, everything that `horsies doctor` checks, which takes seconds.
        """
        if not all_checks:
            verb = self._quick_checks()
            return self.broker.run(verb, again=verb)
        doctor = import_module("horsies.doctor.run")
        return doctor.run_doctor(self.broker.config, self._check_context()).findings

    async def findings_async(self, *, all_checks: bool = False) -> list[Finding]:
        """The same for asyncio code."""
        if all_checks:
            return await to_thread(self.findings, all_checks=True)
        verb = self._quick_checks()
        return await self.broker.run_async(verb, again=verb)

    def _quick_checks(self) -> Verb[list[Finding]]:
        # By name: a producer never loads the doctor.
        return partial(import_module("horsies.doctor.run").run_quick_checks, self._check_context())

    def _check_context(self) -> CheckContext:
        """Return what is checked. An app without a name is only the address of a database, so nothing is compared with it."""
        context_for = import_module("horsies.doctor.findings").context_for
        return context_for(self._app, knows_app=self._app.name != DEFAULT_APP_NAME)

    # -- the database

    @operation
    def get_server_info(self) -> Verb[ServerInfo]:
        """Read which database this is, and which version of the schema it has."""
        return queues.get_server_info

    get_server_info_async = get_server_info.for_asyncio

    @operation
    def read_clock(self) -> Verb[datetime]:
        """Read the clock of the database. All times and ages are measured by it."""
        return inspect.read_clock

    read_clock_async = read_clock.for_asyncio

    # -- the audit

    @operation
    def list_audit(self, *, limit: int = 50, after: str | None = None) -> Verb[list[AuditEntry]]:
        """List what operators have done, newest first. `after` is the last id of the previous page."""
        return partial(list_actions, limit=max(1, min(limit, MAX_PAGE)), after=after)

    list_audit_async = list_audit.for_asyncio


CHANGES = frozenset({CancelOutcome.CANCELLED.name, CancelOutcome.REQUESTED.name, RetryOutcome.RETRIED.name, PURGED})
"""The outcomes of actions on tasks that changed the task."""


def _hide_payload(view: TaskView) -> TaskView:
    info, detail = view.info, view.detail
    progress = info.progress and {**info.progress, "message": None}
    failed = [replace(attempt, error=hide_error(attempt.error)) for attempt in info.failed_attempts]
    return replace(
        view,
        info=replace(info, error=hide_error(info.error), progress=progress, failed_attempts=failed),
        detail=replace(detail, args=None, result=None),
        attempts=[hide_attempt(attempt) for attempt in view.attempts],
    )


def describe_filter(filters: TaskFilter) -> str:
    """Describe a filter as text, for the audit and for questions."""
    others = {field.name: getattr(filters, field.name) for field in fields(filters) if field.name != "statuses"}
    parts = [" or ".join(filters.statuses)] if filters.statuses else []
    parts += [f"{name}={value}" for name, value in others.items() if value is not None]
    return ", ".join(parts) or "all tasks"


def _cancel_some(
    outcome: CancelOutcome, cancel: Callable[[Sequence[TaskId]], Op[list[TaskId]]], batch: Sequence[TaskSummary]
) -> Verb[Mapping[str, int]]:
    """Cancel those of these tasks that `cancel` applies to, and leave the others."""

    def run() -> Op[Mapping[str, int]]:
        changed = yield from cancel([task.id for task in batch])
        counts = {outcome.name: len(changed), LEFT: len(batch) - len(changed)}
        return {name: count for name, count in counts.items() if count}

    return run


def _counting(
    verb: Verb[Mapping[TaskId, CancelOutcome]] | Verb[Mapping[TaskId, RetryOutcome]],
) -> Verb[Mapping[str, int]]:
    def run() -> Op[Mapping[str, int]]:
        outcomes = yield from verb()
        return Counter(outcome.name for outcome in outcomes.values())

    return run


def _count_changes(outcomes: Mapping[TaskId, CancelOutcome] | Mapping[TaskId, RetryOutcome]) -> int:
    return sum(outcome.name in CHANGES for outcome in outcomes.values())


def _one(_result: object) -> int:
    return 1


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())
