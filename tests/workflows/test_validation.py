"""All problems of a graph are reported when it is built, each with what to change."""

from datetime import datetime
from typing import Any, Literal

import pytest

from horsies import (
    Horsies,
    NodeKey,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowNode,
    WorkflowSpec,
    each,
    from_node,
    result_from,
    results_from,
)
from tests.workflows.crawl_app import Page, any_json, app, count, fetch, judge, links, summarise, with_context

other_app = Horsies()


class Opaque:
    """Hides what it has."""

    def __init__(self, value: object) -> None:
        self.value = value


@other_app.task("elsewhere")
def elsewhere() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


page = fetch.node(node_id="page")("a")
found = links.node(node_id="found")(from_node(page))
stranger = fetch.node(node_id="stranger")("b")


def problems(*nodes: object, name: str = "w", **options: Any) -> list[str]:
    with pytest.raises(WorkflowDefinitionError) as refused:
        app.workflow(name, list(nodes), **options)  # pyright: ignore[reportArgumentType, reportCallIssue] - wrong on purpose
    return list(refused.value.problems)


def wrong(task: Any, *args: Any, **kwargs: Any) -> WorkflowNode[Any]:
    """A node whose arguments a type checker would refuse."""
    return task.node(node_id="it")(*args, **kwargs)


def test_a_workflow_needs_nodes() -> None:
    assert problems() == ["it has no nodes; list them in tasks=[...]"]


def test_every_problem_is_reported_at_once() -> None:
    options: dict[str, Any] = {"output": stranger, "on_error": "ignore"}
    with pytest.raises(WorkflowDefinitionError) as refused:
        app.workflow("w\n", [wrong(fetch), wrong(count, from_node(stranger))], **options)
    assert refused.value.problems == (
        "2 nodes have the id 'it'; give each node an id of its own",
        "node 'it': it names <node stranger 'fetch'>, which is not in this workflow; add it to tasks=[...]",
        "node 'it': argument 'url' is missing",
        "its name must be 1 to 200 printable characters, not 'w\\n'",
        "on_error must be one of 'fail', 'pause', not 'ignore'",
        "output: it names <node stranger 'fetch'>, which is not in this workflow; add it to tasks=[...]",
    )
    assert str(refused.value).startswith("6 problems in workflow 'w\\n':\n  - 2 nodes have the id 'it'")


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (7, "tasks[0] is 7, which is not a node"),
        (fetch, "tasks[0] is the task 'fetch', not a node of it; write task.node()(...)"),
        (fetch.node(), "tasks[0] is a node without its arguments; call it once more: task.node(...)(...)"),
        (
            WorkflowDefinition,
            "tasks[0] is the class WorkflowDefinition, not a node; write SubWorkflowNode(WorkflowDefinition)",
        ),
    ],
)
def test_an_item_that_is_not_a_node_is_reported(item: object, words: str) -> None:
    assert problems(item)[0].startswith(words)


def test_an_id_that_several_nodes_have_is_one_problem() -> None:
    same = [fetch.node(node_id="it")("a") for _ in range(3)]
    assert problems(*same) == ["3 nodes have the id 'it'; give each node an id of its own"]


def test_a_node_that_is_listed_twice_is_reported() -> None:
    assert problems(page, page) == ["tasks[1] is <node page 'fetch'> again; create one node for each run of a task"]


@pytest.mark.parametrize("node_id", ["", "a\nb", "x" * 201, 7])
def test_an_id_that_is_not_printable_is_rejected(node_id: Any) -> None:
    assert "a node_id must be 1 to 200 printable characters" in problems(fetch.node(node_id=node_id)("a"))[0]


# -- edges


def test_a_cycle_is_reported_with_its_nodes() -> None:
    nodes = [
        fetch.node(node_id="a", waits_for=["c"])("x"),
        fetch.node(node_id="b", waits_for=["a"])("x"),
        fetch.node(node_id="c", waits_for=[NodeKey[Page]("b")])("x"),
        fetch.node(node_id="behind", waits_for=["a"])("x"),
    ]
    assert problems(*nodes) == ["the nodes 'a' → 'c' → 'b' → 'a' wait for each other; remove one of these edges"]


