"""Compare a value that was sent with the value that its payload is read as.

JSON has strings, numbers and null, so a reader sometimes takes one value for another: NaN in a model becomes null and then
None, an enum member in `Colour | str` becomes its text, the keys 1 and "1" become one. Other types keep less than they hold: excluded
fields, private attributes, serializers that round, subclasses of the annotated class. None of this raises an error on its own.

`==` alone does not tell. It may be the user's own, or leave fields out (`field(compare=False)`), and Python holds True and 1, or a set and
a frozenset, for equal. `trusts_equality` says, once per annotation, whether `==` is enough; if it is not, or if it says no, `change` compares part by part:

- models and dataclasses: the same class, the same fields, private attributes and extra values;
- containers: the same type (or a base of it: a `defaultdict` may arrive as a `dict`), the same members;
- all others: the same type or a base of it (a `StrEnum` member may arrive as a `str`), and equal. An int may arrive as an equal float. NaN is the
  same as NaN, and aware datetimes are the same if they are the same instant. An object without an `==` of its own is compared by its attributes;
  one that has none of these is taken for the same if it is written as the same JSON again.
"""

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from pydantic import BaseModel

from horsies.model.payload_errors import MISSING, ValueChange
from horsies.model.result import TaskError, TaskResult

_SUBCLASS: Final = "annotate the class that is sent, or a union of the classes that a discriminator tells apart"
_ITERATOR: Final = "annotate it as list[...]"
_SEQUENCE: Final = "annotate the type that is sent, such as tuple[int, ...], or send a list"
_EXCLUDED: Final = "it is excluded from the JSON of its model; include the field, or send it as an argument of its own"
_PRIVATE: Final = "private attributes are not part of the JSON; make it a field, or send it as an argument of its own"
_NOT_INIT: Final = (
    "it is not a parameter of its class, so it cannot be restored; use field(init=True), or derive it in __post_init__"
)
_NOT_A_FIELD: Final = "it is not a field of its class; declare it as one"


def find_change(
    given: object, checked: object, arrived: object, is_same_json: Callable[[], bool]
) -> ValueChange | None:
    """Return the first difference between what was given and what arrives.

    `checked` is what the annotation makes of a value. It tells where an enum member would be lost: for `str` it is the text of a `StrEnum` member,
    which then arrives, but for `Colour | str` it is the member. `is_same_json`: what arrived is written as the JSON that was sent.
    """
    try:
        comparison = _Comparison(is_same_json)
        found = comparison.find(given, arrived)
        if found is None and comparison.met_enums:
            found = _Comparison(is_same_json, keeps_enums=True).find(checked, arrived)
    except RecursionError:  # attributes that refer to each other in a long chain; payloads themselves have a limit
        return ValueChange(
            given, arrived, advice="it is nested too deeply to be compared: send it flatter", is_hidden=True
        )
    return found


