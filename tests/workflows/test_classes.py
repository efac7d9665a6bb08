"""Workflows that are written as classes."""

from typing import Any

import pytest

from horsies import (
    Horsies,
    NodeKey,
    OnError,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskResult,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowSpec,
    from_node,
    result_from,
)
from horsies.model.graph import Graph, Ref, RefMode
from tests.workflows.crawl_app import Page, any_json, app, count, fetch, links, summarise


def test_meta_names_nodes_by_their_ids() -> None:
    class Crawl(WorkflowDefinition[str]):
        name = "crawl"
        definition_key = "crawl.v1"
        page = fetch.node()("a")
        other = fetch.node(node_id="b")("b")
        report = summarise.node(allow_failed_deps=True)([result_from(page), result_from(other)])

        class Meta:
            output = "report"
            on_error = OnError.PAUSE
            success_policy = SuccessPolicy(cases=[SuccessCase(required=["report"])], optional=["b", "page"])

    graph = Crawl.build(app).graph
    assert [node.node_id for node in graph.nodes] == ["page", "b", "report"]
    assert (graph.name, graph.definition_key, graph.output, graph.on_error) == ("crawl", "crawl.v1", 2, OnError.PAUSE)
    assert (graph.success_cases, graph.optional) == (((2,),), {0, 1})


def test_a_node_may_have_the_name_of_its_task() -> None:
    class Crawl(WorkflowDefinition[int]):
        name = "crawl"
        fetch = fetch.node()("a")
        count = count.node()(from_node(fetch))

        class Meta:
            output = "count"

    graph = Crawl.build(app).graph
    assert [node.node_id for node in graph.nodes] == ["fetch", "count"]
    assert graph.output == 1


def test_a_task_in_meta_is_refused_with_what_to_write() -> None:
    class Crawl(WorkflowDefinition[int]):
        name = "crawl"
        count = count.node()(Page(url="a"))

        class Meta:
            output = count  # the task of the module: Python does not look up names of the outer class here

    with pytest.raises(WorkflowDefinitionError) as refused:
        Crawl.build(app)
    assert refused.value.problems == (
        "output: it names the task 'count', not a node of it; write the node, or its id as a string",
    )


@pytest.mark.parametrize("named", ["report", NodeKey[Any]("report")])
def test_meta_may_name_a_node_by_its_id(named: Any) -> None:
    class Crawl(WorkflowDefinition[Page]):
        name = "crawl"
        report = fetch.node()("a")

        class Meta:
            output = named

    assert Crawl.build(app).graph.output == 0


def test_a_class_inherits_nodes_and_can_name_and_replace_them() -> None:
    class First(WorkflowDefinition[Page]):
        name = "first"
        page = fetch.node()("a")
        extra = fetch.node()("x")

    class Second(First):
        name = "second"
        extra = None
        more = links.node()(from_node(First.page))

        class Meta:
            output = "page"

    graph = Second.build(app).graph
    assert [node.node_id for node in graph.nodes] == ["page", "more"]
    assert graph.output == 0


def test_problems_of_a_class_are_reported_with_the_rest() -> None:
    class Crawl(WorkflowDefinition[str]):
        page = fetch.node()(1)  # pyright: ignore[reportArgumentType]

        class Meta:
            output = "page"
            on_eror = OnError.PAUSE

    with pytest.raises(WorkflowDefinitionError) as refused:
        Crawl.build(app)
    assert refused.value.problems == (
        'it has no name; write name = "..." in Crawl',
        "Meta has the unknown option 'on_eror'; use output, on_error, success_policy, time_limit",
        "node 'page': argument 'url': Input should be a valid string (got 1)",
        "its value should be str, but its output 'page' gives Page",
    )


def test_a_class_with_a_value_type_needs_an_output() -> None:
    class Crawl(WorkflowDefinition[str]):
        name = "crawl"
        page = fetch.node()("a")

    with pytest.raises(WorkflowDefinitionError, match="its value should be str, but it has no output"):
        Crawl.build(app)


def test_a_node_has_its_key_before_the_workflow_is_built() -> None:
    class Crawl(WorkflowDefinition[None]):
        page = fetch.node()("a")
        alias = page
        other = fetch.node(node_id="b")("b")

    assert (Crawl.page.key(), Crawl.alias.key(), Crawl.other.key()) == (NodeKey("page"), NodeKey("page"), NodeKey("b"))


def test_a_class_created_dynamically_works() -> None:
    class Crawl(WorkflowDefinition[Page]):
        name = "crawl"
        page = fetch.node()("a")

        class Meta:
            output = "page"

    make: Any = type(Crawl)
    copied = make("Copied", (Crawl,), {"more": fetch.node()("b")})
    assert [node.node_id for node in copied.build(app).graph.nodes] == ["page", "more"]


# -- parameters, and one inside another


class CountPage(WorkflowDefinition[int]):
    """A workflow with parameters."""

    name = "count page"

    @classmethod
    def build_with(cls, app: Horsies, *, page: Page, urls: list[str]) -> WorkflowSpec[int]:
        others = [fetch.node(node_id=url)(url) for url in urls]
        number = count.node(node_id="number", waits_for=others)(page)
        return app.workflow(cls.name, [*others, number], output=number)


def test_a_definition_with_parameters_is_built_with_them() -> None:
    spec = CountPage.build_with(app, page=Page(url="x"), urls=["a", "b"])
    assert [node.node_id for node in spec.graph.nodes] == ["a", "b", "number"]