def test_a_node_that_waits_for_itself_is_a_cycle() -> None:
    alone = fetch.node(node_id="a", waits_for=["a"])("x")
    assert problems(alone) == ["the nodes 'a' → 'a' wait for each other; remove one of these edges"]


def test_a_node_that_is_not_in_the_workflow_is_reported() -> None:
    assert problems(page, fetch.node(waits_for=[stranger, "pgae", "nothing like it"])("a")) == [
        "node 'fetch': it names <node stranger 'fetch'>, which is not in this workflow; add it to tasks=[...]",
        "node 'fetch': it names node 'pgae', which does not exist; did you mean 'page'?",
        "node 'fetch': it names node 'nothing like it', which does not exist; there are 'page', 'fetch'",
    ]
    assert problems(fetch.node(waits_for=[7])("a")) == ["node 'fetch': it names 7, which is not a node"]  # pyright: ignore[reportArgumentType]
    assert problems(page, fetch.node(waits_for=page)("a")) == [  # pyright: ignore[reportArgumentType]
        "node 'fetch': waits_for must be a list, not <node page 'fetch'>"
    ]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (wrong(links, from_node(found)), "argument 'page' takes Page, but node 'found' gives list[str]"),
        (wrong(links, result_from(page)), "argument 'page' takes Page, but node 'page' gives TaskResult[tests.workflows.crawl_app.Page, TaskError]"),
        (wrong(judge, from_node(page)), "but node 'page' gives Page"),
        (wrong(summarise, [from_node(page)]), "argument 'pages[0]' takes"),
        (wrong(summarise, [], named={"a": from_node(found)}), "argument 'named.a' takes Page, but node 'found' gives list[str]"),
        (wrong(any_json, 1, from_node(page)), "argument 'rest[0]' takes int, but node 'page' gives Page"),
        (wrong(any_json, 1, name=from_node(page)), "argument 'others.name' takes str, but node 'page' gives Page"),
        (TaskNode(fetch, args_from={"url": page}, node_id="it"), "argument 'url' takes str, but node 'page' gives Page"),
        (fetch.map_node(node_id="it")(each(found), depth=from_node(page)), "argument 'depth' takes int, but node 'page' gives Page"),  # pyright: ignore[reportArgumentType]
        (count.map_node(node_id="it")(each(found)), "argument 'page' takes Page, but node 'found' gives str"),  # pyright: ignore[reportArgumentType]
    ],
)  # fmt: skip
def test_a_mistyped_edge_is_rejected(node: WorkflowNode[Any], words: str) -> None:
    [problem] = problems(page, found, node)
    assert problem.startswith("node 'it': ")
    assert words in problem


def test_an_edge_of_unknown_type_is_accepted() -> None:
    anything = any_json.node(node_id="anything")(1)
    assert app.workflow("w", [anything, links.node()(from_node(anything)), fetch.map_node()(each(anything))])
    assert app.workflow("w", [page, any_json.node()([{"deep": from_node(page)}])])


# -- arguments


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (wrong(fetch), ["argument 'url' is missing"]),
        (wrong(fetch, "a", 2), ["fetch() takes 1 positional arguments, not 2"]),
        (wrong(fetch, "a", url="b"), ["argument 'url' is given twice"]),
        (wrong(fetch, ulr="a"), ["fetch() has no argument 'ulr'; did you mean 'url'?", "argument 'url' is missing"]),
        (wrong(count, page=Page(url="a"), zzz=1), ["count() has no argument 'zzz'; it takes page"]),
        (wrong(fetch, 1, depth="2"), ["argument 'url': Input should be a valid string (got 1)", "argument 'depth': Input should be a valid integer (got '2')"]),
        (wrong(count, {"url": 1}), ["argument 'page.url': Input should be a valid string (got 1)"]),
        (wrong(summarise, [result_from(page), 7]), ["Input should be a TaskResult (got 7)"]),
        (wrong(summarise, [], named={7: from_node(page)}), ["argument 'named' has the key 7; in a dict with references, keys must be strings"]),
        (wrong(any_json, object()), ["a object is not a JSON value; annotate it with its type to send it"]),
        (wrong(any_json, {Opaque(from_node(page))}), ["argument 'value': a set is not a JSON value"]),
        (wrong(with_context, "a", workflow_ctx=1), ["argument 'workflow_ctx' is filled in by the workflow; leave it out"]),
        (TaskNode(fetch, {"url": "a"}, args_from={"url": any_json.node()(1)}, node_id="it"), ["it names <node of task 'any_json'>", "argument 'url' is in kwargs and in args_from"]),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_rejected(node: WorkflowNode[Any], words: list[str]) -> None:
    lines = problems(page, node)
    assert len(lines) == len(words)
    assert all(line.startswith("node 'it': ") and word in line for line, word in zip(lines, words, strict=True))


