"""Run a workflow in each form in which it can be written."""

from collections.abc import Generator
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from horsies import (
    Horsies,
    NodeKey,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowSpec,
    WorkflowStatus,
    each,
    from_node,
    result_from,
)
from horsies.testing import drain, open_sandbox

TIMEOUT_MS = 5_000
AT = datetime(2026, 1, 2, tzinfo=UTC)

app = Horsies()


class Page(BaseModel):
    """Does not look the same in JSON."""

    url: str
    at: datetime


@app.task("fetch")
def fetch(url: str) -> TaskResult[Page, TaskError]:
    if not url:
        return TaskResult(err=TaskError(error_code="NO_URL"))
    return TaskResult(ok=Page(url=url, at=AT))


@app.task("letters")
async def letters(page: Page) -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=list(page.url))


@app.task("count")
def count(pages: list[TaskResult[Page, TaskError]], named: dict[str, Page]) -> TaskResult[list[str], TaskError]:
    shown = [page.ok.url if page.ok else page.unwrap_err().error_code for page in pages]
    return TaskResult(ok=[*shown, *(f"{name}={page.url}@{page.at:%Y}" for name, page in named.items())])


@app.task("looks")
def looks(*, workflow_ctx: WorkflowContext | None = None) -> TaskResult[list[str], TaskError]:
    assert workflow_ctx is not None
    good, bad = workflow_ctx.result_for(Crawl.good), workflow_ctx.result_for(Crawl.bad)
    return TaskResult(ok=[good.unwrap().url, bad.unwrap_err().error_code])


class Crawl(WorkflowDefinition[list[str]]):
    """One of its nodes has the name of its task."""

    name = "crawl"
    good = fetch.node()("good")
    bad = fetch.node()("")
    looks = looks.node(waits_for=[good, bad], allow_failed_deps=True)()

    class Meta:
        output = "looks"
        success_policy = SuccessPolicy(cases=[SuccessCase(required=["looks"])])


class Letters(WorkflowDefinition[list[Page]]):
    """Takes a value that is not there yet."""

    name = "letters"

    @classmethod
    def build_with(cls, app: Horsies, *, page: Page) -> WorkflowSpec[list[Page]]:
        found = letters.node(node_id="found")(page)
        pages = fetch.map_node(node_id="pages", max_parallel=2)(each(found))
        return app.workflow("letters", [found, pages], output=pages)


@pytest.fixture(autouse=True)
def sandboxed(database: str) -> Generator[None]:
    with open_sandbox(app, database):
        yield


def test_a_graph_of_nodes() -> None:
    good, bad = fetch.node(node_id="good")("a"), fetch.node(node_id="bad")("")
    end = count.node(allow_failed_deps=True)([result_from(good), result_from(bad)], named={})
    handle = app.workflow("w", [good, bad, end], output=end).start()
    drain()
    assert handle.result_for(end).unwrap() == ["a", "NO_URL"]
    assert handle.status() is WorkflowStatus.FAILED


def test_a_class_whose_task_reads_the_results_of_its_own_nodes() -> None:
    handle = Crawl.build(app).start()
    drain()
    assert handle.get(TIMEOUT_MS).unwrap() == ["good", "NO_URL"]
    assert handle.status() is WorkflowStatus.COMPLETED


def test_values_flow_two_workflows_down_and_up_again() -> None:
    class Middle(WorkflowDefinition[list[Page]]):
        name = "middle"

        @classmethod
        def build_with(cls, app: Horsies, *, page: Page) -> WorkflowSpec[list[Page]]:
            deep = SubWorkflowNode(Letters, kwargs={"page": page}, node_id="deep")
            return app.workflow("middle", [deep], output=deep)

    page = TaskNode(fetch, {"url": "ab"}, node_id="page")
    middle = SubWorkflowNode(Middle, args_from={"page": page}, node_id="middle")
    end = count.node(node_id="end")([], named={"page": from_node(page)})
    again = fetch.map_node(node_id="again")(each(NodeKey[list[str]]("end")))
    handle = app.workflow("w", [again, page, middle, end], output=middle).start()
    drain()
    assert handle.get(TIMEOUT_MS).unwrap() == [Page(url="a", at=AT), Page(url="b", at=AT)]
    assert handle.result_for(again).unwrap() == [Page(url="page=ab@2026", at=AT)]
    assert handle.to_text().splitlines() == [
        "w",
        "└─ page  COMPLETED",
        "   ├─ middle  COMPLETED",
        "   │  ╎  └─ deep (workflow letters)  COMPLETED",
        "   │  ╎     ╎  └─ found  COMPLETED",
        "   │  ╎     ╎     └─ pages (for each item)  COMPLETED",
        "   └─ end  COMPLETED",
        "      └─ again (for each item)  COMPLETED",
    ]
