"""What the statements of workflows read grows with the graph, and no faster: counted by rows, not by the clock.

Workers and producers plan a statement once, perhaps while the tables are empty; behind a pooler each is planned for the tables as they are. Neither
may know anything of the tables: they are not analysed here. One session knows the statistics of tasks that ended earlier, when no task had ended "since now".
"""

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.loop_connection import SESSION_SETTINGS
from horsies.db.pooler import GENERIC_PLANS, apply_session_settings
from horsies.db.statement import Query, Statement
from horsies.model.graph import Graph, Join, Node, NodeKind, NodeStatus, Ref, RefMode, WorkflowStatus
from horsies.tasks import control as task_control
from horsies.workflows import advance, control, inspect
from tests.fixtures.journey import column
from tests.workflows.steps import node, start_run, status

SMALL, TIMES = 500, 4
LARGE = SMALL * TIMES
SLACK = 1.5
FREE = 10 * LARGE
"""Few enough to be linear in any case: a small graph may have been planned differently, for less than its share."""
PARAMETER = re.compile(r"%\((\w+)\)s::([a-z]+(?:\[\])?)")
PROCESS = "pg_catalog.pg_backend_pid()"
SESSIONS = {
    "worker": SESSION_SETTINGS.text.replace("%(statement_timeout_ms)s", "'60000'").replace("%(backend_pid)s", PROCESS),
    "producer": apply_session_settings(GENERIC_PLANS, PROCESS),
    "pooler": "",
    "analysed": "",
}

Work = dict[str, int]
"""The rows that each statement has read, passed on or thrown away, by its name."""


class Session:
    """Runs statements and counts the rows in every part of their plans."""

    def __init__(self, sql: psycopg.Connection, *, is_prepared: bool, is_analysed: bool) -> None:
        self.sql = sql
        self.is_analysed = is_analysed
        self._is_prepared = is_prepared
        self._prepared: set[str] = set()

    def count(self, *queries: Query) -> Work:
        work: Work = {}
        for query in queries:
            name = query.statement.name
            work[name] = work.get(name, 0) + sum(_rows_in(self._explained(query)["Plan"]))
        return work

    def plan(self, statement: Statement) -> None:
        """To be called while the tables are empty. Statements are planned again after a truncation, at their next execution."""
        if not self._is_prepared:
            return
        if statement.name not in self._prepared:
            self._prepare(statement)
        nulls = ", ".join(["null"] * len(dict(PARAMETER.findall(statement.text))))
        self.sql.execute(f"explain execute {statement.name}{f'({nulls})' if nulls else ''}".encode())

    def _prepare(self, statement: Statement) -> None:
        text = statement.for_schema("horsies").decode().strip().removesuffix(";").replace("%%", "%")
        types = dict(PARAMETER.findall(text))
        numbers = {name: f"${number}" for number, name in enumerate(types, 1)}
        text = PARAMETER.sub(lambda found: f"{numbers[found[1]]}::{found[2]}", text)
        declared = f"({', '.join(types.values())})" if types else ""
        self.sql.execute(f"prepare {statement.name}{declared} as {text}".encode())
        self._prepared.add(statement.name)

    def _explained(self, query: Query) -> Mapping[str, Any]:
        statement = query.statement
        explain = "explain (analyze, timing off, format json) "
        if not self._is_prepared:
            text = statement.for_schema("horsies")
            ((plan,),) = self.sql.execute(explain.encode() + text, query.params).fetchall()
        else:
            given = ", ".join(f"%({name})s::{kind}" for name, kind in dict(PARAMETER.findall(statement.text)).items())
            text = f"{explain} execute {statement.name}{f'({given})' if given else ''}".encode()
            ((plan,),) = psycopg.ClientCursor(self.sql).execute(text, query.params).fetchall()
        return plan[0]


def _rows_in(plan: Mapping[str, Any]) -> Iterator[int]:
    if not plan["Node Type"].startswith("Bitmap") or "Heap" in plan["Node Type"]:  # others count dead rows, too
        removed = sum(count for name, count in plan.items() if name.startswith("Rows Removed"))
        yield round((plan["Actual Rows"] + removed) * plan["Actual Loops"])
    for part in plan.get("Plans", ()):
        yield from _rows_in(part)


