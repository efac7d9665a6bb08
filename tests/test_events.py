"""Subscribers get the events of their process, and break nothing."""

import logging
from collections.abc import Generator
from typing import Any

import pytest

from horsies import events
from horsies.events import Event, TaskEnded, TaskRaised, TasksSent, WorkflowStarted
from horsies.tasks.claim import NO_CAPS
from horsies.tasks.unknown import UnfitOutcome, unknown_task_claim
from horsies.testing import drain, open_sandbox
from horsies.worker.batch import Batch, BatchResult
from horsies.worker.dispatcher import TaskEvents
from tests.fixtures import dispatching
from tests.fixtures.apps import load_fresh
from tests.fixtures.dispatching import DATABASE, WORKER


@pytest.fixture
def received() -> Generator[list[Event]]:
    """The events of this process during the test."""
    found: list[Event] = []
    before = list(events.subscribers)
    events.subscribe(found.append)
    yield found
    events.subscribers[:] = before


@pytest.fixture
def basic_in_sandbox(database: str) -> Generator[Any]:
    module = load_fresh("basic")
    with open_sandbox(module.app, database):
        yield module


def test_a_send_is_one_event_with_the_number_of_tasks(basic: Any, received: list[Event]) -> None:
    basic.add.send(1, 2)
    basic.add.send_many([basic.add.call(1, n) for n in range(3)])
    assert [(event.task_name, event.queue_name, event.count) for event in received if isinstance(event, TasksSent)] == [
        ("add", "default", 1),
        ("add", "default", 3),
    ]
    assert all(event.duration_s > 0 for event in received if isinstance(event, TasksSent))


async def test_an_async_send_is_an_event(basic: Any, received: list[Event]) -> None:
    await basic.add.send_async(1, 2)
    await basic.app.close_async()
    assert [type(event) for event in received] == [TasksSent]


def test_a_send_with_the_key_of_a_live_task_counts_no_new_task(basic: Any, received: list[Event]) -> None:
    keyed = basic.add.with_options(key="once")
    keyed.send(1, 2)
    keyed.send(1, 2)
    assert [event.count for event in received if isinstance(event, TasksSent)] == [1, 0]


def test_a_send_that_fails_is_not_an_event(basic: Any, received: list[Event]) -> None:
    keyed = basic.add.with_options(key="once")
    keyed.send(1, 2)
    with pytest.raises(Exception, match="other arguments"):
        keyed.send(1, 3)
    assert len(received) == 1


def test_a_start_of_a_workflow_is_an_event(basic: Any, received: list[Event]) -> None:
    handle = basic.app.workflow("sum", [basic.add.node()(1, 2)]).start()
    assert [(event.workflow_name, event.workflow_id) for event in received if isinstance(event, WorkflowStarted)] == [
        ("sum", handle.workflow_id)
    ]


def test_an_exception_of_user_code_is_an_event_in_the_process_that_ran_it(
    basic_in_sandbox: Any, received: list[Event]
) -> None:
    handle = basic_in_sandbox.raise_error.send("oh no")
    drain()
    (event,) = [event for event in received if isinstance(event, TaskRaised)]
    assert (event.task_id, event.task_name, event.attempt) == (handle.task_id, "raise_error", 1)
    assert isinstance(event.exception, RuntimeError)


def test_a_subscriber_that_raises_is_logged_once_and_breaks_nothing(
    basic: Any, received: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_event: Event) -> None:
        raise ZeroDivisionError

    events.subscribers.insert(0, broken)
    with caplog.at_level(logging.ERROR, "horsies.events"):
        basic.add.send(1, 2)
        basic.add.send(1, 2)
    assert len(received) == 2
    (record,) = caplog.records
    assert "broken" in record.getMessage()
    assert record.exc_info is not None


def test_no_event_is_delivered_after_unsubscribe(basic: Any, received: list[Event]) -> None:
    events.unsubscribe(received.append)
    basic.add.send(1, 2)
    assert received == []


@pytest.mark.parametrize("outcome", UnfitOutcome)
def test_the_end_of_a_task_that_no_worker_can_run_is_an_event(received: list[Event], outcome: UnfitOutcome) -> None:
    task_events, unfit = TaskEvents(), unknown_task_claim(claim := dispatching.claim())
    task_events.on_committed(Batch(WORKER, DATABASE, NO_CAPS), BatchResult(claimed=[[claim]]), 0.1)
    set_aside = Batch(WORKER, DATABASE, NO_CAPS, unfit=[unfit])
    task_events.on_committed(set_aside, BatchResult(unfit_outcomes={claim.id: outcome}), 0.1)
    ending = Batch(WORKER, DATABASE, NO_CAPS, endings=[unfit.ending])
    task_events.on_committed(ending, BatchResult(ended=frozenset({claim.id})), 0.1)
    ended = [event.error_code for event in received if isinstance(event, TaskEnded)]
    assert ended == (["WORKER_RESOLUTION_ERROR"] if outcome is UnfitOutcome.NO_WORKER else [])
