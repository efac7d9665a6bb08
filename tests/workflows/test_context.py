"""`workflow_ctx` and `workflow_meta`."""

from typing import Any

import pytest

from horsies import NodeKey, NodeNotFoundError, TaskError, TaskResult, WorkflowContext, WorkflowMeta, each, from_node
from horsies.model.codec import encode_error
from horsies.model.graph import BuiltTask, NodeStatus
from horsies.model.signature import InjectedParameter
from horsies.workflows.inputs import NodeResult
from tests.workflows.crawl_app import Page, app, fetch, links, with_context

META = WorkflowMeta(workflow_id="w", workflow_name="crawl", node_id="it", root_id="w")
ERROR = TaskError(error_code="BROKEN", message="no")


def context(**known: NodeResult) -> WorkflowContext:
    return WorkflowContext(META, known, app.tasks)


def result(made: BuiltTask, value: str | None, error: str | None = None) -> NodeResult:
    return NodeResult("page", NodeStatus.FAILED if error else NodeStatus.COMPLETED, made, value, error)


def test_a_result_is_read_by_the_annotation_of_its_task() -> None:
    page = fetch.node(node_id="page")("a")
    found = context(page=result(BuiltTask("fetch"), '{"url":"a","at":null}', None))
    assert found.result_for(page) == found.result_for(NodeKey[Page]("page")) == TaskResult(ok=Page(url="a"))
    assert found.has_result(page)
    assert found.has_result("page")


def test_a_list_of_a_map_is_read_item_by_item() -> None:
    page = fetch.node()("a")
    many = fetch.map_node(node_id="many")(each(links.node()(from_node(page))))
    found = context(many=result(BuiltTask("fetch", is_list=True), '[{"url":"a"},{"url":"b"}]', None))
    assert found.result_for(many) == TaskResult(ok=[Page(url="a"), Page(url="b")])


def test_a_failure_is_a_result_too() -> None:
    found = context(page=result(BuiltTask("fetch"), None, encode_error(ERROR)))
    assert found.result_for(NodeKey[Page]("page")) == TaskResult(err=ERROR)


@pytest.mark.parametrize(
    ("made", "stored", "value"),
    [(BuiltTask(None), None, None), (BuiltTask("not known here"), '{"a":[1]}', {"a": [1]})],
)
def test_the_value_of_an_unknown_task_is_read_as_plain_json(made: BuiltTask, stored: str | None, value: Any) -> None:
    assert context(other=result(made, stored, None)).result_for(NodeKey[Any]("other")) == TaskResult(ok=value)


def test_a_node_without_a_result_in_the_context_is_reported_with_the_fix() -> None:
    found = context()
    assert not found.has_result("page")
    with pytest.raises(
        NodeNotFoundError, match=r"'it' does not get the result of 'page'; name that node in its workflow_ctx_from"
    ):
        found.result_for(NodeKey[Page]("page"))
    with pytest.raises(NodeNotFoundError, match="is not in a workflow yet, so it has no id; give it a node_id"):
        found.result_for(fetch.node()("a"))


def test_a_node_is_known_by_the_id_that_its_workflow_gave_it() -> None:
    unnamed = fetch.node()("a")
    app.workflow("w", [unnamed])
    assert context(fetch=result(BuiltTask("fetch"), '{"url":"a"}', None)).result_for(unnamed).unwrap() == Page(url="a")


def test_only_what_a_task_takes_is_filled_in() -> None:
    found = context()
    assert found.to_arguments(with_context.arguments.wants) == {"workflow_ctx": found, "workflow_meta": META}
    assert found.to_arguments(frozenset({InjectedParameter.META})) == {"workflow_meta": META}
    assert found.to_arguments(fetch.arguments.wants) == {}
