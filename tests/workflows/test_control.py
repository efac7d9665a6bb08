"""Pause, resume, cancel, retry and time out workflows. The test plays the worker, so that the order of events is fixed."""

from functools import partial

import psycopg

from horsies.db.broker import PostgresBroker
from horsies.maintenance import rescue
from horsies.model.graph import Graph, NodeKind, NodeStatus, OnError, Ref, RefMode, WorkflowStatus
from horsies.tasks.control import cancel_task
from horsies.workflows import control
from horsies.workflows.advance import EXAMINED_RUNS, FIRST_RUN, RunSweep
from horsies.workflows.handle import read_run_ends
from horsies.workflows.inputs import NodeResult
from horsies.workflows.inspect import get_stuck_workflows
from tests.fixtures.journey import column, row
from tests.workflows.steps import ending_of, node, run_all_tasks, start_run, states, status, take_batch

DONE, BAD, SKIPPED, READY, QUEUED = (
    NodeStatus.COMPLETED,
    NodeStatus.FAILED,
    NodeStatus.SKIPPED,
    NodeStatus.READY,
    NodeStatus.ENQUEUED,
)


def inner(**given: object) -> Graph:
    """A workflow with one of two nodes inside it."""
    part = Graph("inner", (node(0), node(1, 0)), output=1)
    return Graph("outer", (node(0, kind=NodeKind.WORKFLOW, terms=None, child=part), node(1, 0)), **given)  # pyright: ignore[reportArgumentType]


def part_of(sql: psycopg.Connection) -> str:
    return str(row(sql, "select id from horsies.workflows where parent_node is not null")[0])


def test_a_pause_withdraws_tasks_that_have_not_started_and_lets_the_rest_end(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("two", (node(0), node(1), node(2, 0))))
    ((claim,),) = take_batch(broker).claimed
    assert broker.run(partial(control.pause, run))
    assert sorted(states(sql, run)[:2]) == [QUEUED, READY]
    assert take_batch(broker, 5, endings=[ending_of(claim)]).claimed == [[]]
    assert status(sql, run) is WorkflowStatus.PAUSED
    assert broker.run(partial(control.resume, run))
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_a_pause_reaches_sub_workflows(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, inner())
    ((claim,),) = take_batch(broker).claimed
    broker.run(partial(control.pause, run))
    assert take_batch(broker, 5, endings=[ending_of(claim)]).claimed == [[]]
    assert states(sql, part_of(sql)) == (DONE, READY)
    assert broker.run(get_stuck_workflows) == []
    broker.run(partial(control.resume, run))
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_an_error_pauses_a_workflow_with_on_error_pause_immediately(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("careful", (node(0), node(1), node(2, 1)), on_error=OnError.PAUSE))
    first, second = take_batch(broker, 2).claimed[0]
    assert take_batch(broker, 5, endings=[ending_of(first, fails=True)]).claimed == [[]]
    take_batch(broker, 0, endings=[ending_of(second)])
    assert status(sql, run) is WorkflowStatus.PAUSED
    assert column(sql, "select id from horsies.tasks") == []
    broker.run(partial(control.resume, run))
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.FAILED


def test_a_cancellation_ends_waiting_tasks_and_stops_running_ones(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, inner())
    ((claim,),) = take_batch(broker).claimed
    assert broker.run(partial(control.cancel, run))
    assert status(sql, run) is WorkflowStatus.CANCELLED
    assert status(sql, part_of(sql)) is WorkflowStatus.CANCELLED
    assert row(sql, "select cancel_requested_at is not null from horsies.tasks where id = %s", claim.id) == (True,)
    assert states(sql, part_of(sql)) == (QUEUED, SKIPPED)
    take_batch(broker, 0, endings=[ending_of(claim, fails=True)])
    assert states(sql, part_of(sql)) == (BAD, SKIPPED)
    assert take_batch(broker, 5).claimed == [[]]
    assert not broker.run(partial(control.cancel, run))


def test_a_task_that_is_cancelled_before_it_starts_never_runs(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("wide", tuple(node(index) for index in range(5))))
    broker.run(partial(control.cancel, run))
    assert column(sql, "select id from horsies.tasks") == []
    assert column(sql, "select distinct status from horsies.finished") == ["CANCELLED"]
    assert broker.run(get_stuck_workflows) == []


def test_a_retry_runs_what_failed_and_what_was_skipped_and_keeps_the_rest(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("again", (node(0), node(1), node(2, 0), node(3, 0, 1), node(4, 2))))
    run_all_tasks(broker, sql, {(0,)})
    assert states(sql, run) == (BAD, DONE, SKIPPED, SKIPPED, SKIPPED)
    assert broker.run(partial(control.retry, run))
    assert states(sql, run)[:2] == (QUEUED, DONE)
    run_all_tasks(broker, sql, set())
    assert states(sql, run) == (DONE,) * 5
    assert status(sql, run) is WorkflowStatus.COMPLETED
    assert not broker.run(partial(control.retry, run))
    assert row(sql, "select count(*) from horsies.finished") == (6,)


