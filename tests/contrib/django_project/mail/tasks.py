# pyright: basic, reportMissingImports=false
"""Tasks of Django 6, or of its backport."""

import os

if os.environ.get("PROJECT_BACKPORT"):
    from django_tasks import task
else:
    from django.tasks import task


@task
def noop(*args, **kwargs):
    return None


@task
async def anoop(*args, **kwargs):
    return None


@task(priority=10)
def answer():
    return 42


@task
def fail():
    raise ValueError("it failed")


@task
def leave():
    raise SystemExit("it left")


@task
def not_json():
    return lambda: True


@task(takes_context=True)
def describe(context, expected_attempt):
    assert context.attempt == expected_attempt
    assert context.task_result.status == "RUNNING"
    return [context.task_result.id, context.task_result.enqueued_at.isoformat(), len(context.task_result.worker_ids)]


@task(takes_context=True)
async def adescribe(context):
    return context.task_result.id
