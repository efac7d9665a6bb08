"""Workflows in the tests of users: drained, run inline, timed out."""

import pytest

from horsies import TaskResult, TaskStatus, WorkflowStatus, each, from_node, results_from
from horsies.testing import clock, drain, run_inline
from tests.testing import shop

pytestmark = pytest.mark.usefixtures("sandbox")


def test_a_drain_runs_a_workflow_to_its_end() -> None:
    first = shop.note.node(node_id="first")("a")
    spec = shop.app.workflow("two", [first, second := shop.note.node()(from_node(first))], output=second)
    handle = spec.start()
    assert [(ran.task_name, ran.status) for ran in drain()] == [("note", TaskStatus.COMPLETED)] * 2
    assert handle.get(timeout_ms=1_000).unwrap() == "a"


def test_a_workflow_that_is_started_inline_runs_to_its_end() -> None:
    names = shop.names.node()(3)
    spec = shop.app.workflow("many", [names, notes := shop.note.map_node()(each(names))], output=notes)
    with run_inline() as ran:
        assert spec.start().get(timeout_ms=1_000).unwrap() == ["0", "1", "2"]
    assert len(ran) == 4


def test_a_workflow_fails_when_the_clock_passes_its_time_limit() -> None:
    handle = shop.app.workflow("slow", [shop.note.node()("a")], time_limit=60).start()
    clock.advance(61)
    assert handle.status() is WorkflowStatus.FAILED
    assert drain() == []


def test_a_map_with_failed_items_is_drained_as_a_worker_runs_it() -> None:
    halves = shop.halve.map_node(node_id="halves", max_failures=1)(each([2, 3, 4]))
    codes = shop.codes.node(node_id="codes")(results_from(halves))
    handle = shop.app.workflow("patchy", [halves, codes], output=codes).start()
    assert len(drain()) == 4
    assert handle.get(timeout_ms=1_000).unwrap() == ["1", "ODD", "2"]
    with run_inline():
        assert shop.app.workflow("patchy", [halves, codes]).start().get(timeout_ms=1_000).unwrap() == {
            "codes": TaskResult(ok=["1", "ODD", "2"])
        }
