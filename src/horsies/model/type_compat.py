"""Check whether a value of one annotated type may be passed where another is annotated, for the edges of a workflow's graph.

The check is lenient, because a type checker sees more: only certain mismatches are refused, and a type that is not understood here fits.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import BaseModel

from horsies.model.result import TaskError, TaskResult
from horsies.model.signature import UNIONS, display_type

_WIDER: Final = {(int, float), (int, complex), (float, complex)}  # which type checkers accept


def is_assignable(produced: Any, wanted: Any) -> bool:
    """Return whether a value of the type `produced` may be passed where `wanted` is annotated."""
    produced, wanted = _strip(produced), _strip(wanted)
    if _is_open(produced) or _is_open(wanted):
        return True
    if get_origin(produced) in UNIONS:
        return all(is_assignable(member, wanted) for member in get_args(produced))
    if get_origin(wanted) in UNIONS:
        return any(is_assignable(produced, member) for member in get_args(wanted))
    if get_origin(produced) is Literal:
        literals = get_args(wanted) if get_origin(wanted) is Literal else None
        values = get_args(produced)
        return all(_classes_fit(type(v), wanted) if literals is None else v in literals for v in values)
    if get_origin(wanted) is Literal:
        return isinstance(produced, type) and issubclass(produced, Enum)  # a member may be one of the literals
    return _classes_fit(produced, wanted)


def is_value_assignable(value: object, wanted: Any) -> bool:
    """Return whether a value may be passed where a type is annotated."""
    kind = type(value)
    match value:
        case None | bool() | int() | str() | bytes() | Enum():
            return is_assignable(Literal[value], wanted)
        case dict():
            steps = ((str(key), item) for key, item in cast("Mapping[object, object]", value).items())
        case list() | tuple():
            steps = enumerate(cast("Sequence[object]", value))
        case _:
            steps = ()
    return is_assignable(kind, wanted) and all(
        is_value_assignable(item, item_type(wanted, step)) for step, item in steps
    )


def result_of(tp: Any) -> Any:
    return TaskResult[tp, TaskError]


def takes_result(wanted: Any) -> bool:
    """Return whether a parameter takes the whole result: its annotation is a TaskResult, or a union that contains one."""
    wanted = _strip(wanted)
    if get_origin(wanted) in UNIONS:
        return any(takes_result(member) for member in get_args(wanted))
    return wanted is TaskResult or get_origin(wanted) is TaskResult


def list_item_type(tp: Any) -> tuple[Any] | None:
    """Return the type of the items of a list, in a tuple; None for a type that is certainly not a list."""
    tp = _strip(tp)
    if _is_open(tp):
        return (Any,)
    if get_origin(tp) in UNIONS:
        items = [list_item_type(member) for member in get_args(tp)]
        return None if None in items else (Union[tuple(item[0] for item in items if item)],)  # noqa: UP007 - a tuple of types
    kind, inner = get_origin(tp) or tp, get_args(tp)
    if not isinstance(kind, type) or not issubclass(kind, Sequence | AbstractSet) or issubclass(kind, str | bytes):
        return None
    if issubclass(kind, tuple):
        members = tuple(member for member in inner if member is not Ellipsis)
        return (Union[members] if members else Any,)  # noqa: UP007 - a tuple of types
    return (inner[0] if inner else Any,)


def item_type(tp: Any, step: str | int) -> Any:
    """Return the type of one item of a list, or of one key of a dict; Any if it is not known."""
    tp = _strip(tp)
    if get_origin(tp) in UNIONS:
        others = [member for member in get_args(tp) if member is not type(None)]
        return item_type(others[0], step) if len(others) == 1 else Any
    if is_typeddict(tp):
        return get_type_hints(tp).get(str(step), Any)
    kind, inner = get_origin(tp) or tp, get_args(tp)
    if not isinstance(kind, type) or not inner:
        return Any
    if issubclass(kind, Mapping):
        return inner[1] if isinstance(step, str) and len(inner) > 1 else Any
    if issubclass(kind, tuple) and Ellipsis not in inner:
        return inner[step] if isinstance(step, int) and step < len(inner) else Any
    return inner[0] if isinstance(step, int) and issubclass(kind, Sequence | AbstractSet) else Any


def type_name(tp: Any) -> str:
    return display_type(tp).replace("horsies.model.result.", "").replace("typing.", "")


def _strip(tp: Any) -> Any:
    """Return a type without `Annotated`, aliases and `NewType`, and None as a type."""
    while True:
        if tp is None:
            return type(None)
        if get_origin(tp) is Annotated:
            tp = get_args(tp)[0]
        elif isinstance(tp, NewType):
            tp = cast("Any", tp).__supertype__
        elif type(tp).__name__ == "TypeAliasType":
            tp = tp.__value__
        else:
            return tp


def _is_open(tp: Any) -> bool:
    """Return whether a type accepts values that cannot be known here."""
    kind = get_origin(tp) or tp
    if kind in {Any, object} or isinstance(kind, TypeVar | str):
        return True
    if kind in UNIONS or kind is Literal:
        return False
    if not isinstance(kind, type):
        return True
    # A class that stands for another type, as AwareDatetime does for datetime, or for a structure, as a protocol does.
    is_stand_in = kind.__module__.partition(".")[0] == "pydantic" and not issubclass(kind, BaseModel)
    return is_stand_in or getattr(kind, "_is_protocol", False)


def _classes_fit(produced: Any, wanted: Any) -> bool:
    made, asked = get_origin(produced) or produced, get_origin(wanted) or wanted
    if is_typeddict(made) or is_typeddict(asked):  # their keys are for a type checker to compare
        return all(is_typeddict(tp) or (isinstance(tp, type) and issubclass(tp, Mapping)) for tp in (made, asked))
    if (made, asked) in _WIDER:
        return True
    try:
        if not issubclass(made, asked):
            return False
    except TypeError:  # a class that does not support issubclass
        return True
    inner, outer = get_args(produced), get_args(wanted)
    if inner and outer and made is asked and get_origin(produced) is tuple:
        if Ellipsis in outer:
            outer = (outer[0],) * len(inner)
        elif Ellipsis in inner or len(inner) != len(outer):
            return False
    pairs = zip(inner, outer, strict=True) if len(inner) == len(outer) else ()  # others are not comparable
    return all(Ellipsis in pair or is_assignable(*pair) for pair in pairs)
