"""Helpers that start graphs and play the worker, one batch at a time."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import psycopg

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Op
from horsies.model.graph import Graph, Node, NodeKind, NodeStatus, WorkflowStatus
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskOptions
from horsies.tasks.claim import NO_CAPS, ClaimRequest, lanes_from_start
from horsies.worker.batch import Batch, BatchResult, run_batch
from horsies.workflows.advance import get_unfinished_trees, run_steps
from horsies.workflows.start import MAX_NOTIFIED_AFTER_COMMIT, plan_start, start
from tests.fixtures.journey import ME, row

ERROR = '{"error_code": "BROKEN", "message": "%s"}'


def node(index: int, *waits_for: int, **given: Any) -> Node:
    return Node(
        index,
        given.pop("node_id", f"n{index}"),
        given.pop("kind", NodeKind.TASK),
        terms=given.pop("terms", TaskOptions("add", "default")),
        waits_for=waits_for,
        **given,
    )


def start_run(
    broker: PostgresBroker,
    graph: Graph,
    workflow_id: str | None = None,
    *,
    max_notified: int = MAX_NOTIFIED_AFTER_COMMIT,
) -> str:
    write = partial(start, plan_start(graph, workflow_id), max_notified=max_notified)
    return broker.run(write, again=write)


def take_batch(
    broker: PostgresBroker, limit: int = 1, *, endings: Sequence[Ending] = (), worker: str = ME
) -> BatchResult:
    """Run a batch of a worker, and the steps that its dispatcher would run after it."""
    wanted = [ClaimRequest(worker, TaskStatus.RUNNING, limit, 60_000)] if limit else []
    batch = Batch(worker, broker.config, NO_CAPS, endings, claim_requests=wanted, lanes=lanes_from_start(["default"]))
    outcome = broker.run(lambda: run_batch(batch))
    broker.run(partial(run_steps, outcome.unsettled))
    return outcome


def ending_of(claim: Claim, *, fails: bool = False, result: str = "1") -> Ending:
    if fails:
        return Ending(
            claim.id, claim.claim_no, TaskStatus.FAILED, None, "BROKEN", ERROR % claim.id, root_id=claim.root_id
        )
    return Ending(claim.id, claim.claim_no, TaskStatus.COMPLETED, result, root_id=claim.root_id)


def advance_all_trees() -> Op[None]:
    """Do all work that is left, as the maintenance leader does (`maintenance/rescue.py`)."""
    while roots := (yield from get_unfinished_trees()):
        yield from run_steps(roots)


def states(sql: psycopg.Connection, workflow_id: str) -> tuple[NodeStatus, ...]:
    found = sql.execute(
        "select status from horsies.nodes where workflow_id = %s order by index", [workflow_id]
    ).fetchall()
    return tuple(NodeStatus(status) for (status,) in found)


def status(sql: psycopg.Connection, workflow_id: str) -> WorkflowStatus:
    return WorkflowStatus(row(sql, "select status from horsies.workflows where id = %s", workflow_id)[0])


def node_path(sql: psycopg.Connection, task_id: str) -> tuple[int, ...]:
    """Return the path to the node of a task."""
    indexes: list[int] = []
    at: Any = row(sql, "select node_id from horsies.tasks where id = %s", task_id)[0]
    while at is not None:
        index, at = row(
            sql,
            "select index, parent_node from horsies.nodes join horsies.workflows on workflows.id = workflow_id where nodes.id = %s",
            at,
        )
        indexes.insert(0, index)
    return tuple(indexes)


def run_all_tasks(
    broker: PostgresBroker, sql: psycopg.Connection, failing: Mapping[tuple[int, ...], bool] | set[tuple[int, ...]]
) -> None:
    """Run all tasks, one at a time."""
    while claims := [claim for group in take_batch(broker).claimed for claim in group]:
        take_batch(broker, 0, endings=[ending_of(claim, fails=node_path(sql, claim.id) in failing) for claim in claims])
