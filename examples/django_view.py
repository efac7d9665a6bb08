"""A Django project in one file: a view stores an order and sends the task that confirms it, in one transaction.

$ export DATABASE_URL=postgresql://localhost/shop
$ horsies worker examples.django_view:app &
$ python -m examples.django_view runserver
$ curl -d item=saddle localhost:8000/orders
{"order": 1, "task": "01932f0e-..."}
"""

import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import close_old_connections, connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from psycopg.conninfo import conninfo_to_dict

from horsies import Horsies, TaskError, TaskResult

_database = conninfo_to_dict(os.environ["DATABASE_URL"])

settings.configure(
    DEBUG=True,
    SECRET_KEY=os.environ.get("SECRET_KEY", "for development"),
    ROOT_URLCONF=__name__,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": _database.get("dbname", ""),
            "USER": _database.get("user", ""),
            "PASSWORD": _database.get("password", ""),
            "HOST": _database.get("host", ""),
            "PORT": _database.get("port", ""),
        }
    },
)
django.setup()

app = Horsies()


class Order(models.Model):
    item: "models.TextField[str, str]" = models.TextField()
    confirmed: "models.BooleanField[bool, bool]" = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"


@app.task("confirm_order")
def confirm_order(order_id: int) -> TaskResult[str, TaskError]:
    close_old_connections()  # as Django does before each request
    order = Order.objects.get(pk=order_id)  # it exists: it was committed together with this task
    order.confirmed = True
    order.save()
    return TaskResult(ok=f"order {order.pk} of a {order.item} is confirmed")


class OutOfStockError(Exception):
    pass


def take_from_stock(item: str) -> None:
    if item == "sleigh":
        raise OutOfStockError


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    try:
        with transaction.atomic():
            order = Order.objects.create(item=request.POST["item"])
            handle = confirm_order.with_options(connection=connection).send(order.pk)
            take_from_stock(order.item)
    except OutOfStockError:
        return JsonResponse({"error": "out of stock"}, status=409)  # neither the order nor the task was committed
    return JsonResponse({"order": order.pk, "task": handle.task_id}, status=201)


urlpatterns = [path("orders", place_order)]


def create_table() -> None:
    """Create the table of orders, because a project in one file has no migrations."""
    if "shop_order" not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Order)


if __name__ == "__main__":
    create_table()
    execute_from_command_line(sys.argv)
