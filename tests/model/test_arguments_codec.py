import contextlib
import functools
import json
import math
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, PlainSerializer, SecretStr, ValidationInfo, computed_field
from typing_extensions import TypedDict

from horsies.model.codec import ArgumentsCodec
from horsies.model.errors import PayloadError, TaskDefinitionError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    S = 1
    L = 2


class Mood(StrEnum):
    GOOD = "good"


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


@dataclass
class Chain:
    value: int
    next: Optional["Chain"] = None


@dataclass
class Squared:
    side: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.side**2


@dataclass
class Salted:
    value: int
    salt: InitVar[int]


class Box(TypedDict):
    width: int
    tags: list[str]


class Person(BaseModel):
    name: str = Field(alias="fullName")
    born: date
    mood: Mood | None = None

    @computed_field
    @property
    def initial(self) -> str:
        return self.name[:1]


class Strict(BaseModel, extra="forbid"):
    value: float


class Unknown:
    pass


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
people = st.builds(Person, fullName=TEXT, born=st.dates(), mood=st.none() | st.sampled_from(Mood))
zones = st.sampled_from([UTC, ZoneInfo("Asia/Kolkata")])

# What arrives equals what was sent, for each of these annotations.
ROUND_TRIPS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers() | st.integers(-(10**40), 10**40),
    float: st.floats(allow_nan=False),
    str: TEXT,
    bytes: st.binary(),
    None: st.none(),
    datetime: st.datetimes() | st.datetimes(datetime(1990, 1, 1), timezones=zones),  # noqa: DTZ001 - hypothesis wants it so
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    Path: TEXT.filter(lambda text: "\0" not in text).map(Path),
    Colour: st.sampled_from(Colour),
    Size: st.sampled_from(Size),
    Mood: st.sampled_from(Mood),
    Point: st.builds(Point, st.integers(), st.floats(allow_nan=False)),
    Chain: st.recursive(
        st.builds(Chain, st.integers()), lambda inner: st.builds(Chain, st.integers(), inner), max_leaves=5
    ),
    Person: people,
    Box: st.fixed_dictionaries({"width": st.integers(), "tags": st.lists(TEXT)}),
    int | str | None: st.integers() | TEXT | st.none(),
    Point | Colour: st.builds(Point, st.integers()) | st.sampled_from(Colour),
    Literal["a", 1]: st.sampled_from(["a", 1]),
    list[Point]: st.lists(st.builds(Point, st.integers()), max_size=4),
    dict[UUID, list[Decimal]]: st.dictionaries(
        st.uuids(), st.lists(st.decimals(allow_nan=False, allow_infinity=False)), max_size=3
    ),
    dict[int, set[bytes]]: st.dictionaries(st.integers(), st.sets(st.binary()), max_size=3),
    tuple[int, str, bytes]: st.tuples(st.integers(), TEXT, st.binary()),
    frozenset[date]: st.frozensets(st.dates(), max_size=3),
    Annotated[int, Field(ge=0)]: st.integers(min_value=0),
    Any: st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=8,
    ),
}


