"""Which values can be sent and returned: none that would arrive changed, and none too large."""

import json
import logging
import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from decimal import Decimal
from enum import Enum, StrEnum
from threading import Lock
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    Secret,
    SecretBytes,
    SecretStr,
    field_serializer,
)
from typing_extensions import TypeAliasType, TypedDict

from horsies.model.codec import ArgumentsCodec, ResultCodec, decode_error, encode_error, value_adapter
from horsies.model.errors import PayloadError, ResultTypeError, TaskDefinitionError
from horsies.model.payload_errors import PayloadLimits, PayloadSizeCheck
from horsies.model.result import TaskError, TaskResult
from tests.apps.payloads import Derived, cyclic_list, nested, other_area

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(Enum):
    RED = "red"


class Reading(BaseModel):
    value: float | None = None
    raw: bytes = b""


class ExactReading(Reading):
    model_config = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")


class Cat(BaseModel):
    name: str


class Dog(BaseModel):
    name: str


class Puppy(Dog):
    weeks: int


class Tagged(BaseModel):
    kind: Literal["tagged"] = "tagged"
    name: str


class Holder(BaseModel, Generic[T]):
    item: T


class Place(NamedTuple):
    x: int
    y: float = 0.5


class Cached(BaseModel):
    name: str
    cache: dict[str, int] | None = Field(default=None, exclude=True)
    _seen: int = PrivateAttr(default=0)


def seen(times: int) -> Cached:
    cached = Cached(name="c")
    cached._seen = times  # noqa: SLF001 - what it is about  # pyright: ignore[reportPrivateUsage]
    return cached


class Locked(BaseModel):
    name: str
    _lock: Any = PrivateAttr(default_factory=Lock)


@dataclass(init=False)
class SameId:
    """Equal to any other with its id."""

    id: int
    note: str = field(default="none", compare=False, init=False, repr=False)

    def __init__(self, id: int, note: str = "none") -> None:  # noqa: A002 - a field
        self.id = id
        self.note = note


class Entity(BaseModel):
    id: int
    name: str

    @field_serializer("name")
    def _loudly(self, name: str) -> str:
        return name.upper()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and other.id == self.id

    def __hash__(self) -> int:
        return self.id


class Shade(StrEnum):
    DARK = "dark"


class Options(TypedDict):
    width: int
    tags: NotRequired[set[str]]


@dataclass(eq=False)
class Faceless:
    """Equal to nothing but itself."""

    items: list[int] = field(default_factory=list[int])


@dataclass
class FailingEquality:
    value: int

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    def __hash__(self) -> int:
        return 1


@dataclass(frozen=True)
class PayloadCodec:
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def as_argument(annotation: Any, limits: PayloadLimits | None = None) -> PayloadCodec:
    def task(value: Any) -> None: ...

    task.__annotations__["value"] = annotation
    codec = ArgumentsCodec(task, PayloadSizeCheck("the arguments of task 'task'", limits))

    def write(value: Any) -> str:
        return codec.encode((value,), {})

    def read(text: str) -> Any:
        return codec.decode(text)[1]["value"]

    return PayloadCodec(write, read)


def as_result(annotation: Any, limits: PayloadLimits | None = None) -> PayloadCodec:
    codec = ResultCodec[Any](annotation, PayloadSizeCheck("the result of task 'task'", limits))
    return PayloadCodec(codec.encode, codec.decode)


BOTH = pytest.mark.parametrize("codec_for", [as_argument, as_result])


# What arrives


