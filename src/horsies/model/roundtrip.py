"""Compare a value with what it would arrive as, after it was written as JSON and read back.

JSON has strings, numbers and null, so a reader sometimes takes one value for another: NaN in a model becomes null and then
None, an enum member in `Colour | str` becomes its text, the keys 1 and "1" become one. Other types keep less than they hold: excluded
fields, private attributes, serializers that round, subclasses of the annotated class. None of this raises an error on its own.

`==` alone does not detect this. It may be the user's own, or ignore fields (`field(compare=False)`), and in Python True equals 1, and a set
equals a frozenset. `codec.py` finds out, once per annotation, whether `==` is enough. If it is not, or if it returns False, `find_change`
compares part by part:

- models and dataclasses: the same class, the same fields, private attributes and extra values;
- containers: the same type (or a base of it: a `defaultdict` may arrive as a `dict`), the same items;
- all others: the same type or a base of it (a `StrEnum` member may arrive as a `str`), and equal. An int may arrive as an equal float. NaN is the
  same as NaN, and aware datetimes are the same if they are the same instant. An object without an `==` of its own is compared by its attributes;
  one that has none is considered the same if it is written as the same JSON again.
"""

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from pydantic import BaseModel

from horsies.model.payload_errors import MISSING, ValueChange
from horsies.model.result import TaskResult

_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes, bytearray, date, timedelta, UUID})


def find_change(
    given: object, checked: object, arrived: object, is_same_json: Callable[[], bool]
) -> ValueChange | None:
    """Return the first difference between the value that was given and the one that arrives.

    `checked` is the value after validation. It shows where an enum member would be lost: for `str` it is the text of a `StrEnum` member,
    which then arrives, but for `Colour | str` it is the member. `is_same_json` returns whether what arrived is written as the same JSON.
    """
    try:
        comparison = _Comparison(is_same_json)
        change = comparison.find(given, arrived)
        if change is None and comparison.met_enums:
            change = _Comparison(is_same_json, keeps_enums=True).find(checked, arrived)
    except RecursionError:  # a long chain of attributes that refer to each other; payloads themselves have a limit
        advice = "it is nested too deeply to be compared: send it flatter"
        return ValueChange(given, arrived, advice=advice, is_hidden=True)
    return change


