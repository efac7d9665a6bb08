"""Every kind of value that can be sent, each with tasks that take and return it. The table in docs/payloads.md is made from this."""

import collections
import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    StringConstraints,
    computed_field,
    field_serializer,
    model_serializer,
)
from typing_extensions import TypedDict

from horsies import Horsies, TaskDefinitionError, TaskError, TaskResult

T = TypeVar("T")
UserId = NewType("UserId", int)
BERLIN = ZoneInfo("Europe/Berlin")


class Colour(Enum):
    RED = "red"


class Shade(StrEnum):
    DARK = "dark"


class Level(IntEnum):
    LOW = 1


class Dog(BaseModel):
    name: str


class Cat(BaseModel):
    name: str


class Puppy(Dog):
    weeks: int = 3


class TaggedCat(Cat):
    kind: Literal["cat"] = "cat"


class TaggedDog(Dog):
    kind: Literal["dog"] = "dog"


class Ambiguous(BaseModel):
    reading: float | None = None
    raw: bytes = b""


class Exact(Ambiguous):
    model_config = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")


class Partial(BaseModel):
    name: str = "none"
    age: int = 1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Excluding(BaseModel):
    name: str
    token: str | None = Field(default=None, exclude=True)


class Private(BaseModel):
    name: str
    _seen: int = PrivateAttr(default=0)


class Locked(BaseModel):
    name: str
    _lock: Any = PrivateAttr(default_factory=Lock)


class Computed(BaseModel):
    width: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width**2

    @cached_property
    def half(self) -> float:
        return self.width / 2


class Aliased(BaseModel):
    name: str = Field(alias="fullName")


class Rounding(BaseModel):
    price: float

    @field_serializer("price")
    def _rounded(self, price: float) -> float:
        return round(price, 1)


class Shortening(BaseModel):
    first: str
    last: str = ""

    @model_serializer
    def _short(self) -> dict[str, str]:
        return {"first": self.first}


class SameId(BaseModel):
    """Equal to every other instance with the same id."""

    id: int
    note: str = Field(default="", exclude=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameId) and other.id == self.id

    def __hash__(self) -> int:
        return self.id


class Box(BaseModel, Generic[T]):
    item: T


class Numbers(RootModel[list[int]]):
    pass


class Login(BaseModel):
    password: SecretStr


@dataclass
class Point:
    x: int
    y: float = 0.5


@dataclass
class Point3(Point):
    z: int = 0


@dataclass
class Derived:
    width: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.width**2


@dataclass
class Uncompared:
    name: str
    note: str = field(default="", compare=False, init=False)


@dataclass
class Built:
    name: str
    seed: InitVar[int] = 0
    total: int = field(init=False, default=0)

    def __post_init__(self, seed: int) -> None:
        self.total = seed


@dataclass(eq=False)
class Faceless:
    items: list[int]


@dataclass
class Vault:
    keys: list[Secret[int]]


class Options(TypedDict, total=False):
    width: int
    depth: int


class Place(NamedTuple):
    x: int
    y: float = 0.5


def with_token() -> Excluding:
    return Excluding(name="a", token="t-1")


def seen() -> Private:
    value = Private(name="a")
    value._seen = 3  # noqa: SLF001 - what it is about  # pyright: ignore[reportPrivateUsage]
    return value


def other_area() -> Derived:
    value = Derived(3)
    value.area = 7
    return value


def noted() -> Uncompared:
    value = Uncompared("a")
    value.note = "n"
    return value


def annotated_later() -> Point:
    value = Point(1)
    value.__dict__["label"] = "a"
    return value


def cyclic_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def equal(sent: Any, arrived: Any) -> bool:
    return type(sent) is type(arrived) and sent == arrived


def equal_only(sent: Any, arrived: Any) -> bool:
    return sent == arrived


def is_nan(_sent: Any, arrived: Any) -> bool:
    return math.isnan(arrived)


def same_zero(_sent: Any, arrived: Any) -> bool:
    return math.copysign(1, arrived) == -1


