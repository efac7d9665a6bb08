"""Workflows that are written as classes."""

# What is tested is that a Meta may name the nodes around it, which no type checker and no linter expects of Python.
# pyright: reportUndefinedVariable=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

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


def test_meta_can_name_the_nodes_of_its_class() -> None:
    class Crawl(WorkflowDefinition[str]):
        name = "crawl"
        definition_key = "crawl.v1"
        page = fetch.node()("a")
        other = fetch.node(node_id="b")("b")
        report = summarise.node(allow_failed_deps=True)([result_from(page), result_from(other)])

        class Meta:
            output = report  # noqa: F821 - as above
            on_error = OnError.PAUSE
            success_policy = SuccessPolicy(
                cases=[SuccessCase(required=[report])],  # noqa: F821 - as above
                optional=[other, "page"],  # noqa: F821 - as above
            )

    graph = Crawl.build(app).graph
    assert [node.node_id for node in graph.nodes] == ["page", "b", "report"]
    assert (graph.name, graph.definition_key, graph.output, graph.on_error) == ("crawl", "crawl.v1", 2, OnError.PAUSE)
    assert (graph.success_cases, graph.optional) == (((2,),), {0, 1})


def test_names_added_to_the_module_are_removed() -> None:
    before = set(globals())

    class Crawl(WorkflowDefinition[Page]):
        name = "crawl"
        lent_to_the_module = fetch.node()("a")

        class Meta:
            output = lent_to_the_module  # noqa: F821 - as above

    assert Crawl.build(app).graph.output == 0
    assert set(globals()) == before


def test_a_node_may_have_the_name_of_its_task() -> None:
    class Crawl(WorkflowDefinition[int]):
        name = "crawl"
        fetch = fetch.node()("a")
        count = count.node()(from_node(fetch))

        class Meta:
            output = count  # the task of the module, as far as Python can tell

    graph = Crawl.build(app).graph
    assert [node.node_id for node in graph.nodes] == ["fetch", "count"]
    assert graph.output == 1
    assert fetch.name == "fetch"  # the module's own is what it was


def helper() -> list[str]:
    return list(filter(None, ["", "a"]))


def test_a_node_may_have_the_name_of_a_local_variable_or_a_builtin() -> None:
    last = object()

    class Crawl(WorkflowDefinition[Page]):
        name = "crawl"
        filter = fetch.node()("a")
        last = fetch.node()(helper()[0])  # the module's functions go on seeing what they know

        class Meta:
            output = last
            success_policy = SuccessPolicy(cases=[SuccessCase(required=[filter])])  # pyright: ignore[reportArgumentType]

    graph = Crawl.build(app).graph
    assert (graph.output, graph.success_cases) == (1, ((0,),))
    assert last is not None


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
            output = page  # noqa: F821 - as above

    graph = Second.build(app).graph
    assert [node.node_id for node in graph.nodes] == ["page", "more"]
    assert graph.output == 0


def test_a_class_body_that_raises_does_not_affect_the_next_one() -> None:
    def broken() -> None:
        class Broken(WorkflowDefinition[Page]):
            left_behind = fetch.node()("a")
            other = left_behind.missing  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

        assert Broken

    with pytest.raises(AttributeError):
        broken()
    try:

        class Whole(WorkflowDefinition[Page]):
            name = "whole"
            left_behind = fetch.node()("b")

            class Meta:
                output = left_behind  # noqa: F821 - as above

        assert Whole.build(app).graph.output == 0
    finally:
        globals().pop("left_behind", None)


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
            output = page  # noqa: F821 - as above

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
                return app.workflow("nested", [number := count.node()(page)], output=number)
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
