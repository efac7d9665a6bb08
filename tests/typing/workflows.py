"""What the type checkers promise to those who write workflows. Checked by pyright and mypy, never run; see contract.py."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_type

from horsies import (
    Horsies,
    Join,
    NodeInfo,
    NodeKey,
    OnError,
    Result,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowMeta,
    WorkflowNode,
    WorkflowSpec,
    WorkflowStatus,
    each,
    from_node,
    result_from,
    results_from,
)

app = Horsies()


class Page(TypedDict):
    url: str


@app.task("fetch")
async def fetch(url: str, *, depth: int = 1) -> TaskResult[Page, TaskError]:
    return TaskResult(ok={"url": f"{url}{depth}"})


@app.task("links")
def links(page: Page) -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=[page["url"]])


@app.task("report")
def report(
    pages: list[TaskResult[Page, TaskError]],
    by_name: dict[str, Page] | None = None,
    workflow_ctx: WorkflowContext | None = None,
    workflow_meta: WorkflowMeta | None = None,
) -> TaskResult[str, TaskError]:
    page = NodeKey[Page]("page")
    if workflow_ctx:
        assert_type(workflow_ctx.result_for(page), Result[Page])
        assert_type(workflow_ctx.result_for(links_node), Result[list[str]])
        workflow_ctx.result_for("page")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    if workflow_meta:
        assert_type(workflow_meta.node_id, str)
    return TaskResult(ok=f"{pages}{by_name}")


# -- a node takes what its task takes, and has its value

page_node = fetch.node(node_id="page", priority=1, queue="web", good_until=datetime.now(UTC))("https://…", depth=2)
links_node = links.node(waits_for=[page_node, "other", NodeKey[int]("another")], join="any")(page=from_node(page_node))
pages_node = fetch.map_node(node_id="pages", max_parallel=5)(each(links_node), depth=2)


def nodes() -> None:
    assert_type(page_node, TaskNode[Page])
    assert_type(links_node, TaskNode[list[str]])
    assert_type(pages_node, TaskNode[list[Page]])
    assert_type(page_node.key(), NodeKey[Page])

    fetch.node()()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fetch.node()(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch.node()("a", 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fetch.node()("a", dpeth=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fetch.node(name="page")("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fetch.node(join="most")("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch.node(waits_for=page_node)("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch.node(max_parallel=2)("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- what flows has the type of where it comes from


def flows() -> None:
    assert_type(from_node(page_node), Page)
    assert_type(from_node(NodeKey[int]("x")), int)
    assert_type(result_from(links_node), Result[list[str]])
    assert_type(each(links_node), str)
    assert_type(each(pages_node), Page)
    assert_type(each(["a", "b"]), str)
    assert_type(each(range(3)), int)
    assert_type(results_from(pages_node), list[TaskResult[Page, TaskError]])
    assert_type(results_from(NodeKey[list[int]]("x")), list[TaskResult[int, TaskError]])

    fetch.map_node(node_id="a", max_failures=2, min_success=1)(each(["a", "b"]))
    report.node()(results_from(pages_node))
    report.node()(results_from(links_node))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    results_from(page_node)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch.map_node()(each([1]))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch.node(max_failures=1)("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    report.node()([result_from(page_node)], by_name={"page": from_node(page_node)})
    links.node()(from_node(links_node))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    links.node()(result_from(page_node))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    report.node()([from_node(page_node)])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    report.node()([result_from(links_node)])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    links.map_node()(each(links_node))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    from_node("page")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    from_node(fetch)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    from_node(fetch.node())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- the explicit form


def explicit() -> None:
    node = TaskNode(
        fetch,
        {"url": "a"},
        [page_node],
        {"depth": links_node},
        workflow_ctx_from=["page"],
        allow_failed_deps=True,
        join=Join.QUORUM,
        min_success=1,
        node_id="more",
    )
    assert_type(node, TaskNode[Page])
    wide: WorkflowNode[object] = node  # a node only gives
    TaskNode(fetch, ["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    TaskNode(fetch, node="more")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.kwargs = {}  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert wide


# -- a workflow has the type of its output


def workflows(some: Sequence[WorkflowNode[Any]]) -> None:
    policy = SuccessPolicy(cases=[SuccessCase(required=[page_node, "links"])], optional=[NodeKey[Any]("x")])
    spec = app.workflow(
        "crawl",
        [page_node, links_node, pages_node],
        output=pages_node,
        on_error=OnError.PAUSE,
        success_policy=policy,
        time_limit=timedelta(minutes=5),
        definition_key="crawl.v1",
    )
    assert_type(spec, WorkflowSpec[list[Page]])
    assert_type(app.workflow("crawl", tasks=some), WorkflowSpec[dict[str, TaskResult[Any, TaskError]]])
    assert_type(app.workflow("crawl", tasks=some, output=NodeKey[int]("x"), on_error="pause"), WorkflowSpec[int])
    assert_type(spec.to_mermaid(), str)
    assert_type(spec.to_text(), str)

    wide: WorkflowSpec[object] = spec
    narrow: WorkflowSpec[int] = spec  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    app.workflow("crawl", [fetch])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    app.workflow("crawl", some, output="page")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    app.workflow("crawl", some, on_error="skip")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    assert narrow is wide


# -- a run has the type of its workflow


async def runs(spec: WorkflowSpec[list[Page]], workflow_id: str) -> None:
    handle = spec.start()
    assert_type(handle, WorkflowHandle[list[Page]])
    assert_type(await spec.start_async(workflow_id), WorkflowHandle[list[Page]])
    assert_type(app.workflow_handle(workflow_id), WorkflowHandle[Any])
    assert_type(app.workflow_handle(workflow_id, spec), WorkflowHandle[list[Page]])
    assert_type(handle.get(timeout_ms=5_000), Result[list[Page]])
    assert_type(await handle.get_async(), Result[list[Page]])
    assert_type(handle.status(), WorkflowStatus | None)
    assert_type(handle.result_for(links_node), Result[list[str]])
    assert_type(await handle.result_for_async(NodeKey[int]("x")), Result[int])
    assert_type(handle.tasks(), list[NodeInfo])
    assert_type(handle.to_text(), str)

    wide: WorkflowHandle[object] = handle
    narrow: WorkflowHandle[int] = handle  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    handle.result_for("page")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    handle.get("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert narrow is wide


# -- classes, and one inside another


class Crawl(WorkflowDefinition[list[str]]):
    name = "crawl"
    definition_key = "crawl.v1"
    page = fetch.node()("a")
    found = links.node()(from_node(page))

    class Meta:
        output = "found"
        on_error = OnError.FAIL


class CountLinks(WorkflowDefinition[int]):
    name = "count"

    @classmethod
    def build_with(cls, app: Horsies, *, page: Page, more: int = 1) -> WorkflowSpec[int]:
        found = links.node()(page)
        return app.workflow("count", [found], output=NodeKey[int](f"{found}{more}"))


def definitions() -> None:
    assert_type(Crawl.build(app), WorkflowSpec[list[str]])
    assert_type(CountLinks.build_with(app, page={"url": "a"}), WorkflowSpec[int])
    sub = SubWorkflowNode(Crawl, waits_for=[page_node], node_id="sub")
    assert_type(sub, SubWorkflowNode[list[str]])
    assert_type(from_node(sub), list[str])
    assert_type(each(sub), str)
    assert_type(SubWorkflowNode(app.workflow("x", [page_node], output=page_node)), SubWorkflowNode[Page])
    assert_type(SubWorkflowNode(CountLinks, kwargs={"page": from_node(page_node)}), SubWorkflowNode[int])

    typed = SubWorkflowNode.of(CountLinks.build_with, node_id="sub", waits_for=[sub])
    assert_type(typed(page=from_node(page_node)), SubWorkflowNode[int])
    typed(page=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    typed()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    typed(page=from_node(page_node), most=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    CountLinks.build_with(app, page=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SubWorkflowNode(fetch)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SubWorkflowNode(Crawl, node="sub")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