class _Comparison:
    """Written for speed where there is no difference: a place is made up only on the way back from one."""

    def __init__(self, is_same_json: Callable[[], bool], *, keeps_enums: bool = False) -> None:
        self.met_enums = False
        self._is_same_json = is_same_json
        self._keeps_enums = keeps_enums
        self._begun: set[tuple[int, int]] = set()
        """Objects whose attributes are being compared: they may refer to each other."""

    def find(self, sent: object, arrived: object) -> ValueChange | None:
        if sent is arrived:
            return None
        if type(sent) is not type(arrived) and not self._may_arrive_as(sent, arrived):
            return ValueChange(sent, arrived, advice=_advice_on_type(sent, arrived))
        return _way_to_compare(type(sent))(self, sent, arrived)

    def _may_arrive_as(self, sent: object, arrived: object) -> bool:
        left, right = type(sent), type(arrived)
        if isinstance(sent, Enum) and not isinstance(arrived, Enum):
            self.met_enums = True
            if self._keeps_enums:
                return False
        if _has_fields(left) or _has_fields(right):
            return _generic_class(left) is _generic_class(right)
        if left is bool or right is bool:
            return False
        if isinstance(sent, Mapping) and isinstance(arrived, Mapping):
            return True
        return right in left.__mro__ or (right is float and isinstance(sent, int))

    def scalar(self, sent: Any, arrived: Any) -> ValueChange | None:
        if sent == arrived or (sent != sent and arrived != arrived):  # noqa: PLR0124 - NaN
            return None
        return ValueChange(sent, arrived)

    def mapping(self, sent: Mapping[Any, Any], arrived: Mapping[Any, Any]) -> ValueChange | None:
        if isinstance(sent, defaultdict) and isinstance(arrived, defaultdict):
            found = self.find(sent.default_factory, arrived.default_factory)
            if found:
                return found.inside("default_factory")
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        known = {key: key for key in arrived}
        others = (key for key in arrived if key not in sent)  # NaN, which is never found
        for key, value in sent.items():
            other = known[key] if key in known else next(others, MISSING)
            if isinstance(key, str) != isinstance(other, str):  # 1 and "1"
                return ValueChange(sent, arrived)
            found = self.find(key, other) or self.find(value, arrived[other])
            if found:
                return found.inside(key if type(key) in {int, str} else repr(key))
        return None

    def members(self, sent: AbstractSet[Any], arrived: AbstractSet[Any]) -> ValueChange | None:
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        known = {member: member for member in arrived}
        others = [member for member in arrived if member not in sent]
        for number, member in enumerate(sent):
            if member in known:
                if found := self.find(member, known[member]):
                    return found.inside(number)
                continue
            # NaN, or objects without an ==: these have no order, so any that is the same will do.
            same = next((place for place, other in enumerate(others) if not self.find(member, other)), None)
            if same is None:
                return ValueChange(sent, arrived)
            del others[same]
        return None

    def elements(self, sent: Sequence[Any], arrived: Sequence[Any]) -> ValueChange | None:
        if isinstance(sent, deque) and isinstance(arrived, deque):
            found = self.find(sent.maxlen, arrived.maxlen)
            if found:
                return found.inside("maxlen")
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        for number, (left, right) in enumerate(zip(sent, arrived, strict=True)):
            found = self.find(left, right)
            if found:
                names = getattr(type(sent), "_fields", None)  # of a named tuple
                return found.inside(names[number] if names else number)
        return None

    def halves(self, sent: TaskResult[Any, TaskError], arrived: TaskResult[Any, TaskError]) -> ValueChange | None:
        if sent.is_ok() != arrived.is_ok():
            return ValueChange(sent, arrived)
        found, step = (
            (self.find(sent.ok, arrived.ok), "ok") if sent.is_ok() else (self.find(sent.err, arrived.err), "err")
        )
        return found.inside(step) if found else None

    def model(self, sent: BaseModel, arrived: BaseModel) -> ValueChange | None:
        left, right = sent.__dict__, arrived.__dict__
        for field in _model_fields(type(sent)):
            found = self.find(left.get(field.name, MISSING), right.get(field.name, MISSING))
            if found:
                return found.inside(field.name, field.advice, is_hidden=field.is_hidden)
        if found := self.attributes(_slot(sent, "__pydantic_extra__"), _slot(arrived, "__pydantic_extra__")):
            return found
        private = _slot(sent, "__pydantic_private__"), _slot(arrived, "__pydantic_private__")
        found = self.attributes(*private) if any(private) and self._begins(sent, arrived) else None
        return found._replace(advice=_PRIVATE, is_hidden=True) if found else None

    def dataclass(self, sent: object, arrived: object) -> ValueChange | None:
        fields, names = _dataclass_fields(type(sent))
        for field in fields:
            found = self.find(getattr(sent, field.name, MISSING), getattr(arrived, field.name, MISSING))
            if found:
                return found.inside(field.name, field.advice, is_hidden=field.is_hidden)
        if names.issuperset(getattr(sent, "__dict__", ())) and names.issuperset(getattr(arrived, "__dict__", ())):
            return None
        if not self._begins(sent, arrived):
            return None
        others = (
            {name: value for name, value in _attributes(each).items() if name not in names} for each in (sent, arrived)
        )
        found = self.attributes(*others)
        return found._replace(advice=_NOT_A_FIELD) if found else None

    def attributes(self, sent: Mapping[str, object], arrived: Mapping[str, object]) -> ValueChange | None:
        for name in sent if sent.keys() == arrived.keys() else {**sent, **arrived}:
            found = self.find(sent.get(name, MISSING), arrived.get(name, MISSING))
            if found:
                return found.inside(name)
        return None

    def opaque(self, sent: object, arrived: object) -> ValueChange | None:
        """Compare two objects without an `==` of their own."""
        if not self._begins(sent, arrived):
            return None
        attributes = _attributes(sent)
        if not attributes:
            return None if self._is_same_json() else ValueChange(sent, arrived)
        return self.attributes(attributes, _attributes(arrived))

    def _begins(self, sent: object, arrived: object) -> bool:
        """Whether this is the first comparison of their attributes."""
        pair = (id(sent), id(arrived))
        is_first = pair not in self._begun
        self._begun.add(pair)
        return is_first

    def other(self, sent: Any, arrived: Any) -> ValueChange | None:
        try:
            equal = sent == arrived
        except Exception:  # noqa: BLE001 - an == of the user's own
            equal = None
        if not isinstance(equal, bool):  # nor one that compares element by element
            equal = self._is_same_json()
        match sent, arrived:
            case (float(), float()) | (Decimal(), Decimal()):
                equal = equal or (math.isnan(sent) and math.isnan(arrived))
            case (datetime(), datetime()) if sent.tzinfo and arrived.tzinfo:
                # In an hour that occurs twice an aware datetime equals none of another zone.
                equal = equal or sent.astimezone(UTC) == arrived.astimezone(UTC)
            case (time(), time()):
                equal = equal and (sent.tzinfo is None) == (arrived.tzinfo is None)
            case _:
                pass
        return None if equal else ValueChange(sent, arrived)


