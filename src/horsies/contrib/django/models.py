"""The tables of horsies as unmanaged models, to be read with the ORM and the admin. What changes them goes through `app.ops`."""

# pyright: basic, reportIncompatibleVariableOverride=false, reportReturnType=false
# (Django comes without types)

from typing import Any

from django.db import models

from horsies.contrib.django.configuration import configured_schema
from horsies.model.graph import WorkflowStatus
from horsies.model.status import TaskStatus


def _table(name: str) -> str:
    """Return the name of a table in our schema. Django leaves a name alone that is quoted already."""
    schema = configured_schema().replace('"', '""')
    return f'"{schema}"."{name}"'


class StoredJSON(models.JSONField):
    """A column of the type json, which psycopg has decoded already; Django expects jsonb as text."""

    def from_db_value(self, value: Any, _expression: Any, _connection: Any) -> Any:
        return value


class TextList(models.Field):
    """A column of the type text[]. Django's own field needs another entry in INSTALLED_APPS."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 - Django's signature
        return "text[]"


class TaskRecord(models.Model):
    """One task, live or finished."""

    id = models.UUIDField(primary_key=True)
    task_name = models.TextField("task")
    queue_name = models.TextField("queue")
    priority = models.IntegerField()
    status = models.TextField(choices=[(status.value, status.value) for status in TaskStatus])
    attempts = models.IntegerField("ended attempts")
    sent_at = models.DateTimeField("sent")
    enqueued_at = models.DateTimeField("due")
    started_at = models.DateTimeField("started", null=True)
    finished_at = models.DateTimeField("finished", null=True)
    good_until = models.DateTimeField(null=True)
    timeout_ms = models.IntegerField(null=True)
    claimed_by = models.UUIDField("worker", null=True)
    root_id = models.UUIDField("workflow", null=True)
    is_sensitive = models.BooleanField(null=True)
    args = StoredJSON("arguments")
    result = StoredJSON(null=True)
    error_code = models.TextField(null=True)
    error = StoredJSON(null=True)
    progress = StoredJSON(null=True)

    class Meta:
        managed = False
        db_table = _table("all_tasks")
        verbose_name = "task"
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = (("operate", "Can retry, cancel, pause and resume"),)

    def __str__(self) -> str:
        return f"{self.task_name} {self.id}"


class WorkflowRecord(models.Model):
    """One run of a workflow."""

    id = models.UUIDField(primary_key=True)
    root_id = models.UUIDField()
    name = models.TextField()
    status = models.TextField(choices=[(status.value, status.value) for status in WorkflowStatus])
    created_at = models.DateTimeField("created")
    started_at = models.DateTimeField("started", null=True)
    finished_at = models.DateTimeField("finished", null=True)
    deadline = models.DateTimeField(null=True)
    error = StoredJSON(null=True)

    class Meta:
        managed = False
        db_table = _table("workflows")
        verbose_name = "workflow"
        ordering = ("-id",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.name} {self.id}"


class ScheduleRecord(models.Model):
    """One schedule."""

    name = models.TextField(primary_key=True)
    task_name = models.TextField("task")
    queue_name = models.TextField("queue")
    timezone = models.TextField()
    enabled = models.BooleanField()
    paused_at = models.DateTimeField("paused since", null=True)
    next_slot_at = models.DateTimeField("next", null=True)
    last_slot_at = models.DateTimeField("last", null=True)
    last_task_id = models.UUIDField("last task", null=True)
    app = models.TextField(null=True)
    args = StoredJSON("arguments")
    is_sensitive = models.BooleanField(null=True)

    class Meta:
        managed = False
        db_table = _table("schedules")
        verbose_name = "schedule"
        ordering = ("name",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class WorkerRecord(models.Model):
    """One worker that has not been declared dead."""

    id = models.UUIDField(primary_key=True)
    hostname = models.TextField("host")
    pid = models.IntegerField()
    app = models.TextField(null=True)
    queues = TextList()
    processes = models.IntegerField()
    concurrency = models.IntegerField()
    library_version = models.TextField("version")
    started_at = models.DateTimeField("started")
    heartbeat_at = models.DateTimeField("last heartbeat")
    leave_requested_at = models.DateTimeField("asked to leave", null=True)

    class Meta:
        managed = False
        db_table = _table("workers")
        verbose_name = "worker"
        ordering = ("-started_at",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.hostname} {self.pid}"