@BOTH
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (UserId, UserId(7)),
        (Holder[datetime], Holder[datetime](item=datetime(2026, 1, 1))),  # noqa: DTZ001 - any will do
        (Holder[list[Place]], Holder[list[Place]](item=[Place(1), Place(2, 1.5)])),
        (Options, {"width": 1}),
        (Options, {"width": 1, "tags": {"a", "b"}}),
        (tuple[set[int], frozenset[str], tuple[int, ...]], ({1, 2}, frozenset({"a"}), ())),
        (Annotated[Cat | Tagged, "noted"], Tagged(name="Tom")),
        (UUID | str, UUID(int=7)),
        (bytes | str, b"\xff"),
        (Decimal | float, Decimal("1.50")),
        (int, 2**63),
        (int, -(10**300)),
        (dict[Colour, list[Decimal | None]], {Colour.RED: [Decimal("0.1"), None]}),
        (list[bytes], [b"\x00\xff", b""]),
        (ExactReading, ExactReading(value=math.inf, raw=b"\xff\x00")),
        (float | None, None),
        (str, "nul \0 and \U0001f40e"),
    ],
)
def test_what_arrives_equals_what_was_sent(
    codec_for: Callable[[Any], PayloadCodec], annotation: Any, value: object
) -> None:
    there = codec_for(annotation)
    arrived = there.read(there.write(value))
    assert arrived == value
    assert type(arrived) is type(value)


@BOTH
@pytest.mark.parametrize("annotation", [list[float], list[float | None], tuple[float]])
def test_nan_arrives_as_nan(codec_for: Callable[[Any], PayloadCodec], annotation: Any) -> None:
    there = codec_for(annotation)
    (arrived,) = there.read(there.write((math.nan,) if annotation == tuple[float] else [math.nan]))
    assert math.isnan(arrived)


@BOTH
def test_nan_arrives_in_a_model_that_writes_it_as_a_string(codec_for: Callable[[Any], PayloadCodec]) -> None:
    there = codec_for(ExactReading)
    assert math.isnan(there.read(there.write(ExactReading(value=math.nan))).value)


@BOTH
def test_a_value_without_a_useful_equality_arrives_if_all_its_parts_do(
    codec_for: Callable[[Any], PayloadCodec],
) -> None:
    """No `==` or one that raises, an hour that occurs twice, fields whose values are created again."""
    berlin = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    for annotation, value in (
        (Faceless, Faceless([1, 2])),
        (FailingEquality, FailingEquality(1)),
        (Cached, Cached(name="c")),
        (Locked, Locked(name="l")),
        (Derived, Derived(3)),
        (Sequence[int], [1, 2]),
        (Iterable[int], [1, 2]),
        (Mapping[str, int], {"a": 1}),
        (dict[str, int], defaultdict(int, a=1)),
        (str, Shade.DARK),
        (float, 1),
        (set[float], {math.nan}),
    ):
        there = codec_for(annotation)
        there.read(there.write(value))
    there = codec_for(datetime)
    assert there.read(there.write(berlin)).astimezone(UTC) == berlin.astimezone(UTC)


# What would arrive as something else

