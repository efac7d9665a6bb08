import asyncio
from enum import StrEnum
from typing import Any

import pytest

from horsies.model.config import AppConfig
from horsies.model.error_codes import ErrorCodes, ExceptionMap, holds_for_all
from horsies.model.errors import ConfigError


class Code(StrEnum):
    DOWN = "DOWN"


class QuotaError(ConnectionError, ValueError):
    pass


class TeamError(ExceptionGroup[Exception]):
    pass


MAP = ExceptionMap({OSError: "SYSTEM", ConnectionError: "DOWN", ValueError: "BAD_VALUE"})
REFUSED, RESET, MISSING = ConnectionRefusedError("x"), ConnectionResetError("y"), FileNotFoundError("z")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionError(), "DOWN"),
        (REFUSED, "DOWN"),
        (MISSING, "SYSTEM"),
        (QuotaError(), "DOWN"),  # both are its parents; the first one named is nearer
        (UnicodeDecodeError("utf-8", b"", 0, 1, "bad"), "BAD_VALUE"),
        (KeyError(), None),
        (SystemExit(), None),
    ],
)
def test_the_nearest_class_decides(error: BaseException, code: str | None) -> None:
    assert MAP.code_for(error) == code


def test_the_order_of_the_entries_does_not_matter() -> None:
    assert ExceptionMap(dict(reversed(list(MAP.items())))).code_for(REFUSED) == "DOWN"


def test_the_map_of_the_task_comes_first_then_that_of_the_app_then_the_default() -> None:
    codes = ErrorCodes(of_task=ExceptionMap({OSError: "OF_TASK"}), of_app=MAP, default="OTHER")
    assert codes.code_for(REFUSED) == "OF_TASK"  # although the app knows a nearer class
    assert codes.code_for(ValueError()) == "BAD_VALUE"
    assert codes.code_for(KeyError()) == "OTHER"


@pytest.mark.parametrize(
    ("group", "code"),
    [
        (ExceptionGroup("g", [REFUSED]), "DOWN"),
        (ExceptionGroup("g", [REFUSED, ExceptionGroup("h", [RESET])]), "DOWN"),
        (ExceptionGroup("g", [REFUSED, MISSING]), None),  # they do not agree
        (ExceptionGroup("g", [REFUSED, KeyError()]), None),
        (BaseExceptionGroup("g", [KeyboardInterrupt()]), None),
    ],
)
def test_a_group_has_the_code_that_all_its_exceptions_share(group: BaseException, code: str | None) -> None:
    assert MAP.code_for(group) == code


def test_an_entry_for_a_group_class_comes_first_and_one_for_exception_last() -> None:
    group, team = ExceptionGroup("g", [REFUSED]), TeamError("t", [REFUSED])
    assert ExceptionMap({**MAP, ExceptionGroup: "SEVERAL"}).code_for(group) == "SEVERAL"
    assert ExceptionMap({**MAP, TeamError: "TEAM"}).code_for(team) == "TEAM"
    anything = ExceptionMap({**MAP, Exception: "ANYTHING"})
    assert anything.code_for(group) == "DOWN"
    assert anything.code_for(ExceptionGroup("g", [REFUSED, MISSING])) == "ANYTHING"


def test_a_predicate_must_hold_for_every_exception_in_a_group() -> None:
    def is_lost(error: BaseException) -> bool:
        return isinstance(error, ConnectionError)

    assert holds_for_all(REFUSED, is_lost)
    assert holds_for_all(ExceptionGroup("g", [REFUSED, ExceptionGroup("h", [RESET])]), is_lost)
    assert not holds_for_all(ExceptionGroup("g", [REFUSED, MISSING]), is_lost)
    assert holds_for_all(ExceptionGroup("g", [MISSING]), lambda error: isinstance(error, ExceptionGroup))


# Configuration


def test_a_map_of_a_configuration_cannot_be_changed() -> None:
    given: dict[type[BaseException], str] = {ConnectionError: Code.DOWN}
    config = AppConfig(exception_mapper=given)
    given[OSError] = "SYSTEM"
    assert config.exception_mapper == {ConnectionError: "DOWN"}
    assert type(config.exception_mapper[ConnectionError]) is str
    with pytest.raises(TypeError):
        config.exception_mapper[OSError] = "SYSTEM"  # pyright: ignore[reportIndexIssue]
    assert "ConnectionError: 'DOWN'" in repr(config)
    assert hash(config) == hash(AppConfig(exception_mapper={ConnectionError: "DOWN"}))


def test_without_a_map_an_exception_is_an_unhandled_error() -> None:
    assert AppConfig().default_unhandled_error_code == "UNHANDLED_ERROR"
    assert AppConfig(default_unhandled_error_code=Code.DOWN).default_unhandled_error_code == "DOWN"


@pytest.mark.parametrize("mapper", [[(OSError, "X")], "OSError", None, 7])
def test_a_map_is_a_dict(mapper: Any) -> None:
    with pytest.raises(ConfigError, match=r'must be a dict like \{ConnectionError: "UPSTREAM_DOWN"\}'):
        AppConfig(exception_mapper=mapper)


def test_all_problems_of_a_map_are_reported_together() -> None:
    wrong: Any = {int: "X", OSError(): "X", "OSError": "X", OSError: "system", asyncio.CancelledError: 7, KeyError: ""}
    with pytest.raises(ConfigError) as caught:
        AppConfig(exception_mapper=wrong, default_unhandled_error_code="not a code")
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "exception_mapper has the key <class 'int'>",
        "exception_mapper has the key OSError()",
        "exception_mapper has the key 'OSError'",
        "exception_mapper[OSError] is 'system'",
        "exception_mapper[CancelledError] is 7",
        "exception_mapper[KeyError] is ''",
        "default_unhandled_error_code is 'not a code'",
    ]
