from enum import StrEnum

import pytest

from horsies.model import error_codes, errors
from horsies.model.errors import BrokerError, ConfigError, HorsiesError, PayloadError, ResultTypeError, SchemaError
from horsies.model.result import is_error_code

ERRORS = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, Exception)]
FAMILIES = [
    family
    for family in vars(error_codes).values()
    if isinstance(family, type) and issubclass(family, StrEnum) and family is not StrEnum
]


@pytest.mark.parametrize("error", ERRORS)
def test_one_base_class_catches_everything(error: type[Exception]):
    assert issubclass(error, HorsiesError)


def test_a_config_error_lists_every_problem_on_its_own_line():
    error = ConfigError("AppConfig", ["one is wrong", "two is wrong"])
    assert str(error) == "2 problems in AppConfig:\n  - one is wrong\n  - two is wrong"
    assert error.problems == ("one is wrong", "two is wrong")


def test_a_single_problem_is_not_called_problems():
    assert str(ConfigError("AppConfig", ["it is wrong"])).startswith("1 problem in AppConfig:")


def test_a_config_error_is_a_value_error():
    with pytest.raises(ValueError, match="wrong"):
        raise ConfigError("AppConfig", ["wrong"])


@pytest.mark.parametrize("retryable", [True, False])
def test_a_broker_error_says_whether_trying_again_may_help(retryable: bool):  # noqa: FBT001 - the parameter of the test
    assert BrokerError("gone", retryable=retryable).retryable is retryable


def test_a_schema_error_is_not_retryable():
    assert not SchemaError("missing").retryable


def test_a_result_of_the_wrong_type_is_a_payload_error_of_its_own_class():
    assert issubclass(ResultTypeError, PayloadError)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_code_of_the_library_is_a_valid_error_code_and_equals_its_name(family: type[StrEnum]):
    for code in family:
        assert is_error_code(code)
        assert code.value == code.name


def test_no_two_families_share_a_code():
    every = [code for family in FAMILIES for code in family]
    assert len(FAMILIES) >= 4
    assert len({str(code) for code in every}) == len(every)