def test_kwargs_that_are_not_a_dict_raise_immediately() -> None:
    with pytest.raises(TypeError, match="kwargs must be a dict by parameter name, not \\['a'\\]"):
        TaskNode(fetch, ["a"])  # pyright: ignore[reportArgumentType]


# -- joins


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"join": "most"}, "join must be one of 'all', 'any', 'quorum', not 'most'"),
        ({"join": "any"}, 'join="any" can never be met, because it waits for nothing'),
        ({"join": "quorum", "waits_for": [page]}, 'join="quorum" needs min_success'),
        ({"join": "quorum", "min_success": 2, "waits_for": [page]}, "min_success=2 can never be met, because it waits for 1"),
        ({"join": "quorum", "min_success": 0, "waits_for": [page]}, "min_success is 0; choose a whole number from 1"),
        ({"min_success": 1, "waits_for": [page]}, 'min_success=1 has no effect with join="all"'),
        ({"allow_failed_deps": "yes"}, "allow_failed_deps must be True or False, not 'yes'"),
    ],
)  # fmt: skip
def test_a_join_that_cannot_be_met_is_rejected(options: dict[str, Any], words: str) -> None:
    [problem] = problems(page, fetch.node(node_id="it", **options)("a"))
    assert words in problem


@pytest.mark.parametrize(
    "options", [{"join": "any"}, {"join": "quorum", "min_success": 1}, {"allow_failed_deps": True}]
)
def test_a_node_that_may_run_without_a_value_must_take_the_result(options: dict[str, Any]) -> None:
    [problem] = problems(page, links.node(node_id="it", **options)(from_node(page)))
    assert "it may run although node 'page' has no value; take its result_from() instead" in problem
    assert app.workflow("w", [page, judge.node(**options)(result_from(page))])


# -- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "nowhere"}, "queue: there is no queue 'nowhere'"),
        ({"priority": "high"}, "priority must be a whole number"),
        ({"good_until": datetime(2030, 1, 1)}, "good_until 2030-01-01 00:00:00 has no time zone"),  # noqa: DTZ001 - wrong on purpose
        ({"workflow_ctx_from": [page]}, "workflow_ctx_from is for a task that takes workflow_ctx; 'fetch' does not"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], words: str) -> None:
    [problem] = problems(page, fetch.node(node_id="it", **options)("a"))
    assert words in problem


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (-1, "time_limit is -1, in the past"),
        (0, "must be at least 1 ms"),
        ("1", "must be a number of seconds or a timedelta"),
    ],
)
def test_a_time_limit_is_positive(limit: Any, words: str) -> None:
    [problem] = problems(page, time_limit=limit)
    assert words in problem


def test_names_and_keys_are_printable() -> None:
    assert "its name must be" in problems(page, name="")[0]
    assert "its definition_key must be" in problems(page, definition_key="\0")[0]


def test_a_task_of_another_app_is_rejected() -> None:
    assert problems(elsewhere.node()()) == ["node 'elsewhere': task 'elsewhere' belongs to another app"]


def test_a_node_needs_a_task() -> None:
    by_options = TaskNode(fetch.with_options(priority=1), {"url": "a"})
    assert problems(by_options) == [
        "node 'node': it is made of task.with_options(...); pass the options to task.node(...)"
    ]
    no_task: Any = print
    assert "which is not a task; decorate it with @app.task(...)" in problems(TaskNode[Any](no_task))[0]


# -- maps


def test_a_map_has_exactly_one_each_and_other_nodes_none() -> None:
    many = found
    assert "a map_node has exactly one each(...) in its arguments, not 0" in problems(fetch.map_node()("a"))[0]
    twice = any_json.map_node()([each(many), each(many)])
    assert "exactly one each(...) in its arguments, not 2" in problems(page, many, twice)[0]
    assert "each() of node 'found' is for a map_node" in problems(page, many, fetch.node()(each(many)))[0]


