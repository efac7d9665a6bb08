"""Lists of tasks, workflows, schedules and workers in Django's admin, for users with the permission to view them.

Actions need the permission `horsies.operate`. They go through `app.ops`, and are in its audit with the name of the user.
"""

# pyright: basic, reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportAttributeAccessIssue=false, reportArgumentType=false
# (Django comes without types)

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db.models import F, QuerySet
from django.http import HttpRequest

from horsies.contrib.django.application import the_app
from horsies.contrib.django.models import ScheduleRecord, TaskRecord, WorkerRecord, WorkflowRecord
from horsies.ops.api import Ops
from horsies.tasks.inspect import TaskFilter

MAX_COUNTED: Final = 10_000
MAX_FOUND: Final = 1_000
BATCH: Final = 500
HIDDEN: Final = "hidden: the task is sensitive"


class BoundedPaginator(Paginator):
    """Counts up to a limit: a count of all finished tasks would read them all."""

    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[:MAX_COUNTED].count()


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows, and changes them by actions only."""

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).using(the_app().alias)

    def has_add_permission(self, *_args: Any) -> bool:
        return False

    def has_change_permission(self, *_args: Any) -> bool:
        return False

    def has_delete_permission(self, *_args: Any) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("horsies.operate")

    def ops(self, request: HttpRequest) -> Ops:
        return the_app().ops.acting_as(request.user.get_username())

    def act(self, request: HttpRequest, queryset: QuerySet, verb: str, act: Callable[[Any], object]) -> None:
        """Do something with each row, and show the user how many it has changed."""
        outcomes = [act(key) for key in queryset.values_list("pk", flat=True)]
        changed = sum(map(bool, outcomes))
        level = messages.SUCCESS if changed == len(outcomes) else messages.WARNING
        self.message_user(request, f"{verb}: {changed} of {len(outcomes)}.", level)


@admin.register(TaskRecord)
class TaskAdmin(ReadOnlyAdmin):
    """The tasks, the newest first."""

    list_display = ("id", "task_name", "queue_name", "status", "attempts", "sent_at", "finished_at", "error_code")
    list_filter = ("status",)
    search_fields = ("id",)
    search_help_text = "The id of a task, or the name of tasks"
    actions = ("retry", "cancel")
    exclude = ("args", "result", "error")
    readonly_fields = ("arguments", "value", "failure")

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).defer("args", "result", "error", "progress")

    def get_search_results(self, _request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(pk=UUID(term)), False
        except ValueError:
            # Finished tasks have no index on the name: this reads as much as one page may cost.
            found = the_app().ops.list_tasks(TaskFilter(task_name=term), limit=MAX_FOUND).tasks
            return queryset.filter(pk__in=[task.id for task in found]), False

    @admin.action(description="Retry selected tasks", permissions=["operate"])
    def retry(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._act_on_ids(request, queryset, "Retry", self.ops(request).retry_tasks)

    @admin.action(description="Cancel selected tasks", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._act_on_ids(request, queryset, "Cancel", self.ops(request).cancel_tasks)

    def _act_on_ids(self, request: HttpRequest, queryset: QuerySet, verb: str, act: Callable[[list[str]], Any]) -> None:
        ids = [str(task_id) for task_id in queryset.values_list("pk", flat=True)]
        counts: Counter[str] = Counter()
        for start in range(0, len(ids), BATCH):
            counts.update(outcome.name for outcome in act(ids[start : start + BATCH]).values())
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        self.message_user(request, f"{verb}: {summary or 'no task'}.")

    @admin.display(description="arguments")
    def arguments(self, task: TaskRecord) -> str:
        return self._shown(task, task.args)

    @admin.display(description="result")
    def value(self, task: TaskRecord) -> str:
        return self._shown(task, task.result)

    @admin.display(description="error")
    def failure(self, task: TaskRecord) -> str:
        return self._shown(task, task.error)

    def _shown(self, task: TaskRecord, payload: Any) -> str:
        declared = the_app().known_tasks.get(task.task_name)
        is_sensitive = task.is_sensitive or (declared is not None and declared.is_sensitive)
        return HIDDEN if is_sensitive else "-" if payload is None else str(payload)


@admin.register(WorkflowRecord)
class WorkflowAdmin(ReadOnlyAdmin):
    """The runs of workflows, without those inside others."""

    list_display = ("id", "name", "status", "created_at", "finished_at")
    list_filter = ("status",)
    actions = ("pause", "resume", "cancel", "retry")

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).filter(root_id=F("id"))

    @admin.action(description="Pause selected workflows", permissions=["operate"])
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self.act(request, queryset, "Pause", self.ops(request).pause_workflow)

    @admin.action(description="Resume selected workflows", permissions=["operate"])
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self.act(request, queryset, "Resume", self.ops(request).resume_workflow)

    @admin.action(description="Cancel selected workflows", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: QuerySet) -> None:
        self.act(request, queryset, "Cancel", self.ops(request).cancel_workflow)

    @admin.action(description="Retry selected workflows", permissions=["operate"])
    def retry(self, request: HttpRequest, queryset: QuerySet) -> None:
        self.act(request, queryset, "Retry", self.ops(request).retry_workflow)


@admin.register(ScheduleRecord)
class ScheduleAdmin(ReadOnlyAdmin):
    """The schedules of all apps."""

    list_display = ("name", "task_name", "enabled", "paused_at", "next_slot_at", "last_slot_at")
    exclude = ("args",)
    actions = ("run_now", "pause", "resume")

    @admin.action(description="Run selected schedules now", permissions=["operate"])
    def run_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        self.act(request, queryset, "Run now", self.ops(request).run_schedule)

    @admin.action(description="Pause selected schedules", permissions=["operate"])
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self.act(request, queryset, "Pause", self.ops(request).pause_schedule)

    @admin.action(description="Resume selected schedules", permissions=["operate"])
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self.act(request, queryset, "Resume", self.ops(request).resume_schedule)


@admin.register(WorkerRecord)
class WorkerAdmin(ReadOnlyAdmin):
    """The workers that are alive, as far as the database knows."""

    list_display = ("hostname", "pid", "app", "queues", "processes", "started_at", "heartbeat_at", "leave_requested_at")
    actions = ("leave",)

    @admin.action(description="Ask selected workers to leave", permissions=["operate"])
    def leave(self, request: HttpRequest, queryset: QuerySet) -> None:
        ids = [str(worker_id) for worker_id in queryset.values_list("pk", flat=True)]
        asked = self.ops(request).request_leave(ids)
        self.message_user(request, f"Asked to leave: {sum(asked.values())} of {len(ids)}.")
