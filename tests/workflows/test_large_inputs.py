"""Joins whose inputs are large."""

from typing import Any

import psycopg
import pytest

from horsies import each, results_from
from tests.fixtures.workers import StartWorker


@pytest.mark.promise("D6", "T3")
def test_a_join_over_more_than_a_worker_hands_over_fails_and_its_queue_goes_on(
    graphs: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    """Each of the results is of a legal size. Escaped, all of them together are larger than a value may be in PostgreSQL."""
    sql.execute(
        b"create function enlarge() returns trigger language plpgsql as $$ begin "
        b"if new.task_name = 'add_up' then update horsies.nodes set result = to_json(repeat('\"', 7900000)) "
        b"where root_id = new.root_id and result is not null; end if; return new; end $$"
    )
    sql.execute(b"create trigger enlarge before insert on horsies.tasks for each row execute function enlarge()")
    running = worker("tests.apps.graphs:app", processes=2)
    handle = graphs.fan.start()
    error = handle.get(60_000).unwrap_err()
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    assert "the limit is 268,435,456" in error.message
    assert graphs.chain.start().get(20_000).unwrap() == 2
    assert running.terminate() == 0


def test_results_of_items_that_are_read_after_the_claim_arrive_whole(graphs: Any, worker: StartWorker) -> None:
    worker("tests.apps.graphs:app", processes=2)
    given = ["x" * 200_000, "!" + "y" * 200_000, "z" * 200_000]
    texts = graphs.echo.map_node(node_id="texts", max_failures=1)(each(given))
    last = graphs.texts_of.node(node_id="last")(results_from(texts))
    handle = graphs.app.workflow("large", [texts, last], output=last).start()
    assert handle.get(60_000).unwrap() == given


@pytest.mark.promise("D6", "T3")
def test_results_of_items_that_are_larger_than_a_worker_hands_over_fail_the_node_that_takes_them(
    graphs: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    sql.execute(
        b"create function enlarge() returns trigger language plpgsql as $$ begin "
        b"if new.task_name = 'texts_of' then update horsies.nodes set result = to_json(repeat('\"', 7900000)) "
        b"where root_id = new.root_id and item is not null and kind = 'task'; end if; return new; end $$"
    )
    sql.execute(b"create trigger enlarge before insert on horsies.tasks for each row execute function enlarge()")
    running = worker("tests.apps.graphs:app", processes=2)
    texts = graphs.echo.map_node(node_id="texts", max_failures=1)(each(["a"] * 20))
    last = graphs.texts_of.node(node_id="last")(results_from(texts))
    error = graphs.app.workflow("large", [texts, last], output=last).start().get(60_000).unwrap_err()
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    assert "the limit is 268,435,456" in error.message
    assert graphs.chain.start().get(20_000).unwrap() == 2
    assert running.terminate() == 0
