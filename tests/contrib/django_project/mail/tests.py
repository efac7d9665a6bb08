# pyright: basic, reportMissingImports=false
"""The contract of backends, as the documentation of `django.tasks` and the tests of its backport state it."""

import os
from datetime import datetime, timedelta
from importlib import import_module

from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone

from horsies import WorkerConfig
from horsies.contrib.django import app
from horsies.contrib.django.backend import HorsiesBackend, InvalidTask, TaskFailedError
from horsies.contrib.django.testing import drain, enqueued
from mail import tasks

PACKAGE = "django_tasks" if os.environ.get("PROJECT_BACKPORT") else "django.tasks"
package = import_module(PACKAGE)
signals, exceptions = import_module(f"{PACKAGE}.signals"), import_module(f"{PACKAGE}.exceptions")
backend = package.default_task_backend
LOGGER = PACKAGE
UNKNOWN = "01932f0e-0000-7000-8000-000000000000"


class Recorded:
    def __init__(self, signal):
        self.signal, self.results = signal, []

    def __enter__(self):
        self.signal.connect(self.receive)
        return self.results

    def __exit__(self, *_error):
        self.signal.disconnect(self.receive)

    def receive(self, sender, task_result, **_kwargs):
        assert sender is HorsiesBackend
        self.results.append((task_result, task_result.status))


class Enqueueing(TestCase):
    def test_it_is_the_backend_and_supports_everything(self):
        assert isinstance(package.task_backends["default"], HorsiesBackend)
        assert backend.alias == "default"
        assert backend.options == {}
        flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
        assert all(getattr(backend, flag) for flag in flags)
        assert list(backend.check()) == []

    def test_enqueue(self):
        for task in (tasks.noop, tasks.anoop):
            with Recorded(signals.task_enqueued) as received:
                result = task.enqueue(1, two=3)
            assert (result.status, result.is_finished, result.attempts) == ("READY", False, 0)
            assert result.enqueued_at <= timezone.now()
            assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
            with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
                _ = result.return_value
            assert (result.task, result.args, result.kwargs, result.backend) == (task, [1], {"two": 3}, "default")
            assert [each for each, _ in received] == [result]
            assert task.get_result(result.id) == result
            assert backend.get_result(result.id) == result

    async def test_enqueue_from_asyncio(self):
        result = await tasks.noop.aenqueue({"a": [1, None, 2.5]})
        assert await tasks.noop.aget_result(result.id) == result
        await result.arefresh()
        assert result.status == "READY"

    def test_invalid_arguments(self):
        with self.assertRaisesMessage(TypeError, "Unsupported type: <class 'datetime.datetime'>"):
            tasks.noop.enqueue(datetime.now())
        assert enqueued() == []

    def test_unknown_results(self):
        for unknown in ("123", UNKNOWN):
            with self.assertRaises(exceptions.TaskResultDoesNotExist):
                backend.get_result(unknown)
        result = tasks.noop.enqueue()
        with self.assertRaises(exceptions.TaskResultMismatch):
            tasks.answer.get_result(result.id)

    def test_the_result_of_another_kind_of_task_does_not_exist(self):
        from shop.tasks import describe

        with self.assertRaises(exceptions.TaskResultDoesNotExist):
            backend.get_result(describe.send().task_id)

    def test_priority_queue_and_time(self):
        late = timezone.now() + timedelta(hours=1)
        variant = tasks.noop.using(priority=-5, queue_name="slow", run_after=late)
        result = variant.enqueue()
        (waiting,) = enqueued()
        assert (waiting.priority, waiting.queue_name) == (105, "slow")
        assert 0 < waiting.due_in_s <= 3600
        assert backend.get_result(result.id) == result
        assert result.task == variant
        assert drain() == []

    def test_higher_priorities_run_first(self):
        ids = [tasks.noop.using(priority=priority).enqueue().id for priority in (-100, 0, 100)]
        assert [ran.task_id for ran in drain()] == ids[::-1]

    def test_validation(self):
        with self.assertRaisesMessage(InvalidTask, "is not valid for backend"):
            tasks.noop.using(queue_name="unknown")
        with self.assertRaisesMessage(InvalidTask, "priority must be a whole number"):
            tasks.noop.using(priority=101)
        with self.assertRaisesMessage(InvalidTask, "must be defined at a module level"):
            package.task()(self.test_validation)
        with self.assertRaisesMessage(InvalidTask, "first argument of 'context'"):
            package.task(takes_context=True)(tasks.answer.func)
        with self.assertRaisesMessage(InvalidTask, "run_after must be an aware datetime"):
            tasks.noop.using(run_after=datetime.now())

    @override_settings(TASKS={"default": {"BACKEND": "horsies.contrib.django.backend.HorsiesBackend", "QUEUES": []}})
    def test_without_queues_those_of_horsies_are_valid(self):
        assert tasks.noop.using(queue_name="slow").queue_name == "slow"
        with self.assertRaisesMessage(InvalidTask, "there is no queue 'unknown'"):
            tasks.noop.using(queue_name="unknown")

    @override_settings(
        TASKS={"default": {"BACKEND": "horsies.contrib.django.backend.HorsiesBackend", "QUEUES": ["default", "odd"]}}
    )
    def test_the_check_finds_unknown_queues(self):
        assert [message.id for message in package.default_task_backend.check()] == ["horsies.E008"]

    @override_settings(USE_TZ=False)
    def test_without_time_zones(self):
        result = tasks.noop.using(run_after=datetime.now() + timedelta(hours=1)).enqueue()
        assert timezone.is_naive(result.enqueued_at)
        assert backend.get_result(result.id) == result

    def test_it_is_part_of_the_transaction(self):
        try:
            with transaction.atomic():
                result = tasks.noop.enqueue()
                assert backend.get_result(result.id).status == "READY"
                raise LookupError
        except LookupError:
            pass
        with self.assertRaises(exceptions.TaskResultDoesNotExist):
            result.refresh()

    def test_enqueueing_is_logged(self):
        with self.assertLogs(LOGGER, level="DEBUG") as logs:
            result = tasks.noop.enqueue()
        (line,) = logs.output
        assert "enqueued" in line
        assert result.id in line