_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes, bytearray, date, timedelta, UUID})


Way: TypeAlias = Callable[[_Comparison, Any, Any], ValueChange | None]

_WAYS: Final[tuple[tuple[Any, Way], ...]] = (
    (BaseModel, _Comparison.model),
    (TaskResult, _Comparison.halves),
    (str | bytes | memoryview | Enum, _Comparison.other),
    (Mapping, _Comparison.mapping),
    (AbstractSet, _Comparison.members),
    (Sequence, _Comparison.elements),
)


@lru_cache(maxsize=1_000)  # asked for each part of a value, and abstract classes take long to answer
def _way_to_compare(kind: Any) -> Way:
    if kind in _SCALARS:
        return _Comparison.scalar
    if dataclasses.is_dataclass(kind):
        return _Comparison.dataclass
    default = _Comparison.opaque if kind.__eq__ is object.__eq__ else _Comparison.other
    return next((way for kinds, way in _WAYS if issubclass(kind, kinds)), default)


def _advice_on_type(sent: object, arrived: object) -> str | None:
    if type(arrived).__name__ in {"ValidatorIterator", "SerializationIterator"}:
        return _ITERATOR
    if _has_fields(type(sent)) and type(arrived) in type(sent).__mro__:
        return _SUBCLASS
    is_collection = isinstance(sent, Sequence | AbstractSet) and not isinstance(sent, str | bytes)
    return _SEQUENCE if is_collection and isinstance(arrived, Sequence | AbstractSet) else None


class _Field(NamedTuple):
    name: str
    advice: str | None
    is_hidden: bool