def test_a_retry_reaches_sub_workflows_and_the_items_of_maps(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    each = (Ref(("item",), 0, RefMode.EACH),)
    part = Graph("part", (node(0), node(1, 0)))
    graph = Graph(
        "deep",
        (
            node(0),
            node(1, 0, kind=NodeKind.MAP, refs=each),
            node(2, 1, kind=NodeKind.WORKFLOW, terms=None, child=part),
        ),
    )
    run = start_run(broker, graph)
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result="[1, 2, 3]")])
    run_all_tasks(broker, sql, {(1, 1)})
    assert states(sql, run) == (DONE, BAD, SKIPPED)
    broker.run(partial(control.retry, run))
    assert row(sql, "select count(*) from horsies.tasks") == (1,)  # the one item that failed
    run_all_tasks(broker, sql, {(2, 1)})
    assert states(sql, run) == (DONE, DONE, BAD)
    broker.run(partial(control.retry, run))
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.COMPLETED
    assert broker.run(get_stuck_workflows) == []


def test_a_late_ending_from_before_a_retry_changes_nothing(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("late", (node(0),)))
    ((claim,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(claim, fails=True)])
    broker.run(partial(control.retry, run))
    take_batch(broker, 0, endings=[ending_of(claim)])
    assert states(sql, run) == (QUEUED,)


def test_a_workflow_past_its_time_limit_has_failed_before_its_row_says_so(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, inner(time_limit_ms=1_000_000))
    sql.execute("update horsies.workflows set deadline = now() - interval '1 s' where id = %s", [run])
    found = broker.wait(read_run_ends, [run], None)[run].result()
    assert isinstance(found, NodeResult)
    assert "WORKFLOW_TIMEOUT" in (found.error or "")
    broker.run(rescue.end_overdue_workflows)
    assert status(sql, run) is WorkflowStatus.FAILED
    assert status(sql, part_of(sql)) is WorkflowStatus.CANCELLED
    assert column(sql, "select id from horsies.tasks") == []


def test_a_node_whose_task_is_cancelled_has_failed(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("one by one", (node(0), node(1, 0))))
    (task_id,) = column(sql, "select id::text from horsies.tasks")
    broker.run(partial(cancel_task, str(task_id)))
    broker.run(rescue.settle_workflows)
    assert states(sql, run) == (BAD, SKIPPED)
    assert row(sql, "select error->>'error_code' from horsies.workflows") == ("TASK_CANCELLED",)


def test_a_node_whose_task_expires_has_failed(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("too late", (node(0), node(1, 0))))
    sql.execute("update horsies.tasks set good_until = now() - interval '1 s'")
    broker.run(rescue.expire_tasks)
    broker.run(rescue.settle_workflows)
    assert states(sql, run) == (BAD, SKIPPED)
    assert row(sql, "select error->>'error_code' from horsies.workflows") == ("TASK_EXPIRED",)


def test_a_node_whose_task_was_deleted_by_hand_is_found(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("robbed", (node(0), node(1, 0))))
    sql.execute("delete from horsies.tasks")
    assert [stuck.reason for stuck in broker.run(get_stuck_workflows)] == ["a node waits for a task that is nowhere"]
    broker.run(rescue.resolve_lost_nodes)
    broker.run(rescue.settle_workflows)
    assert status(sql, run) is WorkflowStatus.FAILED
    assert broker.run(get_stuck_workflows) == []


def test_runs_changed_by_hand_are_found_in_turns_however_many_there_are(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    sql.execute(
        "insert into horsies.workflows (id, root_id, name, unresolved, in_flight, status) "
        "select id, id, 'many', 1, 1, case when n %% 3 = 0 then 'PAUSED' else 'RUNNING' end "
        "from (select n, gen_random_uuid() as id from generate_series(1, %s) as n) as new",
        [2 * EXAMINED_RUNS + 10],
    )
    sql.execute(
        "update horsies.workflows set status = 'RUNNING', unresolved = 0 where id = (select max(id::text)::uuid from horsies.workflows)"
    )
    sweep = RunSweep()
    for ended in (0, 0, 1, 1):
        broker.run(partial(rescue.settle_workflows, None, sweep))
        assert row(sql, "select count(*) from horsies.workflows where status = 'COMPLETED'") == (ended,)
    assert sweep.after > FIRST_RUN  # it began again


def test_the_tasks_of_a_dead_worker_advance_their_workflow(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("orphans", (node(0), node(1, 0), node(2, allow_failed_deps=True))))
    assert len(take_batch(broker, 5).claimed[0]) == 2  # by a worker that was never registered
    broker.run(rescue.rescue_orphans)
    broker.run(rescue.settle_workflows)
    assert states(sql, run) == (BAD, SKIPPED, BAD)
    assert status(sql, run) is WorkflowStatus.FAILED