def round_trip(codec: ArgumentsCodec, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return codec.decode(codec.encode(args, kwargs))


def codec_taking(annotation: Any) -> ArgumentsCodec:
    def task(value: Any) -> None: ...

    task.__annotations__["value"] = annotation
    return ArgumentsCodec(task)


def refusal(codec: ArgumentsCodec, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(PayloadError) as caught:
        codec.encode(args, kwargs)
    text = str(caught.value)
    assert "pydantic.dev" not in text
    assert all(len(line) < 600 for line in text.splitlines())
    return text


@pytest.mark.parametrize("annotation", ROUND_TRIPS, ids=str)
@given(data=st.data())
def test_what_arrives_equals_what_was_sent(annotation: Any, data: st.DataObject):
    value = data.draw(ROUND_TRIPS[annotation])
    codec = codec_taking(annotation)
    text = codec.encode((value,), {})
    text.encode()  # storable as UTF-8
    assert "\0" not in text
    (_, kwargs) = codec.decode(text)
    assert kwargs == {"value": value}
    assert type(kwargs["value"]) is type(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_float_arrives_when_it_is_annotated(value: float):
    assert round_trip(codec_taking(list[float]), [value]) == ((), {"value": [value]})


def test_nan_arrives_when_it_is_annotated():
    _, kwargs = round_trip(codec_taking(Point), Point(1, math.nan))
    assert math.isnan(kwargs["value"].y)


def test_bytes_travel_as_base64():
    assert json.loads(codec_taking(bytes).encode((b"\x00\xff",), {})) == {"value": "AP8="}


def test_a_nul_character_arrives():
    codec = codec_taking(str)
    assert r"\u0000" in codec.encode(("a\0b",), {})
    assert round_trip(codec, "a\0b") == ((), {"value": "a\0b"})


# Binding


def plain(a: int, b: int = 2, *, c: str = "c") -> None: ...
def positional_only(a: int, b: int = 2, /, c: int = 3) -> None: ...
def with_rest(a: int, b: int = 2, *rest: float, c: int = 3) -> None: ...
def with_others(a: int, /, **others: int) -> None: ...
def everything(a: int, /, b: int = 2, *rest: int, c: int, **others: int) -> None: ...
def without_arguments() -> None: ...
def unannotated(a, b=2, *rest, **others): ...  # pyright: ignore  # noqa: PGH003 - it is about having none


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    (plain, (1,), {}, {"a": 1}),
    (plain, (1, 5), {"c": "x"}, {"a": 1, "b": 5, "c": "x"}),
    (plain, (), {"b": 5, "a": 1}, {"a": 1, "b": 5}),
    (positional_only, (1,), {"c": 9}, {"a": 1, "c": 9}),
    (positional_only, (1, 5, 9), {}, {"a": 1, "b": 5, "c": 9}),
    (with_rest, (1,), {}, {"a": 1}),
    (with_rest, (), {"a": 1, "c": 9}, {"a": 1, "c": 9}),
    (with_rest, (1, 5, 0.5, 1.5), {"c": 9}, {"a": 1, "b": 5, "rest": [0.5, 1.5], "c": 9}),
    (with_others, (1,), {"a": 7, "z": 8}, {"a": 1, "others": {"a": 7, "z": 8}}),
    (everything, (1, 5, 6, 7), {"c": 8, "rest": 9}, {"a": 1, "b": 5, "rest": [6, 7], "c": 8, "others": {"rest": 9}}),
    (without_arguments, (), {}, {}),
    (unannotated, (1, [2], None), {"z": {"k": "v"}}, {"a": 1, "b": [2], "rest": [None], "others": {"z": {"k": "v"}}}),
]


def bound_arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = ArgumentsCodec(fn).signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


@pytest.mark.parametrize(("fn", "args", "kwargs", "payload"), CALLS)
def test_a_call_is_encoded_by_parameter_name_and_decoded_as_the_same_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], payload: dict[str, Any]
):
    codec = ArgumentsCodec(fn)
    text = codec.encode(args, kwargs)
    assert json.loads(text) == payload
    again_args, again_kwargs = codec.decode(text.encode())
    fn(*again_args, **again_kwargs)
    assert bound_arguments(fn, again_args, again_kwargs) == bound_arguments(fn, args, kwargs)


def test_a_default_is_not_sent_because_the_worker_provides_it():
    assert ArgumentsCodec(plain).encode((1,), {}) == '{"a":1}'