@lru_cache(maxsize=1_000)
def _model_fields(kind: type[BaseModel]) -> tuple[_Field, ...]:
    return tuple(
        _Field(name, _EXCLUDED if field.exclude else None, is_hidden=bool(field.exclude) or not field.repr)
        for name, field in kind.model_fields.items()
    )


@lru_cache(maxsize=1_000)
def _dataclass_fields(kind: Any) -> tuple[tuple[_Field, ...], frozenset[str]]:
    """Return the fields, and their names."""
    fields = tuple(
        _Field(field.name, None if field.init else _NOT_INIT, is_hidden=not field.repr)
        for field in dataclasses.fields(kind)
    )
    return fields, frozenset(field.name for field in fields)


@lru_cache(maxsize=1_000)
def _has_fields(kind: Any) -> bool:
    return issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


def _slot(value: BaseModel, name: str) -> Mapping[str, object]:
    """Return the extra values or the private attributes of a model; a class that makes its instances by hand may not have set them."""
    return getattr(value, name, None) or {}


def _generic_class(kind: type) -> type:
    """Return `Box` for `Box[int]`: pydantic's models have a class for each."""
    return getattr(kind, "__pydantic_generic_metadata__", {}).get("origin") or kind


def _attributes(value: object) -> dict[str, object]:
    """Return the attributes of an object, without what a `cached_property` has stored."""
    kind = type(value)
    found: dict[str, object] = dict(getattr(value, "__dict__", {}))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"} and hasattr(value, name):
                found[name] = getattr(value, name)
    return {name: item for name, item in found.items() if not isinstance(getattr(kind, name, None), cached_property)}


# -- when == is enough

_EXACT: Final = frozenset(
    {"none", "bool", "int", "float", "str", "bytes", "date", "datetime", "timedelta", "uuid", "decimal", "enum"}
)
_INNER: Final = {
    "list": ("items_schema",),
    "tuple": ("items_schema",),
    "set": ("items_schema",),
    "frozenset": ("items_schema",),
    "dict": ("keys_schema", "values_schema"),
    "nullable": ("schema",),
    "default": ("schema",),
    "definitions": ("schema", "definitions"),
    "typed-dict": ("fields",),
    "typed-dict-field": ("schema",),
    "model": ("schema",),
    "model-fields": ("fields",),
    "model-field": ("schema",),
}


def is_equality_exact(schema: Any, is_json_only: Callable[[object], bool]) -> bool:
    """Whether `==` of two values of this schema of pydantic's is True only if nothing has changed.

    So for what is built of plain types, their containers, and models of them with pydantic's own `==`. `is_json_only` knows the
    validator that lets only JSON values pass.
    """
    match schema["type"]:
        case "definition-ref":  # which is among the definitions
            return True
        case "literal":
            return all(type(each) is str for each in schema["expected"])
        case "function-after":
            return is_json_only(schema["function"]["function"])
        case kind if kind in _EXACT:
            return True
        case kind:
            return _is_plain_node(schema) and all(
                is_equality_exact(inner, is_json_only) for name in _INNER[kind] for inner in _schemas(schema[name])
            )


def _is_plain_node(schema: Any) -> bool:
    inner = _INNER.get(schema["type"])
    if inner is None or not all(name in schema for name in inner):  # such as a list of anything
        return False
    if schema.get("extra_behavior") == "allow" or schema.get("post_init") or schema.get("custom_init"):
        return False
    kind = schema.get("cls")
    return not (schema["type"] == "model" and (kind.__eq__ is not BaseModel.__eq__ or kind.__private_attributes__))


def _schemas(found: Any) -> Iterable[Any]:
    """Return one schema, several, or those of fields by name, as a list."""
    if isinstance(found, Mapping) and "type" not in found:
        return cast("Mapping[str, Any]", found).values()
    if isinstance(found, Mapping) and isinstance(cast("Any", found)["type"], Mapping):  # a field whose name is "type"
        return cast("Mapping[str, Any]", found).values()
    return [found] if isinstance(found, Mapping) else found