CHANGED: list[tuple[Any, Any, str]] = [
    (
        Reading,
        Reading(value=math.nan),
        "nan would arrive as None; give the model ConfigDict(ser_json_inf_nan='strings')",
    ),
    (list[Reading | None], [None, Reading(value=-math.inf)], "[1].value': -inf would arrive as None"),
    (float | str, math.nan, "nan would arrive as 'NaN'"),
    (Colour | str, Colour.RED, "<Colour.RED: 'red'> would arrive as 'red'; annotate it with a type"),
    (Cat | Dog, Dog(name="Rex"), "a Dog would arrive as a Cat"),
    (dict[int | str, int], {1: 1, "1": 2}, "would arrive as {'1': 2}"),
    (dict[int | str, int], {1: 1}, "would arrive as"),
    (dict[Any, int], {1: 2}, "{1: 2} would arrive as {'1': 2}"),
    (dict[str, int], {"\ud800": 1}, "would arrive as"),
    (Shade | str, Shade.DARK, "<Shade.DARK: 'dark'> would arrive as 'dark'"),
    (list[Place | Shade | str], [Place(1), Shade.DARK], "[1]': <Shade.DARK: 'dark'> would arrive as 'dark'"),
    (Literal[1] | str, True, "True would arrive as 1"),
    (set[int] | frozenset[int], frozenset({1}), "frozenset({1}) would arrive as {1}"),
    (Sequence[int], (1, 2), "(1, 2) would arrive as [1, 2]; annotate the type that is sent"),
    (Dog, Puppy(name="Rex", weeks=3), "a Puppy would arrive as a Dog; annotate the class that is sent"),
    (dict[str, list[Dog]], {"a": [Puppy(name="Rex", weeks=3)]}, ".a[0]': a Puppy would arrive as a Dog"),
    (Cached, Cached(name="c", cache={"Rex": 1}), ".cache': a dict would arrive as None; it is excluded"),
    (list[Cached], [seen(3)], "[0]._seen': a int would arrive as a int; private attributes are not part"),
    (Derived, other_area(), ".area': 7 would arrive as 9; it is not a parameter of its class"),
    (Annotated[float, PlainSerializer(lambda value: round(value, 1))], 1.26, "1.26 would arrive as 1.3"),
    (Annotated[str, AfterValidator(str.strip)], " x ", "' x ' would arrive as 'x'"),
    (Options, {"width": 1, "depth": 2}, "would arrive as {'width': 1}"),
    (SameId, SameId(1, "Rex"), ".note': a str would arrive as a str; it is not a parameter"),
    (Entity, Entity(id=1, name="Rex"), ".name': 'Rex' would arrive as 'REX'"),
    (Holder, Holder(item=Place(1)), ".item': Place(x=1, y=0.5) would arrive as [1, 0.5]"),
    (Holder[Any], Holder[Any](item=Faceless([1])), ".item': a Faceless would arrive as a dict"),
    (float, 2**53 + 1, "9007199254740993 would arrive as 9007199254740992.0"),
    (time, time(12, tzinfo=ZoneInfo("Europe/Berlin")), "would arrive as datetime.time(12, 0)"),
    (deque[int], deque([1], maxlen=3), ".maxlen': 3 would arrive as None"),
    (re.Pattern[str], re.compile("a", re.IGNORECASE), "would arrive as re.compile('a')"),
]


