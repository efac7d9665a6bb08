import copy
import pickle
from typing import Any

import pytest

from horsies.model.error_codes import OutcomeCode
from horsies.model.errors import HorsiesError
from horsies.model.result import Err, Ok, Result, TaskError, TaskResult, UnwrapError, is_err, is_ok

GOOD: TaskResult[int, TaskError] = TaskResult(ok=7)
BAD: TaskResult[int, TaskError] = TaskResult(
    err=TaskError(error_code="CARD_DECLINED", message="no money", data={"tries": 2})
)
NOTHING: TaskResult[None, TaskError] = TaskResult(ok=None)


def describe(result: TaskResult[Any, TaskError]) -> str:
    match result:
        case TaskResult(err=TaskError(error_code="CARD_DECLINED", data={"tries": tries})):
            return f"declined after {tries}"
        case TaskResult(err=TaskError() as error):
            return error.error_code
        case TaskResult(ok=None):
            return "nothing"
        case TaskResult(ok=value):
            return f"value {value}"


def test_a_match_statement_distinguishes_ok_and_err():
    assert describe(GOOD) == "value 7"
    assert describe(BAD) == "declined after 2"
    assert describe(TaskResult(err=TaskError(error_code="OTHER"))) == "OTHER"
    assert describe(NOTHING) == "nothing"


def test_a_positional_match_has_the_value_first():
    match GOOD:
        case TaskResult(value, None):
            assert value == 7
        case _:
            pytest.fail("the pattern should have matched")


def test_every_result_is_an_ok_or_an_err() -> None:
    assert (type(GOOD), type(BAD)) == (Ok, Err)
    assert (Ok(7), Err(BAD.unwrap_err())) == (GOOD, BAD)
    assert Ok(None) == NOTHING
    assert [(is_ok(result), is_err(result)) for result in (GOOD, BAD, NOTHING)] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert (repr(Ok(7)), hash(Ok(7))) == ("TaskResult(ok=7)", hash(GOOD))


def test_a_match_of_both_kinds_gives_the_value_and_the_error() -> None:
    def read(result: Result[int]) -> object:
        match result:
            case Ok(value):
                return value
            case Err(error):
                return error.error_code

    assert (read(Ok(0)), read(Err(BAD.unwrap_err()))) == (0, "CARD_DECLINED")


def test_an_err_takes_only_an_error() -> None:
    with pytest.raises(TypeError, match="takes a TaskError, not str"):
        Err("CARD_DECLINED")  # pyright: ignore[reportArgumentType]


def test_a_successful_result_unwraps_to_its_value():
    assert (GOOD.unwrap(), GOOD.ok_value, GOOD.ok, GOOD.err) == (7, 7, 7, None)
    assert GOOD.is_ok()
    assert not GOOD.is_err()


def test_none_is_a_value():
    assert NOTHING.is_ok()
    assert NOTHING.unwrap() is None


def test_an_error_unwraps_to_its_error():
    assert BAD.unwrap_err() is BAD.err_value is BAD.err
    assert BAD.is_err()
    assert not BAD.is_ok()
    assert BAD.ok is None


def test_unwrapping_an_error_raises_with_its_code_and_message():
    with pytest.raises(UnwrapError, match="CARD_DECLINED: no money"):
        BAD.unwrap()
    with pytest.raises(HorsiesError, match="CARD_DECLINED: no money"):
        _ = BAD.ok_value


def test_reading_the_error_of_a_successful_result_raises_with_its_value():
    with pytest.raises(UnwrapError, match="succeeded with 7"):
        GOOD.unwrap_err()
    with pytest.raises(UnwrapError, match="succeeded with 7"):
        _ = GOOD.err_value


@pytest.mark.parametrize("halves", [{}, {"ok": 1, "err": TaskError(error_code="X")}, {"ok": None, "err": None}])
def test_a_result_has_exactly_one_of_ok_and_err(halves: dict[str, Any]):
    with pytest.raises(TypeError, match="exactly one"):
        TaskResult(**halves)


@pytest.mark.parametrize("err", [None, "CARD_DECLINED", ValueError("x")])
def test_only_a_task_error_can_be_the_error(err: Any):
    with pytest.raises(TypeError, match="takes a TaskError"):
        TaskResult(err=err)


@pytest.mark.parametrize("name", ["ok", "err", "_ok", "_err", "anything"])
def test_a_result_can_be_neither_changed_nor_emptied(name: str):
    result: TaskResult[int, TaskError] = TaskResult(ok=7)
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(result, name, 8)
    with pytest.raises(AttributeError, match="cannot be changed"):
        delattr(result, name)
    assert result.unwrap() == 7


@pytest.mark.parametrize("result", [GOOD, BAD, NOTHING], ids=["good", "bad", "nothing"])
def test_a_result_survives_copy_and_pickle(result: TaskResult[Any, TaskError]):
    assert copy.copy(result) == result
    assert copy.deepcopy(result) == result
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301 - made on the line itself


def test_results_are_equal_if_their_values_or_errors_are():
    twin: TaskResult[int, TaskError] = TaskResult(ok=7)
    assert twin == GOOD
    assert hash(twin) == hash(GOOD)
    assert GOOD not in (BAD, TaskResult(ok=8), 7)
    assert TaskResult(err=TaskError(error_code="X")) != NOTHING


def test_a_repr_shows_the_value_or_the_error():
    assert repr(GOOD) == "TaskResult(ok=7)"
    assert repr(BAD).startswith("TaskResult(err=TaskError(error_code='CARD_DECLINED'")


@pytest.mark.parametrize("code", ["lower", "Mixed", "", "WITH SPACE", "1ST", "_X", "A-B", "A\n", "É", 3, None])
def test_an_error_code_that_is_not_upper_snake_case_is_refused_with_an_example(code: Any):
    with pytest.raises(ValueError, match="CARD_DECLINED"):
        TaskError(error_code=code)


def test_a_code_of_a_family_is_stored_as_plain_text():
    error = TaskError(error_code=OutcomeCode.TASK_EXPIRED)
    assert type(error.error_code) is str
    assert error == TaskError(error_code="TASK_EXPIRED")


def test_a_task_error_cannot_be_changed():
    with pytest.raises(AttributeError):
        TaskError(error_code="X").message = "y"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12, "soon"])
def test_an_invalid_retry_after_is_refused_when_the_error_is_created(seconds: Any) -> None:
    with pytest.raises(ValueError, match="retry_after_seconds is"):
        TaskError(error_code="BUSY", retry_after_seconds=seconds)
