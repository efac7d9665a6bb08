"""Annotations of JSON's own types, for which codecs are built without pydantic's analysis of annotations; and the data of errors."""

import json
from enum import StrEnum
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from horsies import TaskError
from horsies.model.codec import _plain_schema, close_annotation, decode_error, encode_error  # pyright: ignore[reportPrivateUsage]


class Colour(StrEnum):
    RED = "red"


PLAIN: list[Any] = [
    *(None, bool, int, float, str, Any, object, list, dict),
    *(int | None, None | str, float | None, list[int] | None),
    *(list[int], list[float], list[Any], list[dict[str, bool]]),
    *(dict[str, int], dict[str, Any], dict[str, list[str | None]], list[bool]),
]


def essence(schema: Any) -> Any:
    """Return a schema without what pydantic notes for itself."""
    if isinstance(schema, dict):
        parts = cast("dict[str, Any]", schema)
        return {
            name: essence(value) for name, value in parts.items() if name not in {"metadata", "is_field_serializer"}
        }
    return [essence(value) for value in cast("list[Any]", schema)] if isinstance(schema, list) else schema


@pytest.mark.parametrize("tp", PLAIN, ids=str)
def test_the_schema_of_a_plain_annotation_is_the_one_that_pydantic_builds(tp: Any) -> None:
    assert essence(_plain_schema(tp)) == essence(TypeAdapter(close_annotation(tp)).core_schema)


@pytest.mark.parametrize(
    "tp", [int | str, tuple[int, ...], set[int], dict[int, str], bytes, list[bytes], Colour], ids=str
)
def test_all_other_annotations_are_left_to_pydantic(tp: Any) -> None:
    assert _plain_schema(tp) is None


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[]))
odd = st.sampled_from([b"x", (1, 2), Colour.RED, 1j, object])
values = st.recursive(
    scalars | odd,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 2), inner, max_size=3)
    ),
    max_leaves=6,
)


def jsonable(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


@given(values)
@example([[[0]]] * 2_000)
@example("\ud800")
@example(10**5_000)
def test_the_data_of_an_error_is_restored_as_far_as_json_can(data: object) -> None:
    text = encode_error(TaskError(error_code="OOPS", message="half of a pair: \ud800", data=data))
    found = decode_error(text)
    assert found.message == "half of a pair: ?"
    if jsonable(data) and "\\ud" not in json.dumps(data):
        assert json.loads(text)["data"] == json.loads(json.dumps(found.data))