@pytest.mark.promise("D5")
@pytest.mark.parametrize(("annotation", "value", "why"), CHANGED)
def test_a_value_that_would_arrive_changed_is_refused_where_it_is_made(
    annotation: Any, value: object, why: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        as_argument(annotation).write(value)
    assert "would arrive changed" in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(("annotation", "value", "_why"), CHANGED)
def test_for_a_result_that_would_arrive_changed_only_types_are_shown(annotation: Any, value: object, _why: str) -> None:
    with pytest.raises(PayloadError, match=r"a \w+ would arrive as (a \w+|None); ") as caught:
        as_result(annotation).write(value)
    assert not isinstance(caught.value, ResultTypeError)
    assert "Rex" not in str(caught.value)


# How it is found out


class SelfReferring(BaseModel):
    name: str
    _self: Any = PrivateAttr(default=None)

    def model_post_init(self, _context: Any, /) -> None:
        self._self = [self]


@BOTH
def test_private_attributes_may_refer_back(codec_for: Callable[[Any], PayloadCodec]) -> None:
    there = codec_for(SelfReferring)
    assert there.read(there.write(SelfReferring(name="a"))).name == "a"


class Flat(BaseModel):
    id: UUID
    type: Literal["a", "b"] = "a"
    tags: dict[str, list[datetime | None]] = Field(default_factory=dict[str, list[datetime | None]])
    inner: "Flat | None" = None


@pytest.mark.parametrize(
    ("annotation", "is_trusted"),
    [
        (dict[str, list[int | None]], True),
        (tuple[UUID, datetime, Decimal, bytes, Colour], True),
        (list[Flat], True),
        (Any, True),
        (list[Any], True),
        (Options, True),
        (int | str, False),
        (Literal[1, 2], False),
        (time, False),
        (Place, False),
        (Faceless, False),
        (Cached, False),
        (Entity, False),
        (Holder, False),
        (list[re.Pattern[str]], False),
        (Annotated[str, AfterValidator(str.strip)], False),
    ],
)
def test_equality_is_trusted_only_if_it_cannot_hide_a_change(annotation: Any, *, is_trusted: bool) -> None:
    assert value_adapter(annotation, "it").trusts_equality == is_trusted


# Secrets, which are written as asterisks


class Login(BaseModel):
    name: str
    password: SecretStr


class Key(Secret[int]):
    pass


@dataclass
class Account:
    logins: list["Login | None"]
    parent: "Account | None" = None


class Form(TypedDict):
    account: NotRequired[Account]


class Sealed(NamedTuple):
    seal: Annotated[Key, "noted"]


Hidden = NewType("Hidden", SecretBytes)
S = TypeVar("S", bound=Login)
Alias = TypeAliasType("Alias", dict[str, Form])


@pytest.mark.promise("D5")
@BOTH
@pytest.mark.parametrize(
    ("annotation", "place"),
    [
        (SecretStr, ""),
        (list[SecretStr] | None, ""),
        (Secret[int], ""),
        (Hidden, ""),
        (Login, "and its field 'password' is a SecretStr"),
        (dict[str, Login | int], "and its field 'password' is a SecretStr"),
        (Holder[Login], "and its field 'item.password' is a SecretStr"),
        (Account, "and its field 'logins.password' is a SecretStr"),
        (Alias, "and its field 'account.logins.password' is a SecretStr"),
        (Sealed, "and its field 'seal' is a Key"),
        (S, "and its field 'password' is a SecretStr"),
        (TaskResult[Login, TaskError], "and its field 'password' is a SecretStr"),
    ],
)
def test_a_secret_anywhere_in_a_type_is_refused_when_the_task_is_defined(
    codec_for: Callable[[Any], PayloadCodec], annotation: Any, place: str
) -> None:
    with pytest.raises(
        TaskDefinitionError, match="a secret is written as asterisks; pass a reference by which the task can"
    ) as caught:
        codec_for(annotation)
    assert place in str(caught.value)


@BOTH
def test_a_secret_passed_as_any_is_refused_and_not_shown(codec_for: Callable[[Any], PayloadCodec]) -> None:
    with pytest.raises(PayloadError, match="would arrive as") as caught:
        codec_for(Holder[Any]).write(Holder[Any](item=[SecretStr("hunter2")]))
    assert "hunter2" not in str(caught.value)


def test_fields_that_a_class_hides_are_not_shown() -> None:
    with pytest.raises(PayloadError) as caught:
        as_argument(Cached).write(Cached(name="c", cache={"hunter2": 1}))
    assert "hunter2" not in str(caught.value)


@BOTH
def test_a_type_variable_stands_for_its_bound_or_for_json(codec_for: Callable[[Any], PayloadCodec]) -> None:
    assert codec_for(T).read(codec_for(T).write({"a": [1]})) == {"a": [1]}
    with pytest.raises(PayloadError, match="a Faceless is not a JSON value; annotate it with its type"):
        codec_for(T).write(Faceless())
    one_of, cat_like = TypeVar("one_of", UUID, int), TypeVar("cat_like", bound=Cat)
    assert codec_for(one_of).read(codec_for(one_of).write(UUID(int=1))) == UUID(int=1)
    assert codec_for(cat_like).read(codec_for(cat_like).write(Cat(name="Tom"))) == Cat(name="Tom")


# What cannot travel


@BOTH
@pytest.mark.parametrize(
    ("annotation", "value", "advice"),
    [
        (Reading, Reading(raw=b"\xff"), "ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"),
        (str, "half \ud800", "remove the broken character"),
        (int, 10**5_000, "annotate a number of this length as str"),
        (Any, 10**5_000, "annotate a number of this length as str"),
        (Any, cyclic_list(), "contains itself"),
        (Any, nested(5_000), "nested more than 180 levels deep"),
        (Any, b"bytes", "a bytes is not a JSON value; annotate it with its type"),
        (Any, math.nan, "nan is not a JSON value; annotate it as float"),
        (Decimal, Decimal("NaN"), "finite"),
    ],
    ids=range(9),
)
def test_a_value_that_cannot_be_sent_is_refused_with_what_to_change(
    codec_for: Callable[[Any], PayloadCodec], annotation: Any, value: object, advice: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        codec_for(annotation).write(value)
    assert advice in str(caught.value)
    assert len(str(caught.value)) < 700


# How big


@BOTH
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60), most=st.integers(1, 150))
def test_a_payload_above_the_limit_is_refused(
    codec_for: Callable[[Any, PayloadLimits], PayloadCodec], text: str, most: int
) -> None:
    payload = codec_for(str, PayloadLimits()).write(text)
    there, size = codec_for(str, PayloadLimits(warning_bytes=None, max_bytes=most)), len(payload.encode())
    if size <= most:
        assert there.write(text) == payload
    else:
        with pytest.raises(
            PayloadError, match=rf"it has {size} bytes, and AppConfig.max_payload_bytes is {most}; keep"
        ):
            there.write(text)