class _Comparison:
    """Compare two values part by part. Optimized for equal values: the place of a difference is built on the way back from it."""

    def __init__(self, is_same_json: Callable[[], bool], *, keeps_enums: bool = False) -> None:
        self.met_enums = False
        self._is_same_json = is_same_json
        self._keeps_enums = keeps_enums
        self._begun: set[tuple[int, int]] = set()
        """Pairs of objects whose attributes are being compared: they may refer to each other."""

    def find(self, sent: object, arrived: object) -> ValueChange | None:
        if sent is arrived:
            return None
        kind: Any = type(sent)
        if kind is not type(arrived) and not self._may_arrive_as(sent, arrived):
            return ValueChange(sent, arrived, advice=_type_advice(sent, arrived))
        if kind not in _SCALARS:
            return _comparison_for(kind)(self, sent, arrived)
        is_same = sent == arrived or (sent != sent and arrived != arrived)  # noqa: PLR0124 - NaN
        return None if is_same else ValueChange(sent, arrived)

    def _may_arrive_as(self, sent: object, arrived: object) -> bool:
        left, right = type(sent), type(arrived)
        if isinstance(sent, Enum) and not isinstance(arrived, Enum):
            self.met_enums = True
            if self._keeps_enums:
                return False
        if _has_fields(left) or _has_fields(right):
            # For `Box[int]` compare `Box`: pydantic creates a class for each.
            generic = [
                getattr(kind, "__pydantic_generic_metadata__", {}).get("origin") or kind for kind in (left, right)
            ]
            return generic[0] is generic[1]
        if left is bool or right is bool:
            return False
        if isinstance(sent, Mapping) and isinstance(arrived, Mapping):
            return True
        return right in left.__mro__ or (right is float and isinstance(sent, int))

    def compare_mappings(self, sent: Mapping[Any, Any], arrived: Mapping[Any, Any]) -> ValueChange | None:
        if isinstance(sent, defaultdict) and isinstance(arrived, defaultdict):
            change = self.find(sent.default_factory, arrived.default_factory)
            if change:
                return change.inside("default_factory")
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        known = {key: key for key in arrived}
        others = (key for key in arrived if key not in sent)  # NaN keys, which are never change
        for key, value in sent.items():
            other = known[key] if key in known else next(others, MISSING)
            if isinstance(key, str) != isinstance(other, str):  # 1 and "1"
                return ValueChange(sent, arrived)
            if change := self.find(key, other) or self.find(value, arrived[other]):
                return change.inside(key if type(key) in {int, str} else repr(key))
        return None

    def compare_sets(self, sent: AbstractSet[Any], arrived: AbstractSet[Any]) -> ValueChange | None:
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        known = {item: item for item in arrived}
        others = [item for item in arrived if item not in sent]
        for number, item in enumerate(sent):
            if item in known:
                if change := self.find(item, known[item]):
                    return change.inside(number)
                continue
            # NaN, or objects without an ==. A set has no order, so any item that is the same matches.
            same = next((place for place, other in enumerate(others) if not self.find(item, other)), None)
            if same is None:
                return ValueChange(sent, arrived)
            del others[same]
        return None

    def compare_sequences(self, sent: Sequence[Any], arrived: Sequence[Any]) -> ValueChange | None:
        if isinstance(sent, deque) and isinstance(arrived, deque):
            change = self.find(sent.maxlen, arrived.maxlen)
            if change:
                return change.inside("maxlen")
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        for number, (left, right) in enumerate(zip(sent, arrived, strict=True)):
            if change := self.find(left, right):
                names = getattr(type(sent), "_fields", None)  # of a named tuple
                return change.inside(names[number] if names else number)
        return None

    def compare_results(self, sent: TaskResult[Any, Any], arrived: TaskResult[Any, Any]) -> ValueChange | None:
        if sent.is_ok() != arrived.is_ok():
            return ValueChange(sent, arrived)
        return self.compare_attributes({"ok": sent.ok, "err": sent.err}, {"ok": arrived.ok, "err": arrived.err})

    def compare_models(self, sent: BaseModel, arrived: BaseModel) -> ValueChange | None:
        left, right = sent.__dict__, arrived.__dict__
        for name, (advice, is_hidden) in _fields(type(sent)).items():
            if change := self.find(left.get(name, MISSING), right.get(name, MISSING)):
                return change.inside(name, advice, is_hidden=is_hidden)
        # An instance that was not made by pydantic may not have these.
        extra: list[dict[str, Any]] = [getattr(each, "__pydantic_extra__", None) or {} for each in (sent, arrived)]
        if change := self.compare_attributes(*extra):
            return change
        private: list[dict[str, Any]] = [getattr(each, "__pydantic_private__", None) or {} for each in (sent, arrived)]
        change = self.compare_attributes(*private) if any(private) and self._begin(sent, arrived) else None
        advice = "private attributes are not part of the JSON; make it a field, or send it as an argument of its own"
        return change._replace(advice=advice, is_hidden=True) if change else None

    def compare_dataclasses(self, sent: object, arrived: object) -> ValueChange | None:
        fields = _fields(type(sent))
        for name, (advice, is_hidden) in fields.items():
            if change := self.find(getattr(sent, name, MISSING), getattr(arrived, name, MISSING)):
                return change.inside(name, advice, is_hidden=is_hidden)
        left, right = getattr(sent, "__dict__", fields), getattr(arrived, "__dict__", fields)
        if (left.keys() <= fields.keys() and right.keys() <= fields.keys()) or not self._begin(sent, arrived):
            return None
        pair = (sent, arrived)
        others = ({name: item for name, item in _attributes(each).items() if name not in fields} for each in pair)
        change = self.compare_attributes(*others)
        return change._replace(advice="it is not a field of its class; declare it as one") if change else None

    def compare_attributes(self, sent: Mapping[str, object], arrived: Mapping[str, object]) -> ValueChange | None:
        for name in sent if sent.keys() == arrived.keys() else {**sent, **arrived}:
            if change := self.find(sent.get(name, MISSING), arrived.get(name, MISSING)):
                return change.inside(name)
        return None

    def compare_opaque(self, sent: object, arrived: object) -> ValueChange | None:
        """Compare two objects without an `==` of their own."""
        if not self._begin(sent, arrived):
            return None
        attributes = _attributes(sent)
        if not attributes:
            return None if self._is_same_json() else ValueChange(sent, arrived)
        return self.compare_attributes(attributes, _attributes(arrived))

    def _begin(self, sent: object, arrived: object) -> bool:
        """Remember a pair, and return whether this is the first comparison of their attributes."""
        pair = (id(sent), id(arrived))
        is_first = pair not in self._begun
        self._begun.add(pair)
        return is_first

    def compare_others(self, sent: Any, arrived: Any) -> ValueChange | None:
        try:
            equal = sent == arrived
        except Exception:  # noqa: BLE001 - an == of the user's own
            equal = None
        if not isinstance(equal, bool):  # such as an == that compares element by element
            equal = self._is_same_json()
        match sent, arrived:
            case (float(), float()) | (Decimal(), Decimal()):
                equal = equal or (math.isnan(sent) and math.isnan(arrived))
            case (datetime(), datetime()) if sent.tzinfo and arrived.tzinfo:
                # In an hour that occurs twice, an aware datetime does not equal any datetime of another zone.
                equal = equal or sent.astimezone(UTC) == arrived.astimezone(UTC)
            case (time(), time()):
                equal = equal and (sent.tzinfo is None) == (arrived.tzinfo is None)
            case _:
                pass
        return None if equal else ValueChange(sent, arrived)


