# pyright: basic
import os

from django.apps import apps
from django.db import connection, transaction

from horsies import RetryPolicy, TaskError, TaskResult, current_task
from horsies.contrib.django import app, task

QUEUE = "default" if len(app.config.queues) > 1 else None


if os.environ.get("PROJECT_HOOK"):

    @app.on_child_start
    def leave_open_at_start() -> None:
        transaction.atomic().__enter__()


def orders():
    from shop.models import Order

    return Order.objects


@task("confirm", queue_name=QUEUE)
def confirm(order_id: int) -> TaskResult[str, TaskError]:
    order = orders().get(pk=order_id)
    order.confirmed = True
    order.save()
    return TaskResult(ok=order.item)


@task("aconfirm", queue_name=QUEUE)
async def aconfirm(order_id: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=await orders().filter(pk=order_id).aupdate(confirmed=True))


@task("confirm_later", queue_name=QUEUE)
def confirm_later(order_id: int) -> TaskResult[str, TaskError]:
    with transaction.atomic():
        orders().filter(pk=order_id).update(item="changed")
        return TaskResult(ok=confirm.send(order_id).task_id)


@task("duplicate", queue_name=QUEUE, retry_policy=RetryPolicy.fixed([1], auto_retry_for=["UNHANDLED_ERROR"]))
def duplicate(item: str) -> TaskResult[None, TaskError]:
    orders().create(item=item)  # fails if there is one
    return TaskResult(ok=None)


@task("backend_pid", queue_name=QUEUE)
def backend_pid() -> TaskResult[int, TaskError]:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return TaskResult(ok=cursor.fetchone()[0])


@task("abackend_pid", queue_name=QUEUE)
async def abackend_pid() -> TaskResult[list[int], TaskError]:
    from asgiref.sync import sync_to_async

    def pid() -> int:
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            return cursor.fetchone()[0]

    return TaskResult(ok=[await sync_to_async(pid)(), await sync_to_async(pid)()])


@task("leave_open", queue_name=QUEUE)
def leave_open(item: str) -> TaskResult[None, TaskError]:
    """Leave a transaction open, as a stop in the middle of `atomic()` may do."""
    transaction.atomic().__enter__()
    orders().create(item=item)
    return TaskResult(ok=None)


@task("place", queue_name=QUEUE)
def place(item: str) -> TaskResult[None, TaskError]:
    orders().create(item=item)
    return TaskResult(ok=None)


@task("describe", queue_name=QUEUE)
def describe() -> TaskResult[list[str], TaskError]:
    described = [str(apps.ready), str(connection.settings_dict["NAME"]), str(app.name), str(os.getpid())]
    return TaskResult(ok=described)


@task("charge", queue_name=QUEUE, sensitive=True)
def charge(card: str) -> TaskResult[str, TaskError]:
    current_task().progress(0.5, f"card {card}")
    if card == "4711":
        return TaskResult(err=TaskError(error_code="DECLINED", message=f"card {card}"))
    return TaskResult(ok=card)


@task("refuse", queue_name=QUEUE)
def refuse(card: str) -> TaskResult[str, TaskError]:
    return TaskResult(err=TaskError(error_code="DECLINED", message=f"card {card}"))
