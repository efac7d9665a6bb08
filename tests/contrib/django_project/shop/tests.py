# pyright: basic
from datetime import timedelta

from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from horsies.contrib.django import app
from horsies.contrib.django.testing import (
    SandboxError,
    assert_enqueued,
    clock,
    drain,
    drain_async,
    enqueued,
    refute_enqueued,
    run_inline,
)
from shop import tasks
from shop.models import Order


class WithTestData(TestCase):
    """Django copies what `setUpTestData` has set, for each test."""

    @classmethod
    def setUpTestData(cls):
        cls.order = Order.objects.create(item="saddle")
        cls.handle = cls.order.confirm()
        cls.started = app.workflow("confirming", [tasks.confirm.node()(cls.order.pk)]).start()

    def test_it_can_be_drained(self):
        drain()
        assert self.handle.get().unwrap() == "saddle"
        assert self.started.get().is_ok()
        self.order.refresh_from_db()
        assert self.order.confirmed

    def test_other_tests_do_not_change_it(self):
        assert not self.order.confirmed
        assert self.handle.status() == "PENDING"
        assert_enqueued(tasks.confirm, count=2)


class InATransaction(TestCase):
    def test_sends_are_seen_and_drained(self):
        order = Order.objects.create(item="saddle")
        handle = order.confirm()
        assert handle.status() == "PENDING"
        assert_enqueued(tasks.confirm, {"order_id": order.pk}, count=1)
        with self.assertRaisesMessage(SandboxError, "call drain()"):
            handle.get()
        assert handle.get(timeout_ms=0).err_value.error_code == "WAIT_TIMEOUT"
        (ran,) = drain()
        assert ran.status == "COMPLETED", ran
        order.refresh_from_db()
        assert order.confirmed
        assert handle.get().unwrap() == "saddle"
        assert [task.status for task in app.ops.list_tasks().tasks] == ["COMPLETED"]

    def test_nothing_is_left_by_other_tests(self):
        assert enqueued() == []
        assert app.ops.list_tasks().tasks == []

    def test_a_rollback_takes_the_send_with_it(self):
        try:
            with transaction.atomic():
                tasks.confirm.send(1)
                tasks.confirm.with_options(connection=None).send(2)
                raise LookupError
        except LookupError:
            pass
        refute_enqueued(tasks.confirm)

    def test_a_task_that_breaks_the_transaction_fails_alone(self):
        Order.objects.create(item="saddle")
        handle = tasks.duplicate.send("saddle")
        (ran,) = drain()
        assert ran.status == "PENDING", ran
        clock.advance(timedelta(seconds=5))
        (ran,) = drain()
        assert handle.status() == "FAILED"
        assert Order.objects.count() == 1
        with connection.cursor() as cursor:
            cursor.execute("select current_setting('search_path')")
            assert cursor.fetchone()[0] == '"$user", public'

    def test_keys_and_many(self):
        first = tasks.confirm.with_options(key="k").send(1)
        assert tasks.confirm.with_options(key="k").send(1).task_id == first.task_id
        tasks.confirm.send_many([tasks.confirm.call(n) for n in range(3000)])
        assert len(enqueued(tasks.confirm)) == 3001
        assert first.cancel().name == "CANCELLED"

    def test_inline_runs_at_once_and_after_atomic(self):
        order = Order.objects.create(item="saddle")
        with run_inline() as ran:
            assert order.confirm().get().unwrap() == "saddle"
            with transaction.atomic():
                handle = order.confirm()
                assert len(ran) == 1
            assert handle.get().unwrap() == "saddle"
            tasks.confirm_later.send(order.pk)
        assert [each.task_name for each in ran] == ["confirm", "confirm", "confirm_later", "confirm"]

    def test_an_async_task_uses_the_transaction(self):
        order = Order.objects.create(item="saddle")
        handle = tasks.aconfirm.send(order.pk)
        drain()
        assert handle.get().unwrap() == 1

    async def test_async_tests(self):
        order = await Order.objects.acreate(item="saddle")
        sync, async_ = await tasks.confirm.send_async(order.pk), await tasks.aconfirm.send_async(order.pk)
        assert len(await drain_async()) == 2
        assert (await sync.get_async()).unwrap() == "saddle"
        assert (await async_.get_async()).unwrap() == 1

    def test_async_sends_of_a_blocking_transaction(self):
        try:
            with transaction.atomic():
                async_to_sync(tasks.confirm.send_async)(1)
                assert_enqueued(tasks.confirm, count=1)
                raise LookupError
        except LookupError:
            pass
        refute_enqueued(tasks.confirm)


class Committed(TransactionTestCase):
    def test_sends_are_committed(self):
        order = Order.objects.create(item="saddle")
        handle = order.confirm()
        with transaction.atomic():
            inside = order.confirm()
            assert app.handle(inside.task_id).status() == "PENDING"
        assert len(drain()) == 2
        assert handle.get(timeout_ms=60_000).unwrap() == "saddle"

    def test_a_rollback_takes_the_send_with_it(self):
        try:
            with transaction.atomic():
                tasks.confirm.send(1)
                opted_out = tasks.place.with_options(connection=None)
                opted_out.send("x")
                raise LookupError
        except LookupError:
            pass
        refute_enqueued(tasks.confirm)

    def test_nothing_is_left_by_other_tests(self):
        assert enqueued() == []


class WithAWorker(TransactionTestCase):
    def test_children_use_the_test_database(self):
        from horsies import WorkerConfig

        order = Order.objects.create(item="saddle")
        handle, described = order.confirm(), tasks.describe.send()
        with app.worker(WorkerConfig(processes=1)):
            assert handle.get(timeout_ms=60_000).unwrap() == "saddle"
            assert described.get(timeout_ms=60_000).unwrap()[1] == connection.settings_dict["NAME"]


class WithoutADatabase(SimpleTestCase):
    def test_a_send_is_refused(self):
        with self.assertRaisesRegex(Exception, "not allowed|, the database of the project"):
            tasks.confirm.send(1)
