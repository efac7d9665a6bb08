import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Optional, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict

from horsies.model.codec import ResultCodec, decode_error, encode_error
from horsies.model.errors import PayloadError, ResultTypeError, TaskDefinitionError
from horsies.model.result import TaskError, TaskResult
from horsies.model.signature import ok_type

T = TypeVar("T")


@dataclass
class Point:
    x: int
    raw: bytes = b""


class Box(TypedDict):
    width: float


class Model(BaseModel):
    name: str


@dataclass
class Pair(Generic[T]):
    left: T
    right: T


# Values


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (None, None),
        (int, 7),
        (Point, Point(1, b"\xff")),
        (Box, {"width": math.inf}),
        (Model, Model(name="x")),
        (list[Point] | None, [Point(1)]),
        (dict[str, datetime], {"at": datetime(2026, 1, 1, tzinfo=UTC)}),
        (Pair[int], Pair(1, 2)),
        (Any, {"k": [1, None]}),
        (tuple[int, ...], (1, 2)),
    ],
)
def test_a_result_is_decoded_as_it_was_encoded(tp: Any, value: object):
    codec = ResultCodec[Any](tp)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.promise("A5")
@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (None, 7),
        (int, "7"),
        (int, None),
        (Point, {"x": 1}),
        (Point, Point("1")),  # pyright: ignore[reportArgumentType]
        (list[int], [1, "2"]),
        (Model, Point(1)),
        (str, b"x"),
    ],
)
def test_a_result_of_another_type_raises_result_type_error(tp: Any, value: object):
    with pytest.raises(ResultTypeError, match="the result cannot be stored"):
        ResultCodec[Any](tp).encode(value)


def cyclic_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (Any, object()),
        (Any, math.nan),
        (Any, cyclic_list()),
        (list[Any], [Point(1)]),
        (str, "\ud800"),
        (dict[tuple[int, int], int], {(1, 2): 3}),
    ],
    ids=["an object", "nan", "a cyclic list", "an object inside", "half a surrogate pair", "a tuple as a key"],
)
def test_a_value_of_the_right_type_that_cannot_be_written_is_not_a_wrong_type(tp: Any, value: object):
    with pytest.raises(PayloadError) as caught:
        ResultCodec[Any](tp).encode(value)
    assert not isinstance(caught.value, ResultTypeError)


def test_an_error_names_the_place_inside_a_result_and_not_the_value():
    with pytest.raises(ResultTypeError, match=r"value at '\[1\]\.x': Input should be a valid integer \(got a str\)"):
        ResultCodec[Any](list[Point]).encode([Point(1), Point("no")])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("text", ["nonsense", '"x"', b"\xff"])
def test_a_stored_result_that_does_not_fit_is_refused(text: str | bytes):
    with pytest.raises(PayloadError, match="the stored result does not fit"):
        ResultCodec[Any](int).decode(text)


@pytest.mark.parametrize("tp", [7, Callable[[], int], type[int], Exception])
def test_a_result_type_that_cannot_be_encoded_is_refused_at_once(tp: Any):
    with pytest.raises(TaskDefinitionError, match="the result is annotated"):
        ResultCodec[Any](tp)


# Return annotations


class Refined(TaskError):  # noqa: N818 - no exception
    pass


def bare(): ...
def no_result() -> int: ...
def returns_none() -> None: ...
def unfilled() -> TaskResult: ...  # pyright: ignore  # noqa: PGH003 - several rules
def optional() -> Optional[TaskResult[int, TaskError]]: ...  # noqa: UP045 - this form too
def union() -> TaskResult[int, TaskError] | int: ...
def other_error() -> TaskResult[int, Refined]: ...
def wrapped() -> list[TaskResult[int, TaskError]]: ...
def generic(x: T) -> TaskResult[T, TaskError]: ...
def misspelt() -> "TaskResult[Missing, TaskError]": ...  # pyright: ignore  # noqa: F821, PGH003
def just_the_error() -> TaskError: ...


