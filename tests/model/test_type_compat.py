"""Which edges of a graph are refused because of their types, and which types are inside others."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, TypeVar

import pytest
from pydantic import AwareDatetime, BaseModel, PositiveInt
from typing_extensions import TypeAliasType

from horsies import TaskError, TaskResult
from horsies.model.type_compat import is_assignable, is_value_assignable, item_type, list_item_type, takes_result

T = TypeVar("T")
UserId = NewType("UserId", int)
Pages = TypeAliasType("Pages", list[str])


class Page(BaseModel):
    url: str


class LongPage(Page):
    length: int


@dataclass
class Point:
    x: int


class Size(NamedTuple):
    width: int


class Colour(Enum):
    RED = "red"


class Keys(TypedDict):
    pages: list[Page]
    name: str


class Shape(Protocol):
    x: int


SAME_OR_WIDER: list[tuple[Any, Any]] = [
    (int, int),
    (bool, int),
    (int, float),
    (LongPage, Page),
    (int, int | None),
    (int, Optional[int]),  # noqa: UP045 - the older way to write it
    (None, int | None),
    (int | str, str | int | None),
    (list[int], list[float]),
    (list[int], Sequence[int]),
    (dict[str, int], Mapping[str, int]),
    (list[int], list),
    (list, list[int]),
    (tuple[int, int], tuple[int, ...]),
    (tuple[int, str], tuple[int, str]),
    (Literal["a"], str),
    (Literal["a"], Literal["a", "b"]),
    (Colour, Literal[Colour.RED]),
    (UserId, int),
    (int, UserId),
    (Pages, list[str]),
    (int, PositiveInt),
    (Annotated[int, "note"], int),
    (Keys, dict[str, Any]),
    (TaskResult[int, TaskError], TaskResult[float, TaskError]),
]
CANNOT_BE_TOLD: list[tuple[Any, Any]] = [
    (Any, int),
    (int, Any),
    (object, int),
    (int, object),
    (T, int),
    (Point, Shape),
    (datetime, AwareDatetime),
    ("Page", int),
]
OTHERS: list[tuple[Any, Any]] = [
    (str, int),
    (int, str),
    (float, int),
    (Decimal, float),
    (Page, LongPage),
    (Page, Point),
    (int, None),
    (int | None, int),
    (str, list[str]),
    (list[str], list[int]),
    (dict[str, str], dict[str, int]),
    (tuple[int, ...], tuple[int, int]),
    (tuple[int, int], tuple[int]),
    (list[int], dict[str, int]),
    (Literal["c"], Literal["a", "b"]),
    (Literal[1], str),
    (str, Literal["a"]),
    (Keys, list[str]),
    (int, TaskResult[int, TaskError]),
    (TaskResult[int, TaskError], int),
    (TaskResult[str, TaskError], TaskResult[int, TaskError]),
]


@pytest.mark.parametrize(("produced", "wanted"), [*SAME_OR_WIDER, *CANNOT_BE_TOLD])
def test_the_same_type_a_wider_one_and_an_unknown_one_fit(produced: Any, wanted: Any) -> None:
    assert is_assignable(produced, wanted)


@pytest.mark.parametrize(("produced", "wanted"), OTHERS)
def test_another_type_does_not_fit(produced: Any, wanted: Any) -> None:
    assert not is_assignable(produced, wanted)


@pytest.mark.parametrize(
    ("value", "wanted", "fits"),
    [
        (Size(1), Size, True),
        (Size(1), tuple[int], True),
        (Size(1), tuple[str], False),
        (OrderedDict[str, int](a=1), OrderedDict[str, int], True),
        ({"a": 1}, OrderedDict[str, int], False),
        ([1, "a"], list[int], False),
    ],
)
def test_a_value_fits_its_own_class_and_the_types_of_its_items(value: object, wanted: Any, *, fits: bool) -> None:
    assert is_value_assignable(value, wanted) is fits


@pytest.mark.parametrize(
    ("tp", "item"),
    [
        (list[int], (int,)),
        (Sequence[Page], (Page,)),
        (set[str], (str,)),
        (tuple[int, ...], (int,)),
        (tuple[int, str], (int | str,)),
        (list, (Any,)),
        (Any, (Any,)),
        (Pages, (str,)),
        (list[int] | tuple[str, ...], (int | str,)),
        (str, None),
        (bytes, None),
        (dict[str, int], None),
        (int, None),
        (list[int] | None, None),
    ],
)
def test_the_item_type_of_a_list_is_found(tp: Any, item: Any) -> None:
    assert list_item_type(tp) == item


@pytest.mark.parametrize(
    ("tp", "step", "found"),
    [
        (list[Page], 0, Page),
        (dict[str, Page], "a", Page),
        (tuple[int, str], 1, str),
        (tuple[int, ...], 5, int),
        (Keys, "pages", list[Page]),
        (Keys, "other", Any),
        (list, 0, Any),
        (Any, 0, Any),
        (list[int] | None, 0, int),
        (list[int] | list[str], 0, Any),
        (Page, "url", Any),
    ],
)
def test_the_type_at_a_step_is_found(tp: Any, step: str | int, found: Any) -> None:
    assert item_type(tp, step) == found


@pytest.mark.parametrize(
    ("tp", "whole"),
    [
        (TaskResult[int, TaskError], True),
        (TaskResult, True),
        (TaskResult[int, TaskError] | None, True),
        (Annotated[TaskResult[int, TaskError], "note"], True),
        (int, False),
        (list[TaskResult[int, TaskError]], False),
        (Any, False),
    ],
)
def test_parameters_that_take_a_whole_result_are_recognized(tp: Any, *, whole: bool) -> None:
    assert takes_result(tp) is whole
