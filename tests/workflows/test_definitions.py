"""From what users write to the graph that is stored."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies import (
    Join,
    NodeKey,
    NodeNotFoundError,
    OnError,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskNode,
    TaskResult,
    WorkflowDefinitionError,
    each,
    from_node,
    result_from,
)
from horsies.model.graph import Node, NodeKind, Ref, RefMode
from horsies.model.signature import InjectedParameter
from tests.workflows.crawl_app import POLICY, Page, any_json, app, count, fetch, judge, links, summarise, with_context


def only(*nodes: TaskNode[object]) -> Node:
    return app.workflow("w", list(nodes)).graph.nodes[-1]


def test_a_graph_has_its_nodes_in_an_order_in_which_they_can_run() -> None:
    page = fetch.node(node_id="page")("a")
    inner = links.node(node_id="inner")(from_node(page))
    other = fetch.node(node_id="other")("b")
    spec = app.workflow("crawl", [inner, other, page], output=inner, on_error="pause", time_limit=1.5)
    assert [node.node_id for node in spec.graph.nodes] == ["other", "page", "inner"]
    assert [node.index for node in spec.graph.nodes] == [0, 1, 2]
    assert [node.waits_for for node in spec.graph.nodes] == [(), (), (1,)]
    assert (spec.name, spec.graph.output, spec.graph.on_error) == ("crawl", 2, OnError.PAUSE)
    assert spec.graph.time_limit_ms == 1_500


def test_known_arguments_are_encoded_and_others_are_references() -> None:
    page = fetch.node(node_id="page")("a", depth=2)
    node = only(
        page,
        summarise.node()(
            [result_from(page), TaskResult(ok=Page(url="b"))],
            named={"known": Page(url="c"), "later": from_node(page)},
        ),
    )
    assert json.loads(node.args) == {
        "pages": [None, {"ok": {"url": "b", "at": None}}],
        "named": {"known": {"url": "c", "at": None}, "later": None},
    }
    assert node.refs == (
        Ref(("pages", 0), 0, RefMode.RESULT),
        Ref(("named", "later"), 0, RefMode.VALUE),
    )
    assert node.waits_for == (0,)


def test_values_flow_into_arguments_of_every_kind() -> None:
    number = count.node()(Page(url="a"))
    node = only(number, any_json.node()(None, 1, from_node(number), name="x"))
    assert json.loads(node.args) == {"value": None, "rest": [1, None], "others": {"name": "x"}}
    assert node.refs == (Ref(("rest", 1), 0, RefMode.VALUE),)


def test_a_node_has_the_options_of_its_task_unless_it_overrides_them() -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    plain = only(fetch.node()("a")).terms
    other = only(fetch.node(queue="slow", priority=5, good_until=until)("a")).terms
    assert plain is not None
    assert (plain.task_name, plain.queue_name, plain.timeout_ms, plain.retry) == ("fetch", "web", 1_000, POLICY)
    assert other == plain._replace(queue_name="slow", priority=5, good_until=until)


def test_a_task_node_is_equivalent_to_task_node_call() -> None:
    page = TaskNode(fetch, {"url": "a"}, node_id="page")
    more = TaskNode(
        fn=links,
        args_from={"page": page},
        waits_for=["page"],
        queue="slow",
        priority=3,
        join="quorum",
        min_success=1,
        node_id="more",
    )
    with pytest.raises(WorkflowDefinitionError, match="it may run although node 'page' has no value"):
        app.workflow("w", [page, more])
    spec = app.workflow("w", [page, dataclasses.replace(more, join=Join.ALL, min_success=None)])
    same = app.workflow(
        "w",
        [page, links.node(node_id="more", waits_for=[page], queue="slow", priority=3)(from_node(page))],
    )
    assert spec.graph == same.graph


def test_by_args_from_a_parameter_gets_what_it_is_annotated_with() -> None:
    page = fetch.node()("a")
    takers: list[TaskNode[Any]] = [
        TaskNode(links, args_from={"page": page}),
        TaskNode(judge, args_from={"page": page}),
        TaskNode(any_json, args_from={"value": page}),
    ]
    spec = app.workflow("w", [page, *takers])
    assert [spec.node(taker).refs[0].mode for taker in takers] == [RefMode.VALUE, RefMode.RESULT, RefMode.VALUE]


def test_nodes_without_an_id_are_named_after_their_task() -> None:
    nodes = [fetch.node()("a"), fetch.node(node_id="fetch_2")("b"), fetch.node()("c"), fetch.node()("d")]
    spec = app.workflow("w", nodes)
    assert [node.node_id for node in spec.graph.nodes] == ["fetch", "fetch_2", "fetch_3", "fetch_4"]
    assert nodes[2].key() == NodeKey("fetch_3")


def test_a_map_goes_over_the_list_of_another_node() -> None:
    page = fetch.node()("a")
    found = links.node()(from_node(page))
    spec = app.workflow(
        "w",
        [page, found, pages := fetch.map_node(node_id="pages", max_parallel=5)(each(found), depth=2)],
        output=pages,
    )
    node = spec.node(pages)
    assert (node.kind, node.max_parallel, node.args) == (NodeKind.MAP, 5, '{"depth":2,"url":null}')
    assert node.each == Ref(("url",), 1, RefMode.EACH)
    assert node.made.is_list
    summary = summarise.node()([], named={"x": from_node(page)})
    assert app.workflow("w", [page, summary]).graph.nodes[1].each is None


def test_a_task_that_takes_its_context_gets_the_nodes_it_waits_for_or_those_that_are_named() -> None:
    one, two = fetch.node(node_id="one")("a"), fetch.node(node_id="two")("b")
    by_default = with_context.node(waits_for=[one, two])("x")
    named = with_context.node(node_id="named", waits_for=[one], workflow_ctx_from=["two"])("x")
    spec = app.workflow("w", [one, two, by_default, named])
    assert spec.node(by_default).ctx_from == (0, 1)
    assert spec.node(by_default).wants == {InjectedParameter.CONTEXT, InjectedParameter.META}
    assert spec.node(named).ctx_from == (1,)
    assert spec.node(named).waits_for == (0, 1)


def test_a_success_policy_names_nodes_in_any_way() -> None:
    one, two = fetch.node(node_id="one")("a"), fetch.node(node_id="two")("b")
    policy = SuccessPolicy(cases=[SuccessCase(required=[two, "one"]), SuccessCase([NodeKey("two")])], optional=["one"])
    graph = app.workflow("w", [one, two], success_policy=policy, time_limit=timedelta(minutes=1)).graph
    assert graph.success_cases == ((0, 1), (1,))
    assert graph.optional == {0}
    assert graph.time_limit_ms == 60_000


def test_a_spec_and_its_nodes_are_frozen() -> None:
    listed = [fetch.node()("a")]
    kwargs = {"url": "a"}
    explicit = TaskNode(fetch, kwargs, waits_for=listed)
    spec = app.workflow("w", [*listed, explicit])
    listed.clear()
    kwargs.clear()
    assert app.workflow("w", spec.draft.nodes).graph == spec.graph
    with pytest.raises(AttributeError):
        spec.graph = spec.graph  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        explicit.kwargs = {}  # pyright: ignore[reportAttributeAccessIssue]


def test_a_node_may_be_part_of_several_workflows() -> None:
    page = fetch.node()("a")
    other = fetch.node()("b")
    first, second = app.workflow("one", [page]), app.workflow("two", [other, page])
    assert first.node(page).node_id == "fetch"
    assert second.node(page).node_id == "fetch_2"
    with pytest.raises(NodeNotFoundError, match="has the ids 'fetch' and 'fetch_2' in different workflows"):
        page.key()


def test_a_spec_knows_its_nodes_by_object_by_key_and_by_id() -> None:
    page, stranger = fetch.node(node_id="page")("a"), fetch.node(node_id="page")("b")
    spec = app.workflow("w", [page])
    assert spec.node(page) is spec.node("page") is spec.node(NodeKey[Page]("page"))
    for unknown in (stranger, "other", NodeKey[Page]("other")):
        with pytest.raises(NodeNotFoundError, match="workflow 'w' has no node"):
            spec.node(unknown)


def test_building_does_not_depend_on_how_often_it_is_done() -> None:
    page = fetch.node()("a")
    assert (
        app.workflow("w", [page, count.node()(from_node(page))]).graph
        == app.workflow("w", [page, count.node()(from_node(page))]).graph
    )


def test_a_thousand_nodes_are_built() -> None:
    pages = [fetch.node()(f"{number}") for number in range(999)]
    end = summarise.node()([result_from(page) for page in pages])
    graph = app.workflow("w", [end, *pages], output=end).graph
    assert len(graph.nodes) == 1_000
    assert len(graph.nodes[-1].refs) == 999


# -- sub-workflows


def test_a_workflow_runs_inside_another() -> None:
    page = fetch.node()("a")
    inner = app.workflow("inner", [page, found := links.node()(from_node(page))], output=found)
    sub = SubWorkflowNode(inner, node_id="sub")
    spec = app.workflow("outer", [sub, fetch.map_node()(each(sub))])
    node = spec.node(sub)
    assert (node.kind, node.child, node.terms) == (NodeKind.WORKFLOW, inner.graph, None)
    assert node.made.task_name == "links"
    assert spec.graph.nodes[1].waits_for == (0,)