Compare: TypeAlias = Callable[[_Comparison, Any, Any], ValueChange | None]

_COMPARISONS: Final[tuple[tuple[Any, Compare], ...]] = (
    (BaseModel, _Comparison.compare_models),
    (TaskResult, _Comparison.compare_results),
    (str | bytes | memoryview | Enum, _Comparison.compare_others),
    (Mapping, _Comparison.compare_mappings),
    (AbstractSet, _Comparison.compare_sets),
    (Sequence, _Comparison.compare_sequences),
)


@lru_cache(maxsize=1_000)  # called for each part of a value, and issubclass is slow for abstract classes
def _comparison_for(kind: Any) -> Compare:
    if dataclasses.is_dataclass(kind):
        return _Comparison.compare_dataclasses
    default = _Comparison.compare_opaque if kind.__eq__ is object.__eq__ else _Comparison.compare_others
    return next((compare for kinds, compare in _COMPARISONS if issubclass(kind, kinds)), default)


def _type_advice(sent: object, arrived: object) -> str | None:
    if type(arrived).__name__ in {"ValidatorIterator", "SerializationIterator"}:
        return "annotate it as list[...]"
    if _has_fields(type(sent)) and type(arrived) in type(sent).__mro__:
        return "annotate the class that is sent, or a union of the classes that a discriminator tells apart"
    if not isinstance(sent, Sequence | AbstractSet) or not isinstance(arrived, Sequence | AbstractSet):
        return None
    is_text = isinstance(sent, str | bytes)
    return None if is_text else "annotate the type that is sent, such as tuple[int, ...], or send a list"


@lru_cache(maxsize=1_000)
def _fields(kind: Any) -> dict[str, tuple[str | None, bool]]:
    """Return, for each field, the advice for a change in it, and whether its value must not be shown."""
    if issubclass(kind, BaseModel):
        advice = "it is excluded from the JSON of its model; include the field, or send it as an argument of its own"
        fields = kind.model_fields.items()
        return {name: (advice, True) if field.exclude else (None, not field.repr) for name, field in fields}
    advice = "it is not a parameter of its class, so it cannot be restored; use field(init=True), or derive it in __post_init__"
    return {field.name: (None if field.init else advice, not field.repr) for field in dataclasses.fields(kind)}


@lru_cache(maxsize=1_000)
def _has_fields(kind: Any) -> bool:
    return issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


def _attributes(value: object) -> dict[str, object]:
    """Return the attributes of an object, without those that a `cached_property` has stored."""
    kind = type(value)
    found: dict[str, object] = dict(getattr(value, "__dict__", {}))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"} and hasattr(value, name):
                found[name] = getattr(value, name)
    return {name: item for name, item in found.items() if not isinstance(getattr(kind, name, None), cached_property)}
