"""Values that are encoded without pydantic give the same texts, values and errors as with pydantic."""

import json
from collections.abc import Callable
from copy import copy
from enum import IntEnum, StrEnum
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from horsies import PayloadError, TaskError
from horsies.model.codec import ArgumentsCodec, ResultCodec, decode_error, encode_error


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


TYPES: list[Any] = [
    *(None, bool, int, float, str, Any, object, list, dict),
    *(int | None, None | str, float | None, list[int] | None),
    *(list[int], list[float], list[Any], list[dict[str, bool]]),
    *(dict[str, int], dict[str, Any], dict[str, list[str | None]], list[bool]),
]

types = st.sampled_from(TYPES)
floats = st.floats() | st.sampled_from([0.1, -0.0, 1e15, 1e16, 123456789012345678.0, 1e-4, 1e-5, 5e-324, 1e22])
ints = st.integers() | st.integers(-(2**64), 2**64) | st.sampled_from([0, 2**63, -(2**63) - 1, 10**400])
texts = st.text() | st.text(st.characters(exclude_categories=[]))  # halves of pairs, too
scalars = st.none() | st.booleans() | ints | floats | texts
odd = st.sampled_from([b"x", (1, 2), Colour.RED, Size.BIG, 1j, object])


def nested(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
    )


def indented(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def jsonable(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


values = nested(scalars | odd, st.text(max_size=3) | st.integers(0, 2) | odd)
json_texts = st.one_of(
    nested(scalars, st.text(max_size=3)).map(json.dumps),
    nested(scalars, st.text(max_size=3)).map(indented),
    st.just("1" * 5_000),
    st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.text('0123456789.eE+-[]{},:"ntrufalsNI \\ud8', max_size=12),
)


def outcome(act: Callable[..., object], *args: object) -> tuple[str, str]:
    """Return the result or the error, as text. The repr distinguishes 1, 1.0 and True, and NaN equals itself."""
    try:
        return "gives", repr(act(*args))
    except PayloadError as error:
        return type(error).__name__, str(error)


def by_pydantic(codec: Any) -> Any:
    assert codec.plain_test
    other = copy(codec)
    other.plain_test = None
    return other


@given(types, values)
@example(Any, [[[0]]] * 2_000)
@example(list[int], [10**4_299, -(10**4_299)])
@example(list[bool], [True, 1])
@example(float, 1e16)
@example(list[float], [1e-5])
@example(Any, float("nan"))
def test_a_value_is_written_as_pydantic_writes_it(tp: Any, value: object) -> None:
    codec = ResultCodec.for_type(tp)
    assert outcome(codec.encode, value) == outcome(by_pydantic(codec).encode, value)


@given(types, json_texts)
@example(dict, '{"a": 1, "a": 2}')
@example(Any, "[" * 250 + "]" * 250)
@example(str, '"\\ud800"')
@example(float, "1e400")
@example(int, "1" * 4_300)
@example(int, "1" * 4_301)
@example(int, "-0")
def test_a_text_is_read_as_pydantic_reads_it(tp: Any, text: str) -> None:
    codec = ResultCodec.for_type(tp)
    assert outcome(codec.decode, text) == outcome(by_pydantic(codec).decode, text)


def resize(image: int, width: float | None = None, *, tags: list[str] = [], note: Any) -> None:  # noqa: B006 - never called
    ...


ARGUMENTS = ArgumentsCodec.for_function(resize)
named = st.fixed_dictionaries(
    {"note": values},
    optional={"width": floats | ints, "tags": st.lists(texts | ints, max_size=2), "other": st.none()},
)


@given(st.lists(ints | texts, max_size=2), named)
def test_arguments_are_written_as_pydantic_writes_them(args: list[object], kwargs: dict[str, object]) -> None:
    """In the order of the signature, however they are passed."""
    assert outcome(ARGUMENTS.encode, tuple(args), kwargs) == outcome(by_pydantic(ARGUMENTS).encode, tuple(args), kwargs)


@given(named.filter(jsonable).map(lambda kwargs: indented({"image": 1, **kwargs})) | json_texts)
def test_arguments_are_read_as_pydantic_reads_them(text: str) -> None:
    assert outcome(call_from, ARGUMENTS, text) == outcome(call_from, by_pydantic(ARGUMENTS), text)


def call_from(codec: ArgumentsCodec, text: str) -> object:
    args, kwargs = codec.decode(text)
    return args, sorted(kwargs.items(), key=itemgetter(0))  # by name, in whatever order


@given(values)
def test_the_data_of_an_error_is_restored_as_far_as_json_can(data: object) -> None:
    text = encode_error(TaskError(error_code="OOPS", message="half of a pair: \ud800", data=data))
    found = decode_error(text)
    assert found.message == "half of a pair: ?"
    if jsonable(data) and "\\ud" not in json.dumps(data):
        assert json.loads(text)["data"] == json.loads(json.dumps(found.data))


@pytest.mark.parametrize("tp", [int | str, tuple[int, ...], set[int], dict[int, str], bytes, list[bytes], Colour])
def test_types_that_pydantic_may_treat_differently_are_left_to_it(tp: Any) -> None:
    assert ResultCodec.for_type(tp).plain_test is None