def test_each_needs_a_list() -> None:
    number: Any = count.node(node_id="number")(Page(url="a"))
    over_a_number = fetch.map_node(node_id="it")(each(number))
    assert problems(number, over_a_number) == ["node 'it': each() needs a list, but node 'number' gives int"]


@pytest.mark.parametrize("parallel", [0, -1, 10_001, "2"])
def test_max_parallel_is_checked(parallel: Any) -> None:
    [problem] = problems(page, found, fetch.map_node(max_parallel=parallel)(each(found)))
    assert "max_parallel" in problem


@pytest.mark.parametrize("limit", ["max_failures", "min_success"])
@pytest.mark.parametrize("value", [-1, 1_000_001, "2", True])
def test_limits_of_failures_are_numbers(limit: str, value: Any) -> None:
    options: Any = {limit: value}
    [problem] = problems(page, found, fetch.map_node(node_id="it", **options)(each(found)))
    assert problem.startswith(f"node 'it': {limit} ")


def test_limits_of_failures_are_for_maps() -> None:
    [problem] = problems(TaskNode(fetch, {"url": "a"}, node_id="it", max_failures=1))
    assert (
        problem == "node 'it': max_failures and min_item_success are for the items of a map; write task.map_node(...)"
    )


def test_a_map_with_failure_limits_is_taken_by_results_from() -> None:
    pages = fetch.map_node(node_id="pages", max_failures=1)(each(["a"]))
    words = "the list of node 'pages' may have gaps, because it has max_failures or min_success; take its results_from() instead"
    whole: Any = [
        any_json.node(node_id="it")(from_node(pages)),
        any_json.node(node_id="it")([result_from(pages)]),
        TaskNode(any_json, args_from={"value": pages}, node_id="it"),
    ]
    for node in whole:
        assert problems(pages, node) == [f"node 'it': {words}"]
    assert app.workflow("w", [pages, summarise.node()(results_from(pages))])
    assert app.workflow("w", [pages, TaskNode(summarise, args_from={"pages": pages})])
    assert app.workflow("w", [pages, TaskNode(summarise, args_from={"pages": NodeKey[Any]("pages")})])


def test_results_come_from_a_map_and_have_its_type() -> None:
    of_page = "TaskResult[tests.workflows.crawl_app.Page, TaskError]"
    urls: Any = links.map_node(node_id="urls")(each([Page(url="a")]))
    assert problems(found, page, wrong(summarise, results_from(found))) == [
        "node 'it': results_from() is for a map_node, and node 'found' is not one; take its result_from() instead",
        f"node 'it': argument 'pages' takes list[{of_page}], but node 'found' gives list[TaskResult[str, TaskError]]",
    ]
    [problem] = problems(urls, wrong(summarise, results_from(urls)))
    assert problem.endswith("but node 'urls' gives list[TaskResult[list[str], TaskError]]")


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["a", 1], "argument 'url' at '[1]': Input should be a valid string (got 1)"),
        ("abc", "each() needs a list, or a node that returns one, not 'abc'"),
        ({"a"}, "each() needs a list, or a node that returns one, not {'a'}"),
        (7, "each() needs a list, or a node that returns one, not 7"),
        ([from_node(page)], "each([...]) takes values, not references; let a node return the list instead"),
    ],
)  # fmt: skip
def test_items_of_a_literal_list_are_checked(items: Any, words: str) -> None:
    assert problems(page, fetch.map_node(node_id="it")(each(items))) == [f"node 'it': {words}"]


def test_a_literal_list_is_for_a_map_and_has_min_success_items() -> None:
    outside = fetch.node(node_id="it")(each(["a"]))
    assert problems(outside) == ["node 'it': each() of ('a',) is for a map_node; write task.map_node(...)(...)"]
    short = fetch.map_node(node_id="it", min_success=2)(each(["a"]))
    assert problems(short) == ["node 'it': min_success=2 can never be met, because the list of each() has 1 items"]


