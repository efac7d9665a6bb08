# pyright: basic
from django.db import transaction
from django.http import HttpResponse

from shop.models import Order
from shop.tasks import confirm


class OutOfStockError(Exception):
    pass


def place(request):
    """Place an order. It is up to the settings whether it has a transaction (ATOMIC_REQUESTS)."""
    order = Order.objects.create(item=request.POST["item"])
    confirm.send(order.pk)
    if order.item == "sleigh":
        raise OutOfStockError
    return HttpResponse(status=201)


@transaction.non_atomic_requests
def place_at_once(request):
    return place(request)