def test_values_flow_into_a_sub_workflow_through_its_parameters() -> None:
    page = fetch.node(node_id="page")("a")
    inside = SubWorkflowNode(CountPage, kwargs={"page": from_node(page), "urls": ["b"]}, node_id="inside")
    by_name = SubWorkflowNode(CountPage, kwargs={"urls": []}, args_from={"page": page}, node_id="by name")
    graph = app.workflow("w", [by_name, inside, page]).graph
    assert [(node.node_id, node.waits_for) for node in graph.nodes] == [
        ("page", ()),
        ("by name", (0,)),
        ("inside", (0,)),
    ]
    for node in graph.nodes[1:]:
        assert node.child is not None
        assert node.child.nodes[-1].refs == (Ref(("page",), 0, RefMode.VALUE, up=1),)
        assert node.made.task_name == "count"


def test_values_flow_through_a_workflow_into_the_one_inside_it() -> None:
    middles: list[WorkflowSpec[int]] = []

    class Middle(WorkflowDefinition[int]):
        name = "middle"

        @classmethod
        def build_with(cls, app: Horsies, *, page: Page) -> WorkflowSpec[int]:
            first = fetch.node(node_id="first")("x")
            deep = SubWorkflowNode(CountPage, kwargs={"page": page, "urls": []}, waits_for=[first], node_id="deep")
            middles.append(app.workflow("middle", [first, deep], output=deep))
            return middles[-1]

    other, page = fetch.node(node_id="other")("o"), fetch.node(node_id="page")("a")
    graph = app.workflow("w", [other, page, SubWorkflowNode(Middle, kwargs={"page": from_node(page)})]).graph
    middle = graph.nodes[2].child
    assert middle is not None
    deep = middle.nodes[1].child
    assert deep is not None
    assert deep.nodes[0].refs == (Ref(("page",), 1, RefMode.VALUE, up=2),)
    assert middle.nodes[1].waits_for == (0,)
    assert [spec.takes_outer_values for spec in middles] == [True]


def test_a_value_from_outside_is_not_confused_with_an_inner_node_of_the_same_id() -> None:
    number = fetch.node(node_id="number")("a")  # CountPage has one called so, too
    outside: NodeKey[Page] = NodeKey("number")
    sub = SubWorkflowNode(CountPage, kwargs={"page": from_node(outside), "urls": ["b"]})
    child = app.workflow("w", [number, sub]).graph.nodes[1].child
    assert child is not None
    assert child.nodes[-1].refs == (Ref(("page",), 0, RefMode.VALUE, up=1),)


def test_build_with_runs_once_at_any_depth() -> None:
    runs: list[int] = []

    class Nested(WorkflowDefinition[int]):
        name = "nested"

        @classmethod
        def build_with(cls, app: Horsies, *, depth: int, page: Page) -> WorkflowSpec[int]:
            runs.append(depth)
            if depth == 0:
                number = count.node()(page)
                return app.workflow("nested", [number], output=number)
            sub = SubWorkflowNode(Nested, kwargs={"depth": depth - 1, "page": page})
            return app.workflow("nested", [sub, any_json.node()(from_node(sub))], output=sub)

    page = fetch.node()("a")
    sub = SubWorkflowNode(Nested, kwargs={"depth": 6, "page": from_node(page)})
    graph: Graph | None = app.workflow("w", [sub, any_json.node()(from_node(sub)), page]).graph
    assert runs == [6, 5, 4, 3, 2, 1, 0]
    for depth in range(1, 8):
        graph = graph.nodes[1 if depth == 1 else 0].child if graph else None
        assert graph is not None
    assert [node.refs[0].up for node in graph.nodes] == [7]


def test_args_from_passes_the_result_if_build_with_is_annotated_so() -> None:
    class Judge(WorkflowDefinition[str]):
        name = "judge"

        @classmethod
        def build_with(cls, app: Horsies, *, page: TaskResult[Page, TaskError]) -> WorkflowSpec[str]:
            verdict = summarise.node()([page])
            return app.workflow("judge", [verdict], output=verdict)

    page = fetch.node()("a")
    judge = SubWorkflowNode(Judge, args_from={"page": page}, allow_failed_deps=True)
    child = app.workflow("w", [page, judge]).graph.nodes[1].child
    assert child is not None
    assert child.nodes[0].refs == (Ref(("pages", 0), 0, RefMode.RESULT, up=1),)


def test_a_workflow_that_takes_outer_values_does_not_start_alone() -> None:
    page = fetch.node()("a")
    parts: list[WorkflowSpec[int]] = []

    class Part(WorkflowDefinition[int]):
        name = "part"

        @classmethod
        def build_with(cls, app: Horsies, *, page: Page) -> WorkflowSpec[int]:
            number = count.node()(page)
            parts.append(app.workflow("part", [number], output=number))
            return parts[-1]

    whole = app.workflow("w", [page, SubWorkflowNode(Part, args_from={"page": page})])
    assert not whole.takes_outer_values
    assert len(parts) == 1  # the user's own code runs once
    with pytest.raises(
        WorkflowDefinitionError, match="it takes values from the workflow that contains it; start that one"
    ):
        parts[0].start()


def test_a_workflow_that_contains_itself_is_rejected() -> None:
    class Endless(WorkflowDefinition[None]):
        name = "endless"

        @classmethod
        def build_with(cls, app: Horsies) -> WorkflowSpec[Any]:
            return app.workflow("endless", [SubWorkflowNode(Endless, node_id="again")])

    with pytest.raises(WorkflowDefinitionError, match="does one contain itself"):
        Endless.build_with(app)