class Running(TestCase):
    def test_success(self):
        result = tasks.answer.enqueue()
        with Recorded(signals.task_started) as started, Recorded(signals.task_finished) as finished:
            drain()
        result.refresh()
        assert (result.status, result.is_finished, result.return_value) == ("SUCCESSFUL", True, 42)
        assert result.attempts == 1
        assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
        assert result.errors == []
        assert [(each.id, status) for each, status in started] == [(result.id, "RUNNING")]
        assert [(each.return_value, status) for each, status in finished] == [(42, "SUCCESSFUL")]

    def test_failures(self):
        for task, kind, message in (
            (tasks.fail, ValueError, "ValueError: it failed\n"),
            (tasks.leave, SystemExit, "SystemExit: it left\n"),
            (tasks.not_json, TypeError, "Unsupported type"),
        ):
            with self.subTest(task.name):
                result = task.enqueue()
                with Recorded(signals.task_finished) as finished, self.assertLogs(LOGGER, level="ERROR") as logs:
                    drain()
                result.refresh()
                assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 1)
                (error,) = result.errors
                assert error.exception_class is kind
                assert message in error.traceback
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    _ = result.return_value
                ((finished_result, status),) = finished
                assert (status, finished_result.errors[0].exception_class) == ("FAILED", kind)
                assert len(logs.output) == 1

    def test_a_cancelled_task_has_an_error_of_its_own(self):
        result = tasks.noop.enqueue()
        app.handle(result.id).cancel()
        result.refresh()
        (error,) = result.errors
        assert (result.status, error.exception_class) == ("FAILED", TaskFailedError)
        assert "CANCELLED" in error.traceback

    def test_context(self):
        result, other = tasks.describe.enqueue(1), tasks.adescribe.enqueue()
        drain()
        result.refresh()
        assert result.return_value == [result.id, result.enqueued_at.isoformat(), 1], result.errors
        other.refresh()
        assert other.return_value == other.id

    def test_a_second_attempt(self):
        result = tasks.describe.enqueue(2)
        drain()
        app.handle(result.id).retry()
        drain()
        result.refresh()
        assert (result.status, result.attempts, len(result.worker_ids)) == ("SUCCESSFUL", 2, 2)
        assert [error.exception_class for error in result.errors] == [AssertionError]

    def test_direct_calls(self):
        assert tasks.answer.call() == 42
        assert tasks.anoop.call() is None


class WithAWorker(TransactionTestCase):
    def test_it_runs_there(self):
        results = [tasks.answer.enqueue(), tasks.anoop.enqueue(1), tasks.fail.enqueue(), tasks.describe.enqueue(1)]
        with app.worker(WorkerConfig(processes=1, concurrency=4)):
            for result in results:
                app.handle(result.id).get(timeout_ms=60_000)
        for result in results:
            result.refresh()
        assert [result.status for result in results] == ["SUCCESSFUL", "SUCCESSFUL", "FAILED", "SUCCESSFUL"]
        assert results[2].errors[0].exception_class is ValueError
        assert "it failed" in results[2].errors[0].traceback
        assert "horsies/contrib" not in results[2].errors[0].traceback