@pytest.fixture(params=SESSIONS)
def session(request: pytest.FixtureRequest, broker: PostgresBroker) -> Generator[Session]:
    with psycopg.connect(broker.config.conninfo, autocommit=True) as sql:
        partitions = column(sql, "select relid::text from pg_partition_tree('horsies.finished') where isleaf")
        for table in ("horsies.tasks", "horsies.nodes", "horsies.workflows", *partitions):
            sql.execute(f"alter table {table} set (autovacuum_enabled = off)".encode())
        if settings := SESSIONS[request.param]:
            sql.execute(settings.encode())
        yield Session(sql, is_prepared=bool(settings), is_analysed=request.param == "analysed")


def plan_everything(session: Session) -> None:
    for module in (advance, control, inspect, task_control):
        for name, statement in module.SQL.items():
            if not name.startswith(("begin_", "commit_")):
                session.plan(statement)


# -- graphs


def fan(size: int, **of_join: Any) -> Graph:
    return Graph(
        "fan",
        (node(0), *(node(n, 0) for n in range(1, size + 1)), node(size + 1, *range(1, size + 1), **of_join)),
        output=size + 1,
    )


def layers(size: int) -> Graph:
    """Five of them, each node after three of the layer before."""
    width = size // 5
    return Graph(
        "layers",
        tuple(
            node(n, *(() if n < width else sorted({(n // width - 1) * width + (n + k) % width for k in range(3)})))
            for n in range(width * 5)
        ),
    )


def parts(size: int, inner: Graph, **of_part: Any) -> Graph:
    part: dict[str, Any] = {"kind": NodeKind.WORKFLOW, "terms": None, "child": inner, **of_part}
    return Graph("parts", (node(0), *(node(n, 0, **part) for n in range(1, size + 1))))


def mapped(*, max_parallel: int | None = None) -> Graph:
    each = (Ref(("item",), 0, RefMode.EACH),)
    over: Node = node(1, 0, kind=NodeKind.MAP, refs=each, args='{"item":null}', max_parallel=max_parallel)
    return Graph("map", (node(0), over, node(2, 1)), output=2)


def contexts(size: int) -> Graph:
    """Two nodes, many that wait for the one and await the other, and one that awaits all of these."""
    many = range(2, size + 2)
    awaiting = [node(n, 0, 1, join=Join.ANY, awaits=(1,), uncounted=frozenset({1})) for n in many]
    last = node(size + 2, 0, *many, join=Join.ANY, awaits=tuple(many), uncounted=frozenset(many))
    return Graph("contexts", (node(0), node(1), *awaiting, last))


# -- what happens to them


def end(session: Session, run: str, *, fails: bool = False, result: str = "1") -> Work:
    """All tasks of the tree end at once, and a full step follows."""
    with session.sql.transaction():
        ids = column(
            session.sql,
            """
            with gone as (delete from horsies.tasks where root_id = %s returning *)
            insert into horsies.finished (
                id, task_name, queue_name, priority, status, args, result, error,
                sent_at, enqueued_at, attempts, claim_no, finished_at, root_id, node_id
            )
            select
                id, task_name, queue_name, priority, case when %s then 'FAILED' else 'COMPLETED' end, args,
                case when not %s then %s::json end, case when %s then '{"error_code": "BROKEN", "message": ""}'::json end,
                sent_at, enqueued_at, 1, 1, statement_timestamp(), root_id, node_id
            from gone
            returning id::text
            """,
            run,
            fails,
            fails,
            result,
            fails,
        )
        return session.count(*advance.full_step([run], [str(task_id) for task_id in ids]))


def step(session: Session, run: str) -> Work:
    with session.sql.transaction():
        return session.count(*advance.full_step([run]))


def controlled(session: Session, run: str, *queries: Query) -> Work:
    with session.sql.transaction():
        return added(session.count(*queries), session.count(*advance.full_step([run])))


def added(*works: Work) -> Work:
    return {
        name: sum(work.get(name, 0) for work in works) for name in sorted({*(name for work in works for name in work)})
    }


def to_the_end(session: Session, run: str, *, fails: bool = False, result: str = "1") -> Work:
    works: list[Work] = []
    while status(session.sql, run) is WorkflowStatus.RUNNING:
        works.append(end(session, run, fails=fails, result=result))
        assert len(works) < 20, "it does not end"
    return added(*works)


Story = Callable[[PostgresBroker, Session, int], Sequence[Work]]


def a_fan_completes(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, fan(size))
    return [end(session, run), end(session, run), end(session, run)]


def a_fan_is_skipped(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, fan(size))
    return [end(session, run, fails=True), step(session, run), step(session, run)]


def a_join_of_failures_runs(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, fan(size, join=Join.ANY, allow_failed_deps=True))
    return [end(session, run), end(session, run, fails=True), end(session, run)]


def optional_nodes_fail(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    graph = Graph("optional", tuple(node(n) for n in range(size)), optional=frozenset(range(size)))
    return [to_the_end(session, start_run(broker, graph), fails=True)]


def cases_of_success(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    graph = Graph("cases", tuple(node(n) for n in range(size)), success_cases=tuple((n,) for n in range(size)))
    return [to_the_end(session, start_run(broker, graph), fails=True)]


def layers_complete(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, layers(size))
    return [end(session, run), to_the_end(session, run)]


def a_map_completes(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, mapped())
    return [end(session, run, result=json.dumps([1] * size)), end(session, run), to_the_end(session, run)]


def a_map_has_failures(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    each = (Ref(("item",), -1, RefMode.EACH),)
    over: Node = node(
        0, kind=NodeKind.MAP, refs=each, args='{"item":null}', items=json.dumps([1] * size), max_failures=size
    )
    results = (Ref(("a",), 0, RefMode.RESULTS),)
    run = start_run(broker, Graph("map", (over, node(1, 0, refs=results))))
    failed = end(session, run, fails=True)
    return [failed, to_the_end(session, run)]


def contexts_are_awaited(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, contexts(size))
    return [end(session, run), end(session, run), to_the_end(session, run)]


def contexts_are_awaited_again(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, contexts(size))
    end(session, run, fails=True)
    for _ in range(3):
        step(session, run)
    return [_retried(session, run), to_the_end(session, run)]


def sub_workflows_complete(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, parts(size, Graph("inner", (node(0), node(1, 0)), output=1)))
    return [end(session, run), end(session, run), end(session, run), to_the_end(session, run)]


def maps_open(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    each = (Ref(("item",), 0, RefMode.EACH),)
    maps = [node(n, 0, kind=NodeKind.MAP, refs=each, args='{"item":null}', max_parallel=1) for n in range(1, size + 1)]
    run = start_run(broker, Graph("maps", (node(0), *maps)))
    return [end(session, run, result="[1, 2]"), end(session, run), end(session, run), step(session, run)]


def a_workflow_is_paused_resumed_and_cancelled(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, parts(size, Graph("inner", (node(0), node(1, 0)))))
    error = '{"error_code": "X", "message": ""}'
    begun = end(session, run)
    paused = controlled(session, run, control.SQL["pause_run"](id=run))
    resumed = controlled(session, run, control.SQL["resume_runs"](root=run, id=run))
    stopped = session.count(control.SQL["stop_runs"](root=run, id=run, status="CANCELLED", error=error))
    runs = [str(found) for found in column(session.sql, "select id from horsies.workflows where root_id = %s", run)]
    tasks = [str(found) for found in column(session.sql, "select id from horsies.tasks where root_id = %s", run)]
    cancelled = controlled(
        session,
        run,
        control.SQL["get_tasks_of_runs"](runs=runs),
        task_control.SQL["end_unstarted_tasks"](ids=tasks, status="CANCELLED", error_code="X", error=error),
        control.SQL["stop_nodes"](runs=runs, id=run, error=error),
    )
    return [begun, paused, resumed, stopped, cancelled, step(session, run)]


def a_workflow_is_retried(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, fan(size))
    end(session, run)
    end(session, run, fails=True)
    step(session, run)
    return [_retried(session, run), to_the_end(session, run)]


def a_join_is_retried(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, fan(size))
    end(session, run)
    end(session, run)
    end(session, run, fails=True)
    return [_retried(session, run), to_the_end(session, run)]


def sub_workflows_are_retried(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, parts(size, Graph("inner", (node(0), node(1, 0)))))
    end(session, run)
    end(session, run, fails=True)
    for _ in range(3):
        step(session, run)
    return [_retried(session, run), to_the_end(session, run)]


def _retried(session: Session, run: str) -> Work:
    reopened = session.count(control.SQL["reopen_runs"](id=run))
    ids = column(session.sql, "select id::text from horsies.workflows where root_id = %s and finished_at is null", run)
    queries = [control.SQL[name](runs=ids) for name in ("reset_nodes", "recount_nodes", "recount_runs")]
    assert status(session.sql, run) is WorkflowStatus.RUNNING
    return added(reopened, controlled(session, run, *queries))


def tasks_are_lost(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, fan(size))
    end(session, run)
    session.sql.execute("delete from horsies.tasks")
    found = session.count(control.SQL["get_lost_nodes"](limit=size, excluded=[]))
    lost = column(session.sql, "select id::text from horsies.nodes where workflow_id = %s and status = 'ENQUEUED'", run)
    resolved = session.count(control.SQL["resolve_lost_nodes"](ids=lost, error="{}"))
    return [
        found,
        resolved,
        session.count(advance.unfinished_trees()),
        step(session, run),
        step(session, run),
    ]


def a_run_is_looked_at(broker: PostgresBroker, session: Session, size: int) -> Sequence[Work]:
    run = start_run(broker, fan(size))
    end(session, run)
    return [
        session.count(
            inspect.SQL["get_stuck_trees"](),
            inspect.SQL["get_nodes"](id=run, node_id=None, with_results=True),
            inspect.SQL["get_tree"](id=run),
            inspect.SQL["get_run"](id=run),
            inspect.SQL["get_descendant_runs"](id=run),
            inspect.SQL["get_nodes_of_runs"](runs=[run]),
            inspect.SQL["count_items"](runs=[run]),
            inspect.SQL["get_run_place"](id=run),
            inspect.SQL["get_node_letters"](id=run, counted=inspect.MAX_COUNTED),
            inspect.SQL["count_inner_nodes"](id=run, counted=inspect.MAX_COUNTED),
            inspect.SQL["list_nodes"](id=run, statuses=[*NodeStatus], text="", first=0, limit=100),
        )
    ]


STORIES: Sequence[Story] = [
    a_fan_completes, a_fan_is_skipped, a_join_of_failures_runs, optional_nodes_fail, cases_of_success, layers_complete, a_map_completes,
    a_map_has_failures, contexts_are_awaited, contexts_are_awaited_again, sub_workflows_complete, maps_open,
    a_workflow_is_paused_resumed_and_cancelled, a_workflow_is_retried, a_join_is_retried,
    sub_workflows_are_retried, tasks_are_lost, a_run_is_looked_at,
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_rows_that_statements_read_grow_with_the_graph_and_no_faster(
    story: Story, broker: PostgresBroker, session: Session
) -> None:
    plan_everything(session)
    small = story(broker, session, SMALL)
    if session.is_analysed:
        session.sql.execute("analyze horsies.finished")
    session.sql.execute("truncate horsies.tasks, horsies.finished, horsies.nodes, horsies.workflows")
    plan_everything(session)
    large = story(broker, session, LARGE)
    grown = {
        (number, name): (before[name], after[name])
        for number, (before, after) in enumerate(zip(small, large, strict=True))
        for name in after
        if after[name] > SLACK * TIMES * before[name] + FREE
    }
    assert not grown
