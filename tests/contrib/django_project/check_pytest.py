# pyright: basic
"""Tests with pytest-django."""

import pytest
from shop import tasks
from shop.models import Order

from horsies.contrib.django.testing import SandboxError, assert_enqueued, drain, enqueued, run_inline


@pytest.mark.django_db
def test_in_a_transaction():
    order = Order.objects.create(item="saddle")
    handle = order.confirm()
    assert_enqueued(tasks.confirm, count=1)
    drain()
    assert handle.get().unwrap() == "saddle"


@pytest.mark.django_db
def test_another_one_sees_nothing():
    assert enqueued() == []


@pytest.mark.django_db(transaction=True)
def test_committed():
    handle = Order.objects.create(item="saddle").confirm()
    drain()
    assert handle.get(timeout_ms=60_000).unwrap() == "saddle"


@pytest.mark.django_db
def test_inline():
    with run_inline() as ran:
        assert Order.objects.create(item="saddle").confirm().get().unwrap() == "saddle"
    assert [each.task_name for each in ran] == ["confirm"]


def test_without_a_database():
    with pytest.raises((RuntimeError, SandboxError)):
        tasks.confirm.send(1)