NOT_TASKS: list[Callable[..., Any]] = [
    bare,
    no_result,
    returns_none,
    unfilled,
    optional,
    union,
    other_error,
    wrapped,
    generic,
    just_the_error,
]


@pytest.mark.promise("A5")
@pytest.mark.parametrize("fn", NOT_TASKS)
def test_a_function_that_does_not_return_a_task_result_is_refused_with_the_form_expected(fn: Callable[..., Any]):
    with pytest.raises(TaskDefinitionError, match=r"TaskResult\[T, TaskError\]") as caught:
        ok_type(fn)
    assert fn.__name__ in str(caught.value)
    assert f"`def {fn.__name__}(...) -> TaskResult[int, TaskError]`" in str(caught.value)


@pytest.mark.promise("A5")
def test_a_return_annotation_that_cannot_be_resolved_is_refused():
    with pytest.raises(TaskDefinitionError, match=r"misspelt: the return annotation.*'Missing' is not defined"):
        ok_type(cast("Callable[..., Any]", misspelt))


async def async_task() -> TaskResult[list[int], TaskError]: ...
def nothing() -> TaskResult[None, TaskError]: ...
def quoted() -> "TaskResult[Point, TaskError]": ...
def noted() -> TaskResult[Annotated[int, "note"], TaskError]: ...
def anything() -> TaskResult[Any, TaskError]: ...


@pytest.mark.promise("A5")
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (async_task, list[int]),
        (nothing, type(None)),
        (quoted, Point),
        (noted, Annotated[int, "note"]),
        (anything, Any),
    ],
)
def test_the_type_of_the_value_is_read_from_the_annotation(fn: Callable[..., Any], expected: Any):
    assert ok_type(fn) == expected


# Errors

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


def round_trip(**values: Any) -> TaskError:
    text = encode_error(TaskError(error_code="X", **values))
    text.encode()  # storable as UTF-8
    assert "\0" not in text
    return decode_error(text)


@given(st.text(), JSON)
def test_an_error_is_decoded_as_it_was_encoded(message: str, data: Any):
    storable = message.encode("utf-8", "replace").decode()
    assert round_trip(message=message, data=data) == TaskError(error_code="X", message=storable, data=data)


@given(
    st.recursive(
        st.text() | st.floats() | st.binary(), lambda i: st.lists(i) | st.dictionaries(st.text() | st.integers(), i)
    )
)
def test_an_error_is_encoded_whatever_its_data_is(data: Any):
    assert round_trip(message="m", data=data).message == "m"


class FailingRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (Point(1), {"x": 1, "raw": ""}),
        (Model(name="x"), {"name": "x"}),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, {"at": "2026-01-01T00:00:00Z"}),
        (ValueError("x"), "ValueError('x')"),
        ({"cause": ValueError("x"), "n": 1}, {"cause": "ValueError('x')", "n": 1}),
        ({"bad": "a\ud800", "n": 1}, {"bad": "a?", "n": 1}),
        ({"nul": "a\0b"}, {"nul": "a\0b"}),
        (math.nan, "NaN"),
        (cyclic_list(), "[[...]]"),
        (FailingRepr(), "<FailingRepr that has no repr>"),
        ({"it": FailingRepr()}, {"it": "<FailingRepr that has no repr>"}),
        (deep(), "<list that has no repr>"),
    ],
    ids=[f"case {number}" for number in range(12)],
)
def test_data_that_is_not_json_is_replaced_by_something_readable(data: object, expected: object):
    assert round_trip(data=data).data == expected


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "null", "{}", '{"error_code":"lower"}', '{"error_code":null}'])
def test_a_stored_error_that_cannot_be_read_is_refused(text: str):
    with pytest.raises(PayloadError, match="the stored error cannot be read"):
        decode_error(text)


def test_an_error_of_a_newer_library_can_be_read():
    assert decode_error('{"error_code":"X","message":"m","data":1,"later":true}') == TaskError(
        error_code="X", message="m", data=1
    )