def test_joins_count_what_they_wait_for_and_not_their_context() -> None:
    context: Any = {"workflow_ctx_from": [page], "node_id": "it"}
    assert problems(page, with_context.node(join="any", **context)("x")) == [
        "node 'it': join=\"any\" can never be met, because it waits for nothing; give it waits_for=[...]"
    ]
    assert problems(
        page, found, with_context.node(join="quorum", min_success=2, waits_for=[found], **context)("x")
    ) == ["node 'it': min_success=2 can never be met, because it waits for 1"]


# -- policies


def test_a_policy_names_nodes_of_its_workflow() -> None:
    policy = SuccessPolicy(cases=[SuccessCase(required=[stranger]), SuccessCase(required=[])], optional=["pgae"])
    assert problems(page, success_policy=policy) == [
        "success_policy.cases[0]: it names <node stranger 'fetch'>, which is not in this workflow; add it to tasks=[...]",
        "success_policy.cases[1] requires no nodes; write SuccessCase(required=[...])",
        "success_policy.optional: it names node 'pgae', which does not exist; did you mean 'page'?",
    ]
    assert problems(page, success_policy=[page])[0].startswith("success_policy must be a SuccessPolicy")


def test_an_option_that_must_be_a_list_is_reported() -> None:
    single: Any = page
    with pytest.raises(WorkflowDefinitionError) as refused:
        app.workflow("w", single)
    assert refused.value.problems == ("tasks must be a list, not <node page 'fetch'>",)
    case: Any = SuccessCase(required=single)
    policies: list[Any] = [SuccessPolicy(cases=case), SuccessPolicy(cases=[case], optional=single)]

    class Listless(WorkflowDefinition[None]):
        name = "listless"
        page = fetch.node()("a")

        class Meta:
            success_policy = policies[1]

    assert problems(page, success_policy=policies[0]) == [f"success_policy.cases must be a list, not {case!r:.80}"]
    with pytest.raises(WorkflowDefinitionError) as refused:
        Listless.build(app)
    assert refused.value.problems == (
        "success_policy.cases[0] must be a list, not <node page 'fetch'>",
        "success_policy.optional must be a list, not <node page 'fetch'>",
    )


# -- sub-workflows


NO_WORKFLOW: Any = int


class Part(WorkflowDefinition[int]):
    """Has two mistakes of its own."""

    name = "part"
    first = fetch.node()(1)  # pyright: ignore[reportArgumentType]
    second = count.node(waits_for=["frist"])(Page(url="a"))

    class Meta:
        output = "second"


def test_problems_of_a_sub_workflow_are_reported_with_their_path() -> None:
    assert problems(page, SubWorkflowNode(Part, node_id="sub", waits_for=["missing"])) == [
        "node 'sub': it names node 'missing', which does not exist; there are 'page', 'sub'",
        "node 'sub': node 'second': it names node 'frist', which does not exist; did you mean 'first'?",
        "node 'sub': node 'first': argument 'url': Input should be a valid string (got 1)",
    ]


def test_the_value_of_a_sub_workflow_is_type_checked() -> None:
    number = count.node()(Page(url="a"))
    sub = SubWorkflowNode(app.workflow("inner", [number], output=number), node_id="sub")
    [problem] = problems(sub, wrong(fetch, from_node(sub)))
    assert problem == "node 'it': argument 'url' takes str, but node 'sub' gives int"
    nothing = SubWorkflowNode(app.workflow("inner", [number]), node_id="sub")
    [problem] = problems(nothing, wrong(fetch, from_node(nothing)))
    assert problem == "node 'it': argument 'url' takes str, but node 'sub' gives None"


@pytest.mark.parametrize(
    ("sub", "words"),
    [
        (SubWorkflowNode(NO_WORKFLOW, node_id="sub"), "it runs <class 'int'>; pass a WorkflowDefinition"),
        (
            SubWorkflowNode(Part, kwargs={"a": 1}, node_id="sub"),
            "it takes no parameters; override build_with() in Part",
        ),
        (
            SubWorkflowNode(app.workflow("x", [page]), kwargs={"a": 1}),
            "kwargs and args_from are for a WorkflowDefinition",
        ),
    ],
)
def test_an_invalid_sub_workflow_is_rejected(sub: SubWorkflowNode[Any], words: str) -> None:
    [problem] = problems(sub)
    assert words in problem