def same_instant(sent: Any, arrived: Any) -> bool:
    return sent.astimezone(UTC) == arrived.astimezone(UTC)


def same_items(sent: Any, arrived: Any) -> bool:
    return sent.items == arrived.items


def same_name(sent: Any, arrived: Any) -> bool:
    return sent.name == arrived.name


def same_digits(sent: Any, arrived: Any) -> bool:
    return str(sent) == str(arrived)


@dataclass(frozen=True)
class Case:
    kind: str
    annotation: Any
    make: Callable[[], Any]
    note: str = ""
    """What is to be known of it although it arrives."""
    is_same: Callable[[Any, Any], bool] = equal


ROUNDED = Annotated[float, PlainSerializer(lambda value: round(value, 1))]
STRIPPED = Annotated[str, StringConstraints(strip_whitespace=True)]
TITLED = Annotated[str, AfterValidator(str.title)]
PET = Annotated[TaggedCat | TaggedDog, Field(discriminator="kind")]

CASES: list[Case] = [
    # what JSON has
    Case("`None`, `bool`, `int`, `str`, `list`, `dict`", dict[str, list[int | None]], lambda: {"a": [1, None]}),
    Case("a JSON value for `Any`, `object` or no annotation", Any, lambda: {"a": [1, 1.5, "x", True, None]}),
    Case("any other value for `Any`, `object` or no annotation", Any, lambda: {"at": date(2026, 1, 1)}),
    Case("an enum member for `Any`", Any, lambda: Shade.DARK),
    Case("a type variable: a JSON value", T, lambda: {"a": [1]}),
    Case("a type variable: a dataclass", T, lambda: Point(1)),
    Case("`int` of up to 4 300 digits", int, lambda: 10**4_000),
    Case("`int` of more digits", int, lambda: 10**5_000),
    Case("text with NUL characters", str, lambda: "a\0b"),
    Case("half a surrogate pair", str, lambda: "\ud800"),
    Case('`"1"` for `int`', int, lambda: "1"),
    Case("`True` for `int`", int, lambda: True),
    Case("`True` for `Literal[1]`", Literal[1], lambda: True),
    Case("a value that contains itself", Any, cyclic_list),
    Case("a value nested more than about 180 levels deep", Any, lambda: nested(500)),
    # numbers
    Case("`float`", float, lambda: 0.1 + 0.2, "to the last bit"),
    Case("`-0.0`", float, lambda: -0.0, "with its sign", same_zero),
    Case("NaN, ±Infinity as `float`", float, lambda: math.nan, 'written as `"NaN"`, `"Infinity"`', is_nan),
    Case("NaN in a model", Ambiguous, lambda: Ambiguous(reading=math.nan)),
    Case('NaN in a model with `ser_json_inf_nan="strings"`', Exact, lambda: Exact(reading=math.inf)),
    Case("an `int` for `float`", float, lambda: 1, "as the equal `float`", equal_only),
    Case("an `int` for `float` that no float equals", float, lambda: 2**53 + 1),
    Case("`int` or `float` for `int \\| float`", list[int | float], lambda: [1, 1.0], "each as what it is"),
    Case("`Decimal`", Decimal, lambda: Decimal("1.0"), '`Decimal("1.0")` with its zero', same_digits),
    Case("`Decimal` NaN", Decimal, lambda: Decimal("NaN")),
    Case("`complex`", complex, lambda: 1 + 2j),
    # bytes, dates, others of the standard library
    Case("`bytes`", bytes, lambda: b"\xff\x00", "as base64"),
    Case("`bytes` in a model that are not UTF-8", Ambiguous, lambda: Ambiguous(raw=b"\xff")),
    Case("`bytes` in a model with `ser_json_bytes` and `val_json_bytes`", Exact, lambda: Exact(raw=b"\xff")),
    Case(
        "`date`, `timedelta`, naive `datetime`", tuple[date, timedelta], lambda: (date(2026, 1, 1), timedelta(1, 2, 3))
    ),
    Case(
        "aware `datetime`",
        datetime,
        lambda: datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
        "the same instant with a fixed offset; the name of the zone does not travel",
        same_instant,
    ),
    Case("`time` of a zone without a fixed offset", time, lambda: time(12, tzinfo=BERLIN)),
    Case(
        "`UUID`, `Path`, IP addresses",
        tuple[UUID, Path, ipaddress.IPv4Address],
        lambda: (UUID(int=7), Path("/srv/a"), ipaddress.IPv4Address("10.0.0.1")),
    ),
    Case("`re.Pattern`", re.Pattern[str], lambda: re.compile("a+")),
    Case("`re.Pattern` with flags", re.Pattern[str], lambda: re.compile("a+", re.IGNORECASE)),
    Case("a function or a class", Callable[[], None], lambda: cyclic_list),
    # enums
    Case("a member of an `Enum`", list[Colour], lambda: [Colour.RED]),
    Case(
        "a `StrEnum` or `IntEnum` member for `str` or `int`",
        str,
        lambda: Shade.DARK,
        "as its text or number, which equals it",
        equal_only,
    ),
    Case("an enum member for `Colour \\| str`", Colour | str, lambda: Colour.RED),
    Case("a `StrEnum` member for `Shade \\| str`", Shade | str, lambda: Shade.DARK),
    Case("`Literal` of texts, `NewType`", tuple[Literal["a", "b"], UserId], lambda: ("a", UserId(7))),
    # containers
    Case(
        "`tuple`, `set`, `frozenset`, `deque`",
        tuple[set[int], frozenset[str], collections.deque[int]],
        lambda: ({1, 2}, frozenset({"a"}), collections.deque([1])),
        "sets in any order",
    ),
    Case("a list for `Sequence` or `Iterable`", Iterable[int], lambda: [1, 2]),
    Case("a tuple for `Sequence`", Sequence[int], lambda: (1, 2)),
    Case("a tuple or a generator for `Iterable`", Iterable[int], lambda: (1, 2)),
    Case("a tuple for `list \\| tuple`", list[int] | tuple[int, ...], lambda: (1, 2)),
    Case("a `frozenset` for `set \\| frozenset`", set[int] | frozenset[int], lambda: frozenset({1})),
    Case("a `deque` with `maxlen`", collections.deque[int], lambda: collections.deque([1], maxlen=3)),
    Case(
        "a `defaultdict`, `OrderedDict` or `Counter` for `dict` or `Mapping`",
        Mapping[str, int],
        lambda: collections.Counter("aab"),
        "as a `dict`, which equals it",
        equal_only,
    ),
    Case("dict keys by their annotation", dict[Colour | int, int], lambda: {Colour.RED: 1, 2: 3}),
    Case("dict keys that look the same in JSON", dict[int | str, int], lambda: {1: 1, "1": 2}),
    Case("a tuple as a dict key", dict[tuple[int, int], int], lambda: {(1, 2): 3}),
    Case("`NamedTuple`", Place, lambda: Place(1)),
    Case(
        "a `NamedTuple` for `tuple`", tuple[int, float], lambda: Place(1), "as a `tuple`, which equals it", equal_only
    ),
    Case("`TypedDict`", Options, lambda: {"width": 1}),
    Case("a key that the `TypedDict` does not have", Options, lambda: {"width": 1, "height": 2}),
    # models
    Case("a model", Dog, lambda: Dog(name="Rex")),
    Case(
        "a model, fields that were not set",
        Partial,
        lambda: Partial(name="a"),
        "equal; `model_fields_set` then has all fields",
    ),
    Case("a model with extra values allowed", Open, lambda: Open(name="a", age=3)),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Case("a model with aliases", Aliased, lambda: Aliased(fullName="a"), "by name"),
    Case("a `RootModel`, a generic model", Box[Numbers], lambda: Box[Numbers](item=Numbers([1]))),
    Case("a generic model without its type: a JSON value", Box, lambda: Box(item={"a": 1})),
    Case("a generic model without its type: a dataclass", Box, lambda: Box(item=Point(1))),
    Case("an instance of a subclass of the annotated model", Dog, lambda: Puppy(name="Rex")),
    Case("the same inside a container", dict[str, list[Dog]], lambda: {"a": [Puppy(name="Rex")]}),
    Case("a union with a discriminator", list[PET], lambda: [TaggedDog(name="Rex"), TaggedCat(name="Tom")]),
    Case("a union of models whose fields look the same", Cat | Dog, lambda: Dog(name="Rex")),
    Case("`Field(exclude=True)`, its default", Excluding, lambda: Excluding(name="a")),
    Case("`Field(exclude=True)`, another value", Excluding, with_token),
    Case("a private attribute, its default", Private, lambda: Private(name="a")),
    Case("a private attribute, another value", Private, seen),
    Case(
        "a private attribute that cannot be compared",
        Locked,
        lambda: Locked(name="a"),
        "a new one is made; what has no `==` and no attributes is compared as JSON",
        same_name,
    ),
    Case("computed fields, cached properties", Computed, lambda: Computed(width=3), "computed again"),
    Case("a serializer that loses nothing", ROUNDED, lambda: 1.5),
    Case("a serializer that rounds", ROUNDED, lambda: 1.26),
    Case("`@field_serializer` that rounds", Rounding, lambda: Rounding(price=1.26)),
    Case("`@model_serializer` that leaves a field out", Shortening, lambda: Shortening(first="a", last="b")),
    Case("a model with an `==` of its own, a field that is lost", SameId, lambda: SameId(id=1, note="n")),
    Case("a validator that changes nothing", STRIPPED, lambda: "x"),
    Case("a validator that changes the value", STRIPPED, lambda: " x "),
    Case("a function as a validator, the same", TITLED, lambda: "rex"),
    # dataclasses
    Case("a dataclass", list[Point], lambda: [Point(1)]),
    Case("an instance of a subclass of the annotated dataclass", Point, lambda: Point3(1)),
    Case("`field(init=False)` that `__post_init__` derives", Derived, lambda: Derived(3)),
    Case("`field(init=False)`, another value", Derived, other_area),
    Case("`field(init=False, compare=False)`, another value", Uncompared, noted),
    Case("an attribute that is not a field", Point, annotated_later),
    Case("`InitVar` that a field depends on", Built, lambda: Built("a", 5)),
    Case("a dataclass without `==`", Faceless, lambda: Faceless([1]), "compared by its fields", same_items),
    # results
    Case("`TaskResult[T, TaskError]`", TaskResult[Point, TaskError], lambda: TaskResult[Point, TaskError](ok=Point(1))),
    Case(
        "a `TaskError` whose data is not a JSON value",
        TaskResult[int, TaskError],
        lambda: TaskResult[int, TaskError](err=TaskError(error_code="X", data=(1, 2))),
    ),
    # secrets
    Case("`SecretStr`, `SecretBytes`, `Secret[T]`", SecretBytes, lambda: SecretBytes(b"x")),
    Case("a secret in a model", Login, lambda: Login(password=SecretStr("x"))),
    Case("a secret in a dataclass, a container, a generic", Box[dict[str, Vault]], lambda: None),
    Case("a secret where a model takes `Any`", Box[Any], lambda: Box[Any](item=SecretStr("x"))),
]

app = Horsies()
REFUSED: dict[int, TaskDefinitionError] = {}
"""Why the tasks of a case could not be defined, by its number."""


def _define(number: int, case: Case) -> None:
    def take(value: Any) -> TaskResult[None, TaskError]:
        if case.is_same(case.make(), value):
            return TaskResult(ok=None)
        return TaskResult(err=TaskError(error_code="ARRIVED_CHANGED", message=repr(value)))

    def give() -> TaskResult[Any, TaskError]:
        return TaskResult(ok=case.make())

    take.__annotations__["value"] = case.annotation
    give.__annotations__["return"] = TaskResult[case.annotation, TaskError]
    try:
        app.task(f"take_{number}")(take)
        if not isinstance(case.annotation, TypeVar):  # a task returns something definite
            app.task(f"give_{number}")(give)
    except TaskDefinitionError as error:
        REFUSED[number] = error


for _number, _case in enumerate(CASES):
    _define(_number, _case)
