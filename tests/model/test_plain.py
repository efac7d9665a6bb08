"""What goes without pydantic comes out as it would with pydantic: the same texts, the same values, the same refusals."""

import inspect
import json
import math
from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies import PayloadError
from horsies.model.adapters import arguments_adapter, value_adapter
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.payload import Adapter
from horsies.model.plain import test_for as plain_test_for


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Text(str):
    __slots__ = ()


TYPES: list[Any] = [
    None, bool, int, float, str, Any, object, list, dict, int | None, None | str, float | None, list[int], list[float], list[Any],
    dict[str, int], dict[str, Any], dict[str, list[str | None]], list[dict[str, bool]], list[int] | None,
]  # fmt: skip

floats = st.floats() | st.sampled_from([0.1, -0.0, 1e15, 1e16, 123456789012345678.0, 1e-4, 1e-5, 5e-324, 1e22])
ints = st.integers() | st.integers(-(2**64), 2**64) | st.integers(-3, 3)
scalars = st.none() | st.booleans() | ints | floats | st.text() | st.text(st.characters(exclude_categories=[]))
odd = st.sampled_from([b"x", (1, 2), {1}, Colour.RED, Size.BIG, Text("t"), 1j, object])
values = st.recursive(
    scalars | odd,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.integers(0, 2) | odd.filter(hashable := lambda v: not isinstance(v, set)),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def outcome(act: Any, *args: Any) -> tuple[str, Any]:
    """What it gives or how it refuses, so that 1, 1.0 and True are three things, and NaN is itself."""
    try:
        return "gives", repr(act(*args))
    except PayloadError as error:
        return type(error).__name__, str(error)


def pydantic_of(codec: ResultCodec[Any]) -> ResultCodec[Any]:
    return ResultCodec(None, codec.watch, codec.tp)


@given(st.sampled_from(TYPES), values)
def test_a_value_is_written_as_pydantic_writes_it(tp: Any, value: object) -> None:
    codec = ResultCodec.for_type(tp)
    assert codec.is_plain
    assert outcome(codec.encode, value) == outcome(pydantic_of(codec).encode, value)


json_texts = st.one_of(
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ).map(json.dumps),
    st.recursive(
        st.none() | st.booleans() | ints | floats | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=6
    ).map(lambda v: json.dumps(v, ensure_ascii=False, indent=1)),
    st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.text('0123456789.eE+-[]{},:"ntrufalsNI \\ud8', max_size=12),
)


@given(st.sampled_from(TYPES), json_texts)
def test_a_text_is_read_as_pydantic_reads_it(tp: Any, text: str) -> None:
    codec = ResultCodec.for_type(tp)
    assert outcome(codec.decode, text) == outcome(pydantic_of(codec).decode, text)
