"""Workflows for the tests that run them with real workers."""

import os
import time
from datetime import datetime
from pathlib import Path

from horsies import (
    AppConfig,
    Horsies,
    NodeKey,
    PostgresConfig,
    RecoveryConfig,
    RetryPolicy,
    SubWorkflowNode,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowMeta,
    WorkflowSpec,
    each,
    from_node,
    result_from,
    results_from,
)

app = Horsies(
    AppConfig(
        broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]),
        recovery=RecoveryConfig(maintenance_ms=200, heartbeat_ms=200, dead_after_ms=1_000),
    )
)
AGAIN = RetryPolicy.fixed([0.01] * 20, auto_retry_for=["WORKER_CRASHED", "FLAKY"])


@app.task("give")
def give(value: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=value)


@app.task("add")
def add(a: int, b: int = 1) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("add_up")
def add_up(values: list[int]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(values))


@app.task("up_to")
def up_to(count: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=list(range(count)))


@app.task("refuse")
def refuse(code: str = "REFUSED") -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message="as it was asked to"))


@app.task("refuse_until")
def refuse_until(path: str) -> TaskResult[int, TaskError]:
    """Fail until the file exists."""
    if Path(path).exists():
        return TaskResult(ok=7)
    return TaskResult(err=TaskError(error_code="NOT_YET", message=path))


@app.task("wait_until")
def wait_until(path: str) -> TaskResult[int, TaskError]:
    """Wait until the file exists."""
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=7)


@app.task("flaky", retry_policy=AGAIN)
def flaky(path: str) -> TaskResult[int, TaskError]:
    """Fail in the first attempt."""
    seen = Path(path)
    if seen.exists():
        return TaskResult(ok=1)
    seen.touch()
    return TaskResult(err=TaskError(error_code="FLAKY", message="the first time"))


@app.task("linger", retry_policy=AGAIN)
def linger(seconds: float) -> TaskResult[int, TaskError]:
    time.sleep(seconds)
    return TaskResult(ok=1)


@app.task("codes")
def codes(results: list[TaskResult[int, TaskError]]) -> TaskResult[list[str], TaskError]:
    return TaskResult(
        ok=[str(result.ok_value) if result.is_ok() else result.err_value.error_code for result in results]
    )


@app.task("look_round")
def look_round(*, workflow_ctx: WorkflowContext, workflow_meta: WorkflowMeta) -> TaskResult[list[str], TaskError]:
    first = workflow_ctx.result_for(first_of_all)
    return TaskResult(ok=[workflow_meta.workflow_name, workflow_meta.node_id, str(first.ok_value)])


@app.task("halve")
def halve(number: int) -> TaskResult[int, TaskError]:
    if number % 2:
        return TaskResult(err=TaskError(error_code="ODD", message=f"{number} is odd"))
    return TaskResult(ok=number // 2)


@app.task("code_at")
def code_at(place: int, results: list[TaskResult[int, TaskError]]) -> TaskResult[str, TaskError]:
    return TaskResult(ok=codes([results[place]]).unwrap()[0])


@app.task("echo")
def echo(text: str) -> TaskResult[str, TaskError]:
    """Return the text, or an error if it begins with an exclamation mark."""
    if text.startswith("!"):
        return TaskResult(err=TaskError(error_code="LOUD", message=text, data=[text]))
    return TaskResult(ok=text)


@app.task("texts_of")
def texts_of(results: list[TaskResult[str, TaskError]]) -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=[result.ok_value if result.is_ok() else result.err_value.message for result in results])


@app.task("day_of")
def day_of(moment: datetime | None) -> TaskResult[str, TaskError]:
    return TaskResult(ok="never" if moment is None else moment.date().isoformat())


class CodesOf(WorkflowDefinition[list[str]]):
    name = "codes of"

    @classmethod
    def build_with(cls, app: Horsies, *, results: list[TaskResult[int, TaskError]]) -> WorkflowSpec[list[str]]:
        found = codes.node(node_id="found")(results)
        return app.workflow(cls.name, [found], output=found)


@app.task("look_at")
def look_at(names: list[str] | None = None, *, workflow_ctx: WorkflowContext) -> TaskResult[list[str], TaskError]:
    """Return what the context has for these nodes: a value, or the code of an error."""
    results = [workflow_ctx.result_for(NodeKey[int](name)) for name in names or []]
    return TaskResult(
        ok=[str(result.ok_value) if result.is_ok() else result.err_value.error_code for result in results]
    )


one = give.node(node_id="one")(1)
two = add.node(node_id="two")(from_node(one))
chain = app.workflow("chain", [one, two], output=two)

parts = [give.node(node_id=f"part {number}")(number) for number in range(20)]
total = add_up.node(node_id="total")([from_node(part) for part in parts])
fan = app.workflow("fan", [*parts, total], output=total)

good = give.node(node_id="good")(1)
bad = refuse.node(node_id="bad")()
after_bad = add.node(node_id="after bad")(from_node(bad))
report = codes.node(node_id="report", allow_failed_deps=True)(
    [result_from(good), result_from(bad), result_from(after_bad)]
)
failing = app.workflow("failing", [good, bad, after_bad, report], output=report)

numbers = up_to.node(node_id="numbers")(5)
more = add.map_node(node_id="more", max_parallel=2)(a=each(numbers), b=10)
sum_of_more = add_up.node(node_id="sum")(from_node(more))
mapped = app.workflow("mapped", [numbers, more, sum_of_more], output=sum_of_more)

first_of_all = give.node(node_id="first")(42)
looker = TaskNode(look_round, waits_for=[first_of_all], node_id="looker")
looking = app.workflow("looking", [first_of_all, looker], output=looker)

careful_bad = refuse.node(node_id="bad")()
careful_parts = [
    give.node(node_id=f"part {number}", waits_for=[careful_bad] if number else [])(number) for number in range(3)
]
careful = app.workflow("careful", [careful_bad, *careful_parts], on_error="pause")

outer_first = give.node(node_id="first")(3)
inside = SubWorkflowNode(chain, node_id="inside", waits_for=[outer_first])
outer_last = add.node(node_id="last")(from_node(inside), from_node(outer_first))
nested = app.workflow("nested", [outer_first, inside, outer_last], output=outer_last)

halves = halve.map_node(node_id="halves", max_parallel=2, max_failures=3)(each([2, 3, 4, 5, 6]))
all_codes = codes.node(node_id="codes")(results_from(halves))
patchy = app.workflow("patchy", [halves, all_codes], output=all_codes)