def test_a_default_that_was_not_sent_keeps_its_place_before_the_rest():
    assert ArgumentsCodec(with_rest).decode('{"a":1,"rest":[0.5]}') == ((1, 2, 0.5), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"wdith": 3}, "'wdith'"),
        ((1,), {"a": 1}, "'a'"),
    ],
)
def test_arguments_that_do_not_bind_are_refused_with_what_the_function_takes(
    args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
):
    text = refusal(ArgumentsCodec(plain), *args, **kwargs)
    assert "plain()" in text
    assert reason in text
    assert text.endswith("; call it as plain(a: int, b: int = 2, *, c: str = 'c')")


def test_a_function_is_bound_through_its_decorators():
    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    assert round_trip(ArgumentsCodec(wrapped), 1, c="x") == ((), {"a": 1, "c": "x"})


# Strictness


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "1"),
        (int, 1.0),
        (int, True),
        (str, 1),
        (bool, 1),
        (bytes, "AP8="),
        (datetime, "2026-01-01T00:00:00Z"),
        (UUID, "12345678-1234-5678-1234-567812345678"),
        (Colour, "red"),
        (Point, {"x": 1}),
        (Point, Point("1")),  # pyright: ignore[reportArgumentType]
        (Person, Person.model_construct(name=7, born=date(2000, 1, 1))),
        (Box, {"width": "1", "tags": []}),
        (Box, {"width": 1}),
        (list[int], (1, 2)),
        (tuple[int, int], (1, 2, 3)),
        (int | None, "x"),
        (Annotated[int, Field(ge=0)], -1),
        (int, None),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_is_sent(annotation: Any, value: object):
    assert "task()" in refusal(codec_taking(annotation), value)


def test_an_int_is_accepted_for_a_float():
    assert round_trip(codec_taking(Point), Point(1, 2)) == ((), {"value": Point(1, 2.0)})


def test_every_problem_has_a_line_with_the_argument_and_the_value():
    def resize(width: int, boxes: list[Box]) -> None: ...

    assert refusal(ArgumentsCodec(resize), "wide", [{"width": 1, "tags": [2]}]) == (
        "resize() cannot be sent:\n"
        "  - argument 'width': Input should be a valid integer (got 'wide')\n"
        "  - argument 'boxes[0].tags[0]': Input should be a valid string (got 2)"
    )


def test_a_long_value_is_shortened():
    text = refusal(codec_taking(int), "x" * 10_000)
    assert len(text) < 250


def test_only_the_first_of_many_problems_are_listed():
    text = refusal(codec_taking(list[int]), ["x"] * 100)
    assert text.endswith("and 80 more")
    assert len(text.splitlines()) == 22


def test_a_value_whose_repr_fails_is_refused_as_well():
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    class deque:  # noqa: N801 - reprlib takes it for the real one
        pass

    assert "Shy" in refusal(codec_taking(int), Shy())
    assert "a deque" in refusal(codec_taking(int), deque())


# Any JSON value


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("annotation", [Any, object, list, list[Any], Optional[list[Any]], Annotated[Any, "note"]])  # noqa: UP045 - this form too
@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (datetime(2026, 1, 1), "a datetime"),  # noqa: DTZ001 - any will do
        ((1, 2), "a tuple"),
        ({1, 2}, "a set"),
        (b"x", "a bytes"),
        (Point(1), "a Point"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        ({"k": {1: 2}}, "the key 1 at"),
        ({"k": [0, object()]}, "['k'][1] is not a JSON value"),
        ("\ud800", "surrogates"),
        ({"\ud800": 1}, "surrogates"),
    ],
)
def test_without_an_annotation_only_json_values_are_accepted(annotation: Any, item: object, reason: str):
    codec = codec_taking(annotation)
    assert reason in refusal(codec, [item])
    assert round_trip(codec, [{"k": [1, None, "x", True, 0.5]}]) == (
        (),
        {"value": [{"k": [1, None, "x", True, 0.5]}]},
    )


def test_a_bare_dict_is_a_dict_of_json_values():
    assert "a UUID" in refusal(codec_taking(dict[str, Any]), {"id": UUID(int=1)})
    assert "a UUID" in refusal(codec_taking(dict), {"id": UUID(int=1)})