def test_missing_and_unknown_parameters_of_a_sub_workflow_are_reported() -> None:
    class Parameters(WorkflowDefinition[None]):
        name = "parameters"

        @classmethod
        def build_with(cls, app: Horsies, *, page: Page) -> Any:
            raise AssertionError(app, page)

    [missing] = problems(SubWorkflowNode(Parameters, node_id="sub"))
    since_3_13 = "keyword-only "
    assert missing.replace(since_3_13, "") == "node 'sub': Parameters.build_with(): missing a required argument: 'page'"
    assert problems(SubWorkflowNode(Parameters, kwargs={"page": 1, "more": 2}, node_id="sub")) == [
        "node 'sub': Parameters.build_with(): got an unexpected keyword argument 'more'"
    ]


class Typed(WorkflowDefinition[None]):
    name = "typed"

    @classmethod
    def build_with(
        cls,
        app: Horsies,
        *,
        page: Page,  # noqa: ARG003 - only its annotation matters
        depth: int = 1,
        kind: Literal["a", "b"] = "a",
        names: list[str] | None = None,
        **more: float,
    ) -> WorkflowSpec[Any]:
        # Of no matter what type: the checks inside would find the same once more.
        return app.workflow(cls.name, [any_json.node(node_id="in")([depth, kind, *(names or []), *more.values()])])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"page": Page(url="a"), "depth": "2"}, ["parameter 'depth' takes int, not '2'"]),
        ({"page": {"url": "a"}}, ["parameter 'page' takes Page, not {'url': 'a'}"]),
        ({"page": from_node(page), "kind": "c"}, ["parameter 'kind' takes Literal['a', 'b'], not 'c'"]),
        ({"page": from_node(page), "names": ["a", 1]}, ["parameter 'names' takes list[str] | None, not ['a', 1]"]),
        ({"page": from_node(page), "more": "x"}, ["parameter 'more' takes float, not 'x'"]),
        ({"page": from_node(found), "depth": None}, ["parameter 'page' takes Page, but node 'found' gives list[str]", "parameter 'depth' takes int, not None"]),
        ({"page": from_node(page), "names": ["a", from_node(page)]}, ["parameter 'names[1]' takes str, but node 'page' gives Page"]),
    ],
)  # fmt: skip
def test_parameters_of_a_sub_workflow_are_checked_by_the_annotations_of_build_with(
    given: dict[str, Any], words: list[str]
) -> None:
    assert problems(page, found, SubWorkflowNode(Typed, kwargs=given, node_id="sub")) == [
        f"node 'sub': {word}" for word in words
    ]


def test_parameters_that_fit_are_accepted() -> None:
    fine: list[dict[str, Any]] = [
        {"page": Page(url="a"), "depth": True, "kind": "b", "names": [], "more": 1},
        {"page": from_node(page), "names": None, "others": 1.5},
        {"page": from_node(page), "names": ["a"]},
    ]
    for given in fine:
        assert app.workflow("w", [page, SubWorkflowNode(Typed, kwargs=given)])


def test_a_parameter_in_kwargs_and_args_from_is_rejected() -> None:
    twice = SubWorkflowNode(Typed, kwargs={"page": Page(url="a"), "depth": 1}, args_from={"page": page}, node_id="sub")
    assert problems(page, twice) == ["node 'sub': argument 'page' is in kwargs and in args_from"]


def test_the_typed_form_of_a_sub_workflow_is_the_same_node() -> None:
    class Counting(WorkflowDefinition[int]):
        name = "counting"

        @classmethod
        def build_with(cls, app: Horsies, first: int, *, second: int = 2) -> WorkflowSpec[int]:
            raise AssertionError(app, first, second)

    node = SubWorkflowNode.of(Counting.build_with, node_id="sub", waits_for=["other"])(1, second=3)
    assert (node.workflow_def, node.node_id, list(node.waits_for)) == (Counting, "sub", ["other"])
    assert dict(node.kwargs) == {"first": 1, "second": 3}
    with pytest.raises(TypeError, match=r"give the method of a class, such as CountLinks\.build_with"):
        SubWorkflowNode.of(lambda _app: app.workflow("x", []))
