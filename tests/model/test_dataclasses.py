"""The values that users create and receive are frozen dataclasses, with fields by keyword."""

import copy
import dataclasses
import inspect
import pickle
from datetime import timedelta
from functools import cached_property
from typing import ClassVar

import pytest
from pydantic import TypeAdapter, ValidationError

from horsies import Call, CustomQueueConfig, PostgresConfig, RetentionConfig, TaskError
from horsies.tasks.current_task import CurrentTask

LOST = TaskError(error_code="LOST", message="gone")


def test_the_functions_of_dataclasses_accept_a_value() -> None:
    assert dataclasses.is_dataclass(TaskError)
    assert [field.name for field in dataclasses.fields(LOST)] == [
        "error_code",
        "message",
        "data",
        "retry_after_seconds",
    ]
    assert dataclasses.asdict(LOST) == {
        "error_code": "LOST",
        "message": "gone",
        "data": None,
        "retry_after_seconds": None,
    }
    assert dataclasses.replace(LOST, message="away") == TaskError(error_code="LOST", message="away")


def test_a_copy_with_changes_is_checked_as_well() -> None:
    with pytest.raises(ValueError, match="upper snake case"):
        dataclasses.replace(LOST, error_code="lost")


def test_values_of_one_class_with_equal_fields_are_equal() -> None:
    same = TaskError(message="gone", error_code="LOST")
    assert same == LOST
    assert hash(same) == hash(LOST)
    assert TaskError(error_code="LOST") != LOST
    assert dataclasses.asdict(LOST) != LOST
    assert RetentionConfig(finished=timedelta(days=1)) != RetentionConfig()


def test_the_repr_has_the_fields_in_order() -> None:
    queue = CustomQueueConfig(max_concurrency=2, name="high")
    assert repr(queue) == "CustomQueueConfig(name='high', priority=100, max_concurrency=2)"
    assert repr(PostgresConfig(database_url="postgresql://db/app")).startswith("PostgresConfig(database_url=")


def test_a_hidden_field_is_not_in_the_repr() -> None:
    fields = {field.name: field.repr for field in dataclasses.fields(CurrentTask)}
    assert not fields["report"]
    assert fields["task_id"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "missing 1 required keyword-only argument: 'error_code'"),
        ({"error_code": "X", "mesage": "y"}, "got an unexpected keyword argument 'mesage'"),
    ],
)
def test_missing_and_unknown_fields_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        TaskError(**given)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_value_cannot_be_changed() -> None:
    for change in (
        lambda: setattr(LOST, "message", "other"),
        lambda: setattr(LOST, "new", 1),
        lambda: delattr(LOST, "message"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()


def test_a_value_can_be_pickled_and_copied() -> None:
    assert copy.deepcopy(LOST) == LOST
    assert pickle.loads(pickle.dumps(LOST)) == LOST  # noqa: S301 - made on the line itself


def test_pydantic_reads_writes_and_checks_a_value() -> None:
    adapter = TypeAdapter(TaskError)
    assert adapter.validate_json(adapter.dump_json(LOST)) == LOST
    with pytest.raises(ValidationError, match="upper snake case"):
        adapter.validate_python({"error_code": "lost"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeclinedError(TaskError):
    """A user's own."""

    card: str


def test_a_dataclass_can_be_derived_from_a_value() -> None:
    declined = DeclinedError(error_code="DECLINED", card="visa")
    assert (declined.error_code, declined.message, declined.card) == ("DECLINED", "", "visa")
    assert [field.name for field in dataclasses.fields(declined)][-1] == "card"
    with pytest.raises(ValueError, match="upper snake case"):
        DeclinedError(error_code="declined", card="visa")


def test_a_value_can_be_generic() -> None:
    call = Call[[int], int](task_name="pack", args="{}")
    assert call == Call(task_name="pack", args="{}")
    assert type(call) is Call


def test_inspect_finds_the_signature_of_a_value() -> None:
    assert list(inspect.signature(TaskError).parameters) == ["error_code", "message", "data", "retry_after_seconds"]


def test_class_variables_and_other_attributes_are_not_fields() -> None:
    class KeptError(TaskError):
        kind: ClassVar[str] = "kept"

        @cached_property
        def shout(self) -> str:
            return self.message.upper()

    first, second = (KeptError(error_code="LOST", message="gone") for _ in range(2))
    assert first.shout == "GONE"
    assert first == second
    assert dataclasses.replace(first, message="away") == KeptError(error_code="LOST", message="away")
    assert "kind" not in repr(first)