def test_the_error_for_a_payload_too_large_names_the_operation() -> None:
    limits = PayloadLimits(warning_bytes=None, max_bytes=100)
    with pytest.raises(PayloadError, match=r"^task\(\) cannot be sent: as JSON it has 1,012 bytes"):
        as_argument(str, limits).write("x" * 1_000)
    with pytest.raises(PayloadError, match=r"^the result cannot be stored: as JSON it has 1,002 bytes") as caught:
        as_result(str, limits).write("x" * 1_000)
    assert not isinstance(caught.value, ResultTypeError)


@BOTH
def test_a_large_payload_is_reported_once_and_again_when_it_doubles(
    codec_for: Callable[[Any, PayloadLimits], PayloadCodec], caplog: pytest.LogCaptureFixture
) -> None:
    there = codec_for(str, PayloadLimits(warning_bytes=100))
    for length in (50, 200, 250, 200, 900, 1_000):
        there.write("x" * length)
    messages = [record.getMessage() for record in caplog.records]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert all(
        "task 'task': " in line and "payload_warning_bytes=100; keep large data elsewhere" in line for line in messages
    )


def test_large_payloads_are_not_reported_without_a_warning_size(caplog: pytest.LogCaptureFixture) -> None:
    as_result(str, PayloadLimits(warning_bytes=None)).write("x" * 1_000_000)
    assert not caplog.records


# Errors are cut, never lost


@given(
    st.text(max_size=3_000),
    st.text(max_size=3_000) | st.lists(st.text(max_size=100), max_size=30) | st.binary(max_size=3_000),
    st.integers(1_000, 4_000),
)
def test_an_error_keeps_its_code_however_small_the_limit_is(message: str, data: object, most: int) -> None:
    error = TaskError(error_code="CARD_DECLINED", message=message, data=data)
    text = encode_error(error, most)
    assert len(text.encode()) <= most
    stored = decode_error(text)
    assert stored.error_code == "CARD_DECLINED"
    whole = encode_error(error)
    if len(whole.encode()) <= most:
        assert text == whole
    else:
        assert list(stored.data) == ["truncated"]


def test_an_error_shows_that_it_was_cut() -> None:
    stored = decode_error(
        encode_error(TaskError(error_code="X", message="m" * 9_000, data={"key": "v" * 9_000}), 1_600)
    )
    assert stored.message == "m" * 100 + "..."
    assert stored.data["truncated"].startswith('{"key":"vvv')
    assert json.loads(encode_error(TaskError(error_code="X", message="short", data=1), 1_600))["message"] == "short"
