"""A TaskResult inside arguments and results, and the parameters that a workflow fills in."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from horsies import PayloadError, TaskDefinitionError, TaskError, TaskResult
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.signature import InjectedParameter


class Page(BaseModel):
    at: datetime


def summarise(
    first: TaskResult[Page, TaskError],
    others: list[TaskResult[date, TaskError]],
    last: TaskResult[None, TaskError] | None = None,
) -> None: ...


CODEC = ArgumentsCodec(summarise)
GOOD: TaskResult[Page, TaskError] = TaskResult(ok=Page(at=datetime(2026, 1, 2, tzinfo=UTC)))


def good(value: object) -> TaskResult[Any, TaskError]:
    return TaskResult(ok=value)


BAD: TaskResult[Any, TaskError] = TaskResult(err=TaskError(error_code="BROKEN", message="no", data={"why": 1}))


def test_values_and_errors_in_results_arrive_as_they_were_sent() -> None:
    given: dict[str, Any] = {"first": GOOD, "others": [good(date(2026, 1, 2)), BAD], "last": good(None)}
    assert CODEC.decode(CODEC.encode((), given)) == ((), given)


def test_a_result_is_written_under_ok_or_err() -> None:
    assert ResultCodec[Any](TaskResult[int, TaskError]).encode(good(1)) == '{"ok":1}'
    assert ResultCodec[Any](TaskResult[None, TaskError]).decode('{"ok":null}') == good(None)


@pytest.mark.parametrize(
    ("first", "others", "words"),
    [
        (1, [], "argument 'first': Input should be a TaskResult (got 1)"),
        (good(1), [], "argument 'first.ok'"),
        (GOOD, [good("2026-01-02")], "argument 'others[0].ok': Input should be a valid date"),
    ],
)
def test_an_invalid_result_is_refused_with_its_place(first: object, others: list[object], words: str) -> None:
    with pytest.raises(PayloadError) as refused:
        CODEC.encode((first, others), {})
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["{}", '{"ok":null,"err":null}', '{"value":1}', "7"])
def test_a_stored_text_with_none_or_both_of_ok_and_err_is_refused(text: str) -> None:
    with pytest.raises(PayloadError):
        ResultCodec[Any](TaskResult[int | None, TaskError]).decode(text)


# -- what a workflow fills in


def test_injected_parameters_are_not_arguments() -> None:
    def node(page: int, workflow_ctx: object = None, *, workflow_meta: object = None) -> None: ...

    codec = ArgumentsCodec(node)
    assert codec.wants == {InjectedParameter.CONTEXT, InjectedParameter.META}
    assert codec.encode((1,), {}) == '{"page":1}'
    with pytest.raises(PayloadError, match="unexpected keyword argument 'workflow_ctx'"):
        codec.encode((1,), {"workflow_ctx": 1})


def test_a_task_that_needs_its_workflow_cannot_be_sent_alone() -> None:
    def node(page: int, workflow_ctx: object) -> None: ...

    codec = ArgumentsCodec(node)
    with pytest.raises(PayloadError, match="takes workflow_ctx, which only a workflow can provide"):
        codec.encode((1,), {})


def test_injected_parameters_must_accept_keywords() -> None:
    def before(workflow_ctx: object, *pages: int) -> None: ...
    def by_place(workflow_meta: object, /) -> None: ...
    def after(*pages: int, workflow_ctx: object) -> None: ...

    with pytest.raises(TaskDefinitionError, match="parameter 'workflow_ctx' is passed by keyword"):
        ArgumentsCodec(before)
    with pytest.raises(TaskDefinitionError, match="parameter 'workflow_meta' is passed by keyword"):
        ArgumentsCodec(by_place)
    assert ArgumentsCodec(after).wants == {InjectedParameter.CONTEXT}
