"""docs/payloads.md lists what happens to every kind of value; here it happens."""

from collections.abc import Generator
from typing import Any

import pytest

from horsies import TaskHandle
from tests.apps import payloads
from tests.fixtures import payload_table
from tests.fixtures.apps import load_fresh
from tests.fixtures.workers import StartWorker

TIMEOUT_MS = 30_000


@pytest.fixture
def app(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("payloads")
    yield module
    module.app.close()


def test_the_documentation_has_the_table() -> None:
    assert payload_table.on_page() == payload_table.table(), "write it again: python -m tests.fixtures.payload_table"


@pytest.mark.promise("D5")
def test_every_value_arrives_at_a_worker_as_it_was_sent_or_is_refused(app: Any, worker: StartWorker) -> None:
    """The task compares the value that it receives with the expected one; both processes create it themselves."""
    worker("tests.apps.payloads:app")
    sent: dict[str, TaskHandle[None]] = {
        case.kind: app.app.tasks[f"take_{number}"].send(case.make())
        for number, case in enumerate(app.CASES)
        if number not in app.REFUSED and payload_table.refusal(number, payloads.CASES[number]) is None
    }
    ended = {kind: handle.get(timeout_ms=TIMEOUT_MS) for kind, handle in sent.items()}
    assert len(ended) > 40
    assert {kind: result.err for kind, result in ended.items() if result.is_err()} == {}


@pytest.mark.promise("D5")
def test_every_value_comes_back_from_a_worker_as_it_was_returned_or_ends_the_task(
    app: Any, worker: StartWorker
) -> None:
    worker("tests.apps.payloads:app")
    handles = {
        number: app.app.tasks[f"give_{number}"].send()
        for number in range(len(app.CASES))
        if f"give_{number}" in app.app.tasks
    }
    for number, handle in handles.items():
        case, result = app.CASES[number], handle.get(timeout_ms=TIMEOUT_MS)
        refused = payload_table.refusal(number, payloads.CASES[number])
        if refused is None:
            assert result.is_ok(), (case.kind, result.err)
            assert case.is_same(case.make(), result.unwrap()), case.kind
        else:
            code = "RETURN_TYPE_MISMATCH" if _is_of_another_type(refused) else "WORKER_SERIALIZATION_ERROR"
            assert (case.kind, result.unwrap_err().error_code) == (case.kind, code)


def _is_of_another_type(refused: str) -> bool:
    return "Input should be" in refused and "could be written" not in refused
