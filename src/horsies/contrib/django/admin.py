"""Lists of tasks, workflows, schedules and workers in Django's admin, for users with the permission to view them.

Actions need the permission `horsies.operate`. They go through `app.ops`, and are in its audit with the name of the user.
"""

# pyright: basic, reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
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
from horsies.model.sensitive import HIDDEN
from horsies.ops.api import Ops
from horsies.tasks.inspect import TaskFilter

MAX_COUNTED: Final = 10_000
MAX_FOUND: Final = 1_000
BATCH: Final = 500
PAYLOADS: Final = ("args", "result", "error", "progress")


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

    has_change_permission = has_delete_permission = has_add_permission

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("horsies.operate")

    def ops(self, request: HttpRequest) -> Ops:
        return the_app().ops.acting_as(request.user.get_username())


def selected(queryset: QuerySet) -> list[str]:
    """Return the keys of the selected rows: at most as many as the page says that it has."""
    return [str(key) for key in queryset.values_list("pk", flat=True)[:MAX_COUNTED]]


def action_on_each(description: str, operation: str) -> Callable[..., None]:
    """Make an action that calls an operation with each row, and shows the user how many it has changed."""

    @admin.action(description=description, permissions=["operate"])
    def act(model_admin: ReadOnlyAdmin, request: HttpRequest, queryset: QuerySet) -> None:
        outcomes = list(map(getattr(model_admin.ops(request), operation), selected(queryset)))
        changed = sum(map(bool, outcomes))
        level = messages.SUCCESS if changed == len(outcomes) else messages.WARNING
        model_admin.message_user(request, f"{description}: {changed} of {len(outcomes)}.", level)

    act.__name__ = operation
    return act


def payload(field: str) -> Callable[[TaskRecord], str]:
    """Make a column that shows a field of a task unless the task is sensitive."""

    @admin.display(description=TaskRecord._meta.get_field(field).verbose_name)  # noqa: SLF001 - documented by Django
    def show(task: TaskRecord) -> str:
        declared = the_app().known_tasks.get(task.task_name)
        if task.is_sensitive or (declared is not None and declared.is_sensitive):
            return HIDDEN
        return "-" if (value := getattr(task, field)) is None else str(value)

    return show


@admin.register(TaskRecord)
class TaskAdmin(ReadOnlyAdmin):
    """The tasks, the newest first."""

    list_display = ("id", "task_name", "queue_name", "status", "attempts", "sent_at", "finished_at", "error_code")
    list_filter = ("status",)
    search_fields = ("id",)
    search_help_text = "The id of a task, or the name of tasks"
    sortable_by = ("id",)  # any other order would read all finished tasks
    actions = ("retry", "cancel")
    exclude = PAYLOADS
    readonly_fields: Any = tuple(map(payload, PAYLOADS))

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).defer(*PAYLOADS)

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
        ids = selected(queryset)
        counts: Counter[str] = Counter()
        for start in range(0, len(ids), BATCH):
            counts.update(outcome.name for outcome in act(ids[start : start + BATCH]).values())
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        self.message_user(request, f"{verb}: {summary or 'no task'}.")


@admin.register(WorkflowRecord)
class WorkflowAdmin(ReadOnlyAdmin):
    """The runs of workflows, without those inside others."""

    list_display = ("id", "name", "status", "created_at", "finished_at")
    list_filter = ("status",)
    actions = tuple(
        action_on_each(f"{verb.capitalize()} selected workflows", f"{verb}_workflow")
        for verb in ("pause", "resume", "cancel", "retry")
    )
    exclude = ("error",)
    readonly_fields = ("failure",)

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).filter(root_id=F("id")).defer("error")

    @admin.display(description="error")
    def failure(self, run: WorkflowRecord) -> str:
        """Return its error as `app.ops` shows it: that of a sensitive task is hidden."""
        found = the_app().ops.get_workflow_summary(str(run.pk))
        error = found and found.run.error
        return f"{error.error_code}: {error.message}" if error else "-"


@admin.register(ScheduleRecord)
class ScheduleAdmin(ReadOnlyAdmin):
    """The schedules of all apps."""

    list_display = ("name", "task_name", "enabled", "paused_at", "next_slot_at", "last_slot_at")
    exclude = ("args",)
    actions = (
        action_on_each("Run selected schedules now", "run_schedule"),
        action_on_each("Pause selected schedules", "pause_schedule"),
        action_on_each("Resume selected schedules", "resume_schedule"),
    )


@admin.register(WorkerRecord)
class WorkerAdmin(ReadOnlyAdmin):
    """The workers that are alive, as far as the database knows."""

    list_display = ("hostname", "pid", "app", "queues", "processes", "started_at", "heartbeat_at", "leave_requested_at")
    actions = ("leave",)

    @admin.action(description="Ask selected workers to leave", permissions=["operate"])
    def leave(self, request: HttpRequest, queryset: QuerySet) -> None:
        ids = selected(queryset)
        asked = self.ops(request).request_leave(ids)
        self.message_user(request, f"Asked to leave: {sum(asked.values())} of {len(ids)}.")