ALIASES: Mapping[str, Any] = vars(typing)  # by name, because they are deprecated


@pytest.mark.parametrize("item", [1, UUID(int=1)], ids=["JSON", "not JSON"])
@pytest.mark.parametrize(
    "name",
    ["List", "Iterable", "Sequence", "Dict", "Mapping", "Tuple", "Set", "FrozenSet", "List or None", "List[Dict]"],
)
def test_a_bare_alias_of_typing_holds_json_values(name: str, item: object):
    annotation, value = {
        **{name: (ALIASES[name], [item]) for name in ("List", "Iterable", "Sequence")},
        **{name: (ALIASES[name], {"id": item}) for name in ("Dict", "Mapping")},
        "Tuple": (ALIASES["Tuple"], (item,)),
        "Set": (ALIASES["Set"], {item}),
        "FrozenSet": (ALIASES["FrozenSet"], frozenset([item])),
        "List or None": (ALIASES["List"] | None, [item]),
        "List[Dict]": (ALIASES["List"][ALIASES["Dict"]], [{"id": item}]),
    }[name]
    if item == 1:
        assert round_trip(codec_taking(annotation), value) == ((), {"value": value})
    else:
        assert "a UUID" in refusal(codec_taking(annotation), value)


def test_an_empty_tuple_is_not_a_bare_one():
    for annotation in (tuple[()], ALIASES["Tuple"][()]):
        assert round_trip(codec_taking(annotation), ()) == ((), {"value": ()})
        assert refusal(codec_taking(annotation), (1,))


@pytest.mark.parametrize("annotation", [Any, list[Any]])
@pytest.mark.parametrize("levels", [170, 178, 181, 200, 260, 5_000])
def test_a_value_nested_too_deeply_is_refused_and_others_arrive(annotation: Any, levels: int):
    codec = codec_taking(annotation)
    value = deep(levels)
    if levels < 180:
        assert json.loads(codec.encode((value,), {})) == {"value": value}
    else:
        assert "task()" in refusal(codec, value)


@pytest.mark.parametrize("levels", [150, 190, 197, 199, 201, 250, 300, 5_000])
def test_a_deep_chain_of_objects_is_refused_or_arrives(levels: int):
    chain = Chain(0)
    for number in range(levels):
        chain = Chain(number, chain)
    codec = codec_taking(Chain)
    try:
        text = codec.encode((chain,), {})
    except PayloadError:
        assert levels > 150
    else:
        assert levels < 250
        codec.decode(text)


def test_a_value_that_contains_itself_is_refused():
    cyclic_list: list[Any] = []
    cyclic_list.append(cyclic_list)
    assert "contains itself" in refusal(codec_taking(Any), cyclic_list)
    chain = Chain(1)
    chain.next = chain
    assert "cyclic" in refusal(codec_taking(Chain), chain)


def test_a_surrogate_in_an_annotated_string_is_refused():
    assert "surrogates not allowed" in refusal(codec_taking(str), "a\ud800")
    assert "surrogates not allowed" in refusal(codec_taking(Chain | list[str]), ["\udfff"])


# User types


def test_a_computed_part_of_a_value_is_computed_again():
    assert round_trip(codec_taking(Squared), Squared(3)) == ((), {"value": Squared(3)})


def test_an_alias_does_not_matter():
    def task(width: Annotated[int, Field(alias="w")]) -> None: ...

    codec = ArgumentsCodec(task)
    assert codec.encode((3,), {}) == '{"width":3}'
    assert round_trip(codec, 3) == ((), {"width": 3})


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (dict[tuple[int, int], str], {(1, 2): "x"}),
        (Strict, Strict(value=math.nan)),
        (Salted, Salted(1, 2)),
        (int, 10**5_000),
    ],
    ids=["a tuple as a key", "a model that drops NaN", "a part that is not kept", "a number of 5000 digits"],
)
def test_a_value_that_could_not_be_read_back_is_refused_where_it_is_sent(annotation: Any, value: object):
    assert "task()" in refusal(codec_taking(annotation), value)


def failing(error: Exception) -> Callable[[Any], Any]:
    def fail(_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("hook", [AfterValidator, PlainSerializer])
@pytest.mark.parametrize("error", [KeyError("boom"), ValueError("boom"), RecursionError("boom"), OSError("boom")])
def test_an_error_in_a_validator_or_serializer_of_the_user_is_a_payload_error(hook: Any, error: Exception):
    text = refusal(codec_taking(Annotated[int, hook(failing(error))]), 1)
    assert "boom" in text or type(error).__name__ in text


def only_in_python(value: int, info: ValidationInfo) -> int:
    if info.mode == "json":
        raise OSError("not on this machine")
    return value


def test_an_error_in_a_validator_of_the_user_is_a_payload_error_when_reading_too():
    codec = codec_taking(Annotated[int, AfterValidator(only_in_python)])
    assert "not on this machine" in refusal(codec, 1)
    with pytest.raises(PayloadError, match="not on this machine"):
        codec.decode('{"value":1}')


# Reading


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ('{"a":"x"}', "argument 'a': Input should be a valid integer"),
        ('{"b":1}', "argument 'a': Field required"),
        ('{"a":1,"z":2}', "argument 'z'"),
        ("[1]", "Input should be an object"),
        ("null", "Input should be an object"),
        ("nonsense", "Invalid JSON"),
        ("", "Invalid JSON"),
        ('{"a":1', "Invalid JSON"),
        (b'{"a":1,"c":"\xff"}', "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
    ],
)
def test_a_bad_payload_is_refused_with_the_reason(payload: str | bytes, reason: str):
    with pytest.raises(PayloadError, match=re.escape(reason)) as caught:
        ArgumentsCodec(plain).decode(payload)
    assert "plain()" in str(caught.value)
    assert "pydantic.dev" not in str(caught.value)


def test_reading_is_lax_enough_for_json_written_manually():
    assert ArgumentsCodec(plain).decode('{"a": "1", "b": 2.0}') == ((), {"a": 1, "b": 2})


@given(st.text() | st.binary())
def test_no_payload_raises_another_exception(payload: str | bytes):
    with contextlib.suppress(PayloadError):
        codec_taking(Any).decode(payload)


# Definitions


@pytest.mark.parametrize(
    "annotation",
    [
        Unknown,
        list[Unknown],
        Callable[[int], int],
        Callable,
        type,
        type[int],
        SecretStr,
        list[SecretStr] | None,
        "Missing",
        'list["Missing"]',
        "not an annotation",
        7,
    ],
    ids=str,
)
def test_an_annotation_that_cannot_be_encoded_is_refused_by_parameter(annotation: Any):
    def task(good: int, bad: Any = None) -> None: ...

    task.__annotations__["bad"] = annotation
    with pytest.raises(TaskDefinitionError, match="task: parameter 'bad'"):
        ArgumentsCodec(task)


def test_a_callable_without_a_signature_is_refused():
    with pytest.raises(TaskDefinitionError, match="signature"):
        ArgumentsCodec(int if sys.version_info < (3, 13) else dict)


def test_an_annotation_that_cannot_be_hashed_is_accepted():
    assert round_trip(codec_taking(Annotated[int, {"note": []}]), 1) == ((), {"value": 1})


def test_deferred_annotations_are_resolved():
    namespace: dict[str, Any] = {"UUID": UUID}
    source = "from __future__ import annotations\ndef task(id: UUID, *more: list[UUID]) -> None: ..."
    exec(source, namespace)  # noqa: S102 - a module with deferred annotations, in one line
    codec = ArgumentsCodec(namespace["task"])
    assert round_trip(codec, UUID(int=1), [UUID(int=2)]) == ((UUID(int=1), [UUID(int=2)]), {})
